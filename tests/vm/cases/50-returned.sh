# shellcheck shell=bash source=tests/vm/container.sh
# A container dies without a word, and even our pin is gone: the kernel returns its PCI NIC, down and naked.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

# lose ID [NAME]: kills that sandbox (inside, its rdma0 may be called NAME by then), unpins it, and waits for the NIC.
lose() {
  local pin
  pin=$(pin "$1")
  [ $# = 1 ] || { within "$1" ip link set rdma0 down && within "$1" ip link set rdma0 name "$2"; }
  kill -KILL "$(jq '.members[0].pid' "$(record "$1")")"
  umount "$pin"
  until_true 20 returned
  said=$(ip -brief address show dev "$came")
  ! grep -E ' UP |192.0.2.1' <<< "$said" || die "not down and naked: $said"
}

# Under which name the first PCI NIC is back is in $came.
returned() {
  came=$(basename "$(grep -l 52:54:00:00:00:01 /sys/class/net/*/address | xargs -r dirname)")
  [ -n "$came" ]
}

# The emulated NICs take seconds to find their carrier again.
lit() { until_true 20 grep -q ACTIVE /sys/class/infiniband/rxe3/ports/1/state; }

case_under_its_own_name() {
  bundle dead
  prepare dead rdma0
  start runc dead
  # No process is left to call the stop hook.
  kill -KILL "$runner"
  lose dead
  equal "its name" rdma0 "$came"
  said=$(rdmaprep status)
  says "rdmaprep restore --all --stale"
  rdmaprep restore dead
}

case_under_a_new_name_and_another_hook_reclaims() {
  lit
  sandbox dead
  plan dead rdma0
  # Made now: while the device node of the dead container is free, prepare would foretell another one, rightly refused after the restore.
  plan other v0
  hook createRuntime dead
  # A name that the host has: the kernel gives another.
  lose dead fabric
  [[ $came =~ ^dev[0-9]+$ ]] || die "its name: $came"
  sandbox other
  hook createRuntime other
  said=$(report other .notes[])
  says "restored rdma0"
  [ -e /sys/class/net/rdma0 ] || die "it is not home"
  hook poststop other
}

case_with_its_old_name_as_altname() {
  lit
  sandbox dead
  plan dead rdma0
  hook createRuntime dead
  lose dead other0
  equal "its name" other0 "$came"
  # As udev does to a NIC that it cannot rename.
  ip link property add dev other0 altname rdma0 altname enp0s7
  rdmaprep restore dead
}
