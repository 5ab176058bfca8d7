# shellcheck shell=bash
# Containers for the cases, and what one asks of them.
. "$(dirname "${BASH_SOURCE[0]}")/node.sh"

# fails STATUS COMMAND...: it ends with that exit status. What it said is in $said.
fails() {
  local want=$1 code=0
  shift
  said=$("$@" 2>&1) || code=$?
  [ "$code" = "$want" ] || die "exit status $code instead of $want: $*: $said"
}

# says TEXT: $said has it.
# says TEXT: as it stands, or wrapped as tables are.
says() {
  grep -qF -- "$1" <<< "$said" || grep -qF -- "$1" <<< "$(tr -s ' \n' ' ' <<< "$said")" || die "no \"$1\" in: $said"
}

# rounds N: how often a loop that takes long goes round; with ALL=1 as often as was promised.
rounds() { if [ "${ALL:-}" = 1 ]; then echo 20; else echo "$1"; fi; }

# equal WHAT EXPECTED GOT
equal() { [ "$2" = "$3" ] || die "$1: \"$3\" instead of \"$2\""; }

# until_true SECONDS COMMAND...
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || die "in vain: $*"
    sleep 0.1
  done
}

# serves PID OUTPUT LISTENING: waits until the command LISTENING says that the server listens; one that ends before it does
# shows why.
serves() {
  local end=$((SECONDS + 120))
  until "$3"; do
    kill -0 "$1" 2> /dev/null || die "the server has ended: $(cat "$2")"
    [ "$SECONDS" -lt "$end" ] || die "the server does not listen: $(cat "$2"; ps ax | tail -n 30)"
    sleep 0.1
  done
}

# bundle ID [COMMAND...]: /tmp/ctr/ID; without a command it says "ready" and waits.
bundle() {
  local id=$1
  shift
  [ $# -gt 0 ] || set -- sh -c 'echo ready; exec sleep infinity'
  /repo/scripts/vm/bundle "/tmp/ctr/$id" "$@"
}

# edit ID FILTER: changes its config.json by jq.
edit() {
  jq "$2" "/tmp/ctr/$1/config.json" > "/tmp/ctr/$1/config.new"
  mv "/tmp/ctr/$1/config.new" "/tmp/ctr/$1/config.json"
}

# wired NETDEVS: waits for those of them that take seconds to find it after each move, and are no candidates before.
wired() {
  local nic state
  for nic in $1; do
    case $nic in rdma[01]) ;; *) continue ;; esac
    state=/sys/class/infiniband/rxe$((${nic#rdma} + 3))/ports/1/state
    [ ! -e "$state" ] || until_true 20 grep -q ACTIVE "$state"
  done
}

# prepare ID NETDEVS [OPTION...]: for that bundle, as the plan $as or one of its own name.
prepare() {
  local id=$1 ifaces=$2
  shift 2
  wired "${ifaces//,/ }"
  rdmaprep prepare --plan "${as:-$id}" --ifaces "$ifaces" --bundle "/tmp/ctr/$id" "$@" > "/tmp/ctr/$id.prepared"
}

# oci RUNTIME: the command that calls it is in $oci. Debian's runsc refuses its own network on so new a kernel.
oci() {
  oci=("$1")
  [ "$1" != runsc ] || oci+=(--network=host)
}

# start RUNTIME ID: in the background, until its payload says "ready"; then the runtime's pid is in $runner.
start() {
  oci "$1"
  # What an earlier one printed is no sign of this one.
  : > "/tmp/ctr/$2.out"
  "${oci[@]}" run --bundle "/tmp/ctr/$2" "$2" < /dev/null > "/tmp/ctr/$2.out" 2>&1 &
  runner=$!
  until grep -q '^ready' "/tmp/ctr/$2.out"; do
    kill -0 "$runner" 2>/dev/null || die "$1 run $2: $(cat "/tmp/ctr/$2.out")"
    sleep 0.05
  done
}

# stop RUNTIME ID RUNNER: kills its payload and waits for the runtime, and with it for poststop.
stop() {
  local code=0
  "$1" kill "$2" KILL
  wait "$3" || code=$?
  # youki has the number of the signal for it.
  [ "$1.$code" != youki.9 ] || code=137
  equal "exit status of $1 run $2" 137 "$code"
}

# What a record says of the namespace that holds the NICs of container ID.
record() { grep -lF "\"id\":\"$1\"" "$records"/*.json 2>/dev/null; }
pin() { jq -r "\"$pins/\\(.netns)\"" "$(record "$1")"; }

# within ID COMMAND...: in the container's network namespace, with a /sys of it, and the host's programs.
within() {
  local id=$1
  shift
  nsenter "--net=$(pin "$id")" unshare -m sh -c 'mount -t sysfs sys /sys && exec "$@"' sh "$@"
}

# A process with a network namespace and nothing else, as good as a container for a hook that is called by hand.
# sandbox ID: its pid is in $init, its state in /tmp/ctr/ID.state
sandbox() {
  mkdir -p /tmp/ctr
  unshare -n sleep infinity &
  init=$!
  until [ "$(readlink /proc/$init/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
  printf '{"ociVersion":"1.0.2","id":"%s","status":"creating","pid":%s,"bundle":"/tmp/ctr/%s"}' "$1" "$init" "$1" \
    > "/tmp/ctr/$1.state"
}

# hook STAGE ID [OPTION...]: for that sandbox, with the plan of its name.
hook() {
  local stage=$1 id=$2
  shift 2
  rdmaprep hook "$stage" --plan "$id" "$@" < "/tmp/ctr/$id.state"
}

# plan ID NETDEVS: prepares without a bundle.
plan() {
  mkdir -p /tmp/ctr
  wired "${2//,/ }"
  rdmaprep prepare --plan "$1" --ifaces "$2" > "/tmp/ctr/$1.prepared"
}

# report ID FIELD: of the report of its last hook.
report() { jq -r "$2" "/run/rdmaprep/reports/$1.json"; }
