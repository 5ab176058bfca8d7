//! What a runtime's command line asks for. runc (and nvidia-container-runtime, which passes its
//! arguments on) and runsc read options as Go's `flag` package does, crun as glibc's argp, youki as
//! clap. The options below were read in the sources of runc 1.5, crun 1.21, youki and gVisor; of
//! all others it is enough to know that a word behind one is its value unless it is an option or a
//! command.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{RuntimeCommand, config_file};

/// Options that take a value whatever it looks like, before the command or behind it. No runtime
/// has one of these without a value.
const VALUED: [&str; 12] = [
    "bundle",
    "b",
    "config",
    "console-socket",
    "log",
    "log-format",
    "log-level",
    "pid-file",
    "pidfd-socket",
    "preserve-fds",
    "root",
    "user-log",
];

/// The single letters of crun and youki for some of them.
const LETTERS: [(u8, &str); 6] = [
    (b'b', "bundle"),
    (b'c', "console-socket"),
    (b'f', "config"),
    (b'l', "log"),
    (b'p', "pid-file"),
    (b'r', "root"),
];

/// Commands of the runtimes: behind an option that is not known, such a word is no value.
const COMMANDS: &str = "checkpoint create debug delete events exec features flags help info kill \
    list mounts pause port-forward ps restore resume run spec start state update wait";

/// With these, a runtime prints something and makes no container.
const INFORMATIVE: [&str; 7] = ["help", "h", "?", "usage", "version", "v", "V"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Parser {
    /// Go's `flag`: one dash or two, `-b X`, `-b=X`.
    Go,
    /// glibc's argp: `-bX`, `-db X`, and long names cut short.
    Argp,
    /// clap: `-bX`, `-db X`, `-b=X`.
    Clap,
}

enum Word {
    EndOfOptions,
    Plain,
    Option(String, Option<OsString>),
}

impl Parser {
    fn of_program(program: &Path) -> Parser {
        let name = program
            .file_name()
            .map(OsStr::to_string_lossy)
            .unwrap_or_default();
        match () {
            () if name.starts_with("crun") || name.starts_with("krun") => Parser::Argp,
            () if name.starts_with("youki") => Parser::Clap,
            () => Parser::Go,
        }
    }

    fn word(self, word: &OsStr) -> Word {
        match word.as_bytes() {
            b"--" => Word::EndOfOptions,
            [b'-', b'-', name @ ..] => self.long(name),
            [b'-', name @ ..] if self == Parser::Go && !name.is_empty() => self.long(name),
            [b'-', letters @ ..] if !letters.is_empty() => self.letters(letters),
            _ => Word::Plain,
        }
    }

    fn long(self, word: &[u8]) -> Word {
        let mut parts = word.splitn(2, |b| *b == b'=');
        let name = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let value = parts
            .next()
            .map(|value| OsStr::from_bytes(value).to_owned());
        let mut like = VALUED
            .iter()
            .filter(|valued| self == Parser::Argp && valued.starts_with(&name));
        let full = like
            .next()
            .filter(|_| like.next().is_none() && !VALUED.contains(&name.as_str()));
        Word::Option(full.map_or(name, |full| (*full).to_owned()), value)
    }

    /// Several letters in one word: the first that has a value has the rest of it.
    fn letters(self, letters: &[u8]) -> Word {
        let valued = |letter: &u8| LETTERS.iter().find(|(valued, _)| valued == letter);
        if let Some((at, name)) = letters
            .iter()
            .enumerate()
            .find_map(|(at, l)| Some((at, valued(l)?.1)))
        {
            let rest = &letters[at + 1..];
            let value = if self == Parser::Clap {
                rest.strip_prefix(b"=").unwrap_or(rest)
            } else {
                rest
            };
            return Word::Option(
                name.to_owned(),
                (!rest.is_empty()).then(|| OsStr::from_bytes(value).to_owned()),
            );
        }
        let names: Vec<String> = letters
            .iter()
            .map(|letter| char::from(*letter).to_string())
            .collect();
        let informative = names
            .iter()
            .find(|name| INFORMATIVE.contains(&name.as_str()));
        Word::Option(
            informative.or(names.last()).cloned().unwrap_or_default(),
            None,
        )
    }
}

/// What a command line asks that program for. One that the runtime will refuse asks for nothing.
pub fn read(program: &Path, args: &[OsString]) -> RuntimeCommand {
    let parser = Parser::of_program(program);
    let mut command = RuntimeCommand::default();
    let mut words = args.iter().peekable();
    let is_create = loop {
        let Some(word) = words.next() else {
            return command;
        };
        match parser.word(word) {
            Word::EndOfOptions => break words.next().is_some_and(creates),
            Word::Plain => break creates(word),
            Word::Option(name, _) if INFORMATIVE.contains(&name.as_str()) => return command,
            Word::Option(name, inline) => {
                let is_valued = VALUED.contains(&name.as_str());
                let value = inline.or_else(|| {
                    words
                        .next_if(|next| {
                            is_valued || !next.as_bytes().starts_with(b"-") && !is_command(next)
                        })
                        .cloned()
                });
                match (name.as_str(), value) {
                    ("log", Some(value)) => command.log = log(parser, &value),
                    ("log-format", Some(value)) => {
                        command.json = value.as_bytes().starts_with(b"json")
                    }
                    _ => {}
                }
            }
        }
    };
    if is_create {
        let created = created(parser, words);
        command.id = created.as_ref().and_then(|(_, id)| id.clone());
        command.config = created.map(|(config, _)| config);
    }
    command
}

/// Behind `create` or `run`: the config.json that it is about, and the container's id.
fn created<'a>(
    parser: Parser,
    mut words: impl Iterator<Item = &'a OsString>,
) -> Option<(PathBuf, Option<String>)> {
    let (mut bundle, mut named, mut id) = (None, None, None);
    while let Some(word) = words.next() {
        let (name, inline) = match parser.word(word) {
            Word::EndOfOptions => {
                id = id.or_else(|| words.next());
                break;
            }
            // The id; runc and youki take options behind it as well, the others refuse them.
            Word::Plain => {
                id = id.or(Some(word));
                continue;
            }
            Word::Option(name, inline) => (name, inline),
        };
        if INFORMATIVE.contains(&name.as_str()) {
            return None;
        }
        if !VALUED.contains(&name.as_str()) {
            continue;
        }
        let value = inline.or_else(|| words.next().cloned())?;
        match name.as_str() {
            "bundle" | "b" => bundle = Some(value),
            "config" => named = Some(value),
            _ => {}
        }
    }
    // For crun that name means the bundle's own, wherever it was called; for runc an empty one
    // does.
    let own = if parser == Parser::Argp {
        "config.json"
    } else {
        ""
    };
    let config = config_file(
        bundle.as_deref(),
        named.as_deref().filter(|name| *name != own),
    );
    Some((config, id.and_then(|id| id.to_str()).map(str::to_owned)))
}

fn is_command(word: &OsString) -> bool {
    COMMANDS.split(' ').any(|command| word == command)
}

fn creates(word: &OsString) -> bool {
    word == "create" || word == "run"
}

/// The file of a log: crun has other kinds of logs, and a prefix for this one.
fn log(parser: Parser, value: &OsStr) -> Option<PathBuf> {
    let bytes = value.as_bytes();
    if parser == Parser::Argp && (bytes.starts_with(b"journald:") || bytes.starts_with(b"syslog:"))
    {
        return None;
    }
    let path = if parser == Parser::Argp {
        bytes.strip_prefix(b"file:").unwrap_or(bytes)
    } else {
        bytes
    };
    (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(path)))
}
