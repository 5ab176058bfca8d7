# shellcheck shell=bash source=tests/vm/rail-test.sh
# The rail test: nodes whose rails work, and some faults, one at a time.
. "$(dirname "${BASH_SOURCE[0]}")/../rail-test.sh"

case_rails_that_work() {
  rail_nodes 2 one
  # Emulated, one pair may well be slower than the others: a warning.
  patience=20 all_nodes --seconds 0.05 --draw $rt/rails.svg
  [ "$codes" = "0 0 0" ] || die "$codes: $(cat $rt/out? $rt/err?)"
  grep -qxF "all rails work: 3 nodes, 2 rails, pattern ring, 6 pairs" $rt/out0 || die "$(cat $rt/out0)"
  nothing_left
  sed 's/^/# /' $rt/out0
  grep -q '^rail1 *3 *0 ' $rt/out0 || die "no row of rail1"
  equal "cells" 6 "$(grep -c '<title>' $rt/rails.svg)"
  grep -q 'all rails work' $rt/out2 || die "rank 2 says: $(cat $rt/out2)"
}

case_rails_that_do_not() {
  rail_nodes 2

  all_nodes --seconds 0
  found "0 0 0" "warning: no rail reaches another rail: they are not routed to each other; set NCCL_CROSS_NIC=0"

  drop_roce 1 1
  all_nodes --seconds 0 --cross none
  found "11 11 11" "FAIL: rail1 of rank 1: all its pairs fail (2): the neighbour is there and does not answer"
  ip netns exec n1 nft delete table ip rail

  ip link set w11 mtu 1500
  all_nodes --seconds 0 --cross none
  found "11 11 11" "FAIL: rail1 of rank 1: all its pairs fail (2): small messages pass"
}
