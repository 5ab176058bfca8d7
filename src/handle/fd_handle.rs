//! A descriptor of a living process as a value, which can be printed, stored and handed on. It
//! opens the very object that it was made of, or nothing: a path may lead elsewhere by then, and a
//! pid may be another process's.

use std::fmt::{self, Display};
use std::str::FromStr;

use anyhow::{Result, anyhow};
use serde::{Deserialize, Serialize};

/// The first word of a handle; another form would begin with another word.
const FORM: &str = "h1";

/// More than any handle has: what is longer is not quoted.
const LONGEST: usize = 160;

/// What tells a process from a later one of the same pid, within one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The inode of its pidfd, which no other process of this boot has (fs/pidfs.c, Linux 6.9).
    Pidfs(u64),
    /// Field 22 of /proc/PID/stat, in clock ticks after boot, for older kernels.
    Started(u64),
}

/// Where an object is held: text of the form `h1.BOOT.PID.pINODE.FD.DEV.INODE`, with `sTICKS` for
/// [`Mark::Started`]. It has nothing in it that a shell, JSON or a path minds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Handle {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// The process that holds it, in the pid namespace of who made the handle.
    pub pid: i32,
    pub process: Mark,
    pub fd: i32,
    /// The device that the object is on, `st_dev`.
    pub dev: u64,
    pub ino: u64,
}

impl Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mark::Pidfs(inode) => write!(f, "p{inode}"),
            Mark::Started(ticks) => write!(f, "s{ticks}"),
        }
    }
}

impl Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Handle {
            boot_id,
            pid,
            process,
            fd,
            dev,
            ino,
        } = self;
        write!(f, "{FORM}.{boot_id}.{pid}.{process}.{fd}.{dev}.{ino}")
    }
}

impl FromStr for Handle {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        let quoted = if s.len() > LONGEST {
            format!("a word of {} bytes", s.len())
        } else {
            format!("{s:?}")
        };
        parsed(s)
            .ok_or_else(|| anyhow!("{quoted} is no handle; `rdmaprep status --json` shows handles"))
    }
}

fn parsed(text: &str) -> Option<Handle> {
    let rest = text.strip_prefix(FORM)?.strip_prefix('.')?;
    let parts: Vec<&str> = rest.splitn(7, '.').collect();
    let [boot_id, pid, process, fd, dev, ino] = parts.as_slice() else {
        return None;
    };
    Some(Handle {
        boot_id: is_boot_id(boot_id).then(|| (*boot_id).to_owned())?,
        pid: number(pid).filter(|pid| *pid > 0)?,
        process: mark(process)?,
        fd: number(fd).filter(|fd| *fd >= 0)?,
        dev: number(dev)?,
        ino: number(ino)?,
    })
}

fn mark(text: &str) -> Option<Mark> {
    match text.split_at_checked(1)? {
        ("p", inode) => number(inode).map(Mark::Pidfs),
        ("s", ticks) => number(ticks).map(Mark::Started),
        _ => None,
    }
}

/// A number as it is printed, and in no other way: equal handles have equal texts.
fn number<T: FromStr + Display>(text: &str) -> Option<T> {
    text.parse().ok().filter(|n: &T| n.to_string() == text)
}

/// A UUID as Linux prints it.
fn is_boot_id(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(i, b)| match i {
            8 | 13 | 18 | 23 => b == b'-',
            _ => matches!(b, b'0'..=b'9' | b'a'..=b'f'),
        })
}

rdma_model::serde_as_text!(Handle);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn marks() -> impl Strategy<Value = Mark> {
        prop_oneof![
            any::<u64>().prop_map(Mark::Pidfs),
            any::<u64>().prop_map(Mark::Started)
        ]
    }

    fn handles() -> impl Strategy<Value = Handle> {
        let boots = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
        (
            boots,
            1..=i32::MAX,
            marks(),
            0..=i32::MAX,
            any::<u64>(),
            any::<u64>(),
        )
            .prop_map(|(boot_id, pid, process, fd, dev, ino)| Handle {
                boot_id,
                pid,
                process,
                fd,
                dev,
                ino,
            })
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read(handle in handles()) {
            let text = handle.to_string();
            prop_assert!(text.len() <= LONGEST);
            let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'.' || b == b'-';
            prop_assert!(text.bytes().all(plain), "{}", text);
            prop_assert_eq!(text.parse::<Handle>().unwrap(), handle.clone());
            let json = serde_json::to_string(&handle).unwrap();
            prop_assert_eq!(&json, &format!("\"{text}\""));
            prop_assert_eq!(serde_json::from_str::<Handle>(&json).unwrap(), handle);
        }

        /// What is read is printed as it was: there are no two texts for one handle.
        #[test]
        fn a_changed_text_is_another_handle_or_none(
            handle in handles(),
            at in 0..200usize,
            byte in 0x20..0x7fu8,
        ) {
            let mut text = handle.to_string().into_bytes();
            let at = at % text.len();
            text[at] = byte;
            let text = String::from_utf8(text).unwrap();
            if let Ok(read) = text.parse::<Handle>() {
                prop_assert_eq!(read.to_string(), text);
            }
        }

        #[test]
        fn whatever_is_read_ends_in_one_line(text in ".{0,300}") {
            if let Err(e) = text.parse::<Handle>() {
                prop_assert!(!e.to_string().contains('\n') && e.to_string().len() < 1500);
            }
        }
    }

    #[test]
    fn what_is_no_handle_is_refused() {
        const BOOT: &str = "0b3c2f6e-1234-4abc-9def-0123456789ab";
        let good = format!("h1.{BOOT}.7.p9.3.1.2");
        assert!(good.parse::<Handle>().is_ok());
        for bad in [
            String::new(),
            "h1".into(),
            good.replace("h1", "h2"),
            good.replace(".7.", ".0."),
            good.replace(".7.", ".-7."),
            good.replace(".7.", ".+7."),
            good.replace(".7.", ".07."),
            good.replace(".7.", ".4294967303."),
            good.replace(".p9.", ".9."),
            good.replace(".p9.", ".x9."),
            good.replace(".p9.", ".p."),
            good.replace(".p9.", ".."),
            good.replace(".3.", ".-1."),
            good.replace(BOOT, &BOOT.to_uppercase()),
            good.replace(BOOT, "boot"),
            format!("{good}.4"),
            format!("{good} "),
            format!("{good}\n"),
        ] {
            assert!(bad.parse::<Handle>().is_err(), "{bad:?}");
        }
    }
}
