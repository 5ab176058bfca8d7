//! What the normal form leaves out, each with the reason.

pub const LEFT_OUT: &[(&str, &str)] = &[
    (
        "an IPoIB interface's queue pair number",
        "a new one when it is re-created; it is in the address",
    ),
    (
        "queue_id and prio of a bond's members",
        "not carried: neither counts for RDMA",
    ),
    (
        "ifindex, link, lowers",
        "the kernel gives another index when the old one is taken meanwhile",
    ),
    (
        "how a name or address was set last (name_assign_type, addr_assign_type)",
        "the kernel has no call that sets it",
    ),
    (
        "the order of alternative names",
        "each is found by itself; one that was taken away is added behind the others",
    ),
    (
        "the order of links in lists of the kernel's",
        "a link that comes back is listed last; nothing depends on that",
    ),
    (
        "operstate, running, port state",
        "the carrier follows the link, some time after the call",
    ),
    (
        "the default queueing discipline",
        "the kernel attaches it by itself, and none to a link that was never up",
    ),
    (
        "queueing disciplines inside",
        "those of the host come back to it; a container has the default, or its own",
    ),
    (
        "remaining lifetimes of addresses and routes",
        "they run down by themselves",
    ),
    (
        "address flags of the kernel",
        "tentative, secondary, deprecated are states, not settings",
    ),
    (
        "multicast and secondary link-layer addresses",
        "a move flushes them, and `ip maddr` has an ioctl alone to set them",
    ),
    (
        "protodown, carrier",
        "a move keeps them, and no driver of an RDMA NIC lets user space set them",
    ),
    (
        "GSO and GRO sizes of VLANs and the like",
        "they follow the device below",
    ),
    (
        "flow rules, further RSS contexts, tunables and time stamping of ethtool",
        "an ioctl alone sets them, or asking for them stops some kernels",
    ),
    (
        "rx-flow-hash, coalescing of single queues, shapers, lanes, master-slave, PSP and QCN",
        "few drivers have them, and each has an interface of its own",
    ),
    (
        "firmware and EEPROM of a card",
        "CAP_NET_ADMIN of a container that has the NIC is enough to write them",
    ),
    (
        "adaptive moderation and counters of an RDMA device",
        "a container that has the RDMA device may set them",
    ),
    (
        "MPLS routes, nft chains and flow tables on a NIC",
        "not read: a move ends them, or leaves them without the NIC",
    ),
    (
        "settings that the kernel, the driver or the peer decides on",
        "interrupt rates that adapt, what was negotiated",
    ),
    (
        "sizes of a port's buffers, and CEE",
        "drivers derive them; RoCE does not use it",
    ),
    (
        "kernel-made link-local addresses",
        "made again from the link-layer address when the link goes up",
    ),
    (
        "temporary IPv6 addresses",
        "the kernel makes others, of the addresses that manage them",
    ),
    (
        "the order of equal routes that are learned, or lead to link-local or multicast addresses",
        "a router's next message changes it; and a socket for such an address names the interface",
    ),
    (
        "kernel-made local, multicast and link-local routes",
        "made from addresses, some time after the call",
    ),
    (
        "IPv6 routes that the kernel learned from a router (`proto ra` or `kernel`, with a \
        lifetime)",
        "the kernel asks routers again when the link goes up; a route that a program adds, no \
        router renews or withdraws",
    ),
    (
        "RDMA device indexes and minors",
        "assigned again when soft-RoCE is re-created",
    ),
];
