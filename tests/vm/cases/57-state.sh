# shellcheck shell=bash source=tests/vm/container.sh
# All that an administrator can set on a NIC comes back, as ip and tc tell it: also what the kernel that runs the other tests
# lacks, and from a namespace that died, where the kernel returns a PCI NIC by itself.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

# state_of DEV: what is configured on it and through it, without what changes by itself: indexes, carrier, time.
state_of() {
  ip -d address show dev "$1"
  ip -4 -d route show table all dev "$1"
  ip -6 -d route show table all dev "$1"
  # Those with several legs, which are not listed by device.
  ip -d route show root 198.19.0.0/16
  ip -d neighbour show dev "$1" nud permanent
  ip -d neighbour show dev "$1" nud noarp
  ip -d neighbour show dev "$1" | sed -n 's/\(.*managed\).*/\1/p'
  ip -4 -d neighbour show proxy dev "$1"
  ip -6 -d neighbour show proxy dev "$1"
  ip -d nexthop
  ip -4 -d rule
  ip -6 -d rule
  ip token get dev "$1"
  tc -d qdisc show dev "$1"
}
settled() { state_of "$1" | sed -E '/fe80::|ff00::|anycast|link\/ether|lladdr (33:33|01:00:5e)/d; s/^[0-9]+: //; s/ state [A-Z]+//; s/ (linkdown|dead)//g; s/expires [0-9]+sec/expires/; s/(,LOWER_UP|NO-CARRIER,)//g; s/_lft [0-9]+sec/_lft/g'; }
is_settled() { settled "$1" > /tmp/state.now; diff /tmp/state.before /tmp/state.now > /tmp/state.diff; }
# back DEV: its state is as before, or soon will be.
back() {
  for ((t = 0; t < 100; t++)); do
    is_settled "$1" && return
    sleep 0.2
  done
  die "$1: $(cat /tmp/state.diff)"
}

# trip ID DEV: into a sandbox and back by the stop hook, with the plan that it has.
trip() {
  settled "$2" > /tmp/state.before
  sandbox "$1"
  hook createRuntime "$1"
  said=$(within "$1" tc qdisc show dev "$2")
  kill -KILL "$init"
  hook poststop "$1"
  back "$2"
}

# A NIC with queues, for disciplines that want some.
many_queues() {
  ip link add v9 numtxqueues 4 type veth peer name p9
  ip link set p9 up
  ip link set v9 mtu 1400 up
  ip address add 198.51.101.1/24 dev v9
  rdma link add rxe9 type rxe netdev v9
  until_true 10 grep -q ACTIVE /sys/class/infiniband/rxe9/ports/1/state
}

undo() {
  ip link delete v9 || true
  tc qdisc delete dev rdma0 root || true
  tc qdisc delete dev rdma0 clsact || true
  for id in 20 1 2 3 4; do ip nexthop delete id $id || true; done
  for route in 198.19.1.0/24 198.19.2.0/24 198.19.3.0/24 2001:db8:77::/64; do ip route delete "$route" || true; done
  ip -6 rule delete priority 900 || true
  ip address delete 192.0.2.100/24 dev rdma0 || true
  ip address delete 192.0.2.101/25 dev rdma0 || true
  ip address delete 2001:db8:1::1/64 dev rdma0 || true
  ip address delete 2001:db8:2::1 peer 2001:db8:2::2/128 dev rdma0 || true
  for neighbour in 192.0.2.50 192.0.2.51 192.0.2.52 2001:db8::50; do ip neighbour delete "$neighbour" dev rdma0 || true; done
  for proxy in 192.0.2.60 2001:db8::60; do ip neighbour delete proxy "$proxy" dev rdma0 || true; done
  ip link property del dev rdma0 altname fabric0 || true
  ip token set :: dev rdma0 || true
  ip link set rdma0 alias "" group 0 txqueuelen 1000 promisc off allmulticast off || true
} 2> /dev/null

case_queueing_disciplines_that_this_kernel_has() {
  local one carried=0
  many_queues
  plan qdisc v9
  while read -r one; do
    # shellcheck disable=SC2086 # words
    tc qdisc replace dev v9 root $one || die "this kernel has no $one"
    trip qdisc v9
    says "qdisc noqueue 0: root"
    carried=$((carried + 1))
  done << 'QDISCS'
handle f: netem delay 3ms loss 2% 25% duplicate 1% rate 5gbit limit 77
handle e: cake bandwidth 9gbit besteffort dual-srchost nat ack-filter rtt 5ms
handle d: hhf limit 900 hh_limit 99
handle b: pie limit 90 target 9ms ecn
handle a: codel limit 90 target 3ms ecn
handle 9: sfq perturb 7 quantum 3000 limit 100
handle 8: fq_codel limit 500 target 3ms interval 50ms flows 64 noecn
handle 7: fq limit 2000 flow_limit 50 maxrate 9gbit quantum 6000
QDISCS
  echo "# queueing disciplines that came back: $carried"
}

# What the kernel tells of it is not all: the NIC stays.
case_queueing_disciplines_that_are_lost() {
  local kind
  many_queues
  while read -r kind rest; do
    # shellcheck disable=SC2086 # words
    tc qdisc replace dev v9 root handle 7: $kind $rest || die "this kernel has no $kind"
    fails 4 rdmaprep prepare --plan lost --ifaces v9
    says "a move would take its queueing discipline $kind 7: from v9"
    tc qdisc delete dev v9 root
  done << 'QDISCS'
prio
drr
fq_pie limit 900 flows 32 target 9ms
mqprio num_tc 2 map 0 1 0 1 0 0 0 0 0 0 0 0 0 0 0 0 queues 1@0 3@1 hw 0
red limit 400000 min 30000 max 90000 avpkt 1000 burst 55 probability 0.02
netem delay 3ms 1ms distribution normal
QDISCS
  tc qdisc replace dev v9 root handle 7: mq
  tc qdisc replace dev v9 parent 7:2 handle 8: fq
  fails 4 rdmaprep prepare --plan lost --ifaces v9
  says "a move would take its queueing discipline fq 8: below 7:2 from v9"
  tc qdisc replace dev v9 root handle 9: fq_codel
  tc filter add dev v9 parent 9: protocol ip u32 match ip dst 10.0.0.0/8 classid 9:3
  fails 4 rdmaprep prepare --plan lost --ifaces v9
  says "a move would take the filters of its queueing discipline fq_codel 9: from v9"
}

# everything DEV: one of each that can be set.
everything() {
  ip link set "$1" alias "the first" group 5 txqueuelen 77 promisc on allmulticast on
  ip link property add dev "$1" altname fabric0
  ip address add 192.0.2.100/24 dev "$1" label "$1:a" proto 40
  ip address add 192.0.2.101/25 dev "$1" noprefixroute metric 9
  ip address add 2001:db8:1::1/64 dev "$1" nodad metric 7 proto 41
  ip address add 2001:db8:2::1 peer 2001:db8:2::2/128 dev "$1" nodad
  ip token set ::5 dev "$1"
  tc qdisc replace dev "$1" root handle 7: fq limit 2000
  tc qdisc replace dev "$1" clsact
  ip neighbour add 192.0.2.50 lladdr 02:00:00:00:00:50 dev "$1" protocol static
  ip neighbour add 192.0.2.51 lladdr 02:00:00:00:00:51 dev "$1" nud noarp
  ip neighbour add 192.0.2.52 dev "$1" managed
  ip neighbour add 2001:db8::50 lladdr 02:00:00:00:00:52 dev "$1" router
  ip neighbour add proxy 192.0.2.60 dev "$1"
  ip neighbour add proxy 2001:db8::60 dev "$1" protocol 42
  ip nexthop add id 1 via 192.0.2.254 dev "$1" proto static
  ip nexthop add id 2 via 198.51.100.254 dev v1
  ip nexthop add id 20 group 1,3/2,200 type resilient buckets 8 idle_timer 9
  ip nexthop add id 4 via 2001:db8::9 dev "$1"
  ip route add 198.19.1.0/24 nhid 20
  ip route add 198.19.2.0/24 nhid 1 metric 5
  ip route add 198.19.3.0/24 nexthop via 192.0.2.253 dev "$1" realms 4 weight 3 nexthop via 198.51.100.253 dev v1
  ip route add 2001:db8:77::/64 nhid 4 pref high
  ip -6 rule add from 2001:db8:1::1 lookup 100 priority 900
}

# The carrier of emulated PCI NICs takes seconds, and a nexthop object goes with it: what it was set up with stands still.
case_everything_and_a_stop_hook() {
  until_true 20 grep -q ACTIVE /sys/class/infiniband/rxe3/ports/1/state
  everything rdma0
  plan all rdma0
  trip all rdma0
}

case_everything_and_a_dead_namespace() {
  local pin
  until_true 20 grep -q ACTIVE /sys/class/infiniband/rxe3/ports/1/state
  everything rdma0
  settled rdma0 > /tmp/state.before
  sandbox all
  plan all rdma0
  hook createRuntime all
  pin=$(pin all)
  kill -KILL "$init"
  umount "$pin"
  until_true 20 test -e /sys/class/net/rdma0
  said=$(tc qdisc show dev rdma0; ip nexthop; ip address show dev rdma0)
  ! grep -E 'fq 7|id 1 |192.0.2' <<< "$said" || die "not naked: $said"
  rdmaprep restore all
  back rdma0
}
