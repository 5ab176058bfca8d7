//! The host's config file, and the values that flags and variables have: bad ones are an error of
//! one line, good ones are kept.
#![no_main]

use rdma_model::arp::ArpChoice;
use rdma_model::values::{GidTimeout, PlanName};
use std::str::FromStr;

use libfuzzer_sys::fuzz_target;
use nccl_rules::version::Version;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::{BusId, Guid, HcaName, Hex, IfName, Mac};
use rdma_model::values::Family;
use rdmaprep::cli::{Global, SelectArgs};
use rdmaprep::config::file::ConfigFile;
use rdmaprep::config::host::{Config, Host};
use rdmaprep::config::options::{boolean, names};
use rdmaprep::config::pattern::Pattern;
use rdmaprep::config::request::Request;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match ConfigFile::new(text).config() {
        Ok(config) => drop(request(&config, SelectArgs::default())),
        Err(e) => one_line(&e),
    }
    for option in [
        "ifaces",
        "peer_ifaces",
        "exclude",
        "bootstrap_address",
        "family",
        "arp_profile",
        "sysfs",
    ] {
        request(&Config::default(), SelectArgs::default().with(option, text));
    }
    let _ = (boolean(text), names::<IfName>(text));
    let _ = (
        text.parse::<Family>(),
        text.parse::<ArpChoice>(),
        text.parse::<GidTimeout>(),
    );
    if let Ok(pattern) = text.parse::<Pattern>() {
        pattern.matches(text);
    }
    printed::<PlanName>(text);
    printed::<Version>(text);
    printed::<IfName>(text);
    printed::<HcaName>(text);
    printed::<BusId>(text);
    printed::<Mac>(text);
    printed::<Guid>(text);
    printed::<Hex>(text);
    rdmaprep_fuzz::print_heap();
});

fn request(config: &Config, flags: SelectArgs) {
    let host = Host::new(&Global::default(), config);
    if let Err(e) = Request::new(None, &flags, host, config.select.clone(), |_| None) {
        one_line(&e);
    }
}

/// Bad input gets one clear line and the exit code of its kind.
fn one_line(e: &anyhow::Error) {
    assert_eq!(ErrorClass::of(e), ErrorClass::Usage, "{e:#}");
    assert!(!format!("{e:#}").contains('\n'), "{e:#}");
}

/// What is read and printed is read as the same.
fn printed<T: FromStr + ToString + PartialEq + std::fmt::Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().ok(), Some(value), "{text:?}");
    }
}
