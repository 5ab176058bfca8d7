# shellcheck shell=bash source=tests/vm/cri.sh
# Pods of containerd's CRI plugin, which ask by annotation, by devices, or have the CNI plugin.
. "$(dirname "${BASH_SOURCE[0]}")/../cri.sh"

asking=(rdmaprep.io/plan=pods)

case_a_pod_of_the_runtime_class() {
  local pod first init
  plan pods "v0 rdma0"
  node_is_ready
  pod=$("$kubelet" pod one rdmaprep "${asking[@]}")
  said=$(rdmaprep status)
  says "held by     ${pod:0:12}"
  init=$("$kubelet" container "$pod" init -- ls /sys/class/infiniband)
  equal "exit code of the init container" 0 "$("$kubelet" wait "$init")"
  said=$(cut -d " " -f 4- /run/cases/logs/one/init | tr '\n' ' ')
  says "rxe0 rxe3 "
  first=$("$kubelet" container "$pod" first -- sh -c "$tells")
  "$kubelet" container "$pod" second -- sh -c "$tells" > /dev/null
  for name in first second; do
    ready one "$name"
    check_payload "/tmp/ctr/$name.out" env
  done

  # A pod that another one's NIC keeps out is not created, and nothing of it is left.
  fails 1 "$kubelet" pod two rdmaprep "${asking[@]}"
  says "is held by container ${pod:0:12}"
  # Nor does a pod that did not ask notice anything.
  "$kubelet" stop-pod "$("$kubelet" pod three rdmaprep)"

  # A container that is started again joins the pod's NICs, which have not moved.
  "$kubelet" stop "$first"
  "$kubelet" remove "$first"
  rm /run/cases/logs/one/first
  first=$("$kubelet" container "$pod" first -- sh -c "$tells")
  ready one first
  check_payload /tmp/ctr/first.out env

  kill "$daemon"
  wait "$daemon" || true
  containerd_starts
  said=$(rdmaprep status)
  says "held by     ${pod:0:12}"
  "$kubelet" stop-pod "$pod"
  settles
  "$kubelet" remove-pod "$pod"
  cell "containerd (CRI)" "$(version_of containerd) (runc $(version_of runc))" "RuntimeClass" env
}

# The CNI plugin in the chain of the pod network: a pod of any handler, by its annotations.
case_a_pod_of_the_cni_plugin() {
  local pod made
  plan pods "v0 rdma0"
  node_is_ready '{"type": "rdmaprep", "capabilities": {"io.kubernetes.cri.pod-annotations": true}}'
  pod=$("$kubelet" pod one runc "${asking[@]}")
  said=$(rdmaprep status)
  says "held by     ${pod:0:12}"
  says "network pods, interface eth0, /var/run/netns/cni-"
  made=$("$kubelet" container "$pod" first -- ls /proc/sys/net/ipv4/conf)
  equal "exit code" 0 "$("$kubelet" wait "$made")"
  said=$(cut -d " " -f 4- /run/cases/logs/one/first | tr '\n' ' ')
  says "eth0 lo rdma0 v0 "
  # Its namespace lives: the timer takes nothing.
  equal "what the timer restores" "" "$(rdmaprep restore --all --stale)"
  fails 1 "$kubelet" pod two runc "${asking[@]}"
  says "is held by container ${pod:0:12}"
  "$kubelet" stop-pod "$("$kubelet" pod three runc)"
  "$kubelet" stop-pod "$pod"
  equal "what is held after the pod" "No container holds a NIC." "$(rdmaprep status | head -n 1)"
  settles
  "$kubelet" remove-pod "$pod"

  # With the handler: nodes, /sys and settings, too.
  pod=$("$kubelet" pod one rdmaprep "${asking[@]}")
  rm -f /run/cases/logs/one/first
  "$kubelet" container "$pod" first -- sh -c "$tells" > /dev/null
  ready one first
  check_payload /tmp/ctr/first.out env
  said=$(rdmaprep status)
  says "held by     ${pod:0:12}, ${pod:0:12}"
  "$kubelet" stop-pod "$pod"
  settles
}

case_a_pause_that_is_killed() {
  local pod
  plan pods "v0 rdma0"
  node_is_ready
  pod=$("$kubelet" pod one rdmaprep "${asking[@]}")
  "$kubelet" container "$pod" first -- sleep 1000 > /dev/null
  # shellcheck disable=SC2154 # of node.sh
  kill -KILL "$(jq -r .members[0].pid "$records"/*.json)"
  # The shim may be about to end, too: containerd answers with an error then, and the kubelet asks again.
  until_true 20 "$kubelet" stop-pod "$pod"
  settles
  # The second attempt of a pod gets the NICs again.
  "$kubelet" remove-pod "$pod"
  pod=$("$kubelet" pod one rdmaprep "${asking[@]}")
  "$kubelet" container "$pod" first -- sh -c "$tells" > /dev/null
  ready one first
  check_payload /tmp/ctr/first.out env
  "$kubelet" stop-pod "$pod"
  settles
}

# What a device plugin or a DRA driver names: in any pod, of any handler.
case_devices_of_a_plain_pod() {
  local pod made
  plan default "v0 rdma0"
  node_is_ready
  rdmaprep cdi generate --hook-timeout 600 > /tmp/ctr/generated
  pod=$("$kubelet" pod plain runc)
  equal "what is held by a pod without devices" "No container holds a NIC." "$(rdmaprep status | head -n 1)"
  made=$("$kubelet" container "$pod" first rdmaprep.io/rail=v0 rdmaprep.io/rail=rdma0 -- sh -c "$tells")
  ready plain first
  check_payload /tmp/ctr/first.out conf
  "$kubelet" stop "$made"
  "$kubelet" remove "$made"
  equal "what is held after the container" "No container holds a NIC." "$(rdmaprep status | head -n 1)"
  "$kubelet" stop-pod "$pod"
  settles
}

# The hook in a container of a handler that passes no annotations on: that is what the doctor says.
case_annotations_that_do_not_arrive() {
  local pod
  plan pods "v0 rdma0"
  node_is_ready
  cat > /etc/cdi.json <<CDI
{"cdiVersion": "0.6.0", "kind": "example.org/hook", "devices": [{"name": "x", "containerEdits": {"hooks": [
  {"hookName": "createRuntime", "path": "/usr/local/bin/rdmaprep", "args": ["rdmaprep", "hook", "createRuntime"]}]}}]}
CDI
  mkdir -p /etc/cdi
  mv /etc/cdi.json /etc/cdi/hook.json
  pod=$("$kubelet" pod plain runc "${asking[@]}")
  "$kubelet" container "$pod" first example.org/hook=x -- sleep 1000 > /dev/null
  said=$(rdmaprep doctor --json --ifaces "v0 rdma0" || true)
  said=$(jq -r '.findings[] | select(.check == "pod_annotations") | .seen' <<< "$said")
  says "gets no annotation of the pod"
  "$kubelet" stop-pod "$pod"
  settles
}

# The whole chain: a plugin that counts rails, a kubelet that asks it for two of three, containerd that gives these by CDI.
case_devices_that_a_plugin_allocates() {
  local pod plugin given
  plan default "v0 rdma0 v1"
  node_is_ready
  rdmaprep cdi generate --hook-timeout 600 > /tmp/ctr/generated
  mkdir -p /var/lib/kubelet/device-plugins
  rdmaprep-device-plugin > /run/cases/plugin 2>&1 &
  plugin=$!
  equal "devices" "rdma0 Healthy v0 Healthy v1 Healthy " "$("$kubelet" devices rdmaprep.io/rail | tr '\n' ' ')"
  # A kubelet that was started again: the plugin registers itself again.
  mapfile -t given < <("$kubelet" allocate rdmaprep.io/rail 2)
  equal "rails that belong together" "rdmaprep.io/rail=rdma0 rdmaprep.io/rail=v0" "${given[*]}"
  pod=$("$kubelet" pod plain runc)
  "$kubelet" container "$pod" first "${given[@]}" -- sh -c "$tells" > /dev/null
  ready plain first
  check_payload /tmp/ctr/first.out conf
  "$kubelet" stop-pod "$pod"
  equal "what is held after the pod" "No container holds a NIC." "$(rdmaprep status | head -n 1)"

  # What a container outside Kubernetes has is not offered.
  bundle other
  prepare other v1
  start runc other
  until_true 20 unhealthy v1
  stop runc other "$runner"
  until_true 20 healthy v1
  kill "$plugin"
  wait "$plugin" || true
  settles
}

unhealthy() { "$kubelet" devices rdmaprep.io/rail | grep -qx "$1 Unhealthy"; }
healthy() { "$kubelet" devices rdmaprep.io/rail | grep -qx "$1 Healthy"; }
