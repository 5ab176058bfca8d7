# shellcheck shell=bash source=tests/vm/container.sh
# No stop hook was called: NICs of dead containers, and records that a reboot has left behind.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

undo() { ip link delete elsewhere 2> /dev/null || true; }

# A runtime that is killed with its container tells no hook.
case_nics_of_dead_containers_are_restored_by_themselves() {
  for runtime in runc crun; do
    local id=gone-$runtime
    bundle "$id"
    prepare "$id" rdma0,v0
    start "$runtime" "$id"
    rdmaprep restore --all --stale
    [ -n "$(record "$id")" ] || die "$runtime: it was taken from a living container"
    init=$("$runtime" state "$id" | jq .pid)
    kill -KILL "$runner" "$init"
    wait "$runner" || true
    until_true 5 test ! -e "/proc/$init"
    rdmaprep status | grep -qF "to get back rdmaprep restore --all --stale" || die "status: $(rdmaprep status)"
    rdmaprep restore --all --stale
    clean
    equal "$runtime: the second time" '' "$(rdmaprep restore --all --stale)"
  done
}

# boot_before: a record of rdma0 and v0 as a boot before would have left it; then rdma0 as a driver brings it up.
boot_before() {
  plan boot rdma0,v0
  sandbox boot
  hook createRuntime boot
  old=$(record boot)
  jq -c '.boot_id = "00000000-0000-0000-0000-00000000cafe"' "$old" > /tmp/old
  kill "$init"
  wait "$init" || true
  hook poststop boot
  clean
  cp /tmp/old "$old"
  ip address flush dev rdma0
  ip link set rdma0 down
}

case_after_a_reboot_only_what_is_missing_is_added() {
  boot_before
  rdmaprep snapshot --normal > /tmp/bare
  rdmaprep restore boot --after-reboot --dry-run > /tmp/foretold
  grep -qF 'adding 192.0.2.1/24 to rdma0' /tmp/foretold || die "$(cat /tmp/foretold)"
  same /tmp/bare
  # Another interface of this host has its address.
  ip link add elsewhere type dummy
  ip address add 192.0.2.1/32 dev elsewhere
  rdmaprep snapshot --normal > /tmp/bare
  said=$(rdmaprep restore boot --after-reboot)
  says 'rdma0 had 192.0.2.1, which another interface of this host has now: left alone'
  same /tmp/bare
  ip link delete elsewhere
  cp /tmp/old "$old"
  said=$(rdmaprep restore --all --after-reboot)
  says 'v0 has no PCI and permanent address to know it by'
  says 'adding route 203.0.113.0/24'
  active 5
  # Adding moves nothing that is there: rdma0's routes are behind their equals of rdma1, as after any `ip address add`.
  rdmaprep snapshot --normal > /tmp/added
  # shellcheck disable=SC2154 # of node.sh
  diff "$reference" /tmp/added | grep '^[<>]' | grep -v '^[<>] order of routes to ' && die "more than the order differs"
  ip address delete 192.0.2.2/24 dev rdma1
  ip address add 192.0.2.2/24 brd + dev rdma1
  ip -6 address delete 2001:db8::2/64 dev rdma1
  ip -6 address add 2001:db8::2/64 dev rdma1 nodad
  active 5
  clean
}
