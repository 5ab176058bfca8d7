# shellcheck shell=bash source=tests/vm/rail-test.sh
# The rail test as an init container: two pods, each a network namespace whose NIC another container of it holds.
. "$(dirname "${BASH_SOURCE[0]}")/../rail-test.sh"

undo() {
  ip netns delete pod0 2> /dev/null || true
  ip netns delete pod1 2> /dev/null || true
  rm -rf $rt
}

# pod K: its sandbox, which runs and holds vK, and the bundle of its init container.
pod() {
  local k=$1 id
  ip netns add "pod$k"
  bundle "sandbox$k"
  # shellcheck disable=SC2016 # the container's shell expands it
  bundle "init$k" sh -c 'PATH=/opt/rail-test:/opt/rdmaprep:$PATH; exec rdmaprep test-rails --rendezvous file:///store/store --nodes 2 \
    --run-id guest --match index --timeout 20 --seconds 0 "$@"' init --rank "$k"
  edit "init$k" ".mounts += ([[\"$rt\", \"/store\", \"rw\"], [\"/tmp/rail-test-bin\", \"/opt/rail-test\", \"ro\"],
      [\"$(dirname "$(command -v rdmaprep)")\", \"/opt/rdmaprep\", \"ro\"]] |
    map({source: .[0], destination: .[1], type: \"bind\", options: [\"bind\", .[2]]}))"
  for id in sandbox init; do
    edit "$id$k" "(.linux.namespaces[] | select(.type == \"network\")).path = \"/run/netns/pod$k\""
    as=pod$k prepare "$id$k" "v$k"
  done
  start runc "sandbox$k"
}

# init K: its container, from its start to its end.
init() { runc run --bundle "/tmp/ctr/init$1" "init$1" > "$rt/out$1" 2> "$rt/err$1" < /dev/null; }

# init_both CODE TEXT: both end with that code, and the first one says that.
init_both() {
  local k second code=0 other=0
  rm -f $rt/store
  init 1 &
  second=$!
  init 0 || code=$?
  wait "$second" || other=$?
  [ "$code $other" = "$1 $1" ] || die "exit codes $code $other: $(cat $rt/out[01] $rt/err[01])"
  grep -qF -- "$2" $rt/out0 || die "no \"$2\" in: $(cat $rt/out0)"
  sed "s/^/# $1: /" $rt/out0
  nothing_left
  for k in 0 1; do
    ip -n "pod$k" link show "v$k" > /dev/null || die "pod $k has lost its NIC"
    equal "who holds the NIC of pod $k" "sandbox$k" "$(jq -r '[.members[].id] | join(" ")' "$(record "sandbox$k")")"
  done
}

case_an_init_container_ends_as_the_test_does() {
  local k runners=()
  mkdir -p $rt
  for k in 0 1; do
    pod $k
    runners+=("$runner")
  done
  init_both 0 "all rails work: 2 nodes, 1 rail, pattern ring, 1 pair"

  ip netns exec pod1 tc qdisc add dev v1 clsact
  ip netns exec pod1 tc filter add dev v1 ingress protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff action drop
  init_both 11 "the neighbour is there and does not answer"
  ip netns exec pod1 tc qdisc delete dev v1 clsact

  # The other pod does not come.
  rm -f $rt/store
  edit init0 '.process.args += ["--rendezvous-timeout", "5"]'
  fails 10 init 0
  grep -qF "missing rank 1" $rt/err0 || die "$(cat $rt/err0)"
  for k in 0 1; do
    stop runc "sandbox$k" "${runners[k]}"
    equal "NICs of pod $k" lo "$(ip netns exec "pod$k" ls /sys/class/net)"
  done
}
