//! What an edit put into a document, taken out of what has become of it since.

use serde_json::Value;
use toml_edit::{DocumentMut, Item, TableLike};

use super::NAME;

/// One step of taking out; the path by keys from the outside in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Remove(Vec<String>),
    Without(Vec<String>, Vec<Value>),
}

/// What is taken out, and what is not, as it was changed since: keys joined by dots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reversal {
    pub ops: Vec<Op>,
    pub left: Vec<String>,
}

/// How to get rid of what `after` has beyond `before`, in `now`. A table that we made and that says
/// something itself is one thing: a runtime without its type or its path keeps the whole engine
/// from starting. Of our own name it goes, whatever was added to it; of another one (containerd's
/// `runc`) it stays whole as soon as it was added to: then it is another's.
pub fn reverse(before: &Value, after: &Value, now: &Value) -> Reversal {
    let mut undo = Reversal::default();
    undo.value(&mut Vec::new(), Some(before), after, now);
    undo
}

/// Whether one of them removes that key of the table at `path`.
fn removes(ops: &[Op], path: &[String], key: &String) -> bool {
    ops.iter().any(|op| match op {
        Op::Remove(gone) => gone.split_last() == Some((key, path)),
        Op::Without(..) => false,
    })
}

fn has_more(after: &Value, now: &Value) -> bool {
    match (after, now) {
        (Value::Object(after), Value::Object(there)) => there
            .iter()
            .any(|(key, now)| after.get(key).is_none_or(|after| has_more(after, now))),
        (after, now) => after != now,
    }
}

impl Reversal {
    fn value(
        &mut self,
        path: &mut Vec<String>,
        before: Option<&Value>,
        after: &Value,
        now: &Value,
    ) {
        match (after, now) {
            _ if before == Some(after) => {}
            _ if before.is_none() && after == now => self.ops.push(Op::Remove(path.clone())),
            (Value::Object(_), Value::Object(_))
                if before.is_none() && path.last().is_some_and(|key| key == NAME) =>
            {
                self.ops.push(Op::Remove(path.clone()));
            }
            (Value::Object(made), Value::Object(_))
                if before.is_none()
                    && made.values().any(|v| !v.is_object())
                    && has_more(after, now) => {}
            (Value::Object(after), Value::Object(there)) => {
                let first = self.ops.len();
                for (key, value) in after {
                    let Some(now) = there.get(key) else { continue };
                    path.push(key.clone());
                    self.value(path, before.and_then(|b| b.get(key)), value, now);
                    path.pop();
                }
                // containerd 1 starts no CRI without it as soon as another runtime is named.
                let is_added_to = there.keys().any(|key| !after.contains_key(key));
                if is_added_to && path.last().is_some_and(|key| key == "runtimes") {
                    let kept = [path.as_slice(), &["runc".to_owned()]].concat();
                    self.ops.retain(|op| *op != Op::Remove(kept.clone()));
                }
                let ops = self.ops.get(first..).unwrap_or_default();
                // A table that we made goes with the last thing in it.
                if before.is_none() && there.keys().all(|key| removes(ops, path, key)) {
                    self.ops.truncate(first);
                    self.ops.push(Op::Remove(path.clone()));
                }
            }
            (Value::Array(after), Value::Array(there)) => {
                let old = before.and_then(Value::as_array);
                let ours = after
                    .iter()
                    .filter(|v| !old.is_some_and(|old| old.contains(v)) && there.contains(v));
                let ours: Vec<Value> = ours.cloned().collect();
                match there.iter().all(|v| ours.contains(v)) && before.is_none() {
                    true => self.ops.push(Op::Remove(path.clone())),
                    false => self.ops.push(Op::Without(path.clone(), ours)),
                }
            }
            _ => self.left.push(path.join(".")),
        }
    }

    pub fn out_of_json(&self, document: &Value) -> Value {
        let mut document = document.clone();
        for op in &self.ops {
            let (Op::Remove(path) | Op::Without(path, _)) = op;
            let Some((last, parents)) = path.split_last() else {
                continue;
            };
            let parent = parents
                .iter()
                .try_fold(&mut document, |at, key| at.get_mut(key))
                .and_then(Value::as_object_mut);
            let Some(parent) = parent else { continue };
            match op {
                Op::Remove(_) => drop(parent.shift_remove(last)),
                Op::Without(_, ours) => {
                    if let Some(list) = parent.get_mut(last).and_then(Value::as_array_mut) {
                        list.retain(|item| !ours.contains(item));
                    }
                }
            }
        }
        document
    }

    pub fn out_of_toml(&self, document: &mut DocumentMut) {
        for op in &self.ops {
            let (Op::Remove(path) | Op::Without(path, _)) = op;
            let Some((last, parents)) = path.split_last() else {
                continue;
            };
            let root: Option<&mut dyn TableLike> = Some(document.as_table_mut());
            let parent = parents
                .iter()
                .fold(root, |at, key| at?.get_mut(key)?.as_table_like_mut());
            let Some(parent) = parent else { continue };
            match op {
                Op::Remove(_) => drop(parent.remove(last)),
                Op::Without(_, ours) => {
                    if let Some(list) = parent.get_mut(last).and_then(Item::as_array_mut) {
                        list.retain(|item| {
                            !ours
                                .iter()
                                .any(|o| o.as_str().is_some() && o.as_str() == item.as_str())
                        });
                    }
                }
            }
        }
    }
}
