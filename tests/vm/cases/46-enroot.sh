# shellcheck shell=bash source=tests/vm/container.sh
# enroot's hook, called as enroot calls it (tests/interop/enroot/start), by a user without privileges (65534), on real verbs nodes.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

undo() { rm -rf /run/rdmaprep-enroot /run/rdmaprep/plans; }

# image: a root, the hook's folder and one of the user's; and the plan, published.
image() {
  bundle image true
  mkdir -p /tmp/ctr/enroot/hooks.d /tmp/ctr/user
  chown 65534 /tmp/ctr/user
  cp /repo/hooks/enroot/90-rdmaprep.sh /tmp/ctr/enroot/hooks.d
  plan enroot "v0 rdma0"
  /repo/hooks/enroot/publish enroot
}

as_user() { setpriv --reuid 65534 --regid nogroup --clear-groups -- "$@"; }

# enroot SCRIPT: in a container that asks.
enroot() {
  ENROOT_SYSCONF_PATH=/tmp/ctr/enroot ENROOT_RUNTIME_PATH=/tmp/ctr/user as_user \
    /repo/tests/interop/enroot/start --env RDMAPREP_PLAN=enroot /tmp/ctr/image/rootfs sh -c "$1"
}

case_enroot_by_an_unprivileged_user() {
  local before tells nodes
  image
  before=$(ls /sys/class/infiniband /dev/infiniband; cat /proc/mounts)
  # Root's alone.
  fails 1 as_user cat /run/rdmaprep/plans/enroot.json
  # shellcheck disable=SC2016 # the container's shell expands it
  tells='echo "hcas $(ls /sys/class/infiniband | tr "\n" " ")"; echo "nodes $(ls /dev/infiniband | tr "\n" " ")"
    echo "env ${NCCL_IB_HCA:-none}, ${NCCL_SOCKET_IFNAME:-none}"
    for dev in rxe0 rxe1 rxe3; do ibv_devinfo -d $dev 2>&1 | grep -q PORT_ACTIVE && echo "opens $dev"; done
    echo "listed $(ibv_devices | grep -c rxe)"; ls /sys/class/net | grep -x v1'
  said=$(enroot "$tells")
  says "hcas rxe0 rxe3 "
  # Soft-RoCE takes the next number with every move of an earlier case.
  nodes=$(cd /sys/class/infiniband_verbs && grep -lxE 'rxe[03]' uverbs*/ibdev | cut -d/ -f1 | sort | tr '\n' ' ')
  says "nodes rdma_cm $nodes"
  says "env =rxe3,rxe0, none"
  says "opens rxe0"
  says "opens rxe3"
  says "listed 2"
  says "v1"
  ! grep -q "opens rxe1" <<< "$said" || die "it has the device of another NIC: $said"
  equal "the host" "$before" "$(ls /sys/class/infiniband /dev/infiniband; cat /proc/mounts)"
}

case_enroot_while_another_container_has_a_nic() {
  image
  bundle held
  prepare held v0
  start runc held
  fails 1 enroot "echo runs"
  says "v0 of plan enroot is not on this host"
  stop runc held "$runner"
  wired v0
  # Its device was re-created by the moves.
  /repo/hooks/enroot/publish enroot
  said=$(enroot "echo runs")
  says "runs"
}
