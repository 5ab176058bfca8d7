//! NetworkManager as it answers while it starts: by a stand-in for the bus.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use rdma_model::ids::Hex;
use rdma_model::manager::ConfigFiles;
use rustbus::message_builder::MarshalledMessage;
use rustbus::wire::{ObjectPath, marshal, unmarshal};

use super::*;

#[derive(Clone, Copy)]
enum Value {
    Flag(bool),
    Number(u32),
    Path(&'static str),
    Text(&'static str),
}

use Value::{Flag, Number, Path as At, Text};

/// What it answers to methods, and to `Get` of properties: one after the other, the last one again
/// and again. All other answers are empty, and cannot be read.
type Answers = HashMap<&'static str, Vec<Value>>;
type Named<'a> = (&'static str, &'a [Value]);

fn next(answers: &mut Answers, name: &str) -> Option<Value> {
    let all = answers.get_mut(name)?;
    match all.len() {
        1 => all.first().copied(),
        _ => Some(all.remove(0)),
    }
}

fn message(socket: &mut impl Read) -> io::Result<MarshalledMessage> {
    let mut bytes = vec![0; 16];
    socket.read_exact(&mut bytes)?;
    let (at, header) = unmarshal::unmarshal_header(&bytes, 0).unwrap();
    let fields = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    bytes.resize(
        (16 + fields).next_multiple_of(8) + header.body_len as usize,
        0,
    );
    socket.read_exact(&mut bytes[16..])?;
    let (used, fields) = unmarshal::unmarshal_dynamic_header(&header, &bytes, at).unwrap();
    Ok(
        unmarshal::unmarshal_next_message(&header, fields, &bytes, at + used)
            .unwrap()
            .1,
    )
}

fn answer(call: &MarshalledMessage, answers: &mut Answers) -> MarshalledMessage {
    let member = call.dynheader.member.clone().unwrap();
    let is_property = member == "Get";
    let name = match is_property {
        true => call
            .body
            .parser()
            .get2::<&str, &str>()
            .unwrap()
            .1
            .to_owned(),
        false => member,
    };
    let mut reply = call.dynheader.make_response();
    let body = &mut reply.body;
    match (next(answers, &name), is_property) {
        (Some(Flag(is)), true) => body.push_variant(is),
        (Some(Number(number)), true) => body.push_variant(number),
        (Some(At(path)), true) => body.push_variant(ObjectPath::new(path).unwrap()),
        (Some(Text(text)), true) => body.push_variant(text),
        (Some(Flag(is)), false) => body.push_param(is),
        (Some(Number(number)), false) => body.push_param(number),
        (Some(At(path)), false) => body.push_param(ObjectPath::new(path).unwrap()),
        (Some(Text(text)), false) => body.push_param(text),
        (None, _) => Ok(()),
    }
    .unwrap();
    reply
}

fn serve(socket: UnixStream, mut answers: Answers) -> io::Result<()> {
    let mut socket = BufReader::new(socket);
    socket.read_line(&mut String::new())?;
    socket.get_mut().write_all(b"OK 0123456789abcdef\r\n")?;
    socket.read_line(&mut String::new())?;
    for serial in 1.. {
        let call = message(&mut socket)?;
        let reply = answer(&call, &mut answers);
        let mut bytes = Vec::new();
        marshal::marshal(&reply, serial, &mut bytes).unwrap();
        bytes.extend_from_slice(reply.get_buf());
        socket.get_mut().write_all(&bytes)?;
    }
    Ok(())
}

/// A process that has just begun, and ends with the test.
struct Young(Child);

impl Young {
    fn new() -> Young {
        Young(Command::new("sleep").arg("60").spawn().unwrap())
    }
}

impl Drop for Young {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A NetworkManager on a host whose only file is one of a profile.
fn managers(others: &[Named]) -> (Managers, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("found"), "").unwrap();
    let all: [(&str, &[Value]); 9] = [
        ("Hello", &[Text(":1.2")]),
        ("NameHasOwner", &[Flag(true)]),
        ("GetDeviceByIpIface", &[At("/device")]),
        ("Managed", &[Flag(true)]),
        ("NetworkingEnabled", &[Flag(true)]),
        ("Startup", &[Flag(false)]),
        ("ActiveConnection", &[At("/active")]),
        ("Connection", &[At("/profile")]),
        ("Filename", &[Text("/found")]),
    ];
    let all = all.iter().chain(others);
    let answers = all.map(|(name, all)| (*name, all.to_vec())).collect();
    let path = folder.path().join("bus");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || serve(listener.accept().unwrap().0, answers));
    let managers = Managers {
        root: folder.path().to_owned(),
        bus: Some(bus::Bus::connect(&path).unwrap()),
        is_unreachable: false,
        stopped: Vec::new(),
        own: None,
    };
    (managers, folder)
}

fn link() -> Netdev {
    Netdev::new("r0".parse().unwrap(), 2)
}

/// By another file than the stand-in names.
fn managed() -> Managed {
    Managed {
        by: Manager::NetworkManager,
        foreign: None,
        config_files: Some(ConfigFiles {
            file: "/r0.nmconnection".into(),
            digest: Hex(vec![1]),
            has_ipv6: true,
        }),
        uuid: Some("1".to_owned()),
        activation: None,
    }
}

const EXTERNAL: u32 = 0x80;
const CHANGED: Word = Word::Changed {
    switches_ipv6_on: false,
};

#[test]
fn a_profile_of_what_was_found_is_no_other_one() {
    let (none, one) = (At("/"), At("/active"));
    let cases: [(&[Value], u32, Word); 4] = [
        (&[one], 0, CHANGED),
        (&[one], EXTERNAL, Word::Begun),
        // It comes between two questions.
        (&[none, one], EXTERNAL, Word::Begun),
        (&[none], EXTERNAL, Word::Begun),
    ];
    for (active, flags, word) in cases {
        let others: [(&str, &[Value]); 2] = [
            ("ActiveConnection", active),
            ("StateFlags", &[Number(flags)]),
        ];
        let (mut managers, _folder) = managers(&others);
        assert_eq!(managers.begun_with(&managed(), &link()), word);
        assert!(managers.can_be_asked());
    }
}

#[test]
fn what_is_active_counts_only_if_its_kind_is_known() {
    let cases: [(&[Named], Word); 3] = [
        (&[("StateFlags", &[Number(0)])], Word::Done),
        (&[("StateFlags", &[Number(EXTERNAL)])], Word::External),
        (&[], Word::NotBegun),
    ];
    for (flags, word) in cases {
        let others = [&[("State", &[Number(100)][..])], flags].concat();
        let (mut managers, _folder) = managers(&others);
        let said = managers.word(Manager::NetworkManager, &link(), SystemTime::UNIX_EPOCH);
        assert_eq!(said, word);
        assert!(managers.can_be_asked());
    }
}

#[test]
fn a_profile_of_what_was_found_gives_a_link_nothing() {
    let (none, one) = (At("/"), At("/active"));
    let cases: [(&[Value], u32, bool); 3] = [
        (&[one], 0, true),
        (&[one], EXTERNAL, false),
        // It comes between two questions.
        (&[none, one], EXTERNAL, false),
    ];
    for (active, flags, is) in cases {
        let others: [(&str, &[Value]); 3] = [
            ("State", &[Number(50)]),
            ("ActiveConnection", active),
            ("StateFlags", &[Number(flags)]),
        ];
        let (mut managers, _folder) = managers(&others);
        assert_eq!(managers.is_activating(Manager::NetworkManager, &link()), is);
        assert!(managers.can_be_asked());
    }
}

/// It is done with the link between two questions.
#[test]
fn a_link_that_becomes_its_own_meanwhile_is_not_known() {
    let young = Young::new();
    for (pid, states, why) in [
        (1, [80, 80, 80], None),
        (young.0.id(), [80, 80, 100], Some("it is starting")),
        (young.0.id(), [80, 100, 100], Some("it is starting")),
        (young.0.id(), [30, 30, 30], None),
    ] {
        let others: [(&str, &[Value]); 3] = [
            ("GetConnectionUnixProcessID", &[Number(pid)]),
            ("State", &states.map(Number)),
            ("StateFlags", &[Number(0)]),
        ];
        let (mut managers, folder) = managers(&others);
        let devices = folder.path().join("run/NetworkManager/devices");
        std::fs::create_dir_all(&devices).unwrap();
        std::fs::write(devices.join("2"), "managed=true\n").unwrap();
        assert_eq!(managers.why_unknown(&link(), false), why);
        assert!(managers.can_be_asked());
    }
}

/// NetworkManager writes the file as it stops.
#[test]
fn one_that_has_just_stopped_may_start_again() {
    let why = "it stopped a moment ago, and may be starting again";
    for (age, why) in [(0, Some(why)), (60, None)] {
        let others: [(&str, &[Value]); 2] =
            [("NameHasOwner", &[Flag(false)]), ("State", &[Number(30)])];
        let (mut managers, folder) = managers(&others);
        let devices = folder.path().join("run/NetworkManager/devices");
        std::fs::create_dir_all(&devices).unwrap();
        std::fs::write(devices.join("2"), "managed=true\n").unwrap();
        let file = std::fs::File::options().write(true).open(devices.join("2"));
        let written = SystemTime::now() - Duration::from_secs(age);
        file.unwrap().set_modified(written).unwrap();
        assert_eq!(managers.why_unknown(&link(), false), why);
        assert!(managers.can_be_asked());
    }
}
