# shellcheck shell=bash source=tests/vm/rail-test.sh
# The rail test from outside: `--container`. Nodes are containers of two runtimes and a hold, with one rail each, on one bridge.
. "$(dirname "${BASH_SOURCE[0]}")/../rail-test.sh"

nodes=(ra rb pool) one_node=test_node

undo() {
  [ -z "${holder:-}" ] || kill -KILL "$holder" 2> /dev/null || true
  ip netns delete pool 2> /dev/null || true
  rm -rf $rt
}

# test_node K ARGUMENT...: of that container; the store is on the host.
test_node() {
  local k=$1
  shift
  rdmaprep test-rails --container "${nodes[k]}" --match index --rendezvous file://$rt/store --nodes 3 --run-id guest --rank "$k" \
    --timeout "${patience:-20}" --rendezvous-timeout 60 "$@" > "$rt/out$k" 2> "$rt/err$k" < /dev/null
}

# alone CONTAINER: as a node without others.
alone() { rdmaprep test-rails --container "$1" --rendezvous file://$rt/store --nodes 1 --run-id guest --rank 0; }

hold_pool() {
  rdmaprep hold --plan pool > $rt/hold.out 2>&1 < /dev/null &
  holder=$!
  until_true 60 grep -q "^/run/netns/pool" $rt/hold.out
}

# in_rb COMMAND...: in the container's network namespace.
in_rb() { nsenter "--net=$(pin rb)" "$@"; }

case_containers_and_a_hold_are_nodes() {
  local first second
  mkdir -p $rt
  bundle ra
  prepare ra v0
  bundle rb
  prepare rb v1
  plan pool v2
  start runc ra
  first=$runner
  start crun rb
  second=$runner
  hold_pool
  if [ -e /sys/class/net/v0 ] || [ -e /sys/class/net/v2 ]; then die "NICs are on the host: $(ls /sys/class/net)"; fi

  all_nodes --seconds 0
  found "0 0 0" "all rails work: 3 nodes, 1 rail, pattern ring, 3 pairs"

  in_rb tc qdisc add dev v1 clsact
  in_rb tc filter add dev v1 ingress protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff action drop
  patience=3 all_nodes --seconds 0
  found "11 11 11" "the neighbour is there and does not answer"
  head -n 1 $rt/out0 | grep -qF "rank 1" || die "$(cat $rt/out0)"
  in_rb tc qdisc del dev v1 clsact

  # Its NICs return while the test is in its namespace.
  patience=3 meanwhile=stop_rb all_nodes --seconds 20
  until_true 20 test -e /sys/class/net/v1
  equal "what ended rb ($codes)" 1 "$(cut -d ' ' -f 2 <<< "$codes")"
  equal "what is said of it" 'rdmaprep-rail-test: container "rb" ended during the test' "$(grep -v '^rdmaprep: warning: ' $rt/err1)"

  fails 2 alone rb
  says "no running container of podman, CRI-O, Docker or containerd, and none that holds a NIC"
  sandbox bare
  fails 4 alone "$init"
  says "NCCL would take no HCA in container \"$init\""
  kill -KILL "$init"
  wait "$init" || true
  stop runc ra "$first"
  kill -TERM "$holder"
  wait "$holder"
}

stop_rb() {
  until_true 60 grep -qas 'ready/0/1' $rt/store
  sleep 3
  stop crun rb "$second"
}
