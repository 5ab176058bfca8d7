# shellcheck shell=bash source=tests/vm/inside.sh
# Our program as the runtime, before each real one: an engine without hooks of ours gets containers with their NICs.
. "$(dirname "${BASH_SOURCE[0]}")/../inside.sh"

# through RUNTIME: the command that calls it through us is in $oci.
through() {
  local shims=/tmp/ctr/shims
  mkdir -p "$shims"
  ln -sf "$(command -v rdmaprep)" "$shims/rdmaprep-runtime-$1"
  oci "$1"
  oci[0]=$shims/rdmaprep-runtime-$1
}

# asking ID NETDEVS COMMAND...: a bundle that names the plan, of which nothing else was prepared.
asking() {
  local id=$1 ifaces=$2
  shift 2
  plan "$id" "$ifaces"
  bundle "$id" "$@"
  edit "$id" '.annotations["rdmaprep.io/plan"] = "'"$id"'"'
}

# fileless ID: before our hooks, the files of the view go: what the hook needs of them, the runtime's process has.
fileless() { edit "$1" '.hooks.prestart = [{path: "/bin/sh", args: ["sh", "-c", "rm /run/rdmaprep/views/*.json"]}]'; }

# What the runtimes said, in case that one fails.
undo() { tail -n 3 /tmp/ctr/*.out /tmp/ctr/*.log 2> /dev/null || true; }

# holders: the processes that have something of ours in memory. One find: runsc's have hundreds of files.
holders() {
  find /proc/[0-9]*/fd -lname '/memfd:rdmaprep-*' 2> /dev/null | cut -d/ -f3 | sort -u |
    while read -r pid; do echo "$pid $(cat "/proc/$pid/comm")"; done
}

# shellcheck disable=SC2016 # the container's shell expands it
tells='echo "nodes $(ls /dev/infiniband | tr "\n" " ")"; echo "hca $NCCL_IB_HCA"; echo "sees $(ls /sys/class/infiniband | tr "\n" " ")"
echo ready; exec sleep infinity'

whole() { # RUNTIME
  local id=shim-$1 before
  asking "$id" "v0 rdma0" sh -c "$tells"
  [ "$1" = runsc ] || fileless "$id"
  before=$(cat "/tmp/ctr/$id/config.json")
  through "$1"
  "${oci[@]}" --log "/tmp/ctr/$id.log" --log-format=json run --bundle="/tmp/ctr/$id" "$id" \
    < /dev/null > "/tmp/ctr/$id.out" 2>&1 &
  runner=$!
  until grep -q '^ready' "/tmp/ctr/$id.out"; do
    kill -0 "$runner" 2>/dev/null || die "$1 run: $(cat "/tmp/ctr/$id.out" "/tmp/ctr/$id.log")"
    sleep 0.05
  done
  [ "$before" != "$(cat "/tmp/ctr/$id/config.json")" ] || die "config.json was not edited"
  said=$(cat "/tmp/ctr/$id.out")
  says "nodes rdma_cm uverbs0 uverbs3 "
  says "hca =rxe3,rxe0"
  says "sees rxe0 rxe3 "
  said=$(within "$id" ip -brief address)
  says "192.0.2.1/24 2001:db8::1/64"
  says "198.51.100.1/24"
  equal "the runtime, which has taken our place" "$1" "$(cat "/proc/$runner/comm")"
  # It alone has it: the payload inherits nothing. runsc would hand it on, and is given none.
  if [ "$1" = runsc ]; then
    equal "holders under $1" "" "$(holders)"
  else
    equal "holders under $1" "$runner $1" "$(holders)"
  fi
  # A container is killed only after all hooks of its start have run.
  until_true 60 grep -qF "command=\"hook poststart\" container=$id" /var/log/rdmaprep.log
  stop "${oci[0]}" "$id" "$runner"
  cell "$1" "$(version_of "$1")" "\`rdmaprep-runtime\`" env
}

case_runc() { whole runc; }
case_crun() { whole crun; }
# As containerd does it: one command after another, and the container's config.json by --bundle alone.
stages() { # RUNTIME
  local id=stages-$1 log=/tmp/ctr/stages-$1.log
  asking "$id" "v0 v1" sh -c 'exec sleep infinity'
  fileless "$id"
  through "$1"
  oci+=(--log "$log" --log-format json)
  "${oci[@]}" create --bundle "/tmp/ctr/$id" --pid-file "/tmp/ctr/$id.pid" "$id" < /dev/null > "/tmp/ctr/$id.out" 2>&1
  said=$(within "$id" ip -brief address)
  says "198.51.100.1/24"
  says "198.51.100.2/24"
  "${oci[@]}" start "$id"
  equal "its state" "running $(cat "/tmp/ctr/$id.pid")" "$("${oci[@]}" state "$id" | jq -r '"\(.status) \(.pid)"')"
  "${oci[@]}" kill "$id" KILL
  until_true 10 stopped
  "${oci[@]}" delete "$id"
  equal "holders under $1" "" "$(holders)"
}
stopped() { [ "$("${oci[@]}" state "$id" | jq -r .status)" = stopped ]; }

case_stages_of_runc() { stages runc; }
case_stages_of_crun() { stages crun; }

case_others_are_left_alone() {
  local before began alone
  bundle plain sh -c 'ls /sys/class/net; exit 7'
  before=$(sha256sum /tmp/ctr/plain/config.json; stat -c '%i %y' /tmp/ctr/plain/config.json)
  for runtime in runc crun; do
    through "$runtime"
    fails 7 "${oci[@]}" run --bundle /tmp/ctr/plain plain < /dev/null
    equal "its NICs under $runtime" lo "$said"
    equal "version" "$("$runtime" --version)" "$("${oci[@]}" --version)"
  done
  equal "config.json" "$before" "$(sha256sum /tmp/ctr/plain/config.json; stat -c '%i %y' /tmp/ctr/plain/config.json)"
  through runc
  began=$(date +%s%N)
  for _ in {1..20}; do "${oci[@]}" --version > /dev/null; done
  began=$(($(date +%s%N) - began))
  alone=$(date +%s%N)
  for _ in {1..20}; do runc --version > /dev/null; done
  echo "# before a runc that has nothing to do: $(((began - ($(date +%s%N) - alone)) / 20000)) us under emulation"
}

case_a_refusal_is_in_the_log() {
  local before id=refused
  asking "$id" v0 true
  edit "$id" '.linux.namespaces |= map(select(.type != "network"))'
  before=$(cat "/tmp/ctr/$id/config.json")
  for runtime in runc crun runsc; do
    through "$runtime"
    fails 3 "${oci[@]}" --log "/tmp/ctr/$runtime.log" --log-format json create --bundle "/tmp/ctr/$id" "$id"
    said=$(jq -r 'select(.level == "error") | .msg' "/tmp/ctr/$runtime.log")
    says "shares the host's network"
    equal "config.json" "$before" "$(cat "/tmp/ctr/$id/config.json")"
  done
}
