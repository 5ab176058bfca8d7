//! The nldev codec against literal bytes, laid out by hand from include/uapi/rdma/rdma_netlink.h,
//! and against random ones.
#![cfg(target_endian = "little")]

use nix::errno::Errno;
use proptest::prelude::*;
use rdma_model::ids::Guid;
use rdma_model::snapshot::RdmaMode;
use rdma_netlink::nldev::{CharDev, CharKind, Device, Port, Request, counters, netns_mode};
use rdma_netlink::nldev_users::kernel_uses;
use rdmaprep::kernel::rdma::{Rdma, errno};

#[rustfmt::skip]
const DEVICE: [u8; 104] = [
    8, 0, 1, 0,   3, 0, 0, 0,                                         // DEV_INDEX 3
    9, 0, 2, 0,   b'r', b'x', b'e', b'0', 0,   0, 0, 0,               // DEV_NAME, padded
    8, 0, 3, 0,   1, 0, 0, 0,                                         // PORT_INDEX: last port
    12, 0, 4, 0,  0x76, 0x9c, 0x22, 0x09, 0, 0, 0, 0,                 // CAP_FLAGS: unknown to us
    12, 0, 6, 0,  0x01, 0x00, 0x00, 0xfe, 0xff, 0x00, 0x00, 0x02,     // NODE_GUID
    4, 0, 0, 0,                                                       // PAD, on some machines
    12, 0, 7, 0,  0x02, 0x00, 0x00, 0xfe, 0xff, 0x00, 0x00, 0x02,     // SYS_IMAGE_GUID
    5, 0, 14, 0,  1, 0, 0, 0,                                         // DEV_NODE_TYPE IB_CA
    5, 0, 84, 0,  1, 0, 0, 0,                                         // DEV_DIM
    5, 0, 99, 0,  0, 0, 0, 0,                                         // of a later kernel
    9, 0, 67, 0,  b'r', b'o', b'c', b'e', 0,   0, 0, 0,               // DEV_PROTOCOL
];

#[rustfmt::skip]
const PORT: [u8; 64] = [
    8, 0, 1, 0,   3, 0, 0, 0,
    9, 0, 2, 0,   b'r', b'x', b'e', b'0', 0,   0, 0, 0,
    8, 0, 3, 0,   1, 0, 0, 0,                                         // PORT_INDEX 1
    5, 0, 12, 0,  4, 0, 0, 0,                                         // PORT_STATE ACTIVE
    5, 0, 13, 0,  5, 0, 0, 0,                                         // PORT_PHYS_STATE LinkUp
    8, 0, 50, 0,  7, 0, 0, 0,                                         // NDEV_INDEX 7
    10, 0, 51, 0, b'r', b'd', b'm', b'a', b'0', 0,   0, 0,            // NDEV_NAME
];

#[rustfmt::skip]
const UVERBS: [u8; 48] = [
    8, 0, 73, 0,  14, 0, 0, 0,                                        // UVERBS_DRIVER_ID, as u32
    12, 0, 72, 0, 0xc1, 0xe7, 0x00, 0x00, 0, 0, 0, 0,                 // CHARDEV 231:193
    12, 0, 71, 0, 2, 0, 0, 0, 0, 0, 0, 0,                             // CHARDEV_ABI
    12, 0, 70, 0, b'u', b'v', b'e', b'r', b'b', b's', b'1', 0,        // CHARDEV_NAME
    4, 0, 0, 0,
];

/// A message around a payload.
fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = ((16 + payload.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(payload);
    bytes
}

#[test]
#[rustfmt::skip]
fn requests_are_these_bytes() {
    assert_eq!(Request::Devices.encode(1), [
        // NLM_F_REQUEST | NLM_F_DUMP
        16, 0, 0, 0,   0x01, 0x14,   0x01, 0x03,   1, 0, 0, 0,   0, 0, 0, 0,
    ]);
    assert_eq!(Request::Ports { device: 3 }.encode(2), [
        24, 0, 0, 0,   0x05, 0x14,   0x01, 0x03,   2, 0, 0, 0,   0, 0, 0, 0,
        8, 0, 1, 0,   3, 0, 0, 0,
    ]);
    assert_eq!(Request::Connections { device: 3 }.encode(2), [
        24, 0, 0, 0,   0x0b, 0x14,   0x01, 0x03,   2, 0, 0, 0,   0, 0, 0, 0,
        8, 0, 1, 0,   3, 0, 0, 0,
    ]);
    assert_eq!(Request::Counters { device: 3, port: 1 }.encode(2), [
        32, 0, 0, 0,   0x11, 0x14,   0x05, 0x00,   2, 0, 0, 0,   0, 0, 0, 0,
        8, 0, 1, 0,   3, 0, 0, 0,
        8, 0, 3, 0,   1, 0, 0, 0,
    ]);
    assert_eq!(Request::System.encode(0x01020304), [
        // NLM_F_REQUEST | NLM_F_ACK
        16, 0, 0, 0,   0x06, 0x14,   0x05, 0x00,   4, 3, 2, 1,   0, 0, 0, 0,
    ]);
    assert_eq!(Request::CharDevice(CharKind::Uverbs { device: 3 }).encode(4), [
        36, 0, 0, 0,   0x0f, 0x14,   0x05, 0x00,   4, 0, 0, 0,   0, 0, 0, 0,
        8, 0, 1, 0,   3, 0, 0, 0,
        11, 0, 69, 0,   b'u', b'v', b'e', b'r', b'b', b's', 0,   0,
    ]);
    assert_eq!(Request::CharDevice(CharKind::Umad { device: 3, port: 1 }).encode(5), [
        44, 0, 0, 0,   0x0f, 0x14,   0x05, 0x00,   5, 0, 0, 0,   0, 0, 0, 0,
        8, 0, 1, 0,   3, 0, 0, 0,
        8, 0, 3, 0,   1, 0, 0, 0,
        9, 0, 69, 0,   b'u', b'm', b'a', b'd', 0,   0, 0, 0,
    ]);
    assert_eq!(Request::CharDevice(CharKind::RdmaCm).encode(6), [
        28, 0, 0, 0,   0x0f, 0x14,   0x05, 0x00,   6, 0, 0, 0,   0, 0, 0, 0,
        12, 0, 69, 0,   b'r', b'd', b'm', b'a', b'_', b'c', b'm', 0,
    ]);
    let (name, netdev) = ("rxe0".parse().unwrap(), "rdma0".parse().unwrap());
    assert_eq!(Request::LinkAdd { name: &name, kind: "rxe", netdev: &netdev }.encode(7), [
        48, 0, 0, 0,   0x03, 0x14,   0x05, 0x00,   7, 0, 0, 0,   0, 0, 0, 0,
        9, 0, 2, 0,   b'r', b'x', b'e', b'0', 0,   0, 0, 0,
        8, 0, 65, 0,   b'r', b'x', b'e', 0,
        10, 0, 51, 0,   b'r', b'd', b'm', b'a', b'0', 0,   0, 0,
    ]);
    assert_eq!(Request::LinkDelete { device: 3 }.encode(8), [
        24, 0, 0, 0,   0x04, 0x14,   0x05, 0x00,   8, 0, 0, 0,   0, 0, 0, 0,
        8, 0, 1, 0,   3, 0, 0, 0,
    ]);
    assert_eq!(Request::Move { device: 3, netns: 9 }.encode(9), [
        32, 0, 0, 0,   0x02, 0x14,   0x05, 0x00,   9, 0, 0, 0,   0, 0, 0, 0,
        8, 0, 1, 0,   3, 0, 0, 0,
        8, 0, 68, 0,   9, 0, 0, 0,
    ]);
}

#[test]
fn devices_ports_and_nodes_are_read() {
    let device = Device {
        index: 3,
        name: "rxe0".into(),
        firmware: None,
        node_guid: Some(Guid(0x0200_00ff_fe00_0001)),
        sys_image_guid: Some(Guid(0x0200_00ff_fe00_0002)),
        protocol: Some("roce".into()),
        last_port: 1,
        node_type: Some(1),
    };
    assert_eq!(Device::parse(&DEVICE).unwrap(), device);
    let port = Port::parse(&PORT).unwrap();
    assert_eq!(
        (port.device, port.number, port.state_name(), port.phys_state),
        (3, 1, Some("ACTIVE"), Some(5))
    );
    assert_eq!(
        (port.ifindex, port.netdev.as_deref(), port.lid),
        (Some(7), Some("rdma0"), None)
    );
    let uverbs = CharDev::parse(&UVERBS).unwrap();
    assert_eq!(
        (uverbs.name.as_str(), uverbs.major, uverbs.minor, uverbs.abi),
        ("uverbs1", 231, 193, Some(2))
    );
    assert_eq!(uverbs.software(), Some("rxe"));
    assert_eq!(
        netns_mode(&[5, 0, 66, 0, 1, 0, 0, 0]).unwrap(),
        Some(RdmaMode::Shared)
    );
    assert_eq!(
        netns_mode(&[5, 0, 66, 0, 0, 0, 0, 0]).unwrap(),
        Some(RdmaMode::Exclusive)
    );
    assert_eq!(netns_mode(&[]).unwrap(), None);
    assert!(netns_mode(&[5, 0, 66, 0, 9, 0, 0, 0]).is_err());
}

/// An attribute with its padding.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = [
        &((4 + value.len()) as u16).to_ne_bytes()[..],
        &kind.to_ne_bytes(),
        value,
    ]
    .concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// An entry of RES_CM_ID: port 1, the queue pair, its type, RDMA_PS_TCP, the state, both ends, and
/// a module.
fn connection(number: u32, state: u8, user: &[u8]) -> Vec<u8> {
    let end = |last: u8| {
        [
            &2u16.to_ne_bytes()[..],
            &[0x11, 0x44, 10, 0, 0, last],
            &[0; 120],
        ]
        .concat()
    };
    let all = [
        attribute(3, &1u32.to_ne_bytes()),
        attribute(21, &number.to_ne_bytes()),
        attribute(26, &[2]),
        attribute(32, &0x106u32.to_ne_bytes()),
        attribute(27, &[state]),
        attribute(33, &end(1)),
        attribute(34, &end(9)),
        attribute(29, user),
    ];
    attribute(31, &all.concat())
}

#[test]
fn kernel_connections_are_distinguished_from_those_of_processes() {
    let answer = |table: u16, entries: &[Vec<u8>]| {
        let device = [attribute(1, &3u32.to_ne_bytes()), attribute(2, b"mlx5_3\0")].concat();
        vec![[device, attribute(table, &entries.concat())].concat()]
    };
    let connections = answer(
        30,
        &[
            connection(12, 5, b"nvme_rdma\0"),
            connection(13, 5, b"nvme_rdma\0"),
            connection(0, 8, b"rpcrdma\0"),
            connection(0, 6, b"ib_iser\0"),
            connection(14, 5, b"ib_ipoib\0"),
            connection(15, 5, b"\0"),
        ],
    );
    let seen = kernel_uses(&connections).unwrap();
    let seen: Vec<_> = seen
        .iter()
        .map(|u| (u.user.as_str(), u.port, u.peer.map(|p| p.to_string())))
        .collect();
    let expected = [("nvme_rdma", Some(1), Some("10.0.0.9".to_owned()))];
    assert_eq!(seen, expected);
    assert!(kernel_uses(&[]).unwrap().is_empty());
    let cut = vec![connections[0][..connections[0].len() - 4].to_vec()];
    assert!(kernel_uses(&cut).is_err());
}

#[test]
fn counters_have_their_drivers_names() {
    let entry = |name: &[u8], count: u64| {
        let value = attribute(83, &count.to_ne_bytes());
        // Tables have NLA_F_NESTED.
        attribute(1 << 15 | 81, &[attribute(82, name), value].concat())
    };
    let table = [
        entry(b"sent_pkts\0", 9),
        entry(b"out_of_seq_request\0", 1 << 40),
    ]
    .concat();
    let device = [
        attribute(1, &3u32.to_ne_bytes()),
        attribute(3, &1u32.to_ne_bytes()),
    ]
    .concat();
    let answer = [device.clone(), attribute(1 << 15 | 80, &table)].concat();
    let all: Vec<_> = counters(&answer).unwrap().into_iter().collect();
    let expected = [("out_of_seq_request", 1 << 40), ("sent_pkts", 9)];
    assert_eq!(all, expected.map(|(name, count)| (name.to_owned(), count)));
    assert!(counters(&device).unwrap().is_empty());
    let short = attribute(80, &attribute(81, &attribute(83, &[1, 2])));
    assert!(counters(&short).is_err());
}

#[test]
fn wide_device_numbers_are_decoded() {
    // Linux spreads a minor above 255 around the major: 510:70000 is 0x1111fe70 in
    // new_encode_dev().
    let bytes = [
        &UVERBS[8..12],
        &0x1111_fe70_u64.to_ne_bytes(),
        &UVERBS[32..],
    ]
    .concat();
    let dev = CharDev::parse(&bytes).unwrap();
    assert_eq!((dev.major, dev.minor, dev.software()), (510, 70000, None));
}

#[test]
fn a_payload_cut_anywhere_is_an_error_or_lacks_its_tail() {
    for (whole, parse) in [
        (
            &DEVICE[..],
            (|b: &[u8]| Device::parse(b).map(drop)) as fn(&[u8]) -> anyhow::Result<()>,
        ),
        (&PORT[..], |b| Port::parse(b).map(drop)),
        (&UVERBS[..], |b| CharDev::parse(b).map(drop)),
    ] {
        let ends: Vec<usize> = attribute_ends(whole);
        for cut in 1..whole.len() {
            // Padding after the last attribute is no loss.
            let at_end = ends
                .iter()
                .any(|end| (*end..=end.next_multiple_of(4)).contains(&cut));
            assert!(at_end || parse(&whole[..cut]).is_err(), "cut at {cut}");
        }
    }
    assert!(Device::parse(&DEVICE[8..]).is_err(), "no index");
    assert!(Port::parse(&[8, 0, 1, 0, 3, 0, 0, 0]).is_err(), "no number");
    assert!(
        Device::parse(&[6, 0, 1, 0, 3, 0, 0, 0]).is_err(),
        "an index of two bytes"
    );
}

fn attribute_ends(payload: &[u8]) -> Vec<usize> {
    let (mut at, mut ends) = (0, vec![]);
    while at < payload.len() {
        let length = u16::from_ne_bytes([payload[at], payload[at + 1]]) as usize;
        ends.push(at + length);
        at += length.next_multiple_of(4);
    }
    ends
}

#[test]
fn a_list_ends_with_done_and_skips_strangers() {
    let mut replies = Request::Devices.replies(5);
    let stale = message(0x1401, 2, 4, &PORT);
    let first = [
        stale,
        message(0x1401, 2, 5, &DEVICE),
        message(0x1401, 2, 5, &DEVICE),
    ]
    .concat();
    assert!(!replies.feed(&first).unwrap());
    assert!(replies.feed(&message(3, 2, 5, &[0; 4])).unwrap());
    assert_eq!(replies.payloads(), [DEVICE.to_vec(), DEVICE.to_vec()]);
    assert!(!replies.interrupted());

    let mut replies = Request::Devices.replies(5);
    assert!(replies.feed(&message(3, 2 | 0x10, 5, &[])).unwrap());
    assert!(
        replies.interrupted(),
        "NLM_F_DUMP_INTR counts on the last message too"
    );
}

#[test]
fn refusals_keep_errno_and_explanation() {
    // A dump that fails midway says so in NLMSG_DONE.
    let e = Request::Devices
        .replies(1)
        .feed(&message(3, 2, 1, &(-22i32).to_ne_bytes()))
        .unwrap_err();
    assert_eq!(errno(&e), Some(Errno::EINVAL));

    let request = Request::LinkDelete { device: 3 }.encode(1);
    let said = [&[14, 0, 1, 0][..], b"no device\0", &[0; 2]].concat();
    let capped = [&(-1i32).to_ne_bytes()[..], &request[..16], &said].concat();
    let whole = [&(-1i32).to_ne_bytes()[..], &request, &said].concat();
    for (payload, flags) in [(capped, 0x300), (whole, 0x200)] {
        let e = Request::LinkDelete { device: 3 }
            .replies(1)
            .feed(&message(2, flags, 1, &payload))
            .unwrap_err();
        assert_eq!(errno(&e), Some(Errno::EPERM));
        assert!(
            format!("{e:#}").starts_with("the kernel says: no device: "),
            "{e:#}"
        );
    }
    let ack = [&[0; 4][..], &request[..16]].concat();
    assert!(
        Request::LinkDelete { device: 3 }
            .replies(1)
            .feed(&message(2, 0x100, 1, &ack))
            .unwrap()
    );
    assert!(
        Request::System
            .replies(1)
            .feed(&message(0x10, 0, 1, &[]))
            .is_err(),
        "another family"
    );
    assert!(
        Request::System.replies(1).feed(&[16, 0, 0, 0]).is_err(),
        "half a header"
    );
}

proptest! {
    #[test]
    fn random_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300), sequence in any::<u32>(),
    ) {
        let _ = (Device::parse(&bytes), Port::parse(&bytes), CharDev::parse(&bytes),
            netns_mode(&bytes), counters(&bytes));
        let _ = Request::Devices.replies(sequence).feed(&bytes);
        for kind in [2, 3, 0x1401] {
            for flags in [0, 0x100, 0x200, 0x300] {
                let _ = Request::System.replies(1).feed(&message(kind, flags, 1, &bytes));
            }
        }
    }

    #[test]
    fn attributes_in_any_order_mean_the_same(
        order in Just((0..11usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let mut starts: Vec<usize> = vec![0];
        starts.extend(attribute_ends(&DEVICE).iter().map(|e| e.next_multiple_of(4)));
        let shuffled: Vec<u8> = order.iter()
            .flat_map(|i| DEVICE[starts[*i]..starts[i + 1]].to_vec()).collect();
        prop_assert_eq!(Device::parse(&shuffled).unwrap(), Device::parse(&DEVICE).unwrap());
    }
}

#[test]
fn this_kernel_answers_or_has_no_rdma() {
    if let Some(mut rdma) = Rdma::open().unwrap() {
        std::thread::spawn(move || rdma.facts())
            .join()
            .unwrap()
            .unwrap();
    }
}

/// The guest runs it (tests/vm/cases/90-kernel.sh) and reads what it prints.
#[test]
#[ignore = "needs a kernel with RDMA netlink: tests/vm/cases/90-kernel.sh"]
fn kernel_with_rdma_netlink_answers() {
    let rdma = Rdma::open().unwrap();
    testkit::require!(rdma.is_some(), "a kernel with RDMA netlink");
    println!("{:#?}", rdma.unwrap().facts().unwrap());
}
