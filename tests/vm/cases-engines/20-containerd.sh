# shellcheck shell=bash source=tests/vm/inside.sh
# containerd with what `rdmaprep install` writes; by its own client, which names the program that takes runc's place.
. "$(dirname "${BASH_SOURCE[0]}")/../inside.sh"

asking=(--runtime io.containerd.runc.v2 --runc-binary /usr/local/bin/rdmaprep-runtime --annotation rdmaprep.io/plan=ctr)

export CONTAINERD_ADDRESS=/run/containerd-test/sock

undo() {
  ctr task kill --signal KILL held > /dev/null 2>&1 || true
  [ -z "${daemon:-}" ] || { kill "$daemon" && wait "$daemon"; } || true
  rdmaprep uninstall > /dev/null || true
  rm -f /etc/containerd/config.toml /usr/local/bin/rdmaprep
}

containerd_runs() {
  local dir=${CONTAINERD_ADDRESS%/*}
  mkdir -p /tmp/ctr "$dir" /etc/containerd
  printf 'version = 2\nroot = "%s/root"\nstate = "%s/state"\n[grpc]\n  address = "%s"\n' "$dir" "$dir" "$CONTAINERD_ADDRESS" \
    > /etc/containerd/config.toml
  ln -sf "$(command -v rdmaprep)" /usr/local/bin/rdmaprep
  rdmaprep install --containerd > /tmp/ctr/installed
  containerd > /tmp/ctr/containerd 2>&1 &
  daemon=$!
  until ctr version > /dev/null 2>&1; do
    kill -0 "$daemon" || die "containerd: $(tail -n 5 /tmp/ctr/containerd)"
    sleep 0.5
  done
}

whole() { (clean) > /dev/null 2>&1; }

case_containerd() {
  containerd_runs
  # What a pod with a RuntimeClass of handler `rdmaprep` is started by; and runc is still there for the others.
  # 2.x prints the section of its own version, and quotes otherwise.
  said=$(containerd config dump | tr "'" '"')
  says 'BinaryName = "/usr/local/bin/rdmaprep-runtime"'
  grep -qE '^ *\[plugins\."io\.containerd\.(grpc\.v1\.cri|cri\.v1\.runtime)"\.containerd\.runtimes\.runc\]' <<< "$said" || die "no runc"
  plan ctr "v0 rdma0"
  bundle held
  ctr run --rm "${asking[@]}" --env SANDBOX= --env "PATH=$PATH" --rootfs /tmp/ctr/held/rootfs held sh -c "$tells" \
    < /dev/null > /tmp/ctr/out 2>&1 &
  runner=$!
  until_ready $runner /tmp/ctr/out "ctr run"
  check_payload /tmp/ctr/out env
  inside held
  ctr task kill --signal KILL held
  wait $runner || true
  until_true 60 whole
  cell containerd "$(version_of containerd) (runc $(version_of runc))" "\`rdmaprep-runtime\`" env
}

case_containerd_refuses_the_hosts_network() {
  containerd_runs
  plan ctr v0
  bundle held
  fails 1 ctr run --rm --net-host "${asking[@]}" --rootfs /tmp/ctr/held/rootfs held /bin/true
  says "the container shares the host's network"
}
