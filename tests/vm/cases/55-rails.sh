# shellcheck shell=bash source=tests/vm/container.sh
# Four rails in each of two containers, in every layout: each one reaches its peer, from its own address and by RDMA, all at
# once.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

# address NODE RAIL: of a rail in the layout of the case ($layout), with its prefix, as `ip address add` takes it.
address() {
  local tens=$(($1 + 1))
  case $layout in
    one) echo "198.18.7.$tens$2/24" ;;
    six) echo "2001:db8:7:$2::$tens/64 nodad" ;;
    leaves) echo "198.18.3$2.$((128 * $1 + 1))/25" ;;
  esac
}

# fabric LAYOUT: rails a0 … and b0 … with soft-RoCE, peers on the bridge, or in a leaf router for each pair of them.
fabric() {
  layout=$1
  local node i name port
  for node in 0 1; do
    for i in 0 1 2 3; do
      name=$(rail "$node" "$i") port=q$(rail "$node" "$i")
      ip link add "$name" type veth peer name "$port"
      ip link set "$name" mtu 1400 up
      # shellcheck disable=SC2046 # several words
      ip address add $(address "$node" "$i") dev "$name"
      [ "$layout" != one ] || ip address add "2001:db8:7::$((node + 1))$i/64" dev "$name" nodad
      if [ "$layout" = leaves ]; then leaf "$node" "$i" "$name" "$port"; else ip link set "$port" master fabric up; fi
      rdma link add "rxe$name" type rxe netdev "$name"
    done
  done
  active 13
  before=$(rdmaprep snapshot --normal)
}

rail() { [ "$1" = 0 ] && echo "a$2" || echo "b$2"; }

# leaf NODE RAIL NAME PORT: its leaf has routes only to the subnets of this pair; the rail has one route to those of all.
leaf() {
  [ -e "/run/netns/leaf$2" ] || { ip netns add "leaf$2" && ip netns exec "leaf$2" sysctl -qw net.ipv4.ip_forward=1; }
  ip link set "$4" netns "leaf$2"
  ip -n "leaf$2" address add "198.18.3$2.$((128 * $1 + 126))/25" dev "$4"
  ip -n "leaf$2" link set "$4" up
  ip route add 198.18.0.0/18 via "198.18.3$2.$((128 * $1 + 126))" dev "$3" metric "$((10 * $1 + $2 + 100))"
}

undo() {
  local node i
  for node in a b; do
    for i in 0 1 2 3; do
      ip link delete "$node$i" 2>/dev/null || true
      ip netns delete "leaf$i" 2>/dev/null || true
    done
  done
}

# up PROFILE [OPTION...]: both containers have their rails, and a network of their own to meet over; their runtimes' pids are
# in $first and $second.
up() {
  local node i profile=$1
  shift
  for node in a b; do
    bundle "$node"
    prepare "$node" "${node}0 ${node}1 ${node}2 ${node}3" --arp-profile "$profile" "$@"
  done
  start runc a
  first=$runner
  start crun b
  second=$runner
  ip -n "$(space a)" link add eth0 type veth peer name eth0 netns "$(space b)"
  for node in a b; do
    [ "$node" = a ] && i=1 || i=2
    ip -n "$(space "$node")" address add "192.168.77.$i/24" dev eth0
    ip -n "$(space "$node")" link set eth0 up
  done
}

# space ID: its network namespace, for `ip -n`.
space() {
  ln -sf "$(pin "$1")" "/run/netns/$1"
  echo "$1"
}

down() {
  rm -f /run/netns/a /run/netns/b
  stop runc a "$first"
  stop crun b "$second"
  said=$(rdmaprep snapshot --normal)
  equal "the host's network" "$before" "$said"
}

reaches() { within "$1" ping -q -c 1 -W 3 -I "$2" "$3" > /dev/null 2>&1; }
listening() { [ "$(within a ss -ltn | grep -c ":1851[0-3] ")" = 4 ]; }

# verbs RUNTIME ID GID [ADDRESS]: a ping-pong over every rail at once, by the RoCE v2 GIDs that look like that; what each moved.
verbs() {
  # shellcheck disable=SC2016 # the container's shell expands it
  "$1" exec "$2" sh -c 'pids=
    for i in 0 1 2 3; do
      index=$(cd /sys/class/infiniband/rxe$0$i/ports/1/gids && grep -l "$1" *)
      ibv_rc_pingpong -d rxe$0$i -g $index -p 1851$i -n 20 $2 2>&1 | sed "s/^/rail $i: /" &
      pids="$pids $!"
    done
    wait $pids' "$2" "$3" "${4:-}"
}

# all_reach GID: every rail reaches its peer by RDMA, all at once; the parameters are exchanged over the other network.
all_reach() {
  local server client side
  verbs runc a "$1" > /tmp/ctr/server 2>&1 &
  server=$!
  serves "$server" /tmp/ctr/server listening
  verbs crun b "$1" 192.168.77.1 > /tmp/ctr/client 2>&1 &
  client=$!
  wait "$client" "$server"
  for side in server client; do
    [ "$(grep -c bytes "/tmp/ctr/$side")" = 4 ] || die "$side: $(cat "/tmp/ctr/$side")"
  done
  grep bytes /tmp/ctr/client | sed "s/^/# RDMA by $1, /"
}

case_every_rail_of_a_subnet_reaches_its_peer() {
  local i
  fabric one
  up auto
  said=$(cat /tmp/ctr/a.prepared)
  says "198.18.7.0/24 is shared by a0, a1, a2, a3"
  says "a3: from 198.18.7.13, 2001:db8:7::13 by its own table: 198.18.7.0/24, 2001:db8:7::/64"
  equal "rail 2" "a2: effective ARP profile 2/1/1/1, table 29002" "$(report a '.rails[2]')"
  all_reach ^0000:.*:ffff:
  all_reach ^2001:
  for i in 0 1 2 3; do
    reaches a "198.18.7.1$i" "198.18.7.2$i" || die "rail $i does not reach its peer"
    reaches b "2001:db8:7::2$i" "2001:db8:7::1$i" || die "rail $i does not reach its peer by IPv6"
    equal "the peer that answers rail $i" "b$i" "$(within a ip neighbour show to "198.18.7.2$i" dev "a$i" | grep -o 'lladdr [^ ]*' |
      while read -r _ mac; do within b ip -o link | grep -F "$mac" | cut -d ' ' -f 2 | cut -d @ -f 1; done)"
  done
  down
}

# Nothing but IPv6.
case_every_rail_of_a_subnet_of_its_own_reaches_its_peer() {
  fabric six
  up auto --family 6 --sysfs off
  said=$(cat /tmp/ctr/a.prepared)
  says "ARP profile 2/1/1/1 (strict): no two rails share a subnet or a destination"
  said=$(runc exec a env)
  says NCCL_IB_ADDR_FAMILY=AF_INET6
  all_reach ^2001:
  down
}

# One route to all that is far, by each rail's own leaf.
case_every_rail_behind_its_leaf_reaches_its_peer() {
  fabric leaves
  up auto --sysfs off
  said=$(cat /tmp/ctr/a.prepared)
  says "routes into 198.18.0.0/18 lead over a0, a1, a2, a3"
  says "a3: from 198.18.33.1 by its own table: 198.18.0.0/18 via 198.18.33.126, 198.18.33.0/25"
  all_reach ^0000:.*:ffff:
  down
}

