//! `rdmaprep topo`: where NICs and GPUs are, for people and for NCCL.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use nccl_rules::topology_xml::{Circumstances, topology, wanted};
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::HcaName;
use rdma_model::snapshot::Snapshot;

use super::{busy_nics, load_snapshot, request, say, store, sysfs, warn};
use crate::cli::{Global, TopoArgs};
use crate::disk::files;
use crate::drawing::{self, Fates, picture};
use crate::kernel::process::memfd;
use crate::{report, select};

const TOPO_FILE: &str = "NCCL_TOPO_FILE";

pub(super) fn run(global: &Global, args: &TopoArgs) -> Result<()> {
    let snapshot = load_snapshot(args.root.as_deref(), args.snapshot.as_deref())?;
    let fates = fates(global, args, &snapshot)?;
    let output = &args.output;
    if args.strict && !(output.nccl_xml || output.run) {
        return Err(
            ErrorClass::Usage.error("--strict needs a topology file: give --nccl-xml or --run")
        );
    }
    if output.nccl_xml {
        return say(xml(args, &snapshot, &fates)?.trim_end());
    }
    if output.run {
        return exec(args, &snapshot, &fates);
    }
    let picture = picture(&snapshot, &fates);
    match &output.draw {
        Some(file) if file == Path::new("-") => say(drawing::svg(&picture).trim_end()),
        Some(file) => files::write(file, drawing::svg(&picture).as_bytes()),
        None if output.json => say(&report::json(&picture)?),
        None => say(&drawing::text(&picture)),
    }
}

/// What becomes of each HCA: by `--hca`, else by the selection that `prepare` makes. A captured
/// tree has no addresses, so that the selection would drop all HCAs: there all are kept.
fn fates(global: &Global, args: &TopoArgs, snapshot: &Snapshot) -> Result<Fates> {
    let list = args.hca.as_deref().or(args.root.is_some().then_some("all"));
    if let Some(list) = list {
        // RDMAPREP_HCA may be there for another command, as RDMA_IFACES may.
        args.select.refuse_given(
            &[],
            match args.hca {
                Some(_) => "--hca (RDMAPREP_HCA) names all that is kept",
                None => "a captured /sys has no addresses to choose by; --hca chooses",
            },
        )?;
        let keep = sysfs::hcas(list, snapshot)?
            .unwrap_or_else(|| snapshot.hcas.iter().map(|h| h.name.clone()).collect());
        return Ok(drawing::listed(&keep, snapshot));
    }
    let request = request(global, None, &args.select)?;
    // What is held is held here and now.
    let held = if args.snapshot.is_some() {
        Vec::new()
    } else {
        busy_nics(&store(&request.host))?
    };
    let selection = select::judge(&request, snapshot, &held)?;
    // What is said of a machine without RDMA devices is about a container's NICs.
    if !snapshot.hcas.is_empty() {
        warn(&selection.warnings);
    }
    Ok(drawing::fates(&selection, snapshot))
}

fn kept(fates: &Fates) -> BTreeSet<HcaName> {
    fates
        .iter()
        .filter(|(_, dropped)| dropped.is_none())
        .map(|(hca, _)| hca.clone())
        .collect()
}

fn xml(args: &TopoArgs, snapshot: &Snapshot, fates: &Fates) -> Result<String> {
    let topology = topology(snapshot, &kept(fates));
    let unplaced: Vec<String> = topology
        .unplaced
        .iter()
        .map(|(hca, why)| format!("{hca}: {why}"))
        .collect();
    if args.strict && !unplaced.is_empty() {
        return Err(ErrorClass::Refused.error(format!(
            "--strict: no place in a topology file for {}",
            unplaced.join("; ")
        )));
    }
    warn(
        &unplaced
            .iter()
            .map(|one| format!("left out of the topology file: {one}"))
            .collect::<Vec<_>>(),
    );
    warn(&topology.warnings);
    topology.xml()
}

/// Returns only where the program cannot be run.
fn exec(args: &TopoArgs, snapshot: &Snapshot, fates: &Fates) -> Result<()> {
    let own = std::env::var_os(TOPO_FILE).map(|v| v.to_string_lossy().into_owned());
    let circumstances = Circumstances {
        own: own.as_deref(),
        asked: Some(true),
        blind: false,
    };
    let wanted = wanted(snapshot, &kept(fates), circumstances);
    if !wanted.file {
        warn(&[format!("no topology file: {}", wanted.why)]);
        return memfd::become_program(&args.program, None);
    }
    let file = memfd::sealed("nccl-topology", xml(args, snapshot, fates)?.as_bytes())
        .context("--run: writing the topology file into memory")?;
    memfd::become_program(&args.program, Some((TOPO_FILE, &memfd::path(&file))))
}
