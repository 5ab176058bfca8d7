//! Reliable queue pairs (RC) that write into one another's memory. All `unsafe` code is here: the
//! search for libibverbs, registering memory, and the addresses in work requests. A [`Lane`] owns
//! its memory and registers it for as long as its queue pair lives, and no request reaches beyond
//! it, so that no caller can break memory. What the other end writes lands in a part of its own,
//! which is only ever copied from.
#![deny(unsafe_op_in_unsafe_fn)]

mod lane;

use std::error::Error;
use std::ffi::CStr;
use std::io;
use std::net::Ipv6Addr;
use std::sync::Arc;

use sideway::ibverbs::device::{DeviceInfo, DeviceList};
use sideway::ibverbs::device_context::{DeviceContext, PortState};

pub use lane::{Address, Ended, Lane, Memory, Path, Room};

/// The library that has the verbs.
pub const LIBRARY: &CStr = c"libibverbs.so.1";

/// Why the loader does not find [`LIBRARY`], in its own words.
pub fn library() -> Result<(), String> {
    // SAFETY: the name is a C string that outlives the call. The library's constructors run, as
    // they do when sideway opens it before main.
    let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if !handle.is_null() {
        return Ok(());
    }
    // SAFETY: dlerror returns null, or a C string that is valid until this thread's next call of
    // the loader; it is copied before that.
    let text = unsafe {
        let text = libc::dlerror();
        match text.is_null() {
            true => String::new(),
            false => CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    };
    Err(text)
}

/// Names of the devices for which libibverbs has a provider.
pub fn devices() -> io::Result<Vec<String>> {
    let list = DeviceList::new().map_err(|e| cause(&e))?;
    Ok(list.iter().map(|device| device.name()).collect())
}

/// An open device.
#[derive(Clone)]
pub struct Device(Arc<DeviceContext>);

/// A port as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    pub is_active: bool,
    pub lid: u16,
    /// IBV_MTU_256 is 1, IBV_MTU_4096 is 5.
    pub mtu: u8,
}

impl Device {
    pub fn open(name: &str) -> io::Result<Device> {
        let list = DeviceList::new().map_err(|e| cause(&e))?;
        let device = list.iter().find(|device| device.name() == name);
        let device = device.ok_or(io::ErrorKind::NotFound)?;
        Ok(Device(device.open().map_err(|e| cause(&e))?))
    }

    pub fn port(&self, number: u8) -> io::Result<Port> {
        let port = self.0.query_port(number).map_err(|e| cause(&e))?;
        Ok(Port {
            is_active: port.port_state() == PortState::Active,
            lid: port.lid(),
            mtu: u8::try_from(port.active_mtu() as u32).unwrap_or_default(),
        })
    }

    /// An entry of a port's GID table; zeros where it is unused.
    pub fn gid(&self, port: u8, index: u32) -> io::Result<Ipv6Addr> {
        let gid = self.0.query_gid(port, index).map_err(|e| cause(&e))?;
        Ok(Ipv6Addr::from(gid.raw))
    }
}

/// What the kernel or the library said.
fn cause(error: &(dyn Error + 'static)) -> io::Error {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(said) = error.downcast_ref::<io::Error>() {
            return match said.raw_os_error() {
                Some(number) => io::Error::from_raw_os_error(number),
                None => io::Error::new(said.kind(), said.to_string()),
            };
        }
        at = error.source();
    }
    io::Error::other(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Outer(io::Error);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("outer")
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn the_number_of_an_error_is_found_below_others() {
        let outer = Outer(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        assert_eq!(cause(&outer).raw_os_error(), Some(libc::ETIMEDOUT));
        let plain = Outer(io::Error::other("no number"));
        assert_eq!(cause(&plain).to_string(), "no number");
    }
}
