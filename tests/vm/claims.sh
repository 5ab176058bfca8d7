# shellcheck shell=bash source=tests/vm/inside.sh
# The cluster around a node with claims: an API server and the kubelet's calls, which are those of the driver's tests
# (kubelet/tests/dra/cluster.rs), and the driver itself.
. "$(dirname "${BASH_SOURCE[0]}")/inside.sh"

cluster=/run/cases/cluster

cluster_starts() {
  local test
  test=$(find "${RDMAPREP_TEST_DIR:-/repo/target/debug/deps}" -name 'dra-*' ! -name '*.*' -printf '%T@ %p\n' | sort -n | tail -n 1)
  test=${test#* }
  [ -x "$test" ] || die "no test binary: run cargo test --no-run"
  rm -rf "$cluster"
  mkdir -p "$cluster"
  mkfifo "$cluster/commands"
  RDMAPREP_CLUSTER=$cluster "$test" --ignored --exact cluster::cluster_of_a_shell --nocapture \
    < "$cluster/commands" > /run/cases/cluster.out 2>&1 &
  exec {commands}> "$cluster/commands"
  until_true 120 test -e "$cluster/flags"
}

# asks WORD COMMAND...: the cluster, which answers later: see `answers`.
asks() {
  rm -f "$cluster/$1"
  echo "$*" >&"$commands"
}

# answers WORD: what it said is in $said.
answers() {
  until_true 240 test -e "$cluster/$1"
  said=$(cat "$cluster/$1")
}

calls() {
  asks call "$@"
  answers call
}

# claim NAME POD RAIL...: allocated and reserved. Its UID is in $claim, the pod's in $uid.
claim() {
  local word
  calls claim "$@"
  # shellcheck disable=SC2034 # for the file that sources this
  read -r word claim uid <<< "$said"
  equal "the claim $1" ok "$word"
}

# prepared CLAIM...: the kubelet's call before it makes a sandbox.
prepared() {
  calls prepare "$@"
  [ "${said%% *}" = ok ] || die "Prepare: $said"
}

# device CLAIM RAIL: as the engine is asked for it.
device() { echo "rdmaprep.io/claim=$1-$2"; }

# driver_starts: with what the node offers.
driver_starts() {
  local flags
  [ -e /etc/cdi/rdmaprep.json ] || rdmaprep cdi generate --hook-timeout 600 > /tmp/ctr/generated
  read -ra flags < "$cluster/flags"
  rdmaprep-dra "${flags[@]}" >> /run/cases/driver.out 2>&1 {commands}>&- &
  driver=$!
  until_true 120 registered
}

# registered: the kubelet finds it. A driver that was killed leaves its socket.
registered() { ss --listening --unix --no-header | grep -q "plugins_registry/rdmaprep.io-reg.sock"; }

driver_is_killed() {
  kill -KILL "$driver"
  wait "$driver" || true
  driver=
}

# As rdmaprep-stale.timer, which returns NICs of pods that have ended.
timer() { rdmaprep restore --all --stale; }

# ends CLAIM...: Unprepare, as often as the kubelet asks, with the timer beside it. When it succeeds, the NICs are on the host.
ends() {
  local tries
  for ((tries = 0; tries < 5; tries++)); do
    asks end unprepare "$@"
    until [ -e "$cluster/end" ]; do timer > /run/cases/timer 2>&1 || true; done
    [ -e /sys/class/net/v0 ] && [ -e /sys/class/net/rdma0 ] || [ "$(cat "$cluster/end")" != ok ] ||
      die "the claims have ended, and their NICs are away"
    answers end
    [ "$said" != ok ] || return 0
  done
  die "Unprepare: $said"
}

cluster_ends() {
  # In case that this one fails.
  tail -n 6 /run/cases/{driver,cluster}.out 2> /dev/null || true
  [ -z "${driver:-}" ] || driver_is_killed
  [ -z "${commands:-}" ] || exec {commands}>&-
  rm -rf "$cluster" /run/rdmaprep/claims /run/cdi /etc/cdi /run/cases/{driver,cluster}.out /var/lib/kubelet
}

# links_begin NAME [PROGRAM...]: from now on the link events of a network namespace, which these words enter, are in /tmp/ctr/NAME.links.
links_begin() {
  local name=$1
  shift
  "$@" ip -oneline monitor link > "/tmp/ctr/$name.links" {commands}>&- &
  watchers+=($!)
  # It may not listen yet.
  until grep -qs fence "/tmp/ctr/$name.links"; do fence "$@"; done
}

fence() {
  "$@" ip link add fence type dummy
  "$@" ip link delete fence
}

# left NAME [PROGRAM...]: how many NICs have left that namespace since then.
left() {
  local name=$1 before
  shift
  # Events come in their order.
  before=$(grep -c '^Deleted.*fence' "/tmp/ctr/$name.links") || true
  fence "$@"
  until [ "$(grep -c '^Deleted.*fence' "/tmp/ctr/$name.links")" -gt "$before" ]; do sleep 0.05; done
  grep -cE '^Deleted [0-9]+: (v0|rdma0)[@:]' "/tmp/ctr/$name.links" || true
}
