# shellcheck shell=bash source=tests/vm/claims.sh
# CRI-O's order, which Debian's next has no package of: conmon and the runtimes as it calls them. There is no sandbox container
# (drop_infra_ctr), the pod's namespace has a path, which goes when the sandbox is stopped, and containers that have ended are deleted,
# with their stop hooks, when the pod is removed: after Unprepare, and maybe minutes later (server/sandbox_stop_linux.go of CRI-O 1.36.3).
. "$(dirname "${BASH_SOURCE[0]}")/../claims.sh"

undo() {
  local id
  cluster_ends
  for id in one two three; do
    "${oci[@]}" delete --force "$id" > /dev/null 2>&1 || true
  done
  # Conmon of such a container ends by itself.
  ip netns delete pod 2> /dev/null || true
  rdmaprep uninstall > /dev/null || true
  rm -rf /usr/local/bin/rdmaprep /run/rdmaprep-runtime /run/crio /run/cases/exits
}

# sandbox_runs: a namespace with its path, as pinns makes it.
sandbox_runs() {
  ip netns add pod
  ip -n pod link set lo up
}

# crio_bundle ID POD_UID COMMAND...: with the namespace and the cgroup of its pod.
crio_bundle() {
  local id=$1 pod=$2
  shift 2
  # One of this name may have been there.
  umount "/tmp/ctr/$id/rootfs" 2> /dev/null || true
  rm -rf "/tmp/ctr/$id"
  bundle "$id" "$@"
  edit "$id" '(.linux.namespaces[] | select(.type == "network")).path = "/run/netns/pod"
    | .linux.cgroupsPath = "/kubepods/besteffort/pod'"$pod"'/crio-'"$id"'"'
}

# given ID DEVICE...: the edits of these CDI devices, as CRI-O makes them.
given() {
  local id=$1
  shift
  jq --slurpfile specs <(cat /run/cdi/*.json) '[$specs[] | .kind as $kind
      | [.devices[] | select("\($kind)=\(.name)" | IN($ARGS.positional[])).containerEdits] as $own
      | select($own != []) | [.containerEdits] + $own] as $edits
    | .process.env += [$edits[][].env[]?]
    | reduce $edits[][].hooks[]? as $hook (.; .hooks[$hook.hookName] += [$hook | del(.hookName)])
    | ([$edits[][].deviceNodes[]?] | unique_by(.path)) as $nodes
    | .linux.devices += [$nodes[] | {path, type, major, minor, fileMode, uid, gid}]
    | .linux.resources.devices += [$nodes[] | {allow: true, type, major, minor, access: .permissions}]' \
    --args "$@" < "/tmp/ctr/$id/config.json" > "/tmp/ctr/$id/config.new"
  mv "/tmp/ctr/$id/config.new" "/tmp/ctr/$id/config.json"
}

# hooked ID: the annotation of a plan, and what its hooks.d has for it.
hooked() {
  edit "$1" '.annotations["rdmaprep.io/plan"] = "pods"'
  jq --slurpfile found <(cat /usr/share/containers/oci/hooks.d/*.json) \
    'reduce $found[] as $one (.; .hooks[$one.stages[0]] += [$one.hook])' \
    < "/tmp/ctr/$1/config.json" > "/tmp/ctr/$1/config.new"
  mv "/tmp/ctr/$1/config.new" "/tmp/ctr/$1/config.json"
}

# conmon_starts ID: what CRI-O does for CreateContainer and StartContainer.
conmon_starts() {
  local id=$1 conmon words=()
  [ ${#oci[@]} = 1 ] || words=("--runtime-arg=${oci[1]}")
  mkdir -p /run/crio /run/cases/exits
  rm -f "/run/cases/exits/$id" "/tmp/ctr/$id".{log,pid}
  conmon --sync --cid "$id" --cuuid "$id" --name "$id" --bundle "/tmp/ctr/$id" --runtime "$(command -v "${oci[0]}")" \
    "${words[@]}" --container-pidfile "/tmp/ctr/$id.pid" --log-path "k8s-file:/tmp/ctr/$id.log" \
    --exit-dir /run/cases/exits --persist-dir "/tmp/ctr/$id" --log-level warning < /dev/null &
  conmon=$!
  # The runtime writes its pid when it is created, hooks and all.
  until [ -s "/tmp/ctr/$id.pid" ]; do
    kill -0 "$conmon" 2> /dev/null || die "conmon: $(cat "/tmp/ctr/$id.log" || true)"
    sleep 0.1
  done
  "${oci[@]}" start "$id"
}

# tells_ready ID: what it has printed is in /tmp/ctr/ID.out.
tells_ready() {
  until_true 300 grep -qs ' ready$' "/tmp/ctr/$1.log"
  cut -d " " -f 4- "/tmp/ctr/$1.log" > "/tmp/ctr/$1.out"
}

# sandbox_stops ID...: StopPodSandbox. Its containers are killed, none is deleted, and the namespace's path goes.
sandbox_stops() {
  local id
  for id; do
    "${oci[@]}" kill "$id" KILL
    until_true 300 test -e "/run/cases/exits/$id"
  done
  ip netns delete pod
}

# claims_in_order RUNTIME
claims_in_order() {
  local one two
  oci=("$1")
  sandbox_runs
  claim a pod-a v0
  one=$(device "$claim" v0)
  claim b pod-a rdma0
  two=$(device "$claim" rdma0)
  calls prepare a b
  equal "what the engine is asked for" "ok $one $two" "$said"
  # An init container is the first to have its claim.
  crio_bundle three "$uid" true
  given three "$one"
  conmon_starts three
  until_true 300 test -e /run/cases/exits/three
  crio_bundle one "$uid" sh -c "$tells"
  given one "$one"
  crio_bundle two "$uid" sh -c "$tells"
  given two "$two"
  for id in one two; do
    conmon_starts "$id"
    tells_ready "$id"
  done
  said=$(cat /tmp/ctr/one.out)
  says "sees rxe0 "
  says "conf NCCL_IB_HCA==rxe0"
  says "rdma0 UP 192.0.2.1/24"
  said=$(cat /tmp/ctr/two.out)
  says "sees rxe3 "
  says "conf NCCL_IB_HCA==rxe3"
  says "v0 UP 198.51.100.1/24"

  sandbox_stops one two
  # Nothing lives, and nothing but our pin keeps the namespace.
  timer
  [ ! -e /sys/class/net/v0 ] || die "they were returned before the claims had ended"
  ends a b
  (clean) || die "after Unprepare, before the stop hooks"
  # RemovePodSandbox: the stop hooks find nothing to do.
  for id in three one two; do "${oci[@]}" delete "$id"; done
  clean

  # Deleted by force, with its containers alive: the path first, then Unprepare, and the containers last.
  sandbox_runs
  claim c pod-c v0 rdma0
  prepared c
  crio_bundle one "$uid" sh -c "$tells"
  given one "$(device "$claim" v0)" "$(device "$claim" rdma0)"
  conmon_starts one
  tells_ready one
  check_payload /tmp/ctr/one.out conf
  ip netns delete pod
  calls unprepare c
  says "are not back: container one runs"
  "${oci[@]}" kill one KILL
  ends c
  (clean) || die "after Unprepare, before the stop hook"
  "${oci[@]}" delete one
  clean
}

# annotated_in_order RUNTIME: by the handler `rdmaprep`, and by what its hooks.d has.
annotated_in_order() {
  local shim=/tmp/ctr/rdmaprep-runtime-$1 how
  plan pods "v0 rdma0"
  ln -sf "$(command -v rdmaprep)" "$shim"
  oci=("$shim" --root=/run/rdmaprep-runtime)
  for how in by_timer by_hooks; do
    sandbox_runs
    for id in one two; do
      crio_bundle "$id" 0f1e2d3c-0123-4567-89ab-0123456789ab sh -c "$tells"
      hooked "$id"
      conmon_starts "$id"
      tells_ready "$id"
      check_payload "/tmp/ctr/$id.out" env
    done
    "${oci[@]}" kill one KILL
    until_true 300 test -e /run/cases/exits/one
    timer
    [ ! -e /sys/class/net/v0 ] || die "they left a container that lives"
    sandbox_stops two
    case $how in
      by_timer)
        timer
        (clean) || die "by the timer, before the stop hooks"
        "${oci[@]}" delete one
        "${oci[@]}" delete two
        ;;
      by_hooks)
        "${oci[@]}" delete one
        "${oci[@]}" delete two
        ;;
    esac
    clean
    wired rdma0
  done
}

case_claims_in_crios_order() {
  local id
  mkdir -p /tmp/ctr
  plan default "v0 rdma0"
  cluster_starts
  driver_starts
  for runtime in runc crun; do claims_in_order "$runtime"; done
}

case_annotations_in_crios_order() {
  local id
  mkdir -p /tmp/ctr
  ln -sf "$(command -v rdmaprep)" /usr/local/bin/rdmaprep
  rdmaprep install --crio > /tmp/ctr/installed
  for runtime in runc crun; do annotated_in_order "$runtime"; done
}
