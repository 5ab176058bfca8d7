//! Docker: a runtime in daemon.json, beside whatever else is there.

use anyhow::{Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use serde_json::{Map, Value, json};

use super::{Content, Ground, How, InstallRequest, NAME, Part, Piece, about, behind, shim};
use crate::oci::json_rewrite;

pub(super) const DAEMON: &str = "/etc/docker/daemon.json";

pub(super) fn part(wanted: &InstallRequest, ground: &Ground) -> Result<Part> {
    let path = ground.tree.followed(DAEMON)?;
    let (runtime, link) = shim(wanted, ground.tree)?;
    let text = add(
        ground.text(&path)?.as_deref(),
        &runtime,
        wanted.default_runtime,
    )
    .map_err(about(&path))?;
    let other = default_runtime(&text).filter(|(name, _)| name != NAME && name != "runc");
    let notes = other
        .map(|(name, program)| behind("Docker", &name, &program))
        .into_iter()
        .collect();
    let pieces = vec![
        Piece {
            path,
            how: How::Json,
            content: Content::Text(text),
        },
        link,
    ];
    Ok(Part {
        pieces,
        notes,
        ..Part::default()
    })
}

fn default_runtime(text: &str) -> Option<(String, String)> {
    let value: Value = serde_json::from_str(text).ok()?;
    let name = value.get("default-runtime")?.as_str()?;
    let path = value
        .get("runtimes")
        .and_then(|r| r.get(name)?.get("path")?.as_str())
        .unwrap_or(name);
    Some((name.to_owned(), path.to_owned()))
}

/// daemon.json, if that makes our runtime the default one, less what an installation put there.
pub(super) fn named(ground: &Ground) -> Result<Option<String>> {
    let path = ground.tree.followed(DAEMON)?;
    let default = ground.text(&path)?.and_then(|text| default_runtime(&text));
    Ok(default.filter(|(name, _)| name == NAME).map(|_| path))
}

/// daemon.json with our runtime in it. An empty file is none, as dockerd sees it.
fn add(text: Option<&str>, runtime: &str, default: bool) -> Result<String> {
    let text = text
        .filter(|text| !text.trim().is_empty())
        .unwrap_or("{}\n");
    let old: Value = serde_json::from_str(text).class(ErrorClass::Usage, "is not JSON")?;
    ensure!(
        old.is_object(),
        ErrorClass::Usage.error("is JSON, but not an object")
    );
    if let Some(key) = json_rewrite::duplicate_key(text) {
        return Err(ErrorClass::Usage.error(format!("has the key {key:?} twice in one object")));
    }
    let mut new = old.clone();
    let mut runtimes = match new.get("runtimes").cloned() {
        None => Map::new(),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(ErrorClass::Usage.error("`runtimes` is not an object")),
    };
    let ours = json!({ "path": runtime });
    let other = runtimes
        .insert(NAME.to_owned(), ours.clone())
        .filter(|there| *there != ours);
    ensure!(
        other.is_none(),
        ErrorClass::Refused.error(format!(
            "has a runtime {NAME} that rdmaprep did not write: remove it first"
        ))
    );
    new["runtimes"] = Value::Object(runtimes);
    if default {
        let other = new.get("default-runtime").filter(|name| *name != NAME);
        ensure!(
            other.is_none(),
            ErrorClass::Refused
                .error("has a default-runtime of its own: remove it, or omit --default-runtime")
        );
        new["default-runtime"] = Value::from(NAME);
    }
    json_rewrite::rewrite(text, &old, &new)
        .filter(|written| serde_json::from_str::<Value>(written).is_ok_and(|v| v == new))
        .ok_or_else(|| ErrorClass::Other.error("cannot be written out"))
}
