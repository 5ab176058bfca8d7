# shellcheck shell=bash source=tests/vm/rail-test.sh
# The rail test: a store that lies about one node, counters that moved, libraries that are missing.
. "$(dirname "${BASH_SOURCE[0]}")/../rail-test.sh"

# Node 1 has a store of its own; all that is written in one of both comes into the other, its cards with a lie.
lying_node() {
  local store=store
  [ "$1" != 1 ] || store=liar
  on_node "$@"
}

# relay LIE: exchanges what is new in both, and once more when it is to end.
relay() {
  python3 - "$rt/store" "$rt/liar" "$1" << 'EOF'
import fcntl, json, os, re, signal, struct, sys, time

store, liar, lie = sys.argv[1:]
read = {store: 0, liar: 0}
goes_on = True

def end(*_):
    global goes_on
    goes_on = False

signal.signal(signal.SIGTERM, end)

def lied(key, value):
    if not re.search(rb"^/rdmaprep/.*/card/\d+/1/", key):
        return value
    if lie == "long":
        return b"x" * 5000
    if lie == "counts":
        return value.replace(b'"rails":[', b'"rails":[["::ffff:10.10.0.9",0,5,null],')
    card = json.loads(value)
    if lie == "another network":
        card["rails"][0][0] = "::ffff:192.0.2.9"
    elif lie == "another node":
        for n, rail in enumerate(card["rails"]):
            rail[0] = f"::ffff:10.{10 + n}.0.3"
    elif lie == "numbers":
        for lane in card["lanes"]:
            lane[2:] = [0xffffff, 0xffffff, 0xffffffff, 2**64 - 1]
    elif lie == "no queue pair":
        for lane in card["lanes"]:
            lane[2] = 0
    return json.dumps(card, separators=(",", ":")).encode()

def new_in(file, path):
    file.seek(read[path])
    data, at, found = file.read(), 0, []
    while at < len(data):
        record = []
        for _ in "kv":
            length, = struct.unpack_from("<I", data, at)
            record.append(data[at + 4:at + 4 + length])
            at += 4 + length
        found.append(record)
    return found

def exchange():
    with open(store, "a+b") as one, open(liar, "a+b") as other:
        for file in (one, other):
            fcntl.flock(file, fcntl.LOCK_EX)
        honest, own = new_in(one, store), new_in(other, liar)
        for file, records in ((other, honest), (one, [(key, lied(key, value)) for key, value in own])):
            for key, value in records:
                file.write(struct.pack("<I", len(key)) + key + struct.pack("<I", len(value)) + value)
            file.flush()
        for file, path in ((one, store), (other, liar)):
            read[path] = os.fstat(file.fileno()).st_size

while goes_on:
    if any(os.path.exists(path) and os.stat(path).st_size > read[path] for path in read):
        exchange()
    time.sleep(0.05)
exchange()
EOF
}

begin_relay() {
  relay "$lie" 2> "$rt/relay" &
  relaying=$!
}

# lies LIE CULPRIT: that is the only cause.
lies() {
  local lie=$1
  rm -f $rt/liar
  meanwhile=begin_relay one_node=lying_node all_nodes --seconds 0 --cross none --json
  pkill -TERM -P "$relaying" || kill "$relaying"
  wait "$relaying" || true
  [ ! -s $rt/relay ] || die "$(cat $rt/relay)"
  [ "$codes" = "11 11 11" ] || die "$lie: exit codes $codes: $(tail -n 20 $rt/out0 $rt/err*)"
  equal "causes ($lie)" 1 "$(jq '.found.causes | length' $rt/out0)"
  jq -r '.found.causes[0].text' $rt/out0 | grep -qF -- "$2" || die "$lie: no \"$2\" in $(jq -c .found.causes $rt/out0)"
  echo "# $lie: $(jq -r '.found.causes[0].text' $rt/out0)"
  equal "pairs of the others ($lie)" "2 true" \
    "$(jq -r '[.found.pairs[] | select(.a != 1 and .b != 1)] | "\(length) \(all(.[]; .works))"' $rt/out0)"
  nothing_left
}

# count_strange K: what node K sends to no address of the rails', or asks for one.
count_strange() {
  local r
  for ((r = 0; r < rails; r++)); do
    ip netns exec "n$1" tc qdisc add dev "rail$r" clsact
    ip netns exec "n$1" tc filter add dev "rail$r" egress protocol ip prio 1 u32 match ip dst "10.$((10 + r)).0.0/30" action pass
    ip netns exec "n$1" tc filter add dev "rail$r" egress protocol ip prio 2 u32 match ip protocol 17 0xff action drop
  done
}

# strange K RAIL
strange() {
  ip netns exec "n$1" tc -s -j filter show dev "rail$2" egress |
    jq '[.[] | select(.pref == 2) | .options.actions[]?.stats.packets] | add'
}

case_a_store_that_lies_about_a_node_fails_its_pairs_alone() {
  local k r all="rank 1: all its rails fail (4)"
  rail_nodes 2
  for k in 0 2; do
    # What is no rail's.
    ip -n "n$k" link add mgmt type veth peer name far
    ip -n "n$k" address add "192.0.2.$((k + 1))/24" dev mgmt
    ip -n "n$k" link set mgmt up
    ip -n "n$k" link set far up
    count_strange "$k"
  done
  lies long "$all: what it has published cannot be used"
  lies counts "$all: what it has published cannot be used"
  lies "no queue pair" "$all: what it has published cannot be used"
  lies "another network" "rail0 of rank 1: all its pairs fail (2): the other end's address is in a network here"
  for k in 0 2; do
    [ -z "$(ip -n "n$k" neighbour show 192.0.2.9)" ] || die "node $k has looked for it: $(ip -n "n$k" neighbour)"
  done
  lies "another node" "$all"
  lies numbers "$all"
  for k in 0 2; do
    for ((r = 0; r < rails; r++)); do equal "strange packets of node $k on rail$r" 0 "$(strange "$k" "$r")"; done
  done
}

# Every tenth packet to one NIC is lost: the rail works, and its counters stand beside it.
case_counters_that_moved_stand_beside_their_rail() {
  rail_nodes 2 one
  ip netns exec n1 tc qdisc add dev rail1 clsact
  ip netns exec n1 tc filter add dev rail1 ingress protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff \
    action pass random determ drop 10
  NCCL_IB_TIMEOUT=17 patience=20 all_nodes --seconds 0 --cross none
  [ "$codes" = "0 0 0" ] || die "$codes: $(cat $rt/out? $rt/err?)"
  sed 's/^/# /' $rt/out0
  grep -qE '^rail1 .*  [a-z_]+ \+[0-9]+' $rt/out0 || die "no counter beside rail1: $(cat $rt/out0)"
  NCCL_IB_TIMEOUT=17 patience=20 all_nodes --seconds 0 --cross none --json
  [ "$codes" = "0 0 0" ] || die "$codes: $(cat $rt/out? $rt/err?)"
  jq -c .found.counters $rt/out0 | sed 's/^/# /'
  equal "who has lost packets" true "$(jq '[.found.counters[] | select(.rail == "rail1" and .rank == 1) | .by] | add > 0' $rt/out0)"
  nothing_left
}

# without FILE HIDDEN: node 0 alone, where the one lies over the other.
without() {
  # shellcheck disable=SC2016 # the inner shell expands it
  fails 4 ip netns exec n0 env NCCL_IB_HCA==q00 unshare --mount sh -c 'mount --bind "$0" "$1" &&
    exec rdmaprep test-rails --rendezvous "file://$2/store" --nodes 1 --rank 0 --run-id guest' "$1" "$2" "$rt"
}

case_a_library_that_is_missing_is_named() {
  local library
  rail_nodes 1
  library=$(readlink -f "$(ldconfig -p | sed -n 's/.*libibverbs\.so\.1 .*=> //p' | head -n 1)")
  without /dev/null "$library"
  says "libibverbs.so.1 cannot be loaded"
  says "install libibverbs1 (Debian) or rdma-core"
  mkdir $rt/empty
  without $rt/empty "$(dirname "$library")/libibverbs"
  says "libibverbs does not know q00"
  says "its provider librxe-rdmav*.so is missing, install ibverbs-providers (Debian) or rdma-core"
}
