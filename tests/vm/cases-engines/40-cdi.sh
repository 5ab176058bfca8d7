# shellcheck shell=bash source=tests/vm/inside.sh
# podman's devices: each rail by its name, several of them, and all, from the file that `cdi generate` writes.
. "$(dirname "${BASH_SOURCE[0]}")/../inside.sh"

# An emulated processor may be slow: --hook-timeout gives the hooks ten minutes.
kind=rdmaprep.io/rail file=/etc/cdi/rdmaprep.json
export CONTAINERS_STORAGE_CONF=/tmp/ctr/storage.conf CONTAINERS_CONF=/tmp/ctr/containers.conf

# ready: a podman that needs neither systemd nor a disk.
ready() {
  mkdir -p /tmp/ctr /run/podman
  printf '[storage]\ndriver = "overlay"\ngraphroot = "/run/podman/graph"\nrunroot = "/run/podman/run"\n' \
    > "$CONTAINERS_STORAGE_CONF"
  printf '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n' > "$CONTAINERS_CONF"
}

undo() {
  podman rm --all --force --time 0 > /dev/null 2>&1 || true
  rm -rf "$file" /run/rdmaprep/plans
}

# shellcheck disable=SC2016 # the container's shell expands it
tells='echo "nodes $(ls /dev/infiniband | tr "\n" " ")"; echo "env $(env | grep ^RDMAPREP_ | sort | tr "\n" " ")"
echo "hca ${NCCL_IB_HCA:-none}"; echo "conf $(grep ^NCCL_IB_HCA= /etc/nccl.conf)"
echo "sees $(ls /sys/class/infiniband | tr "\n" " ")"; echo "nets $(ls /sys/class/net | tr "\n" " ")"
for dev in $(ls /sys/class/infiniband); do ibv_devinfo -d $dev | grep -q PORT_ACTIVE && echo "opens $dev"; done
echo ready; exec sleep infinity'

# runs NAME RUNTIME OPTION...: until the payload is ready; podman's pid is in $runner.
runs() {
  local name=$1 runtime=$2
  shift 2
  : > "/tmp/ctr/$name.out"
  podman run --name "$name" --rm --runtime "$runtime" --network none "$@" --rootfs /ctr:O sh -c "$tells" \
    < /dev/null > "/tmp/ctr/$name.out" 2>&1 &
  runner=$!
  until grep -q '^ready' "/tmp/ctr/$name.out"; do
    kill -0 "$runner" 2>/dev/null || die "podman run $name: $(cat "/tmp/ctr/$name.out" /var/log/rdmaprep.log)"
    sleep 0.05
  done
  said=$(cat "/tmp/ctr/$name.out")
}

# ends NAME RUNNER
ends() {
  local code=0
  podman kill --signal KILL "$1" > /dev/null
  wait "$2" || code=$?
  equal "exit status of podman run" 137 "$code"
}

# Two of the three rails of a stored plan: NCCL's list has both, in rail order, and the third stays.
two() { # RUNTIME
  ready
  plan default "v0 v1 rdma0"
  rdmaprep cdi generate --hook-timeout 600 > /tmp/ctr/generated
  said=$(cat /tmp/ctr/generated)
  says "$file: written (plan default)"
  runs two "$1" --device "$kind=v0" --device "$kind=rdma0"
  says "nodes rdma_cm uverbs0 uverbs3 "
  says "env RDMAPREP_RAIL_rdma0=rxe3:1 RDMAPREP_RAIL_v0=rxe0:1 "
  says "hca none"
  says "conf NCCL_IB_HCA==rxe3,rxe0"
  says "sees rxe0 rxe3 "
  says "nets lo rdma0 v0 "
  says "opens rxe0"
  says "opens rxe3"
  [ -e /sys/class/net/v1 ] || die "v1 was not asked for"
  equal "hooks that worked" 1 "$(grep -c 'command="hook createRuntime"' /var/log/rdmaprep.log)"
  said=$(rdmaprep cdi list)
  says "v0: container "
  ends two "$runner"
  cell podman "$(version_of podman) ($1 $(version_of "$1"))" "CDI, \`--network none\`" conf
}

case_two_rails_of_a_plan() { two crun; }

# Without a plan all rails are chosen by the hook; what one container holds, the list keeps, and another one does not get.
case_all_without_a_plan() {
  local first before
  ready
  rdmaprep cdi generate --hook-timeout 600 --ifaces v0,v1 > /dev/null
  before=$(cat "$file")
  runs all runc --device "$kind=all" --env NCCL_IB_HCA=mine
  says "nodes rdma_cm uverbs0 uverbs1 "
  says "hca mine"
  says "nets lo v0 v1 "
  first=$runner
  rdmaprep cdi generate --hook-timeout 600 --ifaces v0,v1 --keep > /dev/null
  equal "the file while they are away" "$before" "$(cat "$file")"
  fails 126 podman run --rm --runtime runc --network none --device "$kind=v1" --rootfs /ctr:O true
  says "v1 is held by container "
  ends all "$first"
}

case_no_device_no_nics() {
  ready
  rdmaprep cdi generate --hook-timeout 600 --ifaces v0,v1 > /dev/null
  # An image may set what it likes: it asks by that for nothing.
  said=$(podman run --rm --network none --env RDMAPREP_RAIL_v0=rxe0:1 --rootfs /ctr:O ls /sys/class/net < /dev/null)
  equal "NICs" lo "$said"
  fails 126 podman run --rm --runtime runc --network host --device "$kind=v0" --rootfs /ctr:O true
  says "shares the host's network namespace"
}
