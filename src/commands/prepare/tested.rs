//! `prepare --test-rails`: before the nodes agree on a plan, traffic over its rails, by the program
//! `rdmaprep-rail-test`. A rail that fails anywhere is offered by no node.

use std::ffi::OsString;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, anyhow, ensure};
use rail_agreement::Rail;
use rail_agreement::options::{Options, StoreUrl};
use rdma_model::error_class::ErrorClass;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::cli::{LeaveOut, PrepareArgs};
use crate::commands::decision::DraftInputs;
use crate::commands::peers::{self, Meeting};
use crate::commands::test_rails::{self, unstored::Tested, unstored::Unstored};
use crate::commands::warn;
use crate::config::request::{FailedRail, Request};
use crate::store::Store;

/// What the program says where it has not tested.
#[derive(Deserialize)]
struct Failure {
    exit_code: u8,
    message: String,
}

/// Refuses what has no nodes to test with.
pub(super) fn check(args: &PrepareArgs, asked: Option<&Options>) -> Result<()> {
    const NO_NODES: &str = "--test-rails: no nodes to test with: give --rendezvous";
    const NO_RAILS: &str = "--test-rails: a file of --snapshot has no rails to send over";
    const PMI: &str = "--test-rails: the launcher's PMI serves one program of a step, and the test \
        is a second one: give --rendezvous file:///PATH, or run `rdmaprep test-rails` in a step of \
        its own";
    if args.test_rails.is_none() {
        return Ok(());
    }
    ensure!(args.snapshot.is_none(), ErrorClass::Usage.error(NO_RAILS));
    let asked = asked.ok_or_else(|| ErrorClass::Usage.error(NO_NODES))?;
    ensure!(asked.store != StoreUrl::Pmi, ErrorClass::Usage.error(PMI));
    Ok(())
}

/// Tells the others, who may wait in the test or after it, why this node takes no part.
pub(super) fn refuse(args: &PrepareArgs, meeting: Meeting, why: anyhow::Error) -> anyhow::Error {
    let asked = args
        .test_rails
        .and(test_rails::options(&args.rendezvous).ok());
    let why = match asked {
        Some(asked) => test_rails::refuse(asked, why),
        None => why,
    };
    meeting.refuse(why)
}

/// Tests the rails that this node would offer, and meets the others again, as a test may take
/// longer than they wait for each other. The request is then without the rails that fail.
pub(super) fn leave_out(
    request: &mut Request,
    args: &PrepareArgs,
    config: Option<&str>,
    store: &Store,
    meeting: Option<Meeting>,
) -> Result<Option<Meeting>> {
    let (how, meeting) = match (args.test_rails, meeting) {
        (Some(how), Some(meeting)) => (how, meeting),
        (_, meeting) => return Ok(meeting),
    };
    let ready = unstored(request, args, config, store, &meeting)
        .and_then(|unstored| Ok((start()?, unstored)));
    let (program, unstored) = match ready {
        Ok(ready) => ready,
        Err(e) => return Err(refuse(args, meeting, e)),
    };
    drop(meeting);
    let failed = run(program, args, &unstored).and_then(|tested| judge(how, tested, &unstored));
    let again = peers::peer_options(&args.rendezvous)
        .and_then(|asked| asked.context("the nodes to meet"))
        .and_then(|asked| peers::enter(asked, args.dry_run));
    match (failed, again) {
        (Ok(failed), again) => {
            request.failed = failed;
            again.map(Some)
        }
        (Err(e), Ok(again)) => Err(again.refuse(e)),
        (Err(e), Err(_)) => Err(e),
    }
}

/// What this node would offer if nothing was tested.
fn unstored(
    request: &Request,
    args: &PrepareArgs,
    config: Option<&str>,
    store: &Store,
    meeting: &Meeting,
) -> Result<Unstored> {
    let look = DraftInputs::new(request, &args.plan, None, config, store)?;
    let (plan, selection) = look.selected(request)?;
    selection.some()?;
    let (offer, _) = meeting.offered(request.select.family, &plan, &selection, &look.seen);
    Ok(Unstored {
        env: plan.env,
        nccl_version: plan.nccl_version,
        rails: offer.rails,
    })
}

/// The program, if it can be run at all: so that a node that lacks it says so before the others
/// test with it.
fn start() -> Result<Command> {
    let program = test_rails::program();
    let tried = Command::new(&program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    tried.map_err(test_rails::cannot_run)?;
    Ok(Command::new(program))
}

fn run(mut program: Command, args: &PrepareArgs, unstored: &Unstored) -> Result<Tested> {
    program
        .arg("--unstored")
        .args(flags(args))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = program.spawn().map_err(test_rails::cannot_run)?;
    // What it has not read is its own failure, which it says.
    let mut stdin = child.stdin.take().context("its stdin")?;
    let _ = stdin.write_all(&serde_json::to_vec(unstored)?);
    drop(stdin);
    said(child.wait_with_output()?)
}

fn flags(args: &PrepareArgs) -> Vec<OsString> {
    let own = &args.rendezvous;
    let all = [
        ("--rendezvous", &own.meet.rendezvous),
        ("--nodes", &own.meet.nodes),
        ("--run-id", &own.meet.run_id),
        ("--rendezvous-timeout", &own.meet.rendezvous_timeout),
        ("--store-host", &own.meet.store_host),
        ("--rank", &own.rank),
        ("--match", &own.by),
        ("--rail-labels", &own.rail_labels),
    ];
    let mut flags = Vec::new();
    for (flag, value) in all {
        if let Some(value) = value.as_ref().filter(|value| !value.is_empty()) {
            flags.push(format!("{flag}={value}").into());
        }
    }
    flags
}

fn said(output: Output) -> Result<Tested> {
    if output.status.success() {
        return answer(&output);
    }
    let failure: Failure = answer(&output)?;
    let mut classes = ErrorClass::ALL.into_iter();
    let class = classes.find(|class| class.code() == failure.exit_code);
    let class = class.unwrap_or(ErrorClass::Other);
    Err(class.error(format!("the rail test: {}", failure.message)))
}

fn answer<T: DeserializeOwned>(output: &Output) -> Result<T> {
    let status = output.status;
    let answer = serde_json::from_slice(&output.stdout);
    answer.map_err(|_| anyhow!("the rail test has not said what it found ({status})"))
}

/// The devices of this node that are left out.
fn judge(how: LeaveOut, tested: Tested, unstored: &Unstored) -> Result<Vec<FailedRail>> {
    warn(&tested.warnings);
    if let Some(why) = &tested.unexplained {
        return Err(sick(why));
    }
    let mut failed = Vec::new();
    for Rail(key, device) in &unstored.rails {
        let mut found = tested.failed.iter();
        if let Some((_, why)) = found.find(|(failed, _)| failed == key) {
            failed.push(FailedRail {
                device: device.clone(),
                why: why.clone(),
            });
        }
    }
    if let Some((_, first)) = tested.failed.first() {
        ensure!(how == LeaveOut::Failed, sick(first));
        ensure!(failed.len() < unstored.rails.len(), sick(first));
    }
    Ok(failed)
}

fn sick(why: &str) -> anyhow::Error {
    ErrorClass::Sick.error(format!("the rail test: {why}"))
}
