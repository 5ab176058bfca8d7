use crate::config::hca_selector::HcaSelector;
use crate::config::options::names;
use crate::config::sysfs_mode::Carrier;
use rdma_model::escape::count;
use std::collections::BTreeSet;
use std::io::{BufWriter, Error, ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::HcaName;
use rdma_model::snapshot::Snapshot;
use rdma_model::tree::{Tree, differences};

use super::{reading, say};
use crate::cli::{DiffArgs, ExportArgs, MaterializeArgs, SysfsCommand, ViewArgs};
use crate::disk::files;
use crate::kernel::sysfs::{self, Lacking, Survey};
use crate::report;
use crate::select::check_listed;
use crate::view::{self, Keep};

pub(super) fn run(command: &SysfsCommand) -> Result<()> {
    match command {
        SysfsCommand::Export(args) => export(args),
        SysfsCommand::Materialize(args) => materialize(args),
        SysfsCommand::Diff(args) => diff(args),
    }
}

/// Written as it is made: it may be some megabytes.
fn export(args: &ExportArgs) -> Result<()> {
    let view = seen(&args.view)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let written = report::write_json(&mut out, &view)
        .map_err(Error::from)
        .and_then(|()| writeln!(out))
        .and_then(|()| out.flush());
    match written {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(e).context("writing to stdout"),
        _ => Ok(()),
    }
}

fn survey(args: &ViewArgs) -> Result<Survey> {
    Survey::open(args.root.as_deref().unwrap_or(Path::new("/sys")))
}

fn seen(args: &ViewArgs) -> Result<Tree> {
    view_of(&survey(args)?, args)
}

fn view_of(survey: &Survey, args: &ViewArgs) -> Result<Tree> {
    let facts = sysfs::merge(survey.facts(), None, None);
    let keep = wanted(&args.hca, &facts)?;
    Ok(match (args.mode, keep) {
        (Carrier::Snapshot, None) => survey.whole(),
        (Carrier::Snapshot, Some(keep)) => view::snapshot(&keep, &facts, survey.whole()),
        // Nothing is hidden, so nothing lies over the kernel's own.
        (Carrier::Live, None) => Tree::default(),
        (Carrier::Live, Some(keep)) => view::live(&keep, &facts, &survey.links()),
    })
}

/// The HCAs of a list; none for `all`.
fn wanted(list: &str, facts: &Snapshot) -> Result<Option<Keep>> {
    Ok(hcas(list, facts)?.map(|names| Keep::hcas(names, facts)))
}

/// The names of a list of HCAs, all of which are there; none for `all`.
pub(super) fn hcas(list: &str, facts: &Snapshot) -> Result<Option<BTreeSet<HcaName>>> {
    let list = names::<HcaSelector>(list).class(ErrorClass::Usage, "--hca")?;
    if list == [HcaSelector::All] {
        return Ok(None);
    }
    check_listed("--hca", &list, facts)?;
    let chosen = facts
        .hcas
        .iter()
        .filter(|hca| list.iter().any(|entry| entry.fits(hca)));
    Ok(Some(chosen.map(|hca| hca.name.clone()).collect()))
}

fn document(path: &Path) -> Result<Tree> {
    let text = files::read_or_stdin(path).class(ErrorClass::Usage, reading(path))?;
    let text = text.ok_or_else(|| {
        ErrorClass::Usage.error(format!("--from: {} does not exist", path.display()))
    })?;
    serde_json::from_str(&text).class(ErrorClass::Usage, reading(path))
}

fn materialize(args: &MaterializeArgs) -> Result<()> {
    files::write_tree(&args.dir, &document(&args.from)?)
}

fn diff(args: &DiffArgs) -> Result<()> {
    let survey = survey(&args.view)?;
    let words = match &args.from {
        Some(file) => differences(&survey.whole(), &document(file)?),
        None => {
            let view = view_of(&survey, &args.view)?;
            match args.view.mode {
                Carrier::Snapshot => {
                    let whole = survey.whole();
                    let lacking = survey.beyond(&whole).into_iter().map(lacks);
                    differences(&whole, &view)
                        .into_iter()
                        .chain(lacking)
                        .collect()
                }
                Carrier::Live => differences_live(&survey.links(), &view),
            }
        }
    };
    if args.json {
        return say(&report::json(&words)?);
    }
    if words.is_empty() {
        return say("no difference");
    }
    say(report::printable_lines(&words.join("\n")).trim_end())
}

fn lacks(lacking: Lacking) -> String {
    let Lacking {
        folder,
        files,
        links,
    } = lacking;
    let mut all = Vec::new();
    for (number, noun) in [(files, "file"), (links, "link")] {
        all.extend((number > 0).then(|| count(number, noun)));
    }
    let folder = if folder.is_empty() { "." } else { &folder };
    format!("{folder}: not in a snapshot: {}", all.join(", "))
}

fn differences_live(links: &Tree, view: &Tree) -> Vec<String> {
    let places = view::covers(view)
        .into_iter()
        .filter(|c| links.get(&c.at).is_none());
    let mut words = differences(links, &view::laid_over(links, view));
    words.extend(places.map(|c| format!("{}: empty", c.at)));
    words
}
