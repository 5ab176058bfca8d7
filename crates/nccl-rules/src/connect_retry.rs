//! How often NCCL tries to connect, and what it takes for the end (src/misc/socket.cc,
//! src/os/linux.cc, `socketConnectCheck`).

use std::time::Duration;
use std::{fmt, io};

use nix::errno::Errno;
use serde::Serialize;

use super::settings::Settings;
use super::version::Version;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    Refused,
    TimedOut,
    HostUnreachable,
    NoRoute,
    /// The connection was taken, and broken off at once.
    Reset,
    Other,
}

impl Trouble {
    pub fn from_error(error: &io::Error) -> Trouble {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ECONNREFUSED) => Trouble::Refused,
            Some(Errno::EHOSTUNREACH) => Trouble::HostUnreachable,
            Some(Errno::ENETUNREACH | Errno::ENETDOWN) => Trouble::NoRoute,
            Some(Errno::ECONNRESET | Errno::ECONNABORTED) => Trouble::Reset,
            Some(Errno::ETIMEDOUT) => Trouble::TimedOut,
            _ if error.kind() == io::ErrorKind::TimedOut => Trouble::TimedOut,
            _ => Trouble::Other,
        }
    }

    pub fn meaning(self) -> &'static str {
        match self {
            Trouble::Refused => {
                "connection refused: the host is there, but no process listens on that port"
            }
            Trouble::TimedOut => {
                "timed out: packets are dropped on the way there, or the answers on the way back"
            }
            Trouble::HostUnreachable => {
                "no route to host: no host there has that address, or a router on the way says so"
            }
            Trouble::NoRoute => {
                "network unreachable: no route leads there from this network namespace"
            }
            Trouble::Reset => {
                "connection reset: a process takes connections there, and breaks them off"
            }
            Trouble::Other => "it cannot be tried",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rules {
    /// Before 2.24.3: what was refused is tried 20000 times with 1 ms between, what timed out three
    /// times, nothing else again.
    Fixed,
    /// All of it as often again, each time after a longer pause.
    Counted {
        /// NCCL_SOCKET_RETRY_CNT: tries after the first one; below 0 there is no end.
        again: i64,
        /// NCCL_SOCKET_RETRY_SLEEP_MSEC: the first pause; the n-th is n times as long.
        pause_ms: i64,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    refused: u32,
    timed_out: u32,
    all: u32,
}

impl Tally {
    pub fn all(&self) -> u32 {
        self.all
    }
}

const REFUSED: u32 = 20000;
const TIMED_OUT: u32 = 3;
const PAUSE: Duration = Duration::from_millis(1);
const AGAIN: i64 = 34;
const PAUSE_MS: i64 = 100;

impl Rules {
    pub fn new(settings: &Settings, version: Version) -> Rules {
        let number = |name: &str, default| settings.get(name).and_then(number).unwrap_or(default);
        match version.counts_retries() {
            false => Rules::Fixed,
            true => Rules::Counted {
                again: number("NCCL_SOCKET_RETRY_CNT", AGAIN),
                pause_ms: number("NCCL_SOCKET_RETRY_SLEEP_MSEC", PAUSE_MS),
            },
        }
    }

    /// After how long NCCL tries again, now that a try has failed; nothing: it does not.
    pub fn again(&self, trouble: Trouble, tally: &mut Tally) -> Option<Duration> {
        tally.all += 1;
        match (self, trouble) {
            (_, Trouble::NoRoute | Trouble::Reset | Trouble::Other) => None,
            (Rules::Counted { again, pause_ms }, _) => {
                // The count is compared for being equal, and the pause is of 32 bits without a
                // sign.
                let pause = i64::from(tally.all).wrapping_mul(*pause_ms) as u32;
                (i64::from(tally.all) - 1 != *again).then(|| Duration::from_millis(pause.into()))
            }
            (Rules::Fixed, Trouble::Refused) => {
                tally.refused += 1;
                (tally.refused < REFUSED).then_some(PAUSE)
            }
            (Rules::Fixed, Trouble::TimedOut) => {
                tally.timed_out += 1;
                (tally.timed_out < TIMED_OUT).then_some(PAUSE)
            }
            (Rules::Fixed, Trouble::HostUnreachable) => None,
        }
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rules::Fixed => write!(
                f,
                "refused: {REFUSED} tries, 1 ms between; timed out: {TIMED_OUT} tries; else one"
            ),
            Rules::Counted { again, pause_ms } if *again < 0 => {
                write!(
                    f,
                    "tries without end, pauses of {pause_ms} ms, {} ms, …",
                    pause_ms.saturating_mul(2)
                )
            }
            Rules::Counted { again, pause_ms } => {
                let all = i128::from(*pause_ms) * i128::from(*again) * (i128::from(*again) + 1) / 2;
                let tries = i128::from(*again) + 1;
                write!(
                    f,
                    "{tries} tries, pauses of {pause_ms} ms, {} ms, …: ",
                    pause_ms.saturating_mul(2)
                )?;
                write!(
                    f,
                    "{}.{} s in all, and the time of each try",
                    all / 1000,
                    all.unsigned_abs() % 1000 / 100
                )
            }
        }
    }
}

/// A parameter as strtoll reads it, in base 0 (src/misc/param.cc, `ncclLoadParam`): what is no
/// number is 0, and what is empty or out of range leaves the default.
fn number(text: &str) -> Option<i64> {
    let text = text.trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
    let (minus, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let hex = digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"));
    let (base, digits) = match hex.filter(|d| d.starts_with(|c: char| c.is_ascii_hexdigit())) {
        Some(digits) => (16, digits),
        None if digits.starts_with('0') => (8, digits),
        None => (10, digits),
    };
    if text.is_empty() {
        return None;
    }
    let digits = digits.chars().map_while(|c| c.to_digit(base));
    let number = digits.fold(0i128, |n, d| {
        n.saturating_mul(base.into()).saturating_add(d.into())
    });
    i64::try_from(if minus { -number } else { number }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(pairs: &[(&str, &str)], version: Version) -> Rules {
        Rules::new(&Settings::of(pairs.iter().copied(), "a test"), version)
    }

    /// Tries until the end, and the pauses between them.
    fn run(rules: Rules, trouble: Trouble) -> (u32, Duration) {
        let (mut tally, mut pauses) = (Tally::default(), Duration::ZERO);
        while let Some(pause) = rules.again(trouble, &mut tally) {
            pauses += pause;
            assert!(tally.all() < 100_000, "no end");
        }
        (tally.all(), pauses)
    }

    #[test]
    fn newer_releases_count_all_alike() {
        let plain = rules(&[], Version::NEWEST);
        for trouble in [
            Trouble::Refused,
            Trouble::TimedOut,
            Trouble::HostUnreachable,
        ] {
            assert_eq!(
                run(plain, trouble),
                (35, Duration::from_millis(59_500)),
                "{trouble:?}"
            );
        }
        for trouble in [Trouble::NoRoute, Trouble::Reset, Trouble::Other] {
            assert_eq!(run(plain, trouble), (1, Duration::ZERO));
        }
        assert_eq!(
            plain.to_string(),
            "35 tries, pauses of 100 ms, 200 ms, …: 59.5 s in all, and the time of each try"
        );
        let set = [
            ("NCCL_SOCKET_RETRY_CNT", "0x2"),
            ("NCCL_SOCKET_RETRY_SLEEP_MSEC", "010"),
        ];
        assert_eq!(
            run(rules(&set, Version::NEWEST), Trouble::Refused),
            (3, Duration::from_millis(8 + 16))
        );
        let mut tally = Tally {
            all: 50_000,
            ..Tally::default()
        };
        let endless = rules(&[("NCCL_SOCKET_RETRY_CNT", "-1")], Version::NEWEST);
        assert!(
            endless.again(Trouble::Refused, &mut tally).is_some()
                && endless.to_string().contains("without end")
        );
    }

    #[test]
    fn older_releases_know_two_counts_and_no_settings() {
        let old = rules(&[("NCCL_SOCKET_RETRY_CNT", "1")], Version::new(2, 21, 5));
        assert_eq!(
            run(old, Trouble::Refused),
            (20_000, Duration::from_millis(19_999))
        );
        assert_eq!(run(old, Trouble::TimedOut), (3, Duration::from_millis(2)));
        assert_eq!(run(old, Trouble::HostUnreachable), (1, Duration::ZERO));
    }

    #[test]
    fn numbers_are_those_of_the_c_library() {
        for (text, expected) in [
            ("34", Some(34)),
            (" -7x", Some(-7)),
            ("0x1f", Some(31)),
            ("0x", Some(0)),
            ("017", Some(15)),
            ("many", Some(0)),
            ("", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(number(text), expected, "{text:?}");
        }
    }

    #[test]
    fn errors_have_a_name() {
        let of = |e: Errno| Trouble::from_error(&io::Error::from(e));
        assert_eq!(of(Errno::ECONNREFUSED), Trouble::Refused);
        assert_eq!(of(Errno::ETIMEDOUT), Trouble::TimedOut);
        assert_eq!(of(Errno::EHOSTUNREACH), Trouble::HostUnreachable);
        assert_eq!(of(Errno::ENETUNREACH), Trouble::NoRoute);
        assert_eq!(of(Errno::EINVAL), Trouble::Other);
        assert_eq!(
            Trouble::from_error(&io::ErrorKind::TimedOut.into()),
            Trouble::TimedOut
        );
    }
}
