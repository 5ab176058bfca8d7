//! The state that a runtime writes to a hook's stdin (OCI runtime specification, "State"), as every
//! runtime writes it: the pid may be absent, 0 or negative, the status words differ, and unknown
//! keys are theirs.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Deserialize;

use rdma_model::error_class::{ErrorClass, WithClass};

/// No runtime writes a larger one; annotations are what may grow.
pub const MAX_BYTES: usize = 4 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct State {
    pub id: String,
    /// Its init in the runtime's pid namespace.
    #[serde(default)]
    pub pid: Option<i64>,
    #[serde(default)]
    pub bundle: String,
    /// Its annotations: untrusted.
    #[serde(default, deserialize_with = "or_default")]
    pub annotations: BTreeMap<String, String>,
}

/// Some runtimes write `"annotations": null`.
fn or_default<'de, D: serde::Deserializer<'de>>(
    d: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    Option::deserialize(d).map(Option::unwrap_or_default)
}

impl State {
    /// [`ErrorClass::State`] with one line that says what is wrong with it.
    pub fn parse(text: &[u8]) -> Result<State> {
        if text.len() > MAX_BYTES {
            return Err(ErrorClass::State.error(format!(
                "the runtime's state has more than {MAX_BYTES} bytes"
            )));
        }
        if text.iter().all(u8::is_ascii_whitespace) {
            return Err(
                ErrorClass::State.error("stdin is empty: a hook expects the runtime's state there")
            );
        }
        let state: State = serde_json::from_slice(text)
            .class(ErrorClass::State, "reading the runtime's state from stdin")?;
        if state.id.is_empty() {
            return Err(ErrorClass::State.error("the runtime's state has an empty id"));
        }
        Ok(state)
    }

    /// At createContainer, gVisor's gofer does not know the sandbox's pid and writes -1
    /// (runsc/cmd/sandboxsetup/gofer_mount.go); crun writes 0, and runc the pid that the init has
    /// in its own namespace.
    pub fn is_of_gofer(&self) -> bool {
        self.pid == Some(-1)
    }

    /// The pid of a container that is being created; [`ErrorClass::State`] if it is absent, no pid,
    /// the system's init, or this process.
    pub fn init(&self) -> Result<i32> {
        let why = match self.pid.map(i32::try_from) {
            None => "names no pid",
            Some(Ok(1)) => "names pid 1, the system's init",
            Some(Ok(pid)) if pid > 1 && pid.unsigned_abs() == std::process::id() => {
                "names this very process"
            }
            Some(Ok(pid)) if pid > 1 => return Ok(pid),
            Some(_) => "names no valid pid",
        };
        Err(ErrorClass::State.error(format!("the runtime's state of {:?} {why}", self.id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> Option<ErrorClass> {
        State::parse(text.as_bytes())
            .and_then(|s| s.init())
            .err()
            .map(|e| ErrorClass::of(&e))
    }

    #[test]
    fn states_of_all_runtimes_are_read() {
        for text in [
            r#"{"ociVersion":"1.0.2","id":"a","status":"creating","pid":7,"bundle":"/b"}"#,
            r#"{"ociVersion":"1.0","id":"a","pid":7,"root":"/r","bundle":"/b","created":"x",
                "status":"created"}"#,
            r#"{"id":"a","pid":7,"bundle":"/b","annotations":null,"unknown":[1]}"#,
        ] {
            assert_eq!(fault(text), None, "{text}");
        }
        for stop in [
            r#"{"id":"a"}"#,
            r#"{"id":"a","pid":0}"#,
            r#"{"id":"a","pid":-1}"#,
        ] {
            assert!(State::parse(stop.as_bytes()).is_ok(), "{stop}");
            assert_eq!(fault(stop), Some(ErrorClass::State), "{stop}");
        }
    }

    #[test]
    fn bad_states_are_refused_in_one_line() {
        for bad in [
            "",
            " \n",
            "{",
            "[]",
            "null",
            "nonsense",
            r#"{"id":""}"#,
            r#"{"id":"a","pid":"7"}"#,
            r#"{"pid":7}"#,
        ] {
            let e = State::parse(bad.as_bytes()).err();
            assert_eq!(
                e.as_ref().map(ErrorClass::of),
                Some(ErrorClass::State),
                "{bad}"
            );
            assert_eq!(
                e.map(|e| format!("{e:#}").lines().count()),
                Some(1),
                "{bad}"
            );
        }
        assert_eq!(fault(r#"{"id":"a","pid":1}"#), Some(ErrorClass::State));
        assert_eq!(
            fault(r#"{"id":"a","pid":99999999999}"#),
            Some(ErrorClass::State)
        );
        assert_eq!(
            fault(&format!(r#"{{"id":"a","pid":{}}}"#, std::process::id())),
            Some(ErrorClass::State)
        );
        assert_eq!(fault(&" ".repeat(MAX_BYTES + 1)), Some(ErrorClass::State));
    }
}
