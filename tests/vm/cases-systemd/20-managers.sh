# shellcheck shell=bash source=tests/vm/inside.sh
# NetworkManager or systemd-networkd configures rdma0, a container has it for a while, and the manager configures it again.
. "$(dirname "${BASH_SOURCE[0]}")/../inside.sh"

before=/run/cases/before verdict=/run/cases/doctor.json
undo() {
  systemctl stop NetworkManager systemd-networkd.socket systemd-networkd 2> /dev/null || true
  rdmaprep uninstall > /dev/null 2>&1 || true
  udevadm control --reload
  rm -f /run/rdmaprep/plans/*.json
  rm -rf /etc/NetworkManager/system-connections/rdma0.nmconnection /run/systemd/network/* /run/NetworkManager
  for dev in rdma0 rdma1; do ip address flush dev "$dev" || true; done
  # As at boot, with this as the new reference.
  node
}

# The order among its own routes and another NIC's is the manager's to choose.
normal() { rdmaprep snapshot --normal | grep -v '^order of routes'; }
# A NIC that returns is without carrier for a while: what its manager has left to do then, the timer sees to.
is_whole() { rdmaprep restore --all --stale && normal | cmp -s - "$before"; }

# beside WHAT: rdma0 is configured by it; the rest of the node's state is set up again where the manager removed it.
beside() {
  ip address show dev rdma0 | grep -q 192.0.2.1/24 || die "$1 has not configured rdma0"
  ip rule show | grep -q ^1000: || ip rule add from 198.51.100.1 table 100 priority 1000
  ip route show table 100 | grep -q 198.18.0.0 || ip route add 198.18.0.0/15 dev v0 table 100
  ip route show | grep -q ^203.0.113.0 || ip route add 203.0.113.0/24 via 192.0.2.254 dev rdma0
  # Router solicitations and the like come to their end.
  sleep 10
  normal > "$before"
  bundle held env SANDBOX= sh -c "$tells"
  prepare held "v0 rdma0"
  start runc held
  check_payload /tmp/ctr/held.out env
  # Long enough for a manager that reacts to a missing link.
  sleep 10
  inside held
  stop runc held "$runner"
  (until_true 20 is_whole) || { diff <(normal) "$before"; die "not home, beside $1"; }
  sleep 15
  is_whole || { diff <(normal) "$before"; die "changed since, beside $1"; }
  said=$(grep 'command="hook poststop"' /var/log/rdmaprep.log)
  says "outcome=ok"
  echo "# beside $1: home and still; ${said#*undo_ms=}"
}

# fights: what the doctor says of the managers of the plan's NICs.
fights() {
  rdmaprep doctor --json > "$verdict" 2> /dev/null || [ $? = 11 ] || die "doctor: exit $?"
  said=$(jq -e .schema "$verdict" > /dev/null && jq -r '.findings[] | select(.check == "rename_fights") | "\(.severity): \(.seen)"' "$verdict") || die "no verdict"
}

quiet() { fights && [ -z "$said" ]; }

# left WHO: rdma0 has its addresses from it. The doctor does not want it kept off, and `install` refuses to.
left() {
  fights
  said_of_rules=$said
  ! grep -q "manages rdma0" <<< "$said" || die "the doctor says $said"
  local code=0
  said=$(rdmaprep install --network-managers --ifaces "rdma0" --program "$(command -v rdmaprep)" 2>&1) || code=$?
  equal "install's exit code" 3 "$code"
  says "$1 gives rdma0 its addresses"
}

configured() { ip -brief address show dev rdma0 | grep -q "192.0.2.1/24.*2001:db8::1/64"; }

case_networkmanager() {
  cat > /etc/NetworkManager/system-connections/rdma0.nmconnection << 'KEYFILE'
[connection]
id=rdma0
type=ethernet
interface-name=rdma0
[ethernet]
mtu=4200
[ipv4]
method=manual
address1=192.0.2.1/24
never-default=true
[ipv6]
method=manual
address1=2001:db8::1/64
addr-gen-mode=eui64
never-default=true
KEYFILE
  chmod 600 /etc/NetworkManager/system-connections/rdma0.nmconnection
  # Those with no connection of theirs stay as they are.
  printf '[main]\nno-auto-default=*\n' > /etc/NetworkManager/conf.d/quiet.conf
  # What is there it would take for its own.
  ip link set rdma0 down
  ip address flush dev rdma0
  systemctl start NetworkManager
  until_true 60 activated
  until_true 20 configured
  beside "NetworkManager $(version_of NetworkManager)"
  left NetworkManager
  activated || die "$(nmcli device)"
}
activated() { nmcli --terse --fields DEVICE,STATE device | grep -qx rdma0:connected; }

case_networkd() {
  mkdir -p /run/systemd/network
  printf '[Match]\nName=rdma0\n[Link]\nMTUBytes=4200\n[Network]\nAddress=192.0.2.1/24\nAddress=2001:db8::1/64\nIPv6AcceptRA=no\n' \
    > /run/systemd/network/10-rdma0.network
  systemctl start systemd-networkd
  until_true 60 routable
  until_true 20 configured
  beside "systemd-networkd $(systemctl --version | awk 'NR == 1 {print $2}')"
  left systemd-networkd
  equal "what the doctor says" "warning: systemd-networkd deletes routing rules that it has not made, of any NIC, whenever a link appears" "$said_of_rules"
  # One that is stopped manages nothing.
  systemctl stop systemd-networkd.socket systemd-networkd
  quiet || die "networkd is stopped: $said"
}
routable() { networkctl list rdma0 --no-legend | grep -q configured; }
