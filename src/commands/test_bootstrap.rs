use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use nccl_rules::bootstrap::{self, Call, Came, Outcome, Tried};
use nccl_rules::connect_retry::{Tally, Trouble};
use nccl_rules::explain::{Bootstrap, Explanation, explain};
use nccl_rules::settings::Settings;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::snapshot::Snapshot;

use super::{load_snapshot, nccl, say, warn};
use crate::cli::TestBootstrapArgs;
use crate::disk::home_and_hosts;
use crate::kernel::probe::tcp_probe;
use crate::report;

pub(super) fn run(args: &TestBootstrapArgs) -> Result<()> {
    // A wrong HOST fails before anything is observed.
    args.host
        .as_deref()
        .map(bootstrap::split)
        .transpose()
        .class(ErrorClass::Usage, "HOST")?;
    let version = args.settings.nccl_version.unwrap_or_default();
    let found = nccl::settings(&args.settings, true)?;
    warn(&found.notes);
    let settings = found.settings;
    let seen = load_snapshot(None, None)?;
    let explanation = explain(&settings, &seen, version, &home_and_hosts::address_of);
    if let Bootstrap::Fails(failure) = &explanation.bootstrap {
        let text = format!(
            "NCCL does not start in this network namespace: {}",
            failure.why
        );
        return Err(ErrorClass::Other.error(text));
    }
    let id = bootstrap::comm_id(&settings, version, &seen, &home_and_hosts::address_of);
    let until = Instant::now() + Duration::from_secs(args.timeout.into());
    match args.listen {
        Some(port) => listen(args, &seen, &explanation, id, port, until),
        None => connect(args, &settings, &seen, &explanation, id, until),
    }
}

fn connect(
    args: &TestBootstrapArgs,
    settings: &Settings,
    seen: &Snapshot,
    explanation: &Explanation,
    id: Option<SocketAddr>,
    until: Instant,
) -> Result<()> {
    let to = match (&args.host, id) {
        (Some(host), _) => bootstrap::target(host, seen, &home_and_hosts::address_of)
            .class(ErrorClass::Other, "HOST")?,
        (None, Some(id)) if id.port() > 0 => id,
        _ => {
            return Err(ErrorClass::Usage
                .error("HOST is missing: give HOST, a NCCL_COMM_ID with a port, or --listen"));
        }
    };
    let call = bootstrap::call(
        explanation,
        settings,
        seen,
        to,
        tcp_probe::source(to).ok(),
        id,
    );
    warn(&call.warnings);
    if !args.json {
        say(&report::call(&call))?;
    }
    let tried = attempt(call, until);
    match args.json {
        true => say(&report::json(&tried)?)?,
        false => say(&report::tried(&tried))?,
    }
    tried
        .complaint()
        .map_or(Ok(()), |text| Err(ErrorClass::Other.error(text)))
}

/// Tries as often as NCCL does, but no longer than until then.
fn attempt(call: Call, until: Instant) -> Tried {
    let (mut tally, start) = (Tally::default(), Instant::now());
    let (tries, outcome) = loop {
        let left = until
            .saturating_duration_since(Instant::now())
            .max(Duration::from_millis(1));
        let error = match tcp_probe::connect(call.to, left).and_then(tcp_probe::hello) {
            Ok(seen_as) => break (tally.all() + 1, Outcome::Reached { seen_as }),
            Err(error) => error,
        };
        let trouble = Trouble::from_error(&error);
        let pause = call.rules.again(trouble, &mut tally);
        let over = Instant::now() + pause.unwrap_or_default() >= until;
        if over || pause.is_none() {
            // A try that the time limit ended was not NCCL's last.
            let unfinished =
                pause.is_some() || trouble == Trouble::TimedOut && error.raw_os_error().is_none();
            break (
                tally.all(),
                Outcome::Failed {
                    trouble,
                    error: error.to_string(),
                    unfinished,
                },
            );
        }
        std::thread::sleep(pause.unwrap_or_default());
    };
    Tried {
        call,
        tries,
        millis: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
        outcome,
    }
}

fn listen(
    args: &TestBootstrapArgs,
    seen: &Snapshot,
    explanation: &Explanation,
    id: Option<SocketAddr>,
    port: u16,
    until: Instant,
) -> Result<()> {
    let wait = bootstrap::wait(explanation, seen, id, port);
    let Some(wait) = wait else {
        let text = match explanation.bootstrap {
            Bootstrap::NotJudged => format!("NCCL {} was not judged", explanation.version),
            _ => "NCCL does not start in this network namespace".to_owned(),
        };
        return Err(ErrorClass::Other.error(text));
    };
    let listener = tcp_probe::listen(wait.at).class(ErrorClass::Other, wait.doing())?;
    match args.json {
        true => say(&report::json(&wait)?)?,
        false => say(&report::wait(&wait))?,
    }
    let came = tcp_probe::welcome(&listener, until)
        .class(ErrorClass::Other, format!("listening on {}", wait.at))?;
    let Some(from) = came else {
        return Err(ErrorClass::Timeout.error(format!(
            "no connection came to {} in {} s",
            wait.at, args.timeout
        )));
    };
    let came = Came { wait, from };
    match args.json {
        true => say(&report::json(&came)?),
        false => say(&format!("reached from {}", came.from)),
    }
}
