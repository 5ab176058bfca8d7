# shellcheck shell=bash
# Pods with claims: rdmaprep-dra, the kubelet's calls to it, and containerd's CRI with the devices that it names.
# shellcheck source=tests/vm/cri.sh
. "$(dirname "${BASH_SOURCE[0]}")/../cri.sh"
# shellcheck source=tests/vm/claims.sh
. "$(dirname "${BASH_SOURCE[0]}")/../claims.sh"

undo() {
  cluster_ends
  pods_end
}

starts() {
  plan default "v0 rdma0"
  # shellcheck disable=SC2119 # without a plugin
  node_is_ready
  cluster_starts
  driver_starts
}

# pod_of NAME: a sandbox with the UID of the claim's pod; its id is in $pod.
pod_of() { pod=$(POD_UID=$uid "$kubelet" pod "$1" runc); }

# tells_all POD NAME DEVICE...: a container that is ready; its id is in $made.
tells_all() {
  local name=$1 container=$2
  shift 2
  rm -f "/run/cases/logs/$name/$container"
  made=$("$kubelet" container "$pod" "$container" "$@" -- sh -c "$tells")
  ready "$name" "$container"
}

# has_rails NAME HCA...: the container has the nodes, /sys and settings of these alone, and its namespace both NICs.
has_rails() {
  local said list
  said=$(cat "/tmp/ctr/$1.out")
  shift
  says "v0 UP 198.51.100.1/24"
  says "rdma0 UP 192.0.2.1/24 2001:db8::1/64"
  [ $# -gt 0 ] || { equal "its nodes and settings" "nodes " "$(grep -E '^(nodes|conf)' <<< "$said")"; return 0; }
  list=$(printf '%s,' "$@")
  equal "what it has" "nodes rdma_cm $(uverbs_of "$@")|conf NCCL_IB_HCA==${list%,}|sees $(printf '%s\n' "$@" | sort | tr '\n' ' ')|" \
    "$(grep -E '^(nodes|conf|sees)' <<< "$said" | tr '\n' '|')"
}

case_a_claim_over_the_life_of_a_pod() {
  local v0 rdma0 inside try one two wanted
  starts
  claim a pod-a v0 rdma0
  v0=$(device "$claim" v0) rdma0=$(device "$claim" rdma0) wanted="ok $v0 $rdma0"
  calls prepare a
  equal "what the engine is asked for" "$wanted" "$said"
  pod_of one
  equal "what is held by a sandbox" "No container holds a NIC." "$(rdmaprep status | head -n 1)"
  equal "exit code of the init container" 0 "$("$kubelet" run "$pod" init "$v0" "$rdma0" -- ls /sys/class/infiniband)"
  equal "what it saw" "rxe0 rxe3 " "$(cut -d " " -f 4- /run/cases/logs/one/init | tr '\n' ' ')"

  # From here on they stay: while no container runs, over others, a crash loop, and the timer.
  inside=(nsenter "--net=$(jq -r "\"$pins/\\(.netns)\"" "$records"/*.json)")
  links_begin host env
  links_begin pod "${inside[@]}"
  timer
  tells_all one one "$v0"
  one=$made
  tells_all one two "$rdma0"
  two=$made
  tells_all one three
  has_rails one rxe0
  has_rails two rxe3
  has_rails three
  "$kubelet" stop "$one"
  "$kubelet" stop "$two"
  for try in 1 2 3 4 5; do
    equal "exit code of try $try" 7 "$("$kubelet" run "$pod" two "$rdma0" -- sh -c 'ls /sys/class/infiniband; exit 7')"
    [ "$try" != 3 ] || timer
  done
  tells_all one one "$v0"
  has_rails one rxe0
  equal "NICs that have left the host and the pod" "0 0" "$(left host env) $(left pod "${inside[@]}")"

  # The kubelet starts again, and finds the sandbox dead: it asks once more, and has each device twice.
  # Its namespace, and the NICs there, outlive it.
  # A process in there would keep them.
  kill "${watchers[-1]}"
  wait "${watchers[-1]}" || true
  kill -KILL "$(ctr -n k8s.io tasks list | awk -v pod="$pod" '$1 == pod {print $2}')"
  # The shim may be about to end, too: containerd answers with an error then, and the kubelet asks again.
  until_true 60 "$kubelet" stop-pod "$pod"
  calls prepare a
  equal "what the engine is asked for again" "$wanted" "$said"
  pod_of one
  tells_all one one "$v0" "$v0"
  tells_all one two "$rdma0" "$rdma0"
  has_rails one rxe0
  has_rails two rxe3
  # On their way to the new sandbox they were on the host.
  equal "NICs that have left the host for it" 2 "$(left host env)"

  # The pod has ended, and its claim has not: they stay in its namespace, which the engine has removed.
  "$kubelet" stop-pod "$pod"
  timer
  [ ! -e /sys/class/net/v0 ] || die "the host has them before the claim has ended"
  calls unprepare a
  says "error its NICs (v0 rdma0) are not back"
  ends a
  equal "what is held after it" "No container holds a NIC." "$(rdmaprep status | head -n 1)"
  equal "claims" "no claim is prepared here" "$(rdmaprep claims)"
  settles
  # What has ended once more is no error.
  calls unprepare a
  equal "a second Unprepare" ok "$said"
}

case_a_second_pod_with_a_claim() {
  local v0 rdma0 first other
  starts
  claim a pod-a v0 rdma0
  v0=$(device "$claim" v0) rdma0=$(device "$claim" rdma0)
  prepared a
  # What is prepared is on the node: no container waits for the driver.
  driver_is_killed
  pod_of one
  first=$pod
  tells_all one first "$v0" "$rdma0"
  check_payload /tmp/ctr/first.out conf
  driver_starts

  # The kubelet asks no driver about a second pod of a claim that is prepared.
  claim c pod-c
  calls reserve a pod-a pod-c
  pod_of two
  other=$pod
  fails 1 "$kubelet" container "$other" first "$v0" -- true
  says "the claim jobs/a is pod pod-a's: one pod at a time"
  says "exit status 9"
  pod=$first
  tells_all one second "$rdma0"
  has_rails second rxe3

  # The user deletes both pods. Unprepare while containers live: the driver dies with the call, and the next one says why not.
  calls reserve a pod-a
  asks early unprepare a
  until_true 60 ended a
  driver_is_killed
  answers early
  equal "the call to a driver that was killed" "error no answer" "$said"
  driver_starts
  timer
  calls unprepare a
  says "error its NICs (v0 rdma0) are not back: container "
  [ ! -e /sys/class/net/v0 ] || die "they left a container that lives"
  fails 1 "$kubelet" container "$first" third "$rdma0" -- true
  says "pod pod-a has ended, and has yet to return the claim jobs/a"
  "$kubelet" stop-pod "$first"
  ends a

  # The next pod has it, from the driver that was started since.
  claim a pod-c v0 rdma0
  prepared a
  pod=$other
  tells_all two next "$v0" "$rdma0"
  check_payload /tmp/ctr/next.out conf
  "$kubelet" stop-pod "$other"
  ends a
  settles
}

ended() { rdmaprep claims --json | jq -e ".[] | select(.claim == \"jobs/$1\" and .state == \"ended\")" > /dev/null; }

# The API server has forgotten pod and claim, and the scheduler gives the rails to the next pod.
case_a_forced_deletion() {
  local first
  starts
  claim a pod-a v0 rdma0
  prepared a
  pod_of one
  first=$pod
  tells_all one first "$(device "$claim" v0)" "$(device "$claim" rdma0)"
  calls delete a
  claim b pod-b v0 rdma0
  calls prepare b
  says "error the claim jobs/a of pod pod-a has v0"
  [ ! -e /sys/class/net/v0 ] || die "they left a container that lives"

  # The kubelet has stopped the old pod while the new one waits.
  asks next prepare b
  "$kubelet" stop-pod "$first"
  ends a
  answers next
  # After a minute the kubelet asks again.
  [ "${said%% *}" = ok ] || calls prepare b
  equal "what the engine is asked for" "ok $(device "$claim" v0) $(device "$claim" rdma0)" "$said"
  pod_of two
  tells_all two first "$(device "$claim" v0)" "$(device "$claim" rdma0)"
  check_payload /tmp/ctr/first.out conf
  until_true 60 status_is b "ok v0=Attached rdma0=Attached"
  "$kubelet" stop-pod "$pod"
  ends b
  settles
}

status_is() {
  calls status "$1"
  [ "$said" = "$2" ]
}
