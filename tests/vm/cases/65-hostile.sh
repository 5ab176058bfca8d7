# shellcheck shell=bash source=tests/vm/container.sh
# What an image, an annotation or a container's root can say and do under a real runtime: no NIC is moved, or all are restored.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

undo() { rm -f /etc/rdmaprep/config.toml; }

# refused RUNTIME ANNOTATIONS WORDS: that container does not start, the log says why in one line, and nothing has moved.
refused() {
  local runtime=$1 words=$3
  jq --argjson more "$2" '.annotations += $more' /tmp/ctr/bad/config.good > /tmp/ctr/bad/config.json
  rm -f /var/log/rdmaprep.log
  if "$runtime" run --bundle /tmp/ctr/bad bad > /tmp/ctr/bad.out 2>&1 < /dev/null; then
    die "$runtime started it with $2: $(cat /tmp/ctr/bad.out)"
  fi
  said=$(grep container=bad /var/log/rdmaprep.log || cat /tmp/ctr/bad.out)
  says "$words"
  ! grep -q ' move_ms=' /var/log/rdmaprep.log || die "something was moved: $said"
  "$runtime" delete --force bad > /dev/null 2>&1 || true
  clean
}

case_annotations() {
  bundle bad
  prepare bad "v0 v1" --sysfs off
  # As of an engine that lets images bring annotations along.
  edit bad '.hooks |= map_values(map(.args = .args[:3]))'
  cp /tmp/ctr/bad/config.json /tmp/ctr/bad/config.good
  for runtime in runc crun; do
    refused "$runtime" '{"rdmaprep.io/plan": "../../../../etc/shadow"}' "annotation"
    refused "$runtime" '{"rdmaprep.io/plan": "bad\nrdmaprep: all is well"}' "annotation"
    refused "$runtime" '{"rdmaprep.io/ifaces": "v0 v1 rdma0 /etc/passwd"}' "annotation"
    refused "$runtime" '{"rdmaprep.io/exclude": "(((((((((("}' "annotation"
    refused "$runtime" '{"rdmaprep.io/exclude": ".*"}' "leave no NIC"
    refused "$runtime" '{"rdmaprep.io/ifaces": "rdma0"}' "leave no NIC"
    refused "$runtime" '{"rdmaprep.io/debug_all": "1"}' "is unknown"
    refused "$runtime" "$(jq -cn '{"rdmaprep.io/exclude": ("a" * 5000)}')" "too long"
  done
  # They narrow, never widen.
  jq '.annotations += {"rdmaprep.io/ifaces": "v1 rdma0"}' /tmp/ctr/bad/config.good > /tmp/ctr/bad/config.json
  edit bad '.process.args = ["ip", "-brief", "link"]'
  said=$(runc run --bundle /tmp/ctr/bad bad < /dev/null)
  says v1
  ! grep -E 'v0|rdma0' <<< "$said" || die "more than was asked for or allowed: $said"
}

# evil NETDEVS SCRIPT: a container whose root may do what it likes there, and does it; $nested is a process with a network
# namespace of its own.
evil() {
  local nest
  # shellcheck disable=SC2016 # the container's shell expands it
  nest='unshare -n sleep infinity & nested=$!
    until [ "$(readlink /proc/$nested/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done'
  bundle evil
  prepare evil "$1"
  edit evil '(.process.capabilities[]) |= (. + ["CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_PTRACE"] | unique)'
  jq --arg script "$nest; $2; echo ready; exec sleep infinity" '.process.args = ["sh", "-c", $script]' \
    /tmp/ctr/evil/config.json > /tmp/ctr/evil/config.new
  mv /tmp/ctr/evil/config.new /tmp/ctr/evil/config.json
  start "$runtime" evil
}

# Its root has every privilege there: it renames a NIC to a name that the host has, and moves another one on.
case_rename_and_nested_namespace() {
  for runtime in crun ${ALL:+runc}; do
    # shellcheck disable=SC2016
    evil "v0 rdma0 rdma1" 'ip link set rdma0 down && ip link set rdma0 name v1 address 02:66:66:66:66:66 &&
      ip link set rdma1 name lo1 && ip link set lo1 netns $nested && ip link set v0 netns $nested'
    said=$(within evil ip -brief link)
    ! grep -E 'v0|rdma1' <<< "$said" || die "$runtime: they were not moved on: $said"
    # The host asks for them while all processes run.
    rdmaprep restore evil > /tmp/ctr/said
    said=$(cat /tmp/ctr/said)
    says ": restored"
    says "rdma0 had been renamed to v1"
    says "rdma1 had been moved on to network namespace"
    says "v0 had been moved on to network namespace"
    "$runtime" kill evil KILL
    wait "$runner" || true
    "$runtime" delete --force evil > /dev/null 2>&1 || true
    clean
    umount /tmp/ctr/evil/rootfs

    # The container dies, and what it had moved on is the kernel's to return.
    # shellcheck disable=SC2016
    evil "rdma0 rdma1" 'ip link set rdma1 name fabric && ip link set fabric netns $nested'
    stop "$runtime" evil "$runner"
    clean
    umount /tmp/ctr/evil/rootfs
  done
}

# unplugged FUNCTION: is it gone?
unplugged() { [ ! -e "/sys/bus/pci/devices/$1" ]; }

# The card is unplugged while it is in a container, and returns as a new one; what is missing is reported, and restored with the card.
case_unplugged_while_away() {
  local function
  function=$(basename "$(readlink -f /sys/class/net/rdma0/device)")
  plan gone rdma0
  sandbox gone
  hook createRuntime gone
  echo 1 > "/sys/bus/pci/devices/$function/remove"
  until_true 20 unplugged "$function"
  kill -KILL "$init"
  fails 8 rdmaprep restore gone
  says "rdma0 is neither in the container's namespace nor on the host"
  said=$(rdmaprep status)
  says "rdma0"
  says "rdmaprep restore"
  echo 1 > /sys/bus/pci/rescan
  until_true 20 test -e "/sys/bus/pci/devices/$function/net"
  rdmaprep restore gone
}
