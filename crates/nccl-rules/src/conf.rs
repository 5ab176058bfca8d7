//! NCCL's config file as data. The grammar is that of src/misc/param.cc, function `setEnvFile`: one
//! `NAME=VALUE` per line, split at the first `=`, everything verbatim; the first assignment of a
//! name wins, since each is a `setenv` that does not overwrite. There are no quotes, and blanks
//! belong to what they stand in. `#` in column 0 begins a comment since 2.26.2; before, it was a
//! name that NCCL does not read. A line may end with CRLF since 2.30 only: before, the CR was the
//! value's last byte.

use std::collections::BTreeSet;

use rdma_model::nic::EnvVar;

/// Bytes of a name or a value that NCCL reads; it drops the rest of a longer one.
const LIMIT: usize = 1023;

/// The one prefix that goes in: NCCL reads its file when it starts, too late for anything but
/// itself and its plugins.
const PREFIX: &str = "NCCL_";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    pub bytes: Vec<u8>,
    pub added: Vec<String>,
    /// The file's own settings that differ from ours and stay: `NAME=VALUE`, control characters
    /// escaped.
    pub kept: Vec<String>,
    /// Settings that no such file can bring, and why: `NAME: reason`; escaped, too.
    pub left: Vec<String>,
}

pub fn parse(text: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut seen = BTreeSet::new();
    let lines = text
        .split(|b| *b == b'\n')
        .filter(|line| line.first() != Some(&b'#'));
    lines
        .filter_map(assignment)
        .filter(|(name, _)| seen.insert(*name))
        .collect()
}

/// Lines that name a setting of NCCL's and have no `=`: it passes them over.
pub fn unread(text: &[u8]) -> Vec<String> {
    let lines = text
        .split(|b| *b == b'\n')
        .map(|line| String::from_utf8_lossy(line));
    let meant = lines.filter(|line| {
        let text = line.trim();
        text.contains(PREFIX) && !text.contains('=') && !text.starts_with('#')
    });
    meant
        .map(|line| printable(line.trim_end().as_bytes()))
        .collect()
}

/// A line's name and value. It is a C string: it ends at a NUL.
fn assignment(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let line = line.split(|b| *b == 0).next()?;
    let equals = line.iter().position(|b| *b == b'=')?;
    let (name, value) = (line.get(..equals)?, line.get(equals + 1..)?);
    // setenv refuses an empty name.
    (!name.is_empty()).then(|| (cut(name), cut(value)))
}

fn cut(bytes: &[u8]) -> &[u8] {
    bytes.get(..LIMIT).unwrap_or(bytes)
}

/// Adds those of our settings that a file lacks. Its own content stays and wins; a second merge
/// changes nothing.
pub fn merge(image: &[u8], ours: &[EnvVar]) -> Merged {
    let own = parse(image);
    let mut merged = Merged {
        bytes: image.to_vec(),
        ..Merged::default()
    };
    for var in ours {
        if let Some(why) = unfit(var) {
            merged
                .left
                .push(format!("{}: {why}", printable(var.name.as_bytes())));
        } else if let Some((name, value)) =
            own.iter().find(|(name, _)| *name == var.name.as_bytes())
        {
            if *value != var.value.as_bytes() {
                merged
                    .kept
                    .push(format!("{}={}", printable(name), printable(value)));
            }
        } else if !merged.added.contains(&var.name) {
            merged.append(var);
        }
    }
    merged
}

impl Merged {
    fn append(&mut self, var: &EnvVar) {
        if self.bytes.last().is_some_and(|b| *b != b'\n') {
            self.bytes.push(b'\n');
        }
        self.bytes
            .extend(format!("{}={}\n", var.name, var.value).bytes());
        self.added.push(var.name.clone());
    }
}

fn unfit(var: &EnvVar) -> Option<&'static str> {
    let splits = |text: &str| text.contains(['\n', '\r', '\0']);
    if !var.name.starts_with(PREFIX) {
        Some("only NCCL reads its config file")
    } else if var.name.contains('=') || splits(&var.name) {
        Some("no such name fits into NCCL's config file")
    } else if splits(&var.value) {
        Some("a line of NCCL's config file cannot hold its value")
    } else if var.name.len() > LIMIT || var.value.len() > LIMIT {
        Some("NCCL reads 1023 bytes of a name or value")
    } else {
        None
    }
}

fn printable(bytes: &[u8]) -> String {
    let escape = |c: char| {
        if c.is_control() {
            c.escape_default().to_string()
        } else {
            c.to_string()
        }
    };
    String::from_utf8_lossy(bytes).chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn var(name: &str, value: &str) -> EnvVar {
        EnvVar {
            name: name.into(),
            value: value.into(),
            why: String::new(),
        }
    }

    fn text(merged: &Merged) -> &str {
        std::str::from_utf8(&merged.bytes).unwrap()
    }

    #[test]
    fn lines_are_read_as_nccl_reads_them() {
        let file = b"# NCCL_A=0\n#NCCL_A=0\nNCCL_A=1 \nNCCL_A=2\n NCCL_B = \"x\" \n=nameless\nnot \
            one\nNCCL_C==a=b\nNCCL_D=\n\
            NCCL_E=1\r\nNCCL_F=x\0y\nNCCL_G\0=1\nNCCL_H=last";
        let read: Vec<(String, String)> = parse(file)
            .into_iter()
            .map(|(n, v)| (printable(n), printable(v)))
            .collect();
        let expected = [
            ("NCCL_A", "1 "),
            (" NCCL_B ", " \"x\" "),
            ("NCCL_C", "=a=b"),
            ("NCCL_D", ""),
            ("NCCL_E", "1\\r"),
            ("NCCL_F", "x"),
            ("NCCL_H", "last"),
        ];
        assert_eq!(read, expected.map(|(n, v)| (n.to_owned(), v.to_owned())));
        let file = b"NCCL_A 1\r\n # NCCL_B\n#NCCL_C\nother\nNCCL_D=1\n\n NCCL_E: 1";
        assert_eq!(unread(file), ["NCCL_A 1", " NCCL_E: 1"]);
        let long = format!("{}={}", "N".repeat(2000), "v".repeat(2000));
        assert_eq!(
            parse(long.as_bytes()),
            [("N".repeat(1023).as_bytes(), "v".repeat(1023).as_bytes())]
        );
    }

    #[test]
    fn the_image_wins_and_stays_verbatim() {
        let image = b"# ours\nNCCL_IB_HCA==mlx5_9\nNCCL_DEBUG=INFO";
        let ours = [
            var("NCCL_IB_HCA", "=mlx5_0"),
            var("NCCL_DEBUG", "INFO"),
            var("NCCL_IB_TC", "106"),
        ];
        let merged = merge(image, &ours);
        assert_eq!(
            text(&merged),
            "# ours\nNCCL_IB_HCA==mlx5_9\nNCCL_DEBUG=INFO\nNCCL_IB_TC=106\n"
        );
        assert_eq!(
            (merged.added, merged.kept),
            (
                vec!["NCCL_IB_TC".to_owned()],
                vec!["NCCL_IB_HCA==mlx5_9".to_owned()]
            )
        );
        // A comment sets nothing, and without anything to add not even the last newline is.
        assert_eq!(
            text(&merge(b"#NCCL_IB_TC=1", &ours[2..])),
            "#NCCL_IB_TC=1\nNCCL_IB_TC=106\n"
        );
        assert_eq!(
            text(&merge(b"NCCL_IB_TC=106", &ours[2..])),
            "NCCL_IB_TC=106"
        );
    }

    /// Found by fuzzing: of a name they were not.
    #[test]
    fn control_characters_are_told_escaped() {
        let merged = merge(
            b"NCCL_\x1b=\x07",
            &[var("NCCL_\x1b", "1"), var("NCCL_\n", "1")],
        );
        assert_eq!(merged.kept, ["NCCL_\\u{1b}=\\u{7}"]);
        assert_eq!(
            merged.left,
            ["NCCL_\\n: no such name fits into NCCL's config file"]
        );
    }

    #[test]
    fn what_the_file_cannot_hold_is_left_and_named() {
        let long = "v".repeat(1024);
        let ours = [
            var("GLOO_SOCKET_IFNAME", "eth0"),
            var("NCCL_A=B", "1"),
            var("NCCL_C", "1\nNCCL_D=2"),
            var("NCCL_E", "\0"),
            var("NCCL_F", &long),
            var("NCCL_G", "ends with CR\r"),
        ];
        let merged = merge(b"", &ours);
        assert_eq!(
            (merged.bytes.len(), merged.added.len(), merged.left.len()),
            (0, 0, 6)
        );
        assert_eq!(
            merged.left[0],
            "GLOO_SOCKET_IFNAME: only NCCL reads its config file"
        );
    }

    proptest! {
        #[test]
        fn ours_are_read_back_and_merging_again_changes_nothing(
            image in prop::collection::vec(prop::sample::select(b"NCL_A=#\n\r\0 \
                1".to_vec()), 0..80),
            ours in prop::collection::vec(("(NCCL_|GLOO_)[AB=]{0,3}", "[\n\r\0= a-z]{0,6}"), 0..6),
        ) {
            let ours: Vec<EnvVar> = ours.iter().map(|(name, value)| var(name, value)).collect();
            let once = merge(&image, &ours);
            prop_assert!(once.bytes.starts_with(&image));
            prop_assert_eq!(&merge(&once.bytes, &ours).bytes, &once.bytes);
            let (before, after) = (parse(&image), parse(&once.bytes));
            for var in &ours {
                let find = |all: &[(&[u8], &[u8])]| {
                    all.iter().find(|(n, _)| *n == var.name.as_bytes()).map(|(_, v)| v.to_vec())
                };
                if once.added.contains(&var.name) {
                    prop_assert_eq!(find(&before), None);
                    let first = ours.iter().find(|o| o.name == var.name && unfit(o).is_none())
                        .unwrap();
                    prop_assert_eq!(find(&after), Some(first.value.clone().into_bytes()));
                } else {
                    prop_assert_eq!(find(&before), find(&after));
                }
            }
        }
    }
}
