//! Which messages there are, and which of their attributes are settings
//! (include/uapi/linux/ethtool_netlink.h).

#[derive(Clone, Copy, PartialEq)]
pub enum Form {
    Byte,
    Word,
    Bits,
    Bytes,
}
use Form::{Bits, Byte, Bytes, Word};

pub struct Kind {
    pub name: &'static str,
    pub get: u8,
    pub set: u8,
    /// Whether only hardware is asked: a virtual link answers with what the links below it have.
    pub hardware: bool,
    pub settings: &'static [(u16, &'static str, Form)],
}

/// In the order in which they are given back: a driver may derive those behind from those before.
pub const KINDS: [Kind; 15] = [
    Kind {
        name: "private-flags",
        get: 13,
        set: 14,
        hardware: false,
        settings: &[(2, "flags", Bits)],
    },
    Kind {
        name: "features",
        get: 11,
        set: 12,
        hardware: false,
        settings: &[],
    },
    Kind {
        name: "channels",
        get: 17,
        set: 18,
        hardware: false,
        settings: &[
            (6, "rx", Word),
            (7, "tx", Word),
            (8, "other", Word),
            (9, "combined", Word),
        ],
    },
    Kind {
        name: "rings",
        get: 15,
        set: 16,
        hardware: false,
        settings: &[
            (6, "rx", Word),
            (7, "rx-mini", Word),
            (8, "rx-jumbo", Word),
            (9, "tx", Word),
            (10, "rx-buf-len", Word),
            (11, "tcp-data-split", Byte),
            (12, "cqe-size", Word),
            (13, "tx-push", Byte),
            (14, "rx-push", Byte),
            (15, "tx-push-buf-len", Word),
            (17, "hds-thresh", Word),
        ],
    },
    Kind {
        name: "rss",
        get: 38,
        set: 48,
        hardware: false,
        settings: &[
            (3, "hfunc", Word),
            (4, "indir", Bytes),
            (5, "hkey", Bytes),
            (6, "input-xfrm", Word),
        ],
    },
    Kind {
        name: "coalesce",
        get: 19,
        set: 20,
        hardware: false,
        settings: &COALESCE,
    },
    Kind {
        name: "pause",
        get: 21,
        set: 22,
        hardware: false,
        settings: &[(2, "autoneg", Byte), (3, "rx", Byte), (4, "tx", Byte)],
    },
    Kind {
        name: "fec",
        get: 29,
        set: 30,
        hardware: false,
        settings: &[(2, "modes", Bits), (3, "auto", Byte)],
    },
    Kind {
        name: "eee",
        get: 23,
        set: 24,
        hardware: false,
        settings: &[
            (2, "modes", Bits),
            (5, "enabled", Byte),
            (6, "tx-lpi", Byte),
            (7, "tx-timer", Word),
        ],
    },
    Kind {
        name: "link-modes",
        get: 4,
        set: 5,
        hardware: true,
        settings: &[
            (2, "autoneg", Byte),
            (3, "advertise", Bits),
            (5, "speed", Word),
            (6, "duplex", Byte),
        ],
    },
    Kind {
        name: "wake-on-lan",
        get: 9,
        set: 10,
        hardware: false,
        settings: &[(2, "modes", Bits), (3, "sopass", Bytes)],
    },
    Kind {
        name: "messages",
        get: 7,
        set: 8,
        hardware: false,
        settings: &[(2, "levels", Bits)],
    },
    Kind {
        name: "module",
        get: 34,
        set: 35,
        hardware: true,
        settings: &[(2, "power-mode-policy", Byte)],
    },
    Kind {
        name: "mac-merge",
        get: 42,
        set: 43,
        hardware: true,
        settings: &[
            (2, "pmac-enabled", Byte),
            (3, "tx-enabled", Byte),
            (5, "tx-min-frag-size", Word),
            (7, "verify-enabled", Byte),
            (9, "verify-time", Word),
        ],
    },
    Kind {
        name: "plca",
        get: 39,
        set: 40,
        hardware: true,
        settings: &[
            (3, "enabled", Byte),
            (5, "node-cnt", Word),
            (6, "node-id", Word),
            (7, "to-tmr", Word),
            (8, "burst-cnt", Word),
            (9, "burst-tmr", Word),
        ],
    },
];

const COALESCE: [(u16, &str, Form); 27] = [
    (11, "adaptive-rx", Byte),
    (12, "adaptive-tx", Byte),
    (2, "rx-usecs", Word),
    (3, "rx-frames", Word),
    (4, "rx-usecs-irq", Word),
    (5, "rx-frames-irq", Word),
    (6, "tx-usecs", Word),
    (7, "tx-frames", Word),
    (8, "tx-usecs-irq", Word),
    (9, "tx-frames-irq", Word),
    (10, "stats-block-usecs", Word),
    (13, "pkt-rate-low", Word),
    (14, "rx-usecs-low", Word),
    (15, "rx-frames-low", Word),
    (16, "tx-usecs-low", Word),
    (17, "tx-frames-low", Word),
    (18, "pkt-rate-high", Word),
    (19, "rx-usecs-high", Word),
    (20, "rx-frames-high", Word),
    (21, "tx-usecs-high", Word),
    (22, "tx-frames-high", Word),
    (23, "sample-interval", Word),
    (24, "cqe-mode-tx", Byte),
    (25, "cqe-mode-rx", Byte),
    (26, "tx-aggr-max-bytes", Word),
    (27, "tx-aggr-max-frames", Word),
    (28, "tx-aggr-time-usecs", Word),
];

/// Values that another one makes meaningless: the driver or the peer decides on them then.
pub const DECIDED: [(&str, &str, &[&str]); 4] = [
    ("coalesce", "adaptive-rx", &["rx-usecs", "rx-frames"]),
    ("coalesce", "adaptive-tx", &["tx-usecs", "tx-frames"]),
    ("pause", "autoneg", &["rx", "tx"]),
    ("link-modes", "autoneg", &["speed", "duplex"]),
];
