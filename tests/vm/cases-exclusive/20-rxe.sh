# shellcheck shell=bash source=tests/vm/container.sh
# Soft-RoCE where each device belongs to one network namespace: made again inside, it is the initial namespace's, and moves from
# there. From Linux 7.2 on it can.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

# shellcheck disable=SC2016 # the container's shell expands it
tells='echo "nodes $(ls /dev/infiniband | tr "\n" " ")"; echo "hca $NCCL_IB_HCA"; ibv_devinfo; echo ready; exec sleep infinity'

whole() { # RUNTIME
  bundle c sh -c "$tells"
  prepare c "v0 rdma0"
  start "$1" c
  said=$(cat /tmp/ctr/c.out)
  says "nodes rdma_cm uverbs0 uverbs3 "
  says "hca =rxe3,rxe0"
  equal "ports that the container sees ACTIVE" 2 "$(grep -c PORT_ACTIVE /tmp/ctr/c.out)"
  equal "devices of the container" "rxe0 rxe3 " "$(within c ls /sys/class/infiniband | tr '\n' ' ')"
  equal "devices of the host" "rxe1 rxe2 rxe4 " "$(cd /sys/class/infiniband && printf '%s ' *)"
  stop "$1" c "$runner"
}

case_runc() { whole runc; }
case_crun() { whole crun; }

# RDMA from one container to another, each with a device of its own.
case_two_containers_talk() {
  plan a v0
  sandbox a
  hook createRuntime a
  a=$init
  plan b v1
  sandbox b
  hook createRuntime b
  gid() { within "$1" sh -c "grep -l ffff:c633 /sys/class/infiniband/$2/ports/1/gids/* | sed 's|.*/||' | head -1"; }
  within a timeout 30 ibv_rc_pingpong -d rxe0 -g "$(gid a rxe0)" -n 10 > /tmp/ctr/a.out 2>&1 &
  server=$!
  sleep 3
  said=$(within b timeout 30 ibv_rc_pingpong -d rxe1 -g "$(gid b rxe1)" -n 10 198.51.100.1)
  says "10 iters"
  wait "$server"
  hook poststop b
  kill "$a"
  hook poststop a
}

# The kernel gives the netdev back, and has deleted what was on it.
case_the_namespace_dies() {
  local pin
  sandbox dead
  plan dead rdma0
  hook createRuntime dead
  pin=$(pin dead)
  kill -KILL "$init"
  umount "$pin"
  until_true 20 test -e /sys/class/net/rdma0
  rdmaprep restore dead
  until_true 20 grep -q ACTIVE /sys/class/infiniband/rxe3/ports/1/state
}
