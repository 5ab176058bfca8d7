# shellcheck shell=bash source=tests/vm/container.sh
# For cases of the rail test: three namespaces as nodes, four soft-RoCE rails in each, a bridge for each rail.
. "$(dirname "${BASH_SOURCE[0]}")/container.sh"

rt=/tmp/rail-test
# A debug build: what is tested here is what it does, not how fast. In memory, since each start reads it.
# scripts/test builds it while the guest runs.
mkdir -p /tmp/rail-test-bin
until_true 400 test -x /repo/target/debug/rdmaprep-rail-test
cmp -s /repo/target/debug/rdmaprep-rail-test /tmp/rail-test-bin/rdmaprep-rail-test ||
  cp /repo/target/debug/rdmaprep-rail-test /tmp/rail-test-bin/
PATH=$PATH:/tmp/rail-test-bin

# rail_nodes RAILS [one]: node n0..n2 with rail0.. at 10.(10+RAIL).0.(NODE+1), each with the HCA q(NODE)(RAIL): a network for
# each rail, or one that all are in.
rail_nodes() {
  local k r length=24 fabric
  rails=$1
  [ "${2:-}" != one ] || length=8
  mkdir -p $rt
  for ((r = 0; r < rails; r++)); do
    ip link add "fab$r" type bridge mcast_snooping 0
    ip link set "fab$r" mtu 4200 up
  done
  for k in 0 1 2; do
    ip netns add "n$k"
    ip -n "n$k" link set lo up
    # Of several NICs in one network, the one that is asked for answers.
    ip netns exec "n$k" sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
    for ((r = 0; r < rails; r++)); do
      ip link add "w$k$r" mtu 4200 type veth peer name "rail$r" mtu 4200 netns "n$k"
      fabric=fab$r
      [ "$length" = 24 ] || fabric=fab0
      ip link set "w$k$r" master "$fabric" up
      ip -n "n$k" link set "rail$r" up
      ip -n "n$k" address add "10.$((10 + r)).0.$((k + 1))/$length" dev "rail$r"
      ip netns exec "n$k" rdma link add "q$k$r" type rxe netdev "rail$r"
    done
  done
  for k in 0 1 2; do
    for ((r = 0; r < rails; r++)); do until_true 20 grep -q ACTIVE "/sys/class/infiniband/q$k$r/ports/1/state"; done
  done
}

undo() {
  local link
  jobs -p | xargs -r kill 2> /dev/null || true
  wait
  for link in $(cd /sys/class/infiniband && ls -d q?? 2> /dev/null); do rdma link delete "$link" || true; done
  ip -all netns delete
  for link in $(cd /sys/class/net && ls -d w?? fab? 2> /dev/null); do ip link delete "$link" 2> /dev/null || true; done
  rm -rf $rt
}

# on_node K ARGUMENT...: the rail test there, of its own HCAs; seconds for a silent rail in $patience, for the others to come in
# $meeting; its file is named by $store.
on_node() {
  local k=$1 r hcas=
  shift
  for ((r = 0; r < rails; r++)); do hcas+=",q$k$r"; done
  ip netns exec "n$k" env NCCL_IB_HCA="=${hcas#,}" rdmaprep test-rails --rendezvous "file://$rt/${store:-store}" --nodes 3 \
    --run-id guest --rank "$k" --timeout "${patience:-3}" --rendezvous-timeout "${meeting:-60}" "$@" \
    > "$rt/out$k" 2> "$rt/err$k" < /dev/null
}

# all_nodes ARGUMENT...: on all of them, by $one_node, and $meanwhile beside them; their exit codes are in $codes.
all_nodes() {
  local k pids=()
  rm -f $rt/store
  for k in 0 1 2; do
    "${one_node:-on_node}" "$k" "$@" &
    pids+=($!)
  done
  if [ -n "${meanwhile:-}" ]; then $meanwhile; fi
  codes=
  for k in 0 1 2; do
    local code=0
    wait "${pids[k]}" || code=$?
    codes+=" $code"
  done
  codes=${codes# }
}

# found CODES TEXT: all nodes ended with these codes, rank 0's first line has that text, and nothing is left over.
found() {
  [ "$codes" = "$1" ] || die "exit codes $codes, not $1: $(tail -n 20 $rt/out* $rt/err*)"
  head -n 1 $rt/out0 | grep -qF -- "$2" || die "no \"$2\" in the first line of: $(cat $rt/out0 $rt/err0)"
  echo "# $(head -n 1 $rt/out0)"
  nothing_left
}

# No queue pair and no memory region of a program's, and no key in the store.
nothing_left() {
  local left
  nothing_open
  left=$(keys_in $rt/store)
  [ -z "$left" ] || die "keys in the store: $left"
}

nothing_open() {
  local left
  left=$(rdma resource show qp | grep -E 'type RC|rail-test' || true)
  left+=$(rdma resource show mr | grep . || true)
  [ -z "$left" ] || die "left over: $left"
}

# keys_in FILE: keys of a FileStore (u32 length, key, u32 length, value; `-KEY` deletes one).
keys_in() {
  python3 - "$1" << 'EOF'
import struct, sys
data, at, keys = open(sys.argv[1], "rb").read(), 0, set()
def take():
    global at
    length, = struct.unpack_from("<I", data, at)
    at += 4 + length
    return data[at - length:at]
while at < len(data):
    key, _ = take(), take()
    keys.discard(key[1:]) if key.startswith(b"-") else keys.add(key)
print("\n".join(k.decode() for k in keys if k.startswith(b"/rdmaprep")), end="")
EOF
}

# drop_roce NODE RAIL: an nft rule that drops UDP 4791 on that NIC.
drop_roce() {
  ip netns exec "n$1" nft "add table ip rail; add chain ip rail in { type filter hook input priority 0; };
    add rule ip rail in iifname rail$2 udp dport 4791 counter drop"
}
