//! BPF programs that a container leaves on its NIC, and those of the host that it takes off, on the
//! real kernel. No user namespace may attach any: these tests take the machine's root.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::alone_as_root;
use testkit::{Container, Host, same, sh};

/// bpf(2) by hand: no tool of today's distributions attaches tcx programs without a compiler for
/// BPF.
const TOOL: &str = "/run/bpf.py";
const SOURCE: &str = r#"
import ctypes, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
KINDS = {"tcx_ingress": (46, 3), "tcx_egress": (47, 3), "xdp": (37, 6)}

def bpf(command, argument):
    buffer = ctypes.create_string_buffer(argument.ljust(128, b"\0"), 128)
    result = libc.syscall(321, command, buffer, 128)
    assert result >= 0, (command, ctypes.get_errno())
    return result, buffer.raw

def load(kind):
    # r0 = TCX_NEXT, or XDP_PASS; exit
    answer = 2 if kind == 6 else -1
    code = ctypes.create_string_buffer(struct.pack("<BBhiBBhi", 0xb7, 0, 0, answer, 0x95, 0, 0, 0))
    licence = ctypes.create_string_buffer(b"GPL")
    program, named = ctypes.addressof(code), ctypes.addressof(licence)
    return bpf(5, struct.pack("<IIQQIIQI", kind, 2, program, named, 0, 0, 0, 0))[0]

def xdp(index, fd):
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    nested = struct.pack("HHiHHI", 8, 1, fd, 8, 3, 2)
    body = struct.pack("BBHiII", 0, 0, 0, index, 0, 0)
    body += struct.pack("HH", 4 + len(nested), 43 | 0x8000) + nested
    s.send(struct.pack("IHHII", 16 + len(body), 19, 5, 1, 0) + body)
    assert struct.unpack("i", s.recv(4096)[16:20])[0] == 0

def programs(index, hook):
    ids = (ctypes.c_uint * 64)()
    raw = bpf(16, struct.pack("<IIIIQI", index, hook, 0, 0, ctypes.addressof(ids), 64))[1]
    return [ids[i] for i in range(struct.unpack("I", raw[24:28])[0])]

what, device = sys.argv[1:3]
index = socket.if_nametoindex(device)
if what == "show":
    print({name: programs(index, KINDS[name][0]) for name in ("tcx_ingress", "tcx_egress")})
    sys.exit()
hook, kind = KINDS[sys.argv[3]]
first = 8 if "first" in sys.argv else 0
if what == "attach":
    fd = load(kind)
    if kind == 6:
        xdp(index, fd)
    else:
        bpf(8, struct.pack("<IIII", index, fd, hook, first))
elif what == "link":
    fd = load(kind)
    bpf(28, struct.pack("<IIII", fd, index, hook, 2 if kind == 6 else 0))
elif what == "detach":
    if kind == 6:
        xdp(index, -1)
    else:
        bpf(9, struct.pack("<IIII", index, 0, hook, 8))
if "hold" in sys.argv:
    print("held", flush=True)
    sys.stdin.read()
"#;

/// What is at all hooks of a device, as ip and bpf(2) report it.
fn shown(dev: &str) -> String {
    let xdp = format!("ip -d link show dev {dev} | grep -o 'xdp.*id [0-9]*' || :");
    format!(
        "{dev} {}{}",
        sh(&format!("python3 {TOOL} show {dev}")),
        sh(&xdp)
    )
}

fn all() -> String {
    ["r0", "r1", "r2"].map(shown).concat()
}

/// A process that keeps what it has made until this is dropped, in the network namespace of that
/// one.
struct Keeper(Child);

impl Keeper {
    fn new(pid: u32, arguments: &str) -> Keeper {
        let net = format!("--net=/proc/{pid}/ns/net");
        let mut command = Command::new("nsenter");
        command
            .arg(net)
            .args(["python3", TOOL])
            .args(arguments.split(' '))
            .arg("hold");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "held\n", "{arguments}");
        Keeper(child)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// No other than root may use BPF: what was not run is not shown.
fn with_bpf<F: FnOnce(&Host)>(body: F) {
    testkit::require!(testkit::namespace::is_root(), "root, who alone may use BPF");
    alone_as_root(body);
}

fn tool(host: &Host) {
    host.rails(3);
    fs::write(TOOL, SOURCE).unwrap();
}

#[test]
fn programs_of_a_container_are_taken_off() {
    with_bpf(|host| {
        tool(host);
        // The host's own stay where they are, in their order.
        sh(&format!(
            "for hook in tcx_ingress tcx_egress tcx_egress; do python3 {TOOL} attach r1 $hook; \
            done; \
             python3 {TOOL} attach r2 xdp"
        ));
        host.prepare("r0,r1,r2");
        let (before, had) = (host.look(), all());
        for how in ["stop", "restore"] {
            let mut c = Container::new(how);
            c.create(host).ok();
            c.sh(&format!(
                "for hook in tcx_ingress tcx_egress; do python3 {TOOL} attach r0 $hook; python3 \
                {TOOL} attach r1 $hook first; done"
            ));
            // Held from elsewhere, so that they do not end with the container.
            let _links =
                ["link r0 tcx_ingress", "link r0 xdp"].map(|what| Keeper::new(c.pid(), what));
            if how == "stop" {
                c.stop(host).ok();
                let notes = host.report(how)["notes"].to_string();
                for words in [
                    "a tcx ingress program",
                    "a tcx egress program",
                    "a generic XDP program",
                ] {
                    assert!(notes.contains(words), "no {words} in {notes}");
                }
            } else {
                c.kill();
                host.rdmaprep(&["restore", "--all"]).ok();
            }
            same("the programs", &had, &all());
            host.is_as(&before);
            host.is_clean();
        }
    });
}

/// While a process on the host holds the programs open, they are attached again, in the same order.
#[test]
fn host_programs_that_live_are_put_back() {
    with_bpf(|host| {
        tool(host);
        let own = std::process::id();
        let _held = ["tcx_ingress", "tcx_ingress", "tcx_ingress", "tcx_egress"]
            .map(|hook| Keeper::new(own, &format!("attach r0 {hook}")));
        let _xdp = Keeper::new(own, "attach r1 xdp");
        host.prepare("r0,r1");
        let (before, had) = (host.look(), all());
        let mut c = Container::new("c");
        c.create(host).ok();
        // The first two, and all; and one of its own in the place of the host's.
        let detach = |hook: &str| format!("python3 {TOOL} detach r0 {hook}; ");
        c.sh(&["tcx_ingress", "tcx_ingress", "tcx_egress"]
            .map(detach)
            .concat());
        c.sh(&format!(
            "python3 {TOOL} attach r0 tcx_egress; python3 {TOOL} detach r1 xdp; python3 {TOOL} \
            attach r1 xdp"
        ));
        c.stop(host).ok();
        same("the programs", &had, &all());
        host.is_as(&before);
        host.is_clean();
    });
}

/// What has ended cannot: that is said, and the administrator can give up.
#[test]
fn host_program_that_ended_is_reported() {
    with_bpf(|host| {
        tool(host);
        sh(&format!(
            "python3 {TOOL} attach r0 tcx_egress; python3 {TOOL} attach r0 xdp"
        ));
        host.prepare("r0,r1");
        let mut c = Container::new("c");
        c.create(host).ok();
        c.sh(&format!(
            "python3 {TOOL} detach r0 tcx_egress; python3 {TOOL} attach r0 xdp"
        ));
        c.stop(host).fails(
            8,
            &[
                "r0 programs at tcx egress: nothing instead of program",
                "r0 programs at generic XDP: nothing instead of program",
                "a BPF program that has ended cannot be put back: `rdmaprep restore c --forget`",
            ],
        );
        assert!(
            shown("r0").contains("'tcx_egress': []") && !shown("r0").contains("xdp"),
            "{}",
            shown("r0")
        );
        host.rdmaprep(&["restore", "--all"])
            .fails(8, &["instead of program"]);
        Container::new("next").create(host).fails(9, &["r0"]);
        host.rdmaprep(&["restore", "--forget", "c"]).ok();
        host.is_clean();
        let mut next = Container::new("next");
        next.create(host).ok();
        next.stop(host).ok();
        host.is_clean();
    });
}
