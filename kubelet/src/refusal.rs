//! Why a container would not get a rail now, in the words of the create hook: its checks are made,
//! for a container that has just this device. They are what `doctor` reports of a NIC: its port and
//! GIDs, that it is left out, the host's uplink, plans that do not fit any more, records that
//! cannot be read.

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use rdma_model::snapshot::Snapshot;
use rdmaprep::attach::plan_attach;
use rdmaprep::cdi::{CdiDevice, RailName};
use rdmaprep::cli::{Cli, Command};
use rdmaprep::config::host::{Config, Host};
use rdmaprep::config::request::Request;
use rdmaprep::planner;
use rdmaprep::select::{BusyNic, Selection};
use rdmaprep::store::records::Records;

/// What the device's hook asks for. Nothing of a hook that this version does not understand: its
/// own will say why.
pub fn asked(device: &CdiDevice, rail: &RailName, config: &Config) -> Option<Result<Request>> {
    let hook = device.container_edits.hooks.first()?;
    let cli = Cli::read(&hook.args).ok()?;
    let Command::Hook(args) = &cli.command else {
        return None;
    };
    let host = Host::new(&cli.global, config);
    let request = Request::new(
        args.plan.as_deref(),
        &args.select,
        host,
        config.select.clone(),
        |_| None,
    );
    Some(request.map(|mut request| {
        request.narrowing.devices = Some(std::iter::once(rail.clone()).collect());
        request
    }))
}

/// `host` was observed with its paths. As `choose` in src/hook/create/choose.rs does it.
pub fn refused(
    request: &Request,
    rail: &RailName,
    host: &Snapshot,
    records: &Records,
    busy: &[BusyNic],
) -> Result<()> {
    let Some(name) = request.plan_name() else {
        return Ok(());
    };
    let plan = match records.store().plan(name.as_str())? {
        Some(plan) => plan,
        None => {
            let request = request.of_devices();
            let options = planner::options(&request);
            let (plan, selection) =
                planner::plan_of_any(&request, name.as_str(), host, busy, options)?;
            let why = left_out(&selection, rail);
            ensure!(
                why.is_none(),
                ErrorClass::Refused.error(why.unwrap_or_default())
            );
            plan
        }
    };
    let plan = request.narrowed_plan(plan, Some(host));
    request.check_has_all_asked(&plan)?;
    planner::check_damaged_records(records, 0, &plan, host)?;
    planner::check_free(&plan, busy)?;
    plan_attach(&plan, host, &Snapshot::default()).map(drop)
}

fn left_out(selection: &Selection, rail: &RailName) -> Option<String> {
    let is_it = |netdev: Option<&str>, hca: Option<&str>| match rail {
        RailName::Netdev(name) => netdev == Some(name.as_str()),
        RailName::Hca(name) => netdev.is_none() && hca == Some(name.as_str()),
    };
    let mut dropped = selection.dropped();
    let its = dropped.find(|(v, _)| {
        is_it(
            v.netdev.as_ref().map(|n| n.as_str()),
            v.hca.as_ref().map(|h| h.as_str()),
        )
    });
    its.map(|(_, dropped)| dropped.why.clone())
}
