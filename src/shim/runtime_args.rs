//! How each runtime reads its command line: the options that have a value, read in the runtimes' sources, and the three kinds of
//! parsers behind them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{RuntimeCommand, config_file};

/// The parser that a runtime has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Go's `flag`: one dash or two, `-b X`, `-b=X`; runc's and runsc's.
    Go,
    /// glibc's argp: `-bX`, `-db X`, and long names cut short; crun's.
    Getopt,
    /// clap: the same without the cut, and with `-b=X`; youki's.
    Clap,
}

/// The options of a runtime that have a value, as far as they can stand before the container's id.
struct Grammar {
    kind: Kind,
    /// Before the command.
    globals: &'static [&'static str],
    /// Behind `create` and `run`.
    own: &'static [&'static str],
    /// Letters for some of them.
    letters: &'static [(u8, &'static str)],
}

/// main.go, create.go and run.go of runc 1.0 to 1.5; nvidia-container-runtime passes its arguments on to it.
const RUNC: Grammar = Grammar {
    kind: Kind::Go,
    globals: &["log", "log-format", "root", "criu", "rootless"],
    own: &["bundle", "b", "config", "console-socket", "pidfd-socket", "pid-file", "preserve-fds"],
    letters: &[],
};

/// src/crun.c, src/create.c and src/run.c of crun.
const CRUN: Grammar = Grammar {
    kind: Kind::Getopt,
    globals: &["cgroup-manager", "log", "log-format", "log-level", "root", "rootless"],
    own: &["bundle", "config", "console-socket", "pid-file", "preserve-fds"],
    letters: &[(b'b', "bundle"), (b'f', "config")],
};

/// crates/liboci-cli of youki.
const YOUKI: Grammar = Grammar {
    kind: Kind::Clap,
    globals: &["log", "log-format", "log-level", "root"],
    own: &["bundle", "console-socket", "pid-file", "preserve-fds"],
    letters: &[(b'l', "log"), (b'r', "root"), (b'b', "bundle"), (b'c', "console-socket"), (b'p', "pid-file")],
};

/// runsc/config/flags.go and runsc/cmd of gVisor, but for what its parent alone passes on. One that is not here is told by the
/// word behind it.
const RUNSC: Grammar = Grammar {
    kind: Kind::Go,
    globals: &[
        "root",
        "log",
        "log-format",
        "debug-log",
        "debug-command",
        "debug-log-format",
        "panic-log",
        "coverage-report",
        "pcap-log",
        "traceback",
        "metric-server",
        "final-metrics-log",
        "profiling-metrics",
        "profiling-metrics-log",
        "profiling-metrics-rate-us",
        "strace-syscalls",
        "strace-log-size",
        "platform",
        "platform_device_path",
        "watchdog-action",
        "panic-signal",
        "profile-block",
        "profile-cpu",
        "profile-gc-interval",
        "profile-heap",
        "profile-mutex",
        "trace",
        "ref-leak-mode",
        "signal-unkillable-policy",
        "pod-init-config",
        "host-settings",
        "sidecar-release-enforcement-policy",
        "sidecar-usage-policy",
        "restore-spec-validation",
        "control-rpc-stop-timeout",
        "shared-root",
        "file-access",
        "file-access-mounts",
        "overlay2",
        "host-uds",
        "host-fifo",
        "character-device-policy",
        "override-procs",
        "in-sandbox-cgroup",
        "fdlimit",
        "dcache",
        "network",
        "network-proxy-path",
        "gofer-network-namespace",
        "qdisc",
        "qdisc-tbf-rate",
        "qdisc-tbf-burst",
        "num-network-channels",
        "network-processors-per-channel",
        "EXPERIMENTAL-xdp",
        "nvproxy-driver-version",
        "cuda-checkpoint-path",
        "nvproxy-allowed-driver-capabilities",
    ],
    own: &["bundle", "console-socket", "pid-file", "user-log"],
    letters: &[],
};

/// Commands of the runtimes: behind an option that is not known, such a word is no value.
const COMMANDS: [&str; 24] = [
    "checkpoint",
    "create",
    "debug",
    "delete",
    "events",
    "exec",
    "features",
    "help",
    "info",
    "kill",
    "list",
    "mounts",
    "pause",
    "port-forward",
    "ps",
    "resume",
    "restore",
    "run",
    "spec",
    "start",
    "state",
    "update",
    "wait",
    "flags",
];

/// With these, a runtime tells of itself and makes no container.
const TELLING: [&str; 7] = ["help", "h", "?", "usage", "version", "v", "V"];

/// One word of a command line.
enum Word {
    /// What ends the options.
    End,
    /// No option.
    Plain,
    /// An option with what stood in the same word.
    Option(String, Option<OsString>),
}

impl Grammar {
    fn for_program(program: &Path) -> &'static Grammar {
        let name = program.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        let is = |word: &str| name.starts_with(word);
        match () {
            () if is("runsc") => &RUNSC,
            () if is("crun") || is("krun") => &CRUN,
            () if is("youki") => &YOUKI,
            () => &RUNC,
        }
    }

    fn word(&self, word: &OsStr) -> Word {
        let bytes = word.as_bytes();
        let long = |rest: &[u8]| {
            let (name, value) = match rest.iter().position(|b| *b == b'=') {
                Some(at) => (&rest[..at], Some(OsStr::from_bytes(&rest[at + 1..]).to_owned())),
                None => (rest, None),
            };
            Word::Option(String::from_utf8_lossy(name).into_owned(), value)
        };
        match bytes {
            b"--" => Word::End,
            b"-" | b"" => Word::Plain,
            [b'-', b'-', rest @ ..] => long(rest),
            [b'-', rest @ ..] if self.kind == Kind::Go => long(rest),
            [b'-', letters @ ..] => self.letters(letters),
            _ => Word::Plain,
        }
    }

    /// Several letters in one word: the first that has a value has the rest of it.
    fn letters(&self, letters: &[u8]) -> Word {
        for (at, letter) in letters.iter().enumerate() {
            let Some((_, name)) = self.letters.iter().find(|(own, _)| own == letter) else { continue };
            let rest = &letters[at + 1..];
            let rest = if self.kind == Kind::Clap { rest.strip_prefix(b"=").unwrap_or(rest) } else { rest };
            let value = (letters.len() > at + 1).then(|| OsStr::from_bytes(rest).to_owned());
            return Word::Option((*name).to_owned(), value);
        }
        let told = letters.iter().map(|letter| char::from(*letter).to_string());
        let told = told.reduce(|first, next| if TELLING.contains(&first.as_str()) { first } else { next });
        Word::Option(told.unwrap_or_default(), None)
    }

    /// The name of an option with a value that is meant.
    fn full(&self, name: &str, among: &[&'static str]) -> Option<&'static str> {
        let cut = || {
            let mut like = among.iter().filter(|own| self.kind == Kind::Getopt && own.starts_with(name));
            like.next().filter(|_| like.next().is_none())
        };
        among.iter().find(|own| **own == name).or_else(cut).copied()
    }
}

/// What a command line asks that program for. One that the runtime will refuse asks for nothing.
pub fn read(program: &Path, args: &[OsString]) -> RuntimeCommand {
    let grammar = Grammar::for_program(program);
    let mut asked = RuntimeCommand::default();
    let mut words = args.iter().peekable();
    let making = loop {
        let Some(word) = words.next() else { return asked };
        match grammar.word(word) {
            Word::End => break words.next().is_some_and(makes),
            Word::Plain => break makes(word),
            Word::Option(name, _) if TELLING.contains(&name.as_str()) => return asked,
            Word::Option(name, inline) => {
                let full = grammar.full(&name, grammar.globals);
                let bare = |next: &OsString| next.as_bytes().starts_with(b"-") || is_command(next);
                let alone = inline.is_some() || full.is_none() && words.peek().is_none_or(|next| bare(next));
                let value = if alone { inline } else { words.next().cloned() };
                match (full, value) {
                    (Some("log"), Some(value)) => asked.log = log(grammar, &value),
                    (Some("log-format"), Some(value)) => asked.json = value.as_bytes().starts_with(b"json"),
                    _ => {}
                }
            }
        }
    };
    if making {
        asked.config = config(grammar, words);
    }
    asked
}

/// Behind `create` or `run`: the config.json that it is about.
fn config<'a>(grammar: &Grammar, mut words: impl Iterator<Item = &'a OsString>) -> Option<std::path::PathBuf> {
    let (mut bundle, mut named) = (None, None);
    while let Some(word) = words.next() {
        let (name, inline) = match grammar.word(word) {
            Word::End => break,
            // The id; runc and youki take options behind it as well, the others refuse them.
            Word::Plain => continue,
            Word::Option(name, inline) => (name, inline),
        };
        if TELLING.contains(&name.as_str()) {
            return None;
        }
        let Some(full) = grammar.full(&name, grammar.own) else { continue };
        let value = inline.or_else(|| words.next().cloned())?;
        match full {
            "bundle" | "b" => bundle = Some(value),
            "config" => named = Some(value),
            _ => {}
        }
    }
    // For crun that name means the bundle's own, wherever it was called; for runc an empty one does.
    let own = if grammar.kind == Kind::Getopt { "config.json" } else { "" };
    Some(config_file(bundle.as_deref(), named.as_deref().filter(|name| *name != own)))
}

fn is_command(word: &OsString) -> bool {
    word.to_str().is_some_and(|word| COMMANDS.contains(&word))
}

fn makes(word: &OsString) -> bool {
    word == "create" || word == "run"
}

/// The file of a log: crun knows others, and a prefix for this one.
fn log(grammar: &Grammar, value: &OsStr) -> Option<std::path::PathBuf> {
    let bytes = value.as_bytes();
    if grammar.kind == Kind::Getopt {
        if bytes.starts_with(b"journald:") || bytes.starts_with(b"syslog:") {
            return None;
        }
        return Some(Path::new(OsStr::from_bytes(bytes.strip_prefix(b"file:").unwrap_or(bytes))).to_owned());
    }
    (!bytes.is_empty()).then(|| Path::new(value).to_owned())
}
