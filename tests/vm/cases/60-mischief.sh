# shellcheck shell=bash source=tests/vm/container.sh
# What a container's root can do to its NICs, and must not be on the host after it. Each case: attach, do, stop, compare.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

give() { # NETDEVS
  sandbox bad
  plan bad "$1"
  hook createRuntime bad
}

take() {
  hook poststop bad
  report bad '.notes[] | "# " + .'
  said=$(report bad .notes[])
}

bad() { within bad "$@"; }

case_link_settings() {
  give "v0 rdma0"
  for dev in v0 rdma0; do
    bad ip link set "$dev" down
    bad ip link set "$dev" mtu 1300 txqueuelen 7 alias evil group 66
    bad ip link set "$dev" promisc on allmulticast on
    bad ip link set "$dev" name "x$dev"
    bad ip link property add dev "x$dev" altname "evil$dev"
    bad ip link property add dev "x$dev" altname "$(printf '\377')$dev"
    bad ip link set "x$dev" arp off multicast off dynamic on mode dormant gso_max_size 9000 gso_max_segs 7
  done
  # A virtual NIC has nothing but its name, index and address to be known by.
  bad ip link set xrdma0 address 02:66:66:66:66:66
  # A name that another of the host's has.
  bad ip link property add dev xv0 altname v1
  bad ip link set xv0 up
  take
  says "v0 had been renamed to xv0"
  says "rdma0 had been renamed to xrdma0"
  says "rdma0 had been given the address 02:66:66:66:66:66"
  says "v0 had been given MTU 1300 instead of 1400"
  says "v0 had been made promiscuous"
}

case_bridge_and_vlan() {
  give "v0 v1"
  bad ip link add evil type bridge
  bad ip link set v0 master evil
  bad ip link add link v1 name v1.66 type vlan id 66
  bad ip address add 198.51.100.66/24 dev v1.66
  bad ip link set v1.66 up
  take
  says "v0 had been put into evil"
}

case_addresses_routes_and_sysctls() {
  give "v0 rdma0"
  bad ip address flush dev v0
  bad ip address add 198.51.100.66/24 dev v0
  bad ip address add 2001:db8::66/64 dev rdma0
  bad ip route add 198.18.66.0/24 dev v0
  bad ip rule add from 198.51.100.1 table 66
  bad ip neighbour add 192.0.2.66 lladdr 02:00:00:00:00:66 dev rdma0 nud permanent
  for dev in v0 rdma0; do
    bad sysctl -qw "net.ipv4.conf.$dev.proxy_arp=1" "net.ipv6.conf.$dev.disable_ipv6=1"
  done
  take
}

# tcx attach|count NETNS DEV: programs that let all pass, at both hooks; how many there are.
tcx() {
  nsenter "--net=$2" python3 - "$1" "$3" << 'P'
import ctypes, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def bpf(command, attributes):
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result = libc.syscall(321, command, buffer, 128)
    assert result >= 0, ctypes.get_errno()
    return result, buffer.raw
index = socket.if_nametoindex(sys.argv[2])
if sys.argv[1] == "count":
    counts = [struct.unpack("I", bpf(16, struct.pack("<IIII", index, hook, 0, 0))[1][24:28])[0] for hook in (46, 47)]
    print(sum(counts))
else:
    code = ctypes.create_string_buffer(struct.pack("<BBhiBBhi", 0xb7, 0, 0, -1, 0x95, 0, 0, 0))  # r0 = TCX_NEXT; exit
    licence = ctypes.create_string_buffer(b"GPL")
    program = bpf(5, struct.pack("<IIQQIIQI", 3, 2, ctypes.addressof(code), ctypes.addressof(licence), 0, 0, 0, 0))[0]
    for hook in (46, 47):
        bpf(8, struct.pack("<IIII", index, program, hook, 0))
P
}

# The BPF system call by hand, since the guest has no compiler for it: `return XDP_PASS`, pinned.
case_xdp_and_tc() {
  give "v0 rdma0"
  python3 - << 'P'
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
code = ctypes.create_string_buffer(struct.pack("<BBhiBBhi", 0xb7, 0, 0, 2, 0x95, 0, 0, 0))  # r0 = 2; exit
licence = ctypes.create_string_buffer(b"GPL")
path = ctypes.create_string_buffer(b"/sys/fs/bpf/evil")
def bpf(command, attributes):
    attributes = attributes.ljust(128, b"\0")
    result = libc.syscall(321, command, ctypes.create_string_buffer(attributes), len(attributes))
    assert result >= 0, ctypes.get_errno()
    return result
program = bpf(5, struct.pack("<IIQQIIQI", 6, 2, ctypes.addressof(code), ctypes.addressof(licence), 0, 0, 0, 0))
bpf(6, struct.pack("<QII", ctypes.addressof(path), program, 0))
P
  for dev in v0 rdma0; do
    tcx attach "$(pin bad)" "$dev"
    nsenter "--net=$(pin bad)" ip link set dev "$dev" xdpgeneric pinned /sys/fs/bpf/evil
    bad ip link show dev "$dev" | grep -q xdpgeneric || die "no XDP on $dev"
    bad tc qdisc add dev "$dev" clsact
    bad tc filter add dev "$dev" ingress matchall action drop
    bad tc qdisc replace dev "$dev" root netem delay 1ms
  done
  rm /sys/fs/bpf/evil
  take
  for dev in v0 rdma0; do
    says "XDP program was left on $dev"
    says "tcx ingress program was left on $dev"
    says "tcx egress program was left on $dev"
    equal "tcx programs of $dev" 0 "$(tcx count /proc/self/ns/net "$dev")"
    says "queueing discipline netem was left on $dev"
  done
  ! grep -E 'xdpgeneric|netem|clsact' <<< "$(ip link; tc qdisc)" || die "it is still there"
}

case_its_rdma_links() {
  give "v0 v1 v2"
  bad rdma link delete rxe0
  bad rdma dev set rxe1 name evil1
  bad rdma link delete rxe2
  bad rdma link add evil2 type rxe netdev v2
  take
}
