# shellcheck shell=bash source=tests/vm/container.sh
# Soft-RoCE is created again on every move and gets the lowest free device node: a container must never open another's.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

# In the container: each node, its number, and the HCA that has this number.
# shellcheck disable=SC2016 # the container's shell expands it
nodes='cd /dev/infiniband; for n in uverbs*; do
  for d in /sys/class/infiniband_verbs/*; do
    [ "$(cat $d/dev)" = "$(printf %d:%d 0x$(stat -c %t $n) 0x$(stat -c %T $n))" ] && echo "$n is $(cat $d/ibdev)"
  done; done'

# In order again: other cases, and these, leave the links in another.
number() {
  for i in 0 1 2 3 4; do rdma link delete "rxe$i"; done
  for i in 0 1 2; do rdma link add "rxe$i" type rxe netdev "v$i"; done
  for i in 0 1; do rdma link add "rxe$((i + 3))" type rxe netdev "rdma$i"; done
  equal "the node of rxe4" uverbs4 \
    "$(basename "$(dirname "$(grep -lx rxe4 /sys/class/infiniband_verbs/*/ibdev)")")"
}

case_the_nodes_are_foretold() {
  number
  rdma link delete rxe0
  bundle nodes
  prepare nodes "v1 v2"
  said=$(cat /tmp/ctr/nodes.prepared)
  says "+ device /dev/infiniband/uverbs0 (c 231:192)"
  says "+ device /dev/infiniband/uverbs1 (c 231:193)"
  start runc nodes
  equal "nodes" "uverbs0 is rxe1
uverbs1 is rxe2" "$(runc exec nodes sh -c "$nodes")"
  for hca in rxe1 rxe2; do
    said=$(runc exec nodes ibv_devinfo -d "$hca")
    says "hca_id:	$hca"
  done
  fails 255 runc exec nodes ibv_devinfo -d rxe3
  stop runc nodes "$runner"
  rdma link add rxe0 type rxe netdev v0
}

refused() { # ID WAS IS: its hook refuses, and has changed nothing
  local moved
  rdmaprep snapshot --normal > /run/cases/before
  fails 3 hook createRuntime "$1"
  says "would get $3 inside instead of $2"
  moved=$(find "$records" "$pins" -mindepth 1 2>/dev/null) || true
  equal "what the hook left" "" "$moved"
  same /run/cases/before
}

case_a_node_taken_since_is_refused() {
  number
  rdma link delete rxe0
  bundle taken
  prepare taken "v1 v2"
  rdma link add rxe0 type rxe netdev v0
  sandbox taken
  refused taken uverbs0 uverbs1
  # The runtime tells what the hook said, and starts nothing.
  fails 1 runc run --bundle /tmp/ctr/taken taken
  says "exit status 3"
  says "rdmaprep prepare --plan taken"
}

case_a_node_freed_since_is_refused() {
  number
  sandbox freed
  plan freed "v1 v2"
  rdma link delete rxe0
  refused freed uverbs1 uverbs0
  rdma link add rxe0 type rxe netdev v0
}

# Slowed down, the hook leaves time to take the node between the deletion of a link and its making.
case_a_node_taken_meanwhile_is_undone() {
  local hook_pid code=0
  ip link add thief type dummy
  sandbox late
  plan late "v0 v1"
  strace -f -qq -o /tmp/ctr/trace -e trace=sendto -e inject=sendto:delay_exit=50000 \
    rdmaprep hook createRuntime --plan late --deadline 60 < /tmp/ctr/late.state 2> /tmp/ctr/late.said &
  hook_pid=$!
  while [ -e /sys/class/infiniband/rxe0 ]; do kill -0 "$hook_pid" || die "no link was deleted: $(cat /tmp/ctr/late.said)"; done
  rdma link add stolen type rxe netdev thief
  wait "$hook_pid" || code=$?
  equal "exit status" 6 "$code"
  said=$(cat /tmp/ctr/late.said)
  says "as its verbs node, the plan says"
  rdma link delete stolen
  ip link delete thief
}
