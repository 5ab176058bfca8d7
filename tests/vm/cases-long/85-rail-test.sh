# shellcheck shell=bash source=tests/vm/rail-test.sh
# The rail test: more faults, one at a time, and other ways to ask.
. "$(dirname "${BASH_SOURCE[0]}")/../rail-test.sh"

case_four_rails_that_work() {
  rail_nodes 4 one
  patience=20 all_nodes --seconds 0.05 --draw $rt/rails.svg
  [ "$codes" = "0 0 0" ] || die "$codes: $(cat $rt/out? $rt/err?)"
  grep -qxF "all rails work: 3 nodes, 4 rails, pattern ring, 12 pairs" $rt/out0 || die "$(cat $rt/out0)"
  nothing_left
  cp $rt/rails.svg /out/ 2> /dev/null || true
  all_nodes --pattern all --json --seconds 0
  equal "exit codes" "0 0 0" "$codes"
  equal "pairs" "12 true" "$(jq -r '"\(.found.pairs | length) \(all(.found.pairs[]; .works))"' $rt/out0)"
  # Both ends of the one pair of the first round.
  equal "ways between rails" 24 "$(jq .found.cross.reached $rt/out0)"
}

case_each_fault_has_its_cause() {
  local k
  rail_nodes 3

  ip -n n0 neighbour replace 10.10.0.2 lladdr 02:00:00:00:00:99 dev rail0 nud permanent
  all_nodes --seconds 0 --cross none
  found "11 11 11" "FAIL: rail0 between rank 0 and rank 1: it fails there alone (1): a neighbour entry has another MAC"
  ip -n n0 neighbour delete 10.10.0.2 dev rail0

  ip -n n2 link set rail1 mtu 1500
  all_nodes --seconds 0 --cross none
  found "0 0 0" "warning: rail1: the active MTUs differ: 4096 on 2 nodes, 1024 on rank 2"
  ip -n n2 link set rail1 mtu 4200

  # All nodes' rail 2, each in a network of its own.
  for k in 0 1 2; do ip link set "w${k}2" nomaster; done
  all_nodes --seconds 0 --cross none
  found "11 11 11" "FAIL: rail rail2: it fails between all nodes (3): no neighbour"
  for k in 0 1 2; do ip link set "w${k}2" master fab2; done

  ip -n n2 link set rail0 down
  all_nodes --seconds 0 --cross none
  found "11 11 11" "FAIL: rail0: missing on guest: port down; NCCL takes other NICs there"
  ip -n n2 link set rail0 up
  until_true 20 grep -q ACTIVE /sys/class/infiniband/q20/ports/1/state
}

# The node that never comes, and one that ends in the middle of its test.
case_a_node_that_is_not_there_is_named() {
  local k
  rail_nodes 2
  rm -f $rt/store
  for k in 0 1; do meeting=30 on_node "$k" --seconds 0 & done
  wait
  for k in 0 1; do
    equal "lines of node $k" 1 "$(wc -l < $rt/err$k)"
    grep -qF "missing rank 2: nothing was published in time" $rt/err$k || die "node $k: $(cat $rt/err$k)"
  done
  echo "# $(cat $rt/err0)"
  nothing_open
  # For a node that comes late: rank 0's offer, and its last word.
  equal "keys in the store" "in/0 over/" "$(keys_in $rt/store | sed -E 's,^/rdmaprep/v1/guest.test/,,; s,[0-9a-f]{32}$,,' |
    sort | paste -sd ' ')"

  patience=1 meanwhile=kill_node_2 all_nodes --seconds 0 --cross none
  found "10 10 137" "FAIL: rank 2 did not tell what it found: it has ended"
}

# At a terminal, and only there, the program reports the round and the nodes that it waits for.
case_progress_is_seen_at_a_terminal() {
  rail_nodes 1
  one_node=at_terminal patience=1 meanwhile=kill_node_2 all_nodes --seconds 0 --cross none
  equal "exit codes" "10 10 137" "$codes"
  sed 's/^/# /; s/\r$//' $rt/out0
  grep -qE '^rdmaprep: [0-9]+ s: round 1 of [0-9]+: (with rank [12]|a pause)' $rt/out0 || die "no round in: $(cat $rt/out0)"
  grep -qE '^rdmaprep: [0-9]+ s: waiting for rank 2 to tell what they found' $rt/out0 || die "no waiting in: $(cat $rt/out0)"
  if grep -E '^rdmaprep: [0-9]+ s: ' $rt/err1; then die "progress without a terminal"; fi
  nothing_left
}

# Rank 0's output and errors are a terminal.
at_terminal() {
  local k=$1
  [ "$k" = 0 ] || { on_node "$@"; return; }
  shift
  script --quiet --return --log-out $rt/out0 --command "ip netns exec n0 env NCCL_IB_HCA==q00 rdmaprep test-rails \
    --rendezvous file://$rt/store --nodes 3 --run-id guest --rank 0 --timeout ${patience:-3} --rendezvous-timeout 60 $*" \
    > /dev/null 2> $rt/err0 < /dev/null
}

kill_node_2() {
  until_true 60 node_2_has_begun
  pkill -KILL -f 'rdmaprep-rail-test.*--rank 2'
}

node_2_has_begun() { grep -qas 'card/0/2/0' $rt/store; }

# While data flows: the links are up as the test begins.
case_a_port_that_goes_down_in_the_middle_is_the_cause() {
  rail_nodes 2
  patience=5 meanwhile=take_port_down all_nodes --seconds 20 --cross none --draw $rt/rails.svg
  found "11 11 11" "FAIL: rail1 of rank 2: "
  equal "red cells" 1 "$(grep -c 'fill="#d1242f"><title>rank 2: rail1<' $rt/rails.svg)"
  # A busy guest is slow, which is worth a look: amber.
  equal "other cells" 5 "$(grep -cE 'fill="#(2da44e|e3a008)"><title>' $rt/rails.svg)"
  grep -qF "its port is down" <(head -n 1 $rt/out0) || die "$(cat $rt/out0)"
}

take_port_down() {
  until_true 60 node_2_is_ready
  sleep 3
  ip -n n2 link set rail1 down
}

node_2_is_ready() { grep -qas 'ready/0/2' $rt/store; }

case_a_slow_rail_has_both_figures() {
  rail_nodes 2
  tc qdisc add dev w11 root netem delay 200ms limit 20000
  patience=20 all_nodes --seconds 0 --cross none
  found "0 0 0" "warning: rail1 of rank 1: slower than the others: "
  head -n 1 $rt/out0 | grep -qE ' [0-9.]+ µs, the median is [0-9.]+ µs$' || die "$(head -n 1 $rt/out0)"
}
