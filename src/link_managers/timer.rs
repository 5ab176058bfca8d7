//! Whether systemd runs the timer that restores NICs: one that is enabled and was never started
//! begins at the next boot.

use std::path::Path;

use anyhow::Result;
use rustbus::wire::unmarshal::traits::Variant;

use super::bus::{Bus, Callee, PROPERTIES};

const ENABLED: &str = "etc/systemd/system/timers.target.wants/rdmaprep-stale.timer";

/// The unit's object, as systemd escapes its name.
const UNIT: Callee<'static> = Callee {
    name: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1/unit/rdmaprep_2dstale_2etimer",
    interface: PROPERTIES,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// It runs, or is enabled where systemd cannot be asked.
    Runs,
    /// It is enabled, and does not run.
    Stopped,
    Absent,
}

impl Timer {
    pub fn of(root: &Path) -> Timer {
        let is_enabled = root.join(ENABLED).exists();
        match is_active(&root.join("run/dbus/system_bus_socket")) {
            Ok(true) => Timer::Runs,
            Ok(false) if is_enabled => Timer::Stopped,
            Err(_) if is_enabled => Timer::Runs,
            _ => Timer::Absent,
        }
    }
}

fn is_active(socket: &Path) -> Result<bool> {
    let asked = ["org.freedesktop.systemd1.Unit", "ActiveState"];
    let answer = Bus::connect(socket)?.call(UNIT, "Get", &asked)?;
    let state: &str = answer.body.parser().get::<Variant>()?.get()?;
    Ok(state == "active")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::thread;

    use rustbus::message_builder::{DynamicHeader, MessageType};
    use rustbus::wire::marshal;

    use super::*;

    /// An answer to that call.
    fn answer(serial: u32, state: Option<&str>) -> Vec<u8> {
        let call = DynamicHeader {
            serial: Some(serial),
            ..DynamicHeader::default()
        };
        let mut message = call.make_response();
        if state.is_none() {
            message.typ = MessageType::Error;
            message.dynheader.error_name = Some("org.example.Unknown".into());
        }
        message
            .body
            .push_variant(state.unwrap_or_default())
            .unwrap();
        let mut bytes = Vec::new();
        marshal::marshal(&message, 7, &mut bytes).unwrap();
        bytes.extend_from_slice(message.get_buf());
        bytes
    }

    fn serve(mut socket: UnixStream, state: Option<&str>) {
        socket.write_all(b"OK 0123456789abcdef\r\n").unwrap();
        socket.write_all(&answer(1, Some(""))).unwrap();
        let (mut asked, mut bytes) = (Vec::new(), [0; 4096]);
        while !String::from_utf8_lossy(&asked).contains("ActiveState") {
            let length = socket.read(&mut bytes).unwrap();
            asked.extend_from_slice(&bytes[..length]);
        }
        assert!(String::from_utf8_lossy(&asked).contains("rdmaprep_2dstale_2etimer"));
        socket.write_all(&answer(2, state)).unwrap();
    }

    fn timer(is_enabled: bool, state: Option<&'static str>) -> Timer {
        let root = tempfile::tempdir().unwrap();
        for folder in ["etc/systemd/system/timers.target.wants", "run/dbus"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        if is_enabled {
            fs::write(root.path().join(ENABLED), "").unwrap();
        }
        let listener = UnixListener::bind(root.path().join("run/dbus/system_bus_socket")).unwrap();
        let bus = thread::spawn(move || serve(listener.accept().unwrap().0, state));
        let timer = Timer::of(root.path());
        bus.join().unwrap();
        timer
    }

    #[test]
    fn an_enabled_timer_runs_only_where_systemd_has_it_active() {
        assert_eq!(timer(true, Some("active")), Timer::Runs);
        assert_eq!(timer(true, Some("inactive")), Timer::Stopped);
        assert_eq!(timer(true, None), Timer::Runs);
        assert_eq!(timer(false, Some("active")), Timer::Runs);
        assert_eq!(timer(false, Some("inactive")), Timer::Absent);
        assert_eq!(timer(false, None), Timer::Absent);
    }
}
