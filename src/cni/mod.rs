//! CNI's contract, as <https://www.cni.dev/docs/spec/> has it: what a runtime calls a plugin with,
//! in variables and on stdin, and what the plugin answers.

mod call;
mod reply;

use std::fmt;

use rdma_model::error_class::ErrorClass;
use serde_json::{Value, json};

pub use call::{ANNOTATIONS, Call, Command};
pub use reply::result;

/// The versions of configurations and results, the oldest first.
pub const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// What is reported where the caller's version is none of these.
pub const NEWEST: &str = "1.1.0";

/// No runtime writes a larger one; the results of earlier plugins and annotations are what may
/// grow.
pub const MAX_BYTES: usize = 4 << 20;

/// The error codes that the specification gives a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    Version = 1,
    Variable = 4,
    Content = 6,
    Config = 7,
    TryAgain = 11,
    Unavailable = 50,
}

/// Below 100 are the specification's codes; above, 100 and the exit code.
const OWN: u32 = 100;

#[derive(Debug)]
pub struct Problem {
    pub code: u32,
    pub class: ErrorClass,
    pub text: String,
    pub details: String,
}

impl Problem {
    pub fn new(code: Code, class: ErrorClass, text: impl fmt::Display) -> Problem {
        Problem {
            code: code as u32,
            class,
            text: text.to_string(),
            details: String::new(),
        }
    }

    /// Gives the problem another code.
    pub fn under(self, code: Code) -> Problem {
        Problem {
            code: code as u32,
            ..self
        }
    }

    pub fn json(&self, version: &str) -> Value {
        json!({"cniVersion": version, "code": self.code, "msg": self.text, "details": self.details})
    }
}

/// What can be tried again is what another container, or another rdmaprep, is in the way of.
impl From<anyhow::Error> for Problem {
    fn from(error: anyhow::Error) -> Problem {
        let class = ErrorClass::of(&error);
        let code = match class {
            ErrorClass::Locked => Code::TryAgain as u32,
            other => OWN + u32::from(other.code()),
        };
        Problem {
            code,
            class,
            text: format!("{error:#}"),
            details: String::new(),
        }
    }
}

/// The answer to VERSION.
pub fn versions(asked: &str) -> Value {
    json!({"cniVersion": asked, "supportedVersions": VERSIONS})
}
