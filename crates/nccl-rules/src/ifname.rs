//! The grammar of NCCL_SOCKET_IFNAME and NCCL_IB_HCA: one parser, one matcher.
//!
//! `^` excludes, a `=` after it (or alone) compares whole names, the rest is a comma-separated list
//! that NCCL does not trim: both marks hold for all of it, and `=^x` is the name `^x`
//! (src/os/linux.cc, `ncclOsFindInterfaces`; src/transport/net_ib/init.cc, `ncclIbInitDevices`). An
//! entry is `name[:port[:rail[:plane]]]`; one without a name counts for nothing. A list without
//! entries matches everything (src/misc/utils.cc, `parseStringList`, `matchIfList`).

use super::version::Version;

/// Entries of NCCL_SOCKET_IFNAME that are read, and interfaces that are taken (MAX_IFS;
/// src/include/socket.h).
pub const MAX_INTERFACES: usize = 16;

/// Bytes of a name that the parser keeps from 2.30.7 on; its buffer has one more
/// (src/include/utils.h, `netIf`).
const NAME: usize = 63;

/// Bytes of a variable that a process can have (MAX_ARG_STRLEN in include/uapi/linux/binfmts.h),
/// less name, `=` and end: a container's config.json may say more, and its program is not started
/// then.
const VALUE: usize = (128 << 10) - 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patterns {
    /// `^`: what matches is left out.
    pub exclude: bool,
    /// `=`: whole names are compared, not beginnings.
    pub exact: bool,
    pub entries: Vec<Entry>,
    /// Those beyond the limit, which it drops without a word.
    pub dropped: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name, or its beginning; never empty.
    pub name: String,
    /// Port; none fits every port.
    pub port: Option<i32>,
    /// Rail that the device is assigned to, from 2.30.7 on.
    pub rail: Option<i32>,
    pub plane: Option<i32>,
    /// The name as written was longer than the parser's buffer.
    pub overlong: bool,
}

impl Patterns {
    /// NCCL_SOCKET_IFNAME; none where the choice is automatic, which every value of less than two
    /// bytes leaves it (src/misc/socket.cc, `ncclFindInterfaces`).
    pub fn interfaces(value: Option<&str>, version: Version) -> Option<Patterns> {
        let value = value.filter(|v| v.len() > 1)?;
        Some(Patterns::parse(value, MAX_INTERFACES, version))
    }

    /// NCCL_IB_HCA. Unset, empty and `=` are all devices; `^` is none.
    pub fn hcas(value: Option<&str>, version: Version) -> Patterns {
        Patterns::parse(value.unwrap_or_default(), version.max_hcas(), version)
    }

    pub fn parse(value: &str, limit: usize, version: Version) -> Patterns {
        let (exclude, rest) = mark(within(value), '^');
        let (exact, list) = mark(rest, '=');
        let mut entries = entries(list, version);
        let dropped = entries.split_off(limit.min(entries.len()));
        Patterns {
            exclude,
            exact,
            entries,
            dropped,
        }
    }

    pub fn takes(&self, name: &str, port: Option<u32>) -> bool {
        self.matches(name, port) != self.exclude
    }

    fn matches(&self, name: &str, port: Option<u32>) -> bool {
        self.entries.is_empty()
            || self
                .entries
                .iter()
                .any(|e| e.matches(name, port, self.exact))
    }
}

impl Entry {
    pub fn matches(&self, name: &str, port: Option<u32>, exact: bool) -> bool {
        self.names(name, exact) && self.fits_port(port)
    }

    pub(crate) fn fits_port(&self, port: Option<u32>) -> bool {
        self.port.is_none() || port.is_none() || self.port == port.map(|p| p as i32)
    }

    pub fn names(&self, name: &str, exact: bool) -> bool {
        if exact {
            name == self.name
        } else {
            name.starts_with(&self.name)
        }
    }
}

/// As much of a value as there can be.
fn within(value: &str) -> &str {
    let end = (0..=VALUE.min(value.len()))
        .rev()
        .find(|at| value.is_char_boundary(*at));
    value.get(..end.unwrap_or_default()).unwrap_or_default()
}

fn mark(text: &str, mark: char) -> (bool, &str) {
    text.strip_prefix(mark)
        .map_or((false, text), |rest| (true, rest))
}

/// The entries of a list. NCCL_COMM_ID is read by the same code, as a list of one.
pub(crate) fn entries(list: &str, version: Version) -> Vec<Entry> {
    list.split(',')
        .filter_map(|text| entry(text, version))
        .collect()
}

fn entry(text: &str, version: Version) -> Option<Entry> {
    let (name, fields) = text
        .split_once(':')
        .map_or((text, None), |(name, fields)| (name, Some(fields)));
    if name.is_empty() {
        return None;
    }
    let mut entry = Entry {
        name: name.to_owned(),
        port: None,
        rail: None,
        plane: None,
        overlong: name.len() > NAME,
    };
    if version.splits_fields() {
        entry.name = String::from_utf8_lossy(&name.as_bytes()[..NAME.min(name.len())]).into_owned();
        let mut fields = fields
            .unwrap_or_default()
            .split(':')
            .map(|f| (!f.is_empty()).then(|| atoi(f)));
        // −1 is what NCCL itself writes for none.
        let mut next = || fields.next().flatten().filter(|n| *n != -1);
        (entry.port, entry.rail, entry.plane) = (next(), next(), next());
    } else {
        entry.port = fields.map(atoi).filter(|n| *n != -1);
    }
    Some(entry)
}

/// C's atoi: leading blanks, a sign, digits; whatever follows is ignored, and nothing is 0.
pub(crate) fn atoi(text: &str) -> i32 {
    let text = text.trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
    let (minus, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = digits.chars().map_while(|c| c.to_digit(10));
    let number = digits.fold(0i64, |n, d| n.saturating_mul(10).saturating_add(d.into()));
    (if minus { -number } else { number }) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Version = Version::new(2, 27, 7);

    fn both(value: &str) -> Patterns {
        let (old, new) = (
            Patterns::parse(value, 16, OLD),
            Patterns::parse(value, 16, Version::NEWEST),
        );
        assert_eq!(old, new, "{value:?}");
        new
    }

    fn names(patterns: &Patterns) -> Vec<&str> {
        patterns.entries.iter().map(|e| e.name.as_str()).collect()
    }

    #[test]
    fn marks_have_an_order_and_names_are_never_trimmed() {
        for (value, exclude, exact, list) in [
            ("eth0,ib", false, false, &["eth0", "ib"][..]),
            ("=eth0", false, true, &["eth0"]),
            ("^eth0", true, false, &["eth0"]),
            ("^=eth0", true, true, &["eth0"]),
            ("=^eth0", false, true, &["^eth0"]),
            ("==eth0", false, true, &["=eth0"]),
            ("^^eth0", true, false, &["^eth0"]),
            (" eth0, eth1 ", false, false, &[" eth0", " eth1 "]),
            (",,eth0,", false, false, &["eth0"]),
            (":eth0,eth1", false, false, &["eth1"]),
            ("^", true, false, &[]),
            ("^=", true, true, &[]),
        ] {
            let p = both(value);
            assert_eq!(
                (p.exclude, p.exact, names(&p).as_slice()),
                (exclude, exact, list),
                "{value:?}"
            );
        }
    }

    #[test]
    fn prefixes_take_more_than_whole_names() {
        let (prefix, exact) = (both("mlx5_1"), both("=mlx5_1"));
        assert!(
            prefix.takes("mlx5_1", Some(1))
                && prefix.takes("mlx5_10", Some(2))
                && !prefix.takes("mlx5", None)
        );
        assert!(exact.takes("mlx5_1", Some(1)) && !exact.takes("mlx5_10", Some(1)));
        let without = both("^=mlx5_1");
        assert!(!without.takes("mlx5_1", Some(1)) && without.takes("mlx5_10", Some(1)));
    }

    #[test]
    fn an_empty_list_is_everything_and_its_opposite_nothing() {
        for all in ["", "=", ",", ":1", "=:1,"] {
            assert!(both(all).takes("mlx5_0", Some(1)), "{all:?}");
            assert!(
                !both(&format!("^{all}")).takes("mlx5_0", Some(1)),
                "{all:?}"
            );
        }
        assert!(Patterns::hcas(None, OLD).takes("mlx5_0", Some(1)));
        for automatic in [None, Some(""), Some("^"), Some("="), Some("e")] {
            assert_eq!(Patterns::interfaces(automatic, OLD), None);
        }
        assert!(
            !Patterns::interfaces(Some("^="), OLD)
                .unwrap()
                .takes("eth0", None)
        );
    }

    #[test]
    fn fields_after_the_name() {
        let port = |value: &str, version| Patterns::parse(value, 16, version).entries[0].port;
        for (value, old, new) in [
            ("m:2", Some(2), Some(2)),
            ("m: 2x", Some(2), Some(2)),
            ("m:-1", None, None),
            ("m:x", Some(0), Some(0)),
            ("m:", Some(0), None),
            ("m::1", Some(0), None),
            ("m:1:3", Some(1), Some(1)),
        ] {
            assert_eq!(
                (port(value, OLD), port(value, Version::NEWEST)),
                (old, new),
                "{value:?}"
            );
        }
        let e = &Patterns::parse("m:1:2:3:4", 16, Version::NEWEST).entries[0];
        assert_eq!((e.port, e.rail, e.plane), (Some(1), Some(2), Some(3)));
        assert!(
            e.matches("m0", Some(1), false)
                && !e.matches("m0", Some(2), false)
                && e.matches("m0", None, false)
        );
        assert_eq!((atoi("99999999999999999999"), atoi("+7")), (-1, 7));
    }

    #[test]
    fn what_is_beyond_the_limits_is_dropped() {
        let list = (0..40)
            .map(|i| format!("m{i}"))
            .collect::<Vec<_>>()
            .join(",");
        let dropped = |version| {
            Patterns::hcas(Some(&format!("={list}")), version)
                .dropped
                .len()
        };
        assert_eq!((dropped(Version::new(2, 18, 3)), dropped(OLD)), (24, 8));
        // What is dropped from a list of exclusions is not excluded.
        let without = Patterns::interfaces(Some(&format!("^={list}")), OLD).unwrap();
        assert!(!without.takes("m15", None) && without.takes("m16", None));
        let long = "x".repeat(70);
        let cut = &Patterns::parse(&long, 16, Version::NEWEST).entries[0];
        assert!(cut.overlong && cut.names(&"x".repeat(63), true));
        assert!(!Patterns::parse(&long, 16, OLD).takes(&"x".repeat(63), None));
    }
}
