# shellcheck shell=bash source=tests/vm/container.sh
# NICs that are in a namespace before any container is: `rdmaprep hold`, and containers of real runtimes that join it by its path.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

pool=/run/netns/pool

undo() {
  [ -z "${holder:-}" ] || kill -KILL "$holder" 2> /dev/null || true
  ip netns delete pool 2> /dev/null || true
}

# joining ID NETDEVS: a bundle that is prepared for the plan and names the namespace, which need not be there yet.
joining() {
  bundle "$1"
  edit "$1" "(.linux.namespaces[] | select(.type == \"network\")).path = \"$pool\""
  as=pool prepare "$1" "$2"
}

# hold: in the background, until it says that it is ready; its pid is in $holder.
hold() {
  rdmaprep hold --plan pool > /tmp/ctr/hold.out 2>&1 < /dev/null &
  holder=$!
  until grep -q "^$pool sysfs=h1" /tmp/ctr/hold.out; do
    kill -0 "$holder" 2>/dev/null || die "rdmaprep hold: $(cat /tmp/ctr/hold.out)"
    sleep 0.05
  done
}

members() { jq -r '[.members[].id] | join(" ")' "$records"/*.json; }

away() { [ ! -e "/sys/class/net/$1" ] || die "$1 is on the host: $2"; }

# sees RUNTIME ID HCAS ADDRESS...: what that container has of the NICs.
sees() {
  local runtime=$1 id=$2
  equal "HCAs of $id" "$3" "$("$runtime" exec "$id" ls /sys/class/infiniband | tr '\n' ' ' | sed 's/ $//')"
  said=$("$runtime" exec "$id" ip -brief address)
  shift 3
  for address; do says "$address"; done
}

case_two_runtimes_join_and_its_end_restores_all() {
  local first second
  joining one "v0 rdma0"
  joining two "v0 rdma0"
  hold
  away rdma0 "rdmaprep hold has it"
  start runc one
  first=$runner
  start crun two
  second=$runner
  equal "members" "pool one two" "$(members)"
  sees runc one "rxe0 rxe3" 198.51.100.1/24 192.0.2.1/24
  sees crun two "rxe0 rxe3" 198.51.100.1/24 192.0.2.1/24
  stop runc one "$first"
  sees crun two "rxe0 rxe3" 198.51.100.1/24 192.0.2.1/24
  stop crun two "$second"
  equal "members" pool "$(members)"
  away v0 "the holder runs"
  kill -TERM "$holder"
  wait "$holder"
  [ ! -e "$pool" ] || die "$pool is still there"
}

# No stop hook is called, and the holder is killed: a container inside keeps the NICs, then the timer's command restores them.
case_killed_with_a_container_inside() {
  joining one "v0 v1"
  edit one 'del(.hooks.poststop)'
  for runtime in runc crun; do
    hold
    start "$runtime" one
    kill -KILL "$holder"
    wait "$holder" || true
    equal "what is restored" "" "$(rdmaprep restore --all --stale)"
    away v0 "$runtime's container runs"
    sees "$runtime" one "rxe0 rxe1" 198.51.100.1/24 198.51.100.2/24
    stop "$runtime" one "$runner"
    away v0 "nothing has restored it"
    said=$(rdmaprep restore --all --stale)
    says "container pool"
    says ": restored"
    [ ! -e "$pool" ] || die "$pool is still there"
    "$runtime" delete --force one > /dev/null 2>&1 || true
    clean
  done
}
