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

# Debian has none: scripts/vm/youki makes it, for `scripts/test --all`.
case_youki() {
  PATH=$PATH:$(echo /repo/target/tools/youki-*/bin)
  if ! command -v youki > /dev/null; then
    [ "${ALL:-}" != 1 ] || die "there is no youki: scripts/vm/youki makes it"
    echo "# not run: youki; ALL=1 does"
    return
  fi
  whole youki
}

# loop RUNTIME ROUNDS: one container after another; each tells whether it had its NICs.
loop() {
  local began=$SECONDS id
  oci "$1"
  for ((round = 1; round <= $2; round++)); do
    id=$1-$round
    bundle "$id" ip -brief address
    prepare "$id" "v0 v1"
    said=$("${oci[@]}" run --bundle "/tmp/ctr/$id" "$id" < /dev/null)
    says 198.51.100.1/24
    says 198.51.100.2/24
    clean
    umount "/tmp/ctr/$id/rootfs"
  done
  echo "# $2 containers of $1, one after another, in $((SECONDS - began)) s; ALL=1 does 20"
}

case_loop_of_runc() { loop runc "$(rounds 2)"; }
case_loop_of_crun() { loop crun "$(rounds 2)"; }
case_loop_of_runsc() { loop runsc "$(rounds 2)"; }
