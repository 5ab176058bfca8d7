# shellcheck shell=bash source=tests/vm/rail-test.sh
# Addresses of rails that the nodes' other networks hold, or that do not fit each other.
. "$(dirname "${BASH_SOURCE[0]}")/../rail-test.sh"

# gid_is K R TEXT: the HCA of that rail has a GID with that text; `! gid_is` that it has none.
gid_is() { grep -rqsi -- "$3" "/sys/class/infiniband/q$1$2/ports/1/gids"; }
gid_is_gone() { ! gid_is "$@"; }

case_addresses_that_other_networks_hold() {
  local k r at
  rail_nodes 2
  # A routed fabric: an address alone on each rail, and a route; the management network is of the same range.
  for k in 0 1 2; do
    for r in 0 1; do
      at="10.$((10 + r)).0.$((k + 1))"
      ip -n "n$k" address delete "$at/24" dev "rail$r"
      until_true 20 gid_is_gone "$k" "$r" "$(printf '%02x%02x' 10 $((10 + r)))"
      ip -n "n$k" address add "$at/32" dev "rail$r"
      ip -n "n$k" route add "10.$((10 + r)).0.0/24" dev "rail$r"
      until_true 20 gid_is "$k" "$r" "$(printf '%02x%02x' 10 $((10 + r)))"
    done
    ip -n "n$k" link add mgmt type dummy
    ip -n "n$k" link set mgmt up
    ip -n "n$k" address add "10.200.0.$((k + 1))/8" dev mgmt
  done
  all_nodes --seconds 0 --cross none
  [ "$codes" = "0 0 0" ] || die "exit codes $codes: $(cat $rt/out0 $rt/err*)"
  grep -qxF "all rails work: 3 nodes, 2 rails, pattern ring, 6 pairs" $rt/out0 || die "$(cat $rt/out0)"
  nothing_left

  # One of them has lost its address, and NCCL takes its link-local one.
  ip -n n0 address delete 10.11.0.1/32 dev rail1
  until_true 20 gid_is_gone 0 1 0a0b
  all_nodes --seconds 0 --cross none
  found "11 11 11" "FAIL: rail1 of rank 0: all its pairs fail (2): one end has an IPv4 address and the other an IPv6 one"

  # A picture that cannot be written takes nothing from the answer.
  all_nodes --seconds 0 --cross none --draw /nonexistent/rails.svg
  found "11 11 11" "FAIL: rail1 of rank 0: all its pairs fail (2): "
  grep -qF -- "--draw: writing /nonexistent/rails.svg" $rt/err0 || die "$(cat $rt/err0)"
}
