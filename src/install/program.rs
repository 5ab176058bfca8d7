use rdma_model::escape::is_plain;
use std::path::Path;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;

use super::{Content, DEFAULT_PLACE, InstallRequest, PLACES, Piece, ReadTree};
use crate::shim::NAME;

/// What is named; else the first of [`PLACES`] that is there; else where it belongs without a
/// package. [`ErrorClass::Usage`]: what is named is no absolute path that needs no quotes anywhere.
pub fn program(named: Option<&Path>, tree: &dyn ReadTree) -> Result<String> {
    let Some(path) = named else {
        let there = PLACES.into_iter().find(|place| tree.exists(place));
        return Ok(there.unwrap_or(DEFAULT_PLACE).to_owned());
    };
    match path.to_str() {
        Some(path) if path.starts_with('/') && is_plain(path, b"/._+-") => Ok(path.to_owned()),
        _ => Err(ErrorClass::Usage.error(format!(
            "--program {path:?} is no absolute path of plain characters"
        ))),
    }
}

/// The name under which we are a runtime, beside the program; a link to it, as it is where one that
/// leads there exists.
pub(super) fn shim(wanted: &InstallRequest, tree: &dyn ReadTree) -> Result<(String, Piece)> {
    let (folder, name) = wanted
        .program
        .rsplit_once('/')
        .unwrap_or(("", &wanted.program));
    let path = format!("{folder}/{}", NAME);
    let leads = matches!(&tree.content(&path)?, Some(Content::Link(to)) if *to == wanted.program);
    let piece = Piece::link(path.clone(), if leads { &wanted.program } else { name });
    Ok((path, piece))
}

/// Whether a path is the program by its name as a runtime: one of ours, or one that an
/// administrator made for another runtime.
pub fn is_runtime(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.strip_prefix(NAME)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}
