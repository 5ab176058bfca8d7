//! The golden cases: a folder each below tests/cases. `CASE=bond cargo test --test golden select`
//! runs those whose name has it.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The folders of a kind of case, by name; at least that many, where none is chosen by `CASE`.
pub fn cases(kind: &str, at_least: usize) -> Vec<PathBuf> {
    let root = crate::repository("tests/cases").join(kind);
    let mut all: Vec<PathBuf> = std::fs::read_dir(&root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    all.sort();
    assert!(all.len() >= at_least, "cases are missing: {all:?}");
    let Some(chosen) = chosen() else { return all };
    all.retain(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().contains(&chosen))
    });
    assert!(
        !all.is_empty(),
        "no case of {} has {chosen} in its name",
        root.display()
    );
    all
}

/// Whether all cases are run: only then a test may insist that each of some list has one.
pub fn are_all() -> bool {
    chosen().is_none()
}

/// The host of a case: its `snapshot.json`; or, where it has a `host.json`, one of
/// tests/cases/hosts with what is different.
pub fn host<T: DeserializeOwned>(case: &Path) -> T {
    let (whole, change) = (case.join("snapshot.json"), case.join("host.json"));
    assert!(
        !(whole.exists() && change.exists()),
        "{}: two hosts",
        case.display()
    );
    if whole.exists() {
        return read(&whole);
    }
    let change: Change = read(&change);
    let hosts = crate::repository("tests/cases/hosts");
    let mut host = read(&hosts.join(format!("{}.json", change.of)));
    change.make(&mut host);
    serde_json::from_value(host).unwrap_or_else(|e| panic!("{}: {e}", case.display()))
}

fn read<T: DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path);
    let text = text.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What of a host is different, by JSON pointers. Within a list a step is the `name`, the `number`
/// or the `index` of an element, or else its place.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    /// The host, a file of tests/cases/hosts.
    of: String,
    /// Taken out first, in this order.
    #[serde(default)]
    without: Vec<String>,
    /// Put in. `+STEP` puts the elements of a list before that one, `+` behind all.
    #[serde(default)]
    with: Map<String, Value>,
}

impl Change {
    fn make(&self, host: &mut Value) {
        for pointer in &self.without {
            match parent(host, pointer) {
                (Value::Array(items), last) => drop(items.remove(place(items, &last))),
                (Value::Object(map), last) => {
                    assert!(map.shift_remove(&last).is_some(), "nothing is at {pointer}");
                }
                (other, _) => panic!("{pointer}: {other} has no parts"),
            }
        }
        for (pointer, value) in &self.with {
            match parent(host, pointer) {
                (Value::Array(items), last) => put(items, &last, value),
                (Value::Object(map), last) => drop(map.insert(last, value.clone())),
                (other, _) => panic!("{pointer}: {other} has no parts"),
            }
        }
    }
}

fn put(items: &mut Vec<Value>, step: &str, value: &Value) {
    let Some(before) = step.strip_prefix('+') else {
        let at = place(items, step);
        items[at] = value.clone();
        return;
    };
    let at = match before {
        "" => items.len(),
        before => place(items, before),
    };
    let more = value.as_array().expect("a list of elements");
    items.splice(at..at, more.iter().cloned());
}

/// What a pointer's last step is a part of, and that step.
fn parent<'v>(host: &'v mut Value, pointer: &str) -> (&'v mut Value, String) {
    let steps = pointer.split('/').skip(1);
    let mut steps: Vec<String> = steps
        .map(|s| s.replace("~1", "/").replace("~0", "~"))
        .collect();
    let last = steps.pop().expect(pointer);
    let mut within = host;
    for step in &steps {
        within = match within {
            Value::Array(items) => {
                let at = place(items, step);
                &mut items[at]
            }
            other => other
                .get_mut(step)
                .unwrap_or_else(|| panic!("{pointer}: no {step}")),
        };
    }
    (within, last)
}

fn place(items: &[Value], step: &str) -> usize {
    let named = items
        .iter()
        .position(|item| name(item).as_deref() == Some(step));
    let at = named
        .or_else(|| step.parse().ok())
        .filter(|at| *at < items.len());
    at.unwrap_or_else(|| panic!("no {step} among {items:?}"))
}

fn name(item: &Value) -> Option<String> {
    let name = ["name", "number", "index"]
        .iter()
        .find_map(|key| item.get(key))?;
    Some(
        name.as_str()
            .map_or_else(|| name.to_string(), str::to_owned),
    )
}

fn chosen() -> Option<String> {
    std::env::var("CASE").ok()
}
