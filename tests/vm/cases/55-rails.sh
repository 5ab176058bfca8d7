# shellcheck shell=bash source=tests/vm/container.sh
# Four rails of one subnet in each of two containers: every one reaches its peer, from its own address and by RDMA.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

# 198.18.7.1N and 2001:db8:7::1N on node a, 2N on node b, all on the bridge.
fabric() {
  local node tens i
  for node in a b; do
    [ "$node" = a ] && tens=1 || tens=2
    for i in 0 1 2 3; do
      ip link add "$node$i" type veth peer name "q$node$i"
      ip link set "q$node$i" master fabric up
      ip link set "$node$i" mtu 1400 up
      ip address add "198.18.7.$tens$i/24" brd + dev "$node$i"
      ip -6 address add "2001:db8:7::$tens$i/64" dev "$node$i" nodad
      rdma link add "rxe$node$i" type rxe netdev "$node$i"
    done
  done
  active 13
}

undo() {
  local node i
  for node in a b; do
    for i in 0 1 2 3; do ip link delete "$node$i" 2>/dev/null || true; done
  done
}

# up PROFILE: both containers have their rails; their runtimes' pids are in $first and $second.
up() {
  local node
  for node in a b; do
    bundle "$node"
    prepare "$node" "${node}0 ${node}1 ${node}2 ${node}3" --arp-profile "$1"
  done
  start runc a
  first=$runner
  start crun b
  second=$runner
}

down() {
  stop runc a "$first"
  stop crun b "$second"
  said=$(rdmaprep snapshot --normal)
  equal "the host's network" "$before" "$said"
}

reaches() { within "$1" ping -q -c 1 -W 3 -I "$2" "$3" > /dev/null 2>&1; }
listening() { within a ss -ltn | grep -q ":1851$1 "; }

# verbs RUNTIME ID RAIL [ADDRESS]: a ping-pong over that rail, by its RoCE v2 GID for IPv4.
verbs() {
  # shellcheck disable=SC2016 # the container's shell expands it
  "$1" exec "$2" sh -c 'index=$(cd /sys/class/infiniband/rxe$0$1/ports/1/gids && grep -l :ffff: *)
    exec ibv_rc_pingpong -d rxe$0$1 -g $index -p 1851$1 -n 50 $2' "$2" "$3" "${4:-}"
}

case_every_rail_of_a_subnet_reaches_its_peer() {
  local i servers=() clients=()
  fabric
  before=$(rdmaprep snapshot --normal)
  up auto
  said=$(cat /tmp/ctr/a.prepared)
  says "198.18.7.0/24 is shared by a0, a1, a2, a3"
  says "a3: from 198.18.7.13, 2001:db8:7::13 by its own table: 198.18.7.0/24, 2001:db8:7::/64"
  equal "rail 2" "a2: effective ARP profile 2/1/1/1, table 29002" "$(report a '.rails[2]')"
  for i in 0 1 2 3; do
    reaches a "198.18.7.1$i" "198.18.7.2$i" || die "rail $i does not reach its peer"
    reaches b "2001:db8:7::2$i" "2001:db8:7::1$i" || die "rail $i does not reach its peer by IPv6"
    equal "who answers rail $i" "b$i" "$(within a ip neighbour show to "198.18.7.2$i" dev "a$i" | grep -o 'lladdr [^ ]*' |
      while read -r _ mac; do within b ip -o link | grep -F "$mac" | cut -d ' ' -f 2 | cut -d @ -f 1; done)"
  done

  # All at once.
  for i in 0 1 2 3; do
    verbs runc a "$i" > "/tmp/ctr/server$i" 2>&1 &
    servers+=($!)
  done
  for i in 0 1 2 3; do until_true 20 listening "$i"; done
  for i in 0 1 2 3; do
    verbs crun b "$i" "198.18.7.1$i" > "/tmp/ctr/client$i" 2>&1 &
    clients+=($!)
  done
  for i in 0 1 2 3; do
    wait "${clients[i]}" || die "rail $i: $(cat "/tmp/ctr/client$i" "/tmp/ctr/server$i")"
    wait "${servers[i]}" || die "rail $i: $(cat "/tmp/ctr/server$i")"
    echo "# RDMA over rail $i: $(grep bytes "/tmp/ctr/client$i")"
  done
  down
}

# The known recipe alone.
case_without_rules_one_rail_of_a_subnet_reaches_its_peer() {
  local i count=0
  fabric
  before=$(rdmaprep snapshot --normal)
  up 2/1/1/1
  for i in 0 1 2 3; do
    if reaches a "198.18.7.1$i" "198.18.7.2$i"; then count=$((count + 1)); fi
  done
  equal "rails that reach their peers" 1 "$count"
  down
}
