# shellcheck shell=bash source=tests/vm/roce-node.sh
# The habits of the test device that stands in for hardware (../roce), by plain ip, rdma and cat; and one whole container.
. "$(dirname "${BASH_SOURCE[0]}")/../roce-node.sh"

home() { [ -e "/sys/class/net/$1" ]; }
gone() { [ ! -e "/sys/class/infiniband/$1" ]; }

case_gids_follow_the_netdev() {
  local dev=${roce_nics[0]}
  roce
  equal "its function" "$(readlink -f "/sys/class/net/$dev/device")" "$(readlink -f /sys/class/infiniband/roce0/device)"
  roce_is DOWN roce0
  roce_up 0
  roce_is ACTIVE roce0
  roce_has 0 roce0
  equal "netdev" "$dev" "$(rdma -j link show roce0/1 | jq -r '.[].netdev')"

  ip netns add n
  ip link set "$dev" netns n
  roce_has_none roce0
  roce_is DOWN roce0
  equal "netdev here" null "$(rdma -j link show roce0/1 | jq -r '.[].netdev')"
  roce_address 0 n
  roce_is ACTIVE roce0
  roce_has 0 roce0
  equal "netdev there" "$dev" "$(ip netns exec n rdma -j link show roce0/1 | jq -r '.[].netdev')"

  # The namespace dies: the kernel returns the netdev, down and naked, and the device has it again.
  ip netns delete n
  until_true 20 home "$dev"
  roce_is DOWN roce0
  roce_has_none roce0
  said=$(ip -brief address show dev "$dev")
  ! grep -E ' UP |10\.1\.0\.1' <<< "$said" || die "not down and naked: $said"
  roce_up 0
  roce_is ACTIVE roce0
  roce_has 0 roce0
}

case_never_active() {
  roce down=0,1,0
  roce_up 0 1 2
  for hca in roce0 roce2; do roce_is ACTIVE "$hca"; done
  roce_has 1 roce1
  equal "its state" "1: DOWN" "$(cat /sys/class/infiniband/roce1/ports/1/state)"
}

# As a card of two ports has them: a GUID for each function, one for the whole.
case_guids() {
  roce
  cd /sys/class/infiniband
  equal "different node GUIDs" 4 "$(cat roce?/node_guid | sort -u | wc -l)"
  equal "different system image GUIDs" 3 "$(cat roce?/sys_image_guid | sort -u | wc -l)"
  equal "the card's" "$(cat roce2/node_guid)" "$(cat roce3/sys_image_guid)"
}

case_verbs_open_it() {
  roce gids=64 "netdevs=${roce_nics[0]},${roce_nics[1]}" link_layers=ethernet,infiniband
  roce_up 0
  roce_is ACTIVE roce0
  said=$(ibv_devinfo -v -d roce0)
  says "PORT_ACTIVE (4)"
  says "board_id:			TEST_ROCE"
  says "::ffff:10.1.0.1, RoCE v2"
  equal "GID table" 64 "$(find /sys/class/infiniband/roce0/ports/1/gids -type f | wc -l)"
  said=$(ibv_devinfo -d roce1)
  says "link_layer:		InfiniBand"
  says "PORT_DOWN (1)"
}

# What gVisor takes a device by; nothing else of the function changes, and other NICs of its driver keep theirs.
case_another_driver_in_the_uevent() {
  local function other
  function=$(readlink -f "/sys/class/net/${roce_nics[0]}/device")
  other=$(readlink -f "/sys/class/net/${roce_nics[2]}/device")
  roce "netdevs=${roce_nics[0]},${roce_nics[1]}" driver=mlx5_core driver_id=1
  equal "DRIVER" DRIVER=mlx5_core "$(grep ^DRIVER "$function/uevent")"
  equal "DRIVER of another one" DRIVER=e1000e "$(grep ^DRIVER "$other/uevent")"
  equal "its driver" e1000e "$(basename "$(readlink "$function/driver")")"
  roce_up 0
  roce_is ACTIVE roce0
  said=$(ibv_devinfo -d roce0)
  says "PORT_ACTIVE (4)"
  rmmod roce
  equal "DRIVER afterwards" DRIVER=e1000e "$(grep ^DRIVER "$function/uevent")"
}

case_several_ports() {
  roce "netdevs=${roce_nics[0]},${roce_nics[2]}+${roce_nics[3]}" names=one,two%d
  roce_up 2 3
  for port in 1 2; do
    roce_is ACTIVE two0 "$port"
    roce_has "$((port + 1))" two0 "$port"
  done
  ip link set "${roce_nics[3]}" down
  roce_is DOWN two0 2
  equal "the other port" "4: ACTIVE" "$(cat /sys/class/infiniband/two0/ports/1/state)"
  equal "ports of the first" 1 "$(find /sys/class/infiniband/one/ports -mindepth 1 -maxdepth 1 | wc -l)"
}

# shared: no device is in a namespace of its own any more, and the mode is what it was.
shared() { rdma system set netns shared 2>/dev/null; }

case_exclusive_mode() {
  local code=0
  roce
  roce_up 0
  until_true 20 rdma system set netns exclusive
  # Whatever happens below, the mode must not stay.
  (exclusive) || code=$?
  ip netns delete n 2>/dev/null || true
  until_true 20 shared
  [ "$code" = 0 ] || die "see above"
  roce_is DOWN roce0
}

# shellcheck disable=SC2016 # the shell in the namespace expands it
exclusive() {
  set -e
  ip netns add n
  rdma dev set roce0 netns n
  gone roce0 || die "it is still here"
  equal "devices there" roce0 "$(ip netns exec n ls /sys/class/infiniband)"
  ip link set "${roce_nics[0]}" netns n
  roce_address 0 n
  until_true 20 ip netns exec n sh -c 'grep -q ACTIVE /sys/class/infiniband/roce0/ports/1/state'
  equal "RoCE v2 GIDs there" 2 "$(ip netns exec n sh -c 'cd /sys/class/infiniband/roce0/ports/1 &&
    for i in $(grep -vlE "^(fe80|0000:0000:0000:0000:0000:0000)" gids/*); do cat "gid_attrs/types/${i#gids/}"; done' | grep -c v2)"
  # Devices come back from a dying namespace, too.
  ip netns delete n
  until_true 20 home "${roce_nics[0]}"
  until_true 20 test -e /sys/class/infiniband/roce0
}

# udev: systemd's, with rdma-core's rules, for as long as the case lasts. It would rename netdevs when they are restored: they
# stay here. Its runtime folder would make others believe that it still runs.
udev() {
  mount -t tmpfs rules /etc/udev/rules.d
  [ "$1" = with ] || ln -s /dev/null /etc/udev/rules.d/60-rdma-persistent-naming.rules
  ln -s /dev/null /etc/udev/rules.d/80-net-setup-link.rules
  /usr/lib/systemd/systemd-udevd &
  udevd=$!
  until_true 20 udevadm control --ping
}

named() { # WITH|WITHOUT FIRST THIRD: what the first and the third device are called by then
  local code=0
  udev "$1"
  (
    set -e
    roce
    udevadm trigger --settle --action=add --subsystem-match=infiniband
    said=$(ls /sys/class/infiniband)
    says "$2"
    says "$3"
    for hca in "$2" "$3"; do ibv_devinfo -d "$hca" > /dev/null; done
  ) || code=$?
  kill "$udevd"
  wait "$udevd" || true
  umount /etc/udev/rules.d
  rm -rf /run/udev
  return "$code"
}

# 0000:43:00.0 and function 0 of two at 0000:83:00 (rdma_rename.c writes decimals).
case_named_by_udev() { named with rocep67s0 rocep131s0f0; }
case_named_by_the_kernel() { named without roce0 roce2; }

# shellcheck disable=SC2016 # the container's shell expands it
tells='echo "nodes $(ls /dev/infiniband | tr "\n" " ")"; echo "hca $NCCL_IB_HCA"; ibv_devinfo -d roce0; ibv_devinfo -d roce1
echo ready; exec sleep infinity'

# A container of the present rdmaprep: NICs and GIDs arrive, the devices stay the same ones, all is restored unchanged.
case_a_container_gets_two() {
  local n before
  roce
  roce_up 0 1 2
  for n in 0 1; do roce_is ACTIVE "roce$n"; roce_has "$n" "roce$n"; done
  before=$(cd /sys/class/infiniband_verbs && for n in uverbs*; do echo "$(cat "$n/ibdev") $n"; done | grep roce)
  rdmaprep snapshot --normal > /run/cases/roce.before
  bundle c sh -c "$tells"
  prepare c "${roce_nics[0]} ${roce_nics[1]}"
  start runc c
  said=$(cat /tmp/ctr/c.out)
  says "hca =roce0,roce1"
  equal "ports that the container sees ACTIVE" 2 "$(grep -c 'PORT_ACTIVE' /tmp/ctr/c.out)"
  for n in 0 1; do
    home "${roce_nics[n]}" && die "${roce_nics[n]} is still here"
    roce_has_now "$n" "roce$n"
    said=$(within c ip -brief address show dev "${roce_nics[n]}")
    says "10.1.$n.1/24"
    says "2001:db8:1$n::1/64"
  done
  equal "devices" "$before" "$(cd /sys/class/infiniband_verbs && for n in uverbs*; do echo "$(cat "$n/ibdev") $n"; done | grep roce)"
  stop runc c "$runner"
  same /run/cases/roce.before
  for n in 0 1; do roce_is ACTIVE "roce$n"; roce_has "$n" "roce$n"; done
}

# gVisor's own network stack takes the addresses from NICs as it starts, and with them the GIDs: poststart gives them back. As
# 95-runsc-network.sh, but also for Linux 6.1, where soft-RoCE works in no namespace.
case_a_sandbox_with_a_network_of_its_own() {
  local n
  roce
  roce_up 0 1
  for n in 0 1; do roce_is ACTIVE "roce$n"; roce_has "$n" "roce$n"; done
  rdmaprep snapshot --normal > /run/cases/roce.before
  ip netns add box
  bundle box
  edit box '(.linux.namespaces[] | select(.type == "network")).path = "/run/netns/box"'
  prepare box "${roce_nics[0]} ${roce_nics[1]}"
  /repo/scripts/vm/runsc /run/netns/box run --bundle /tmp/ctr/box box < /dev/null > /tmp/ctr/box.out 2>&1 &
  runner=$!
  until_true 60 grep -q 'hook poststart.*container=box' /var/log/rdmaprep.log
  equal "poststart" ok "$(report box .outcome)"
  equal "removed by runsc: steps of poststart" true "$(report box '.steps_done > 0')"
  for n in 0 1; do
    roce_has "$n" "roce$n"
    said=$(ip -n box -brief address show dev "${roce_nics[n]}")
    says "10.1.$n.1/24"
    says "2001:db8:1$n::1/64"
  done
  echo "# $(runsc --version | head -n 1), Linux $(uname -r): $(report box .steps_done) steps of poststart"
  stop runsc box "$runner"
  same /run/cases/roce.before
  ip netns delete box
}
