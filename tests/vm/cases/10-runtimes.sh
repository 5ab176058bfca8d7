# shellcheck shell=bash source=tests/vm/inside.sh
# Each runtime's container gets exactly its NICs, fully configured, and the host has them back after it.
. "$(dirname "${BASH_SOURCE[0]}")/../inside.sh"

whole() { # RUNTIME
  local sandbox=()
  [ "$1" != runsc ] || sandbox=(sandbox)
  bundle "$1" env "SANDBOX=${sandbox[*]}" sh -c "$tells"
  prepare "$1" "v0 rdma0" ${sandbox:+--sysfs snapshot}
  start "$1" "$1"
  check_payload "/tmp/ctr/$1.out" env "${sandbox[@]}"
  inside "$1"
  said=$(rdmaprep status)
  says "held by     $1"
  stop "$1" "$1" "$runner"
  cell "$1" "$(version_of "$1")" "\`prepare --bundle\`" env
}

case_runc() { whole runc; }
case_crun() { whole crun; }
case_runsc() { whole runsc; }

# What README shows, as it stands there.
case_runc_by_readme() {
  mkdir -p /tmp/ctr
  /repo/scripts/vm/bundle /tmp/a sleep infinity
  wired "rdma0 rdma1"
  follow runc ""
  rdmaprep restore --all
  clean
  runc delete --force a
}
undo() {
  runc delete --force a 2> /dev/null || true
  umount -l /tmp/a/rootfs 2> /dev/null || true
  rm -rf /tmp/a
}
