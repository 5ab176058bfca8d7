# shellcheck shell=bash source=tests/vm/inside.sh
# podman with what `rdmaprep install` writes: its containers get their NICs by an annotation. No image is needed: its root is the
# guest's, under a writable layer.
. "$(dirname "${BASH_SOURCE[0]}")/../inside.sh"

annotation=(--annotation rdmaprep.io/plan=pod)
export CONTAINERS_STORAGE_CONF=/tmp/ctr/storage.conf CONTAINERS_CONF_OVERRIDE=/tmp/ctr/containers.conf

# A podman that needs neither systemd nor a disk.
podman_here() {
  mkdir -p /tmp/ctr /run/podman
  printf '[storage]\ndriver = "overlay"\ngraphroot = "/run/podman/graph"\nrunroot = "/run/podman/run"\n' \
    > "$CONTAINERS_STORAGE_CONF"
  printf '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n' > "$CONTAINERS_CONF_OVERRIDE"
}

# installed ENGINE [OPTION...]: what is installed for podman, or just what it shares with CRI-O: the definitions of the hooks, but
# none that edits config.json.
installed() {
  local engine=$1
  shift
  podman_here
  ln -sf "$(command -v rdmaprep)" /usr/local/bin/rdmaprep
  rdmaprep install "--$engine" "$@" > /tmp/ctr/installed
}

undo() {
  podman rm --all --force --time 0 > /dev/null 2>&1 || true
  rdmaprep uninstall > /dev/null || true
  rm -f /usr/local/bin/rdmaprep
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
  rm -f /tmp/ctr/id /tmp/ctr/out
  podman run --runtime "$runtime" --cidfile /tmp/ctr/id "$@" --rootfs /ctr:O sh -c "$tells" \
    < /dev/null > /tmp/ctr/out 2>&1 &
  runner=$!
  until_ready $runner /tmp/ctr/out "podman run"
  id=$(cat /tmp/ctr/id)
}

# ends: its payload is killed, and conmon has podman clean up; the container stays, with its NICs restored.
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
  installed podman
  plan pod "v0 rdma0"
  runs "$1" --network none --name trainer "${annotation[@]}"
  check_payload /tmp/ctr/out env
  inside "$id"
  # By podman's name of it, and by what `podman ps` shows of its id.
  for named in trainer "${id:0:12}"; do
    said=$(rdmaprep nccl explain --container "$named")
    says "the environment of its init"
  done
  ends
  podman rm trainer > /dev/null
  cell podman "$(version "$1")" "\`hooks.d\`, \`--network none\`" env
}

# Everything by the hooks but the options of the engine's command line: --device.
by_hooks() { # RUNTIME
  installed crio
  plan pod "v0 rdma0"
  runs "$1" --network bridge "${annotation[@]}" \
    --device /dev/infiniband/rdma_cm --device /dev/infiniband/uverbs0 --device /dev/infiniband/uverbs3
  check_payload /tmp/ctr/out conf
  grep -qE '^eth0 UP 10\.88\.' /tmp/ctr/out || die "no bridge: $(cat /tmp/ctr/out)"
  inside "$id"
  # eth0 was there first, so NCCL takes it: 10.88.0.0/16 is podman's on every host.
  said=$(rdmaprep doctor --container "$id") || true
  says "NCCL bootstraps over eth0 with 10.88."
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
  cell podman "$(version "$1")" "\`hooks.d\`, \`--device\`, a bridge" conf
}

# With ALL=1 each way with each runtime.
case_precreate() { for runtime in crun ${ALL:+runc}; do by_precreate "$runtime"; done; }
case_hooks_alone() { for runtime in runc ${ALL:+crun}; do by_hooks "$runtime"; done; }

# The host's own network is refused, by either way, with a line that says why, where podman keeps what the hook says to itself, too.
case_the_hosts_network_is_refused() {
  local reason="the container shares the host's network"
  installed podman
  plan pod v0
  fails 126 podman run --network host "${annotation[@]}" --rootfs /ctr:O true
  says "rdmaprep spec"
  said=$(grep 'command=spec' /var/log/rdmaprep.log)
  says "$reason"
  said=$(rdmaprep status)
  says "failed: spec, "
  says "$reason"
  # podman has made an id by then.
  rdmaprep status --json | grep -qE '"container": "[0-9a-f]{64}"' || die "no container: $said"
  rdmaprep uninstall > /dev/null
  installed crio
  fails 126 podman run --runtime runc --network host "${annotation[@]}" --rootfs /ctr:O true
  says "$reason"
}

# A container that does not opt in gets no NICs, whatever is installed; a command may opt in instead of an annotation.
case_by_command() {
  installed podman --command '/ip$' --plan pod
  plan pod "v0 v1"
  said=$(podman run --rm --network none --rootfs /ctr:O /usr/sbin/ip -brief address < /dev/null)
  says 198.51.100.1/24
  says 198.51.100.2/24
  equal "NICs of another command" lo "$(podman run --rm --network none --rootfs /ctr:O ls /sys/class/net < /dev/null)"
}

# What README shows, as it stands there.
case_readme() {
  podman_here
  ln -sf "$(command -v rdmaprep)" /usr/local/bin/rdmaprep
  wired "rdma0 rdma1"
  follow podman "--rootfs /ctr:O"
  until_true 60 whole
  follow undo ""
  [ ! -e /etc/containers/containers.conf.d/rdmaprep.conf ] || die "uninstall has left podman's configuration"
}
whole() { (clean) > /dev/null 2>&1; }
