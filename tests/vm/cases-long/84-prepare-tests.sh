# shellcheck shell=bash source=tests/vm/rail-test.sh
# `prepare --test-rails`: three nodes, one dead rail of one node; a node that dies in the middle.
. "$(dirname "${BASH_SOURCE[0]}")/../rail-test.sh"

# prepare_node K ARGUMENT...: there, with all its rails; what it stores is in $rt/run.K.
prepare_node() {
  local k=$1 r ifaces=
  shift
  for ((r = 0; r < rails; r++)); do ifaces+=" rail$r"; done
  ip netns exec "n$k" env RDMAPREP_TIMEOUT="${patience:-3}" RDMAPREP_SECONDS=0 RDMAPREP_CROSS=none \
    rdmaprep prepare --ifaces "$ifaces" --rendezvous file://$rt/store --nodes 3 --run-id guest --rank "$k" \
    --rendezvous-timeout "${meeting:-60}" --run-dir "$rt/run.$k" --state-dir "$rt/state.$k" "$@" \
    > "$rt/out$k" 2> "$rt/err$k" < /dev/null
}

# prepare_all ARGUMENT...: as all_nodes.
prepare_all() {
  local k code pids=()
  rm -rf $rt/store $rt/run.*
  for k in 0 1 2; do
    prepare_node "$k" "$@" &
    pids+=($!)
  done
  if [ -n "${meanwhile:-}" ]; then $meanwhile; fi
  codes=
  for k in 0 1 2; do
    code=0
    wait "${pids[k]}" || code=$?
    codes+=" $code"
  done
  codes=${codes# }
}

# planned K: its rails in order, and the digest of the agreement.
planned() { jq -c '[.agreement.rails[][0]], .agreement.digest' "$rt/run.$1/plans/default.json"; }

# errors [K]: what ended them. The kernel says of an HCA in one place that it has no netdev.
# shellcheck disable=SC2086 # a pattern
errors() { grep -hv '^rdmaprep: warning: ' $rt/err${1:-?} || true; }

no_plan() {
  local k
  for k in 0 1 2; do [ ! -e "$rt/run.$k/plans/default.json" ] || die "node $k has stored a plan"; done
}

case_a_dead_rail_of_one_node_is_in_no_plan() {
  local k
  rail_nodes 3
  prepare_all --test-rails
  equal "exit codes ($(errors))" "0 0 0" "$codes"
  equal "rails" '["rail0","rail1","rail2"]' "$(planned 0 | head -n 1)"
  for k in 1 2; do equal "plan of node $k" "$(planned 0)" "$(planned $k)"; done

  # Each rail is a network of its own.
  for k in 0 1 2; do
    ip netns exec "n$k" rdmaprep test-rails --plan default --run-dir "$rt/run.$k" --state-dir "$rt/state.$k" --fix --seconds 0 \
      --rendezvous file://$rt/store --nodes 3 --run-id fix --rank "$k" > "$rt/out$k" 2> "$rt/err$k" < /dev/null &
  done
  wait
  for k in 0 1 2; do
    equal "what --fix sets on node $k ($(errors $k))" 0 \
      "$(jq -r '.env[] | select(.name == "NCCL_CROSS_NIC") | .value' "$rt/run.$k/plans/default.json")"
    grep -qF "plan default: containers that start from now on get NCCL_CROSS_NIC=0" $rt/err$k || die "node $k: $(cat $rt/err$k)"
  done

  ip link set w11 nomaster
  prepare_all --test-rails
  equal "exit codes ($(errors))" "0 0 0" "$codes"
  equal "rails" '["rail0","rail2"]' "$(planned 0 | head -n 1)"
  for k in 1 2; do equal "plan of node $k" "$(planned 0)" "$(planned $k)"; done
  for k in 0 1 2; do
    tr -s ' \n' ' ' < "$rt/out$k" | grep -q 'failed_test.*rail1 of rank 1: all its pairs fail (2): no neighbour' ||
      die "node $k: $(cat $rt/out$k)"
  done
  sed 's/^/# /' $rt/out0
  nothing_left

  prepare_all --test-rails=strict
  equal "exit codes" "11 11 11" "$codes"
  no_plan
  for k in 0 1 2; do
    equal "lines of node $k" 1 "$(errors $k | wc -l)"
    grep -qF "the rail test: rail1 of rank 1: all its pairs fail (2)" $rt/err$k || die "node $k: $(cat $rt/err$k)"
  done
}

# The rail test of node 2, as soon as all have agreed on what to test.
kill_a_test() {
  until_true 60 has_card
  pkill -KILL -f 'rdmaprep-rail-test.*--rank=2'
}

# The whole node: its test ends with it.
kill_a_node() {
  until_true 60 has_card
  pkill -KILL -f 'rdmaprep prepare.*--rank 2'
  until_true 10 no_test_of_node_2
}

has_card() { grep -qas 'card/0/2/0' $rt/store; }
no_test_of_node_2() { ! pgrep -f 'rdmaprep-rail-test.*--rank=2' > /dev/null; }

case_a_node_that_dies_in_the_middle_leaves_no_plan() {
  local k
  rail_nodes 2
  meanwhile=kill_a_test patience=1 prepare_all --test-rails
  equal "exit codes ($(errors))" "10 10 1" "$codes"
  no_plan
  for k in 0 1; do
    equal "lines of node $k" 1 "$(errors $k | wc -l)"
    grep -qF "rank 2 did not tell what they found" $rt/err$k || die "node $k: $(cat $rt/err$k)"
  done
  grep -qF "the rail test has not said what it found" $rt/err2 || die "$(cat $rt/err2)"

  meanwhile=kill_a_node patience=1 meeting=20 prepare_all --test-rails
  equal "exit codes ($(errors))" "10 10 137" "$codes"
  no_plan
  for k in 0 1; do grep -qF "rank 2 did not tell what they found" $rt/err$k || die "node $k: $(cat $rt/err$k)"; done
}
