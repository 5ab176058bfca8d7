# shellcheck shell=bash source=tests/vm/rail-test.sh
# The rail test sends what NCCL would: packets on the wire have NCCL's traffic class, and the address of its GID.
. "$(dirname "${BASH_SOURCE[0]}")/../rail-test.sh"

# sender K ARGUMENT...: with the GID that $gid_of has for node K by its index, where that is set.
sender() {
  if [ -n "${gid_of:-}" ]; then
    NCCL_IB_GID_INDEX=$(index_of "q${1}0" "$($gid_of "$1")") on_node "$@"
  else
    on_node "$@"
  fi
}

# index_of HCA GID
index_of() {
  local index
  index=$(cd "/sys/class/infiniband/$1/ports/1/gids" && grep -lxF "$2" ./* 2> /dev/null | head -n 1) || true
  echo "${index#./}"
}
has_gid() { [ -n "$(index_of "$1" "$2")" ]; }

# count K FAMILY CLASS SOURCE: of what node K sends on its rail, packets of RoCE with these, and all other ones.
count() {
  local k=$1 match=ip priority=tos
  [ "$2" = ip ] || match=ip6 priority=priority
  tc qdisc delete dev "w${k}0" clsact 2> /dev/null || true
  tc qdisc add dev "w${k}0" clsact
  tc filter add dev "w${k}0" ingress protocol "$2" prio 1 u32 match $match protocol 17 0xff match $match dport 4791 0xffff \
    match $match $priority "$3" 0xff match $match src "$4" action pass
  tc filter add dev "w${k}0" ingress protocol ip prio 2 u32 match ip protocol 17 0xff match ip dport 4791 0xffff action pass
  tc filter add dev "w${k}0" ingress protocol ipv6 prio 3 u32 match ip6 protocol 17 0xff match ip6 dport 4791 0xffff action pass
}

# packets K PRIORITY
packets() {
  tc -s -j filter show dev "w${1}0" ingress | jq "[.[] | select(.pref == $2) | .options.actions[]?.stats.packets] | add // 0"
}

# sent WHAT: the test works, and each packet of RoCE is one of those.
sent() {
  local k right
  [ "$codes" = "0 0 0" ] || die "$1: exit codes $codes: $(cat $rt/out? $rt/err?)"
  for k in 0 1 2; do
    right=$(packets $k 1)
    # 200 writes at least, and what answers those of the other end.
    [ "$right" -ge 200 ] || die "$1: $right packets of node $k: $(tc -s filter show dev "w${k}0" ingress)"
    equal "$1: other packets of node $k" "0 0" "$(packets $k 2) $(packets $k 3)"
    echo "# $1: $right packets of node $k, and no other ones of RoCE"
  done
}

second() { printf '0000:0000:0000:0000:0000:ffff:0a0a:%04x\n' $((101 + $1)); }
sixth() { printf 'fd00:0010:0000:0000:0000:0000:0000:%04x\n' $(($1 + 1)); }

by_plan() {
  local k=$1
  shift
  on_node "$k" --plan default --run-dir "$rt/run.$k" --state-dir "$rt/state.$k" "$@"
}

case_packets_have_the_traffic_class_and_the_address_of_nccl() {
  local k one_node=sender patience=20
  rail_nodes 1
  for k in 0 1 2; do
    ip -n "n$k" address add "10.10.0.$((101 + k))/24" dev rail0
    ip -n "n$k" address add "fd00:10::$((k + 1))/64" dev rail0 nodad
    until_true 20 has_gid "q${k}0" "$(second $k)"
    until_true 20 has_gid "q${k}0" "$(sixth $k)"
  done

  for k in 0 1 2; do count $k ip 106 "10.10.0.$((101 + k))/32"; done
  NCCL_IB_TC=106 gid_of=second all_nodes --seconds 0 --cross none
  sent "class 106, second address"

  for k in 0 1 2; do count $k ipv6 0 "fd00:10::$((k + 1))/128"; done
  gid_of=sixth all_nodes --seconds 0 --cross none
  sent "class 0, IPv6"

  for k in 0 1 2; do count $k ipv6 106 "fd00:10::$((k + 1))/128"; done
  NCCL_IB_TC=106 gid_of=sixth all_nodes --seconds 0 --cross none
  sent "class 106, IPv6"

  # The plan's, whatever the environment has. The first address, which NCCL finds.
  for k in 0 1 2; do
    ip -n "n$k" address delete "10.10.0.$((101 + k))/24" dev rail0
    ip -n "n$k" address delete "fd00:10::$((k + 1))/64" dev rail0
    NCCL_IB_TC=72 ip netns exec "n$k" rdmaprep prepare --ifaces rail0 --run-dir "$rt/run.$k" --state-dir "$rt/state.$k" \
      > "$rt/prepared" 2>&1 || die "$(cat $rt/prepared)"
    count $k ip 72 "10.10.0.$((k + 1))/32"
  done
  one_node=by_plan NCCL_IB_TC=106 all_nodes --seconds 0 --cross none
  sent "class 72 of the plan"
}
