# shellcheck shell=bash source=tests/vm/inside.sh
# podman with the hook definitions of hooks/: its containers get their NICs by an annotation. No image is needed: its
# root is the guest's, under a writable layer.
. "$(dirname "${BASH_SOURCE[0]}")/../inside.sh"

# podman reads the first by itself. CRI-O does, too, and starts no container where a definition there has a stage that it does
# not know: what is for podman alone is in the second.
shared=/usr/share/containers/oci/hooks.d
own=/etc/containers/oci/podman-hooks.d
annotation=(--annotation rdmaprep.io/plan=pod)
export CONTAINERS_STORAGE_CONF=/tmp/ctr/storage.conf CONTAINERS_CONF_OVERRIDE=/tmp/ctr/containers.conf

# installed [precreate]: the definitions, with the one that edits config.json or without; and a podman that needs neither systemd
# nor a disk.
installed() {
  mkdir -p /tmp/ctr /run/podman "$shared" "$own" /etc/containers/containers.conf.d
  printf '[storage]\ndriver = "overlay"\ngraphroot = "/run/podman/graph"\nrunroot = "/run/podman/run"\n' \
    > "$CONTAINERS_STORAGE_CONF"
  printf '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n' > "$CONTAINERS_CONF_OVERRIDE"
  cp /repo/hooks/oci-hooks.d/*.json "$shared"
  # Its deadline is one of hardware; this machine is emulated.
  jq '.hook.args += ["--deadline", "50"]' "/repo/hooks/oci-hooks.d/rdmaprep-createRuntime.json" \
    > "$shared/rdmaprep-createRuntime.json"
  program=$(jq -r .hook.path "$shared/rdmaprep-poststop.json")
  ln -sf "$(command -v rdmaprep)" "$program"
  [ $# = 0 ] || cp "/repo/hooks/podman-hooks.d/rdmaprep-$1.json" "$own"
  printf '[engine]\nhooks_dir = ["%s", "%s"]\n' "$shared" "$own" > /etc/containers/containers.conf.d/rdmaprep.conf
}

undo() {
  podman rm --all --force --time 0 > /dev/null 2>&1 || true
  rm -f "$shared"/rdmaprep-* "$own"/rdmaprep-* /etc/containers/containers.conf.d/rdmaprep.conf "${program:-}"
  # For a bridge, podman has the host forward.
  sysctl -qw net.ipv4.ip_forward=0
}

# podman's version, with that of the runtime below it.
version() { echo "$(version_of podman) ($1 $(version_of "$1"))"; }

# runs RUNTIME OPTION...: until the payload is ready; podman's pid is in $runner, the container's id in $id.
runs() {
  local runtime=$1
  shift
  wired rdma0
  rm -f /tmp/ctr/id
  podman run --runtime "$runtime" --cidfile /tmp/ctr/id "$@" --rootfs /ctr:O sh -c "$tells" \
    < /dev/null > /tmp/ctr/out 2>&1 &
  runner=$!
  until_ready $runner /tmp/ctr/out "podman run"
  id=$(cat /tmp/ctr/id)
}

# ends: its payload is killed, and conmon has podman clean up; the container stays, with its NICs at home.
ends() {
  local code=0
  podman kill --signal KILL "$id" > /dev/null
  wait "$runner" || code=$?
  equal "exit status of podman" 137 "$code"
  until_true 60 without_record "$id"
}
without_record() { ! record "$1" > /dev/null; }

# Everything by config.json: podman's precreate stage hands it to `rdmaprep spec`.
by_precreate() { # RUNTIME
  installed precreate
  plan pod "v0 rdma0"
  runs "$1" --network none "${annotation[@]}"
  told /tmp/ctr/out env
  inside "$id"
  ends
  cell podman "$(version "$1")" "\`hooks.d\`, precreate; \`--network=none\`" env
}

# Everything by the hooks but what the engine is told on its command line: --device, --ulimit.
by_hooks() { # RUNTIME
  installed
  # As podman is by itself.
  rm /etc/containers/containers.conf.d/rdmaprep.conf
  plan pod "v0 rdma0"
  runs "$1" --network bridge "${annotation[@]}" --ulimit memlock=-1:-1 \
    --device /dev/infiniband/rdma_cm --device /dev/infiniband/uverbs0 --device /dev/infiniband/uverbs3
  told /tmp/ctr/out conf
  grep -qE '^eth0 UP 10\.88\.' /tmp/ctr/out || die "no bridge: $(cat /tmp/ctr/out)"
  inside "$id"
  ends
  # Once more: the same container, which podman has kept.
  rm /tmp/ctr/out
  wired rdma0
  podman start --attach "$id" < /dev/null > /tmp/ctr/out 2>&1 &
  runner=$!
  until_ready $runner /tmp/ctr/out "podman start"
  inside "$id"
  ends
  sysctl -qw net.ipv4.ip_forward=0
  cell podman "$(version "$1")" "\`hooks.d\`, \`--device\`; \`--network=bridge\`" conf
}

# With ALL=1 each way with each runtime.
case_precreate() { for runtime in crun ${ALL:+runc}; do by_precreate "$runtime"; done; }
case_hooks_alone() { for runtime in runc ${ALL:+crun}; do by_hooks "$runtime"; done; }

# The host's own network is refused, by either way, with a line that says why, where podman keeps what the hook says to itself, too.
case_the_hosts_network_is_refused() {
  local reason="the container shares the host's network"
  installed precreate
  plan pod v0
  fails 126 podman run --network host "${annotation[@]}" --rootfs /ctr:O true
  says "rdmaprep spec"
  said=$(grep 'command=spec' /var/log/rdmaprep.log)
  says "$reason"
  rm "$own"/*
  fails 126 podman run --runtime runc --network host "${annotation[@]}" --rootfs /ctr:O true
  says "$reason"
}

# Who does not ask gets nothing, whatever is installed; a command may ask in the place of an annotation, by the definition's args.
case_by_command() {
  local definition
  installed precreate
  plan pod "v0 v1"
  for definition in "$shared"/rdmaprep-* "$own"/rdmaprep-*; do
    jq '.hook.args += ["--plan", "pod"] | .when = {commands: ["/ip$"]}' "$definition" > /tmp/ctr/definition
    mv /tmp/ctr/definition "$definition"
  done
  said=$(podman run --rm --network none --rootfs /ctr:O /usr/sbin/ip -brief address < /dev/null)
  says 198.51.100.1/24
  says 198.51.100.2/24
  equal "NICs of another command" lo "$(podman run --rm --network none --rootfs /ctr:O ls /sys/class/net < /dev/null)"
}
