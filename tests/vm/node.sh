# shellcheck shell=bash
# The node that the cases work on, made once for each boot:
#   v0 v1 v2     veth NICs on the bridge `fabric`: their ports are ACTIVE at once, for what needs many moves
#   rdma0 rdma1  PCI NICs on one wire: the kernel returns these when their namespace dies, and their carrier takes seconds
# each with soft-RoCE of its own, in this order; and what the host's network must equal after every case.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

reference=/run/cases/reference records=/run/rdmaprep/records pins=/run/rdmaprep/netns
# Whatever a case breaks, this sets the node up again: reloaded drivers reset all settings of their NICs.
node() {
  modprobe -a rdma_rxe rdma_ucm
  mkdir -p /run/cases
  rmmod roce 2>/dev/null || true
  ip -all netns delete
  for link in v0 v1 v2 p0 p1 p2 fabric; do ip link delete "$link" 2>/dev/null || true; done
  for function in /sys/bus/pci/drivers/e1000e/0000:*; do
    echo "${function##*/}" > /sys/bus/pci/drivers/e1000e/unbind
    echo "${function##*/}" > /sys/bus/pci/drivers/e1000e/bind
  done
  while ip rule delete priority 1000 2>/dev/null; do :; done
  ip link add fabric address 02:00:00:00:00:01 type bridge
  ip link set fabric up
  for i in 0 1 2; do
    ip link add "v$i" type veth peer name "p$i"
    ip link set "p$i" master fabric up
    ip link set "v$i" mtu 1400 up
    ip address add "198.51.100.$((i + 1))/24" brd + dev "v$i"
    rdma link add "rxe$i" type rxe netdev "v$i"
  done
  # The first two PCI NICs by their place, whatever the kernel calls them after a rebind.
  i=0
  for function in $(cd /sys/bus/pci/drivers/e1000e && echo 0000:*); do
    [ "$i" -lt 2 ] || break
    netdev=$(ls "/sys/bus/pci/devices/$function/net")
    [ "$netdev" = "rdma$i" ] || ip link set "$netdev" down name "rdma$i"
    ip link set "rdma$i" mtu 4200 up
    ip address add "192.0.2.$((i + 1))/24" brd + dev "rdma$i"
    ip -6 address add "2001:db8::$((i + 1))/64" dev "rdma$i" nodad
    rdma link add "rxe$((i + 3))" type rxe netdev "rdma$i"
    i=$((i + 1))
  done
  # What a NIC has besides addresses, and a move destroys, too.
  ip route add 203.0.113.0/24 via 192.0.2.254 dev rdma0
  ip route add 198.18.0.0/15 dev v0 table 100
  ip rule add from 198.51.100.1 table 100 priority 1000
  ip neighbour add 198.51.100.77 lladdr 02:00:00:00:00:77 dev v1 nud permanent
  active 5
  rdmaprep snapshot --normal > "$reference"
}

# undo: what a case that makes more than containers unmakes; may come twice.
undo() { :; }

# clean: nothing of ours is left over and the host's network is what it was at boot.
clean() {
  local left
  left=$(find "$records" "$pins" -mindepth 1 2>/dev/null) || true
  left+=$(grep ' /run/rdmaprep' /proc/mounts) || true
  [ -z "$left" ] || die "left over: $left"
  same "$reference"
}
