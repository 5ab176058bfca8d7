# shellcheck shell=bash source=tests/vm/container.sh
# No stop hook was called: NICs of dead containers.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

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
