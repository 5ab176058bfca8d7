//! BPF programs at the hooks of a network device. bpf(2) has no safe wrapper, since its argument is
//! a union that has addresses in it. All `unsafe` code is in the one function that calls it,
//! `call`; the caller owns every buffer that an argument names for as long as the call takes.
#![deny(unsafe_op_in_unsafe_fn)]

use std::ffi::c_long;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// enum bpf_cmd (include/uapi/linux/bpf.h).
#[derive(Clone, Copy)]
enum Command {
    ProgAttach = 8,
    ProgDetach = 9,
    ProgGetFdById = 13,
    ObjGetInfoByFd = 15,
    ProgQuery = 16,
    LinkGetFdById = 30,
    LinkGetNextId = 31,
    LinkDetach = 34,
}

/// BPF_F_BEFORE, BPF_F_ID.
const BEFORE: u32 = 1 << 3;
const ID: u32 = 1 << 5;
/// BPF_LINK_TYPE_XDP.
const LINK_XDP: u32 = 6;
/// BPF_MPROG_MAX: no hook has more programs.
const MOST: usize = 64;
const WORDS: usize = 8;

/// A tcx hook (Linux 6.6), by its number in enum bpf_attach_type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tcx {
    Ingress = 46,
    Egress = 47,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Its number, which no other program of this boot has had.
    pub program: u32,
    pub link: Option<u32>,
}

/// An argument of bpf(2): the union's first fields, in words of 8 bytes.
type Argument = [u64; WORDS];

fn call(command: Command, argument: &mut Argument) -> Result<c_long> {
    // SAFETY: the argument is a valid, writable buffer of the length that is given, which the
    // kernel keeps to, and takes what it lacks as zero. The addresses in it are of buffers that
    // outlive the call, and lengths beside them are theirs.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as c_long,
            argument.as_mut_ptr(),
            size_of::<Argument>(),
        )
    };
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Two fields of 4 bytes, as they lie in a word.
fn pair(first: u32, second: u32) -> u64 {
    let mut word = [0; 8];
    word[..4].copy_from_slice(&first.to_ne_bytes());
    word[4..].copy_from_slice(&second.to_ne_bytes());
    u64::from_ne_bytes(word)
}

fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (
        u32::from_ne_bytes([a, b, c, d]),
        u32::from_ne_bytes([e, f, g, h]),
    )
}

fn address<T>(buffer: &mut [T]) -> u64 {
    buffer.as_mut_ptr() as u64
}

fn descriptor(command: Command, id: u32) -> Result<OwnedFd> {
    let fd = call(command, &mut [pair(id, 0), 0, 0, 0, 0, 0, 0, 0])?;
    let fd = RawFd::try_from(fd).map_err(Error::other)?;
    // SAFETY: the kernel has just opened it for us, and for no one else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The programs at a tcx hook of a device of the calling thread's network namespace, in the order
/// in which they run. It takes CAP_NET_ADMIN in the initial user namespace.
pub fn query(ifindex: u32, hook: Tcx) -> Result<Vec<Attached>> {
    let (mut programs, mut links) = ([0u32; MOST], [0u32; MOST]);
    let mut argument = [
        pair(ifindex, hook as u32),
        0,
        address(&mut programs),
        pair(MOST as u32, 0),
        0,
        address(&mut links),
        0,
        0,
    ];
    call(Command::ProgQuery, &mut argument)?;
    let count = halves(argument[3]).0 as usize;
    let all = programs.iter().zip(&links).take(count);
    Ok(all
        .map(|(program, link)| Attached {
            program: *program,
            link: Some(*link).filter(|l| *l != 0),
        })
        .collect())
}

/// Takes a program off a tcx hook, and the link that keeps it there; one that is not there is fine.
pub fn detach(ifindex: u32, hook: Tcx, program: u32) -> Result<()> {
    let Some(found) = query(ifindex, hook)?
        .into_iter()
        .find(|a| a.program == program)
    else {
        return Ok(());
    };
    if let Some(link) = found.link {
        return detach_link(link);
    }
    let fd = open(program)?;
    let fd = fd.as_raw_fd() as u32;
    call(
        Command::ProgDetach,
        &mut [pair(ifindex, fd), pair(hook as u32, 0), 0, 0, 0, 0, 0, 0],
    )
    .map(drop)
}

/// Puts a program on a tcx hook, before another one or behind all.
pub fn attach(ifindex: u32, hook: Tcx, program: u32, before: Option<u32>) -> Result<()> {
    let fd = open(program)?;
    let flags = if before.is_some() { BEFORE | ID } else { 0 };
    let place = pair(0, before.unwrap_or_default());
    let fd = fd.as_raw_fd() as u32;
    call(
        Command::ProgAttach,
        &mut [
            pair(ifindex, fd),
            pair(hook as u32, flags),
            place,
            0,
            0,
            0,
            0,
            0,
        ],
    )
    .map(drop)
}

fn detach_link(link: u32) -> Result<()> {
    let fd = descriptor(Command::LinkGetFdById, link)?;
    call(
        Command::LinkDetach,
        &mut [pair(fd.as_raw_fd() as u32, 0), 0, 0, 0, 0, 0, 0, 0],
    )
    .map(drop)
}

/// Detaches the BPF link that keeps an XDP program on a device; false where there is none.
pub fn detach_xdp_link(ifindex: u32, program: u32) -> Result<bool> {
    let mut last = 0;
    loop {
        let mut argument = [pair(last, 0), 0, 0, 0, 0, 0, 0, 0];
        match call(Command::LinkGetNextId, &mut argument) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
            other => drop(other?),
        }
        last = halves(argument[0]).1;
        // One that ended meanwhile is none.
        let Ok(fd) = descriptor(Command::LinkGetFdById, last) else {
            continue;
        };
        // type, id; prog_id, padding; xdp.ifindex.
        let mut info = [0u64; WORDS];
        tell(&fd, &mut info)?;
        if (halves(info[0]).0, halves(info[1]).0, halves(info[2]).0) == (LINK_XDP, program, ifindex)
        {
            return detach_link(last).map(|()| true);
        }
    }
}

/// Opens a program by its number, while the kernel has it.
pub fn open(program: u32) -> Result<OwnedFd> {
    descriptor(Command::ProgGetFdById, program)
}

fn tell(fd: &OwnedFd, info: &mut [u64]) -> Result<()> {
    let length = u32::try_from(size_of_val(info)).map_err(Error::other)?;
    let mut argument = [
        pair(fd.as_raw_fd() as u32, length),
        address(info),
        0,
        0,
        0,
        0,
        0,
        0,
    ];
    call(Command::ObjGetInfoByFd, &mut argument).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_as_in_the_kernels_union() {
        let word = pair(7, 9);
        assert_eq!(word.to_ne_bytes()[..4], 7u32.to_ne_bytes());
        assert_eq!(halves(word), (7, 9));
    }

    #[test]
    fn device_that_is_not_there_is_an_error() {
        assert!(query(i32::MAX as u32, Tcx::Ingress).is_err());
    }
}
