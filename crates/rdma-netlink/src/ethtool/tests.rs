use super::*;

fn kind(name: &str) -> &'static Kind {
    KINDS.iter().find(|k| k.name == name).unwrap()
}

fn word(number: u16, value: u32) -> Vec<u8> {
    attribute(number, &value.to_ne_bytes())
}

/// A bitset as the kernel tells it: names with whether they are set, or those that are set alone.
fn bits(number: u16, names: &[(&str, bool)], list: bool) -> Vec<u8> {
    let one = |(name, on): &(&str, bool)| {
        let value = if *on && !list {
            attribute(BIT_VALUE, &[])
        } else {
            Vec::new()
        };
        let name = attribute(BIT_NAME, &[name.as_bytes(), &[0]].concat());
        attribute(
            BITS_BIT | NLA_F_NESTED,
            &[attribute(1, &[0; 4]), name, value].concat(),
        )
    };
    let all: Vec<u8> = names.iter().flat_map(one).collect();
    let head = if list {
        attribute(BITSET_NOMASK, &[])
    } else {
        Vec::new()
    };
    let size = attribute(2, &64u32.to_ne_bytes());
    attribute(
        number | NLA_F_NESTED,
        &[head, size, attribute(BITSET_BITS | NLA_F_NESTED, &all)].concat(),
    )
}

fn values(all: &[(&str, &str)]) -> Values {
    all.iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

#[test]
fn features_are_those_wanted_of_what_can_be_changed() {
    let answer = [
        bits(
            FEATURES_HW,
            &[("rx-gro", true), ("tx-gso", true), ("netns-local", true)],
            true,
        ),
        bits(
            FEATURES_WANTED,
            &[("rx-gro", true), ("tx-checksum-sctp", true)],
            true,
        ),
        bits(4, &[("tx-gso", true)], true),
        bits(FEATURES_NOCHANGE, &[("netns-local", true)], true),
    ];
    let observed = kind("features").parse(&answer.concat());
    assert_eq!(
        observed,
        values(&[
            ("ethtool features rx-gro", "on"),
            ("ethtool features tx-gso", "off")
        ])
    );
    let change = kind("features").change(&kind("features").own(&observed), &BTreeMap::new());
    let sent: BTreeMap<u16, &[u8]> = attributes(&change).flatten().collect();
    assert_eq!(
        set_bits(sent[&FEATURES_WANTED]).collect::<Vec<_>>(),
        ["rx-gro"]
    );
}

#[test]
fn maxima_and_what_others_decide_are_left_out() {
    let rings = [
        word(2, 4096),
        word(6, 512),
        word(9, 256),
        attribute(13, &[1]),
    ]
    .concat();
    let observed = kind("rings").parse(&rings);
    let expected = [
        ("ethtool rings rx", "512"),
        ("ethtool rings tx", "256"),
        ("ethtool rings tx-push", "1"),
    ];
    assert_eq!(observed, values(&expected));
    let coalesce = [
        word(2, 8),
        word(6, 16),
        attribute(11, &[1]),
        attribute(12, &[0]),
    ]
    .concat();
    let observed = kind("coalesce").parse(&coalesce);
    let expected = [
        ("ethtool coalesce adaptive-rx", "1"),
        ("ethtool coalesce adaptive-tx", "0"),
        ("ethtool coalesce tx-usecs", "16"),
    ];
    assert_eq!(observed, values(&expected));
    let pause = [attribute(2, &[1]), attribute(3, &[1]), attribute(4, &[0])].concat();
    assert_eq!(
        kind("pause").parse(&pause),
        values(&[("ethtool pause autoneg", "1")])
    );
    let dark = [attribute(2, &[0]), word(5, u32::MAX), attribute(6, &[255])].concat();
    let observed = kind("link-modes").parse(&dark);
    assert_eq!(
        (
            &*observed["ethtool link-modes speed"],
            &*observed["ethtool link-modes duplex"]
        ),
        (UNTOLD, UNTOLD)
    );
}

#[test]
fn bits_that_differ_are_sent_with_what_they_are_to_be() {
    let fec = kind("fec");
    let observed = fec.parse(&bits(2, &[("RS", true), ("BASER", true)], true));
    assert_eq!(observed, values(&[("ethtool fec modes", "RS,BASER")]));
    let wanted = values(&[("ethtool fec modes", "RS,Off")]);
    let change = fec.change(&fec.own(&wanted), &fec.own(&observed));
    assert_eq!(change, bitset(2, &[("BASER", false), ("Off", true)]));
    // Of supported ones, those that are set.
    let flags = kind("private-flags").parse(&bits(
        2,
        &[("rx_cqe_moder", true), ("rx_striding_rq", false)],
        false,
    ));
    assert_eq!(
        flags,
        values(&[("ethtool private-flags flags", "rx_cqe_moder")])
    );
}

#[test]
fn what_was_told_is_what_is_sent() {
    let rss = [
        word(3, 1),
        attribute(4, &[0, 0, 0, 0, 1, 0, 0, 0]),
        attribute(5, &[0xab, 0xcd, 0xef]),
    ]
    .concat();
    let observed = kind("rss").parse(&rss);
    assert_eq!(observed["ethtool rss hkey"], "abcdef");
    let own = kind("rss").own(&observed);
    assert_eq!(kind("rss").change(&own, &BTreeMap::new()), rss);
    // Text that no kernel has sent sets nothing.
    let wrong = values(&[("ethtool rings rx", "many"), ("ethtool rss hkey", "xyz")]);
    for name in ["rings", "rss"] {
        assert!(
            kind(name)
                .change(&kind(name).own(&wrong), &BTreeMap::new())
                .is_empty()
        );
    }
}

#[test]
fn no_answer_of_a_kernel_makes_it_fail() {
    for kind in &KINDS {
        for bytes in [
            &[0xff_u8; 64][..],
            &[8, 0, 2, 0x80, 4, 0, 3, 0x80],
            &[5, 0, 6, 0, 1],
            &[],
        ] {
            kind.parse(bytes);
        }
    }
}
