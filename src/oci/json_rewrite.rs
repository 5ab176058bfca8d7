//! Writes a changed JSON value over the text that it was read from, and leaves every byte alone
//! that need not change. A config.json is often written by hand or by another tool: serializing it
//! again would reflow short lists, respell numbers and bury the few lines that we add in a diff of
//! the whole file. So the text is scanned for where each value stands, equal values are copied, and
//! new ones are written in the manner of their surroundings.

use serde_json::{Map, Value};

use super::json_scan::{Kind, Member, Node};

/// `text`, whose value is `old`, changed to say `new`. Absent only where `text` is not the text of
/// `old`.
pub fn rewrite(text: &str, old: &Value, new: &Value) -> Option<String> {
    let root = Node::parse(text)?;
    let mut writer = Writer {
        text,
        style: Style::detect(text, &root),
        out: text.get(..root.span.start)?.to_owned(),
    };
    writer.value(&root, old, new, Some(""))?;
    writer.out.push_str(text.get(root.span.end..)?);
    Some(writer.out)
}

/// The first key that stands twice in one object: parsers disagree on which one counts.
pub fn duplicate_key(text: &str) -> Option<String> {
    fn search(node: &Node) -> Option<String> {
        match &node.kind {
            Kind::Object(members) => {
                let mut seen = std::collections::HashSet::new();
                let twice = members
                    .iter()
                    .find(|m| !seen.insert(m.key.as_str()))
                    .map(|m| m.key.clone());
                twice.or_else(|| members.iter().find_map(|m| search(&m.value)))
            }
            Kind::Array(items) => items.iter().find_map(search),
            Kind::Scalar => None,
        }
    }
    search(&Node::parse(text)?)
}

struct Style {
    /// One step of indentation; absent: all on one line.
    unit: Option<String>,
    newline: &'static str,
    colon: String,
    spaced: bool,
}

impl Style {
    /// Takes the first member of the outermost object for typical.
    fn detect(text: &str, root: &Node) -> Style {
        let first = match &root.kind {
            Kind::Object(members) => members.first(),
            _ => None,
        };
        let lead = first.map_or("\n  ", |m| blank_before(text, m.key_span.start));
        let colon = first
            .and_then(|m| text.get(m.key_span.end..m.value.span.start))
            .unwrap_or(": ");
        let unit = lead.rsplit_once('\n').map(|(_, indent)| indent.to_owned());
        Style {
            spaced: unit.is_some() || colon.ends_with(' '),
            unit,
            newline: if lead.contains("\r\n") { "\r\n" } else { "\n" },
            colon: if colon.contains('\n') {
                ": ".to_owned()
            } else {
                colon.to_owned()
            },
        }
    }

    fn comma(&self) -> &'static str {
        if self.spaced { ", " } else { "," }
    }
}

fn blank_before(text: &str, end: usize) -> &str {
    let before = text.get(..end).unwrap_or_default();
    before.get(before.trim_end().len()..).unwrap_or_default()
}

/// The indentation of what follows this white space; absent where it begins no line.
fn indent_of(blank: &str) -> Option<&str> {
    blank.rsplit_once('\n').map(|(_, indent)| indent)
}

struct Writer<'a> {
    text: &'a str,
    style: Style,
    out: String,
}

impl<'a> Writer<'a> {
    /// Writes `new` where `old` stood in a line indented by `indent`, or within a line.
    fn value(&mut self, node: &Node, old: &Value, new: &Value, indent: Option<&str>) -> Option<()> {
        match (&node.kind, old, new) {
            _ if old == new => self.out.push_str(self.text.get(node.span.clone())?),
            (Kind::Object(members), Value::Object(o), Value::Object(n)) => {
                self.object(node, members, o, n, indent)?;
            }
            (Kind::Array(items), Value::Array(o), Value::Array(n))
                if o.len() == items.len() && n.len() >= o.len() =>
            {
                self.array(node, items, o, n, indent)?;
            }
            _ => self.fresh(new, indent),
        }
        Some(())
    }

    fn object(
        &mut self,
        node: &Node,
        members: &[Member],
        old: &Map<String, Value>,
        new: &Map<String, Value>,
        indent: Option<&str>,
    ) -> Option<()> {
        let text = self.text;
        let added: Vec<_> = new
            .iter()
            .filter(|(k, _)| !old.contains_key(*k))
            .map(|(k, v)| (Some(k), v))
            .collect();
        let mut last = None;
        for (i, m) in members.iter().enumerate() {
            let Some(value) = new.get(&m.key) else {
                continue;
            };
            // What stands before a member goes with it; the first one that stays stands where the
            // first one stood.
            let lead = match last.and(members.get(i.wrapping_sub(1))) {
                Some(previous) => previous.value.span.end..m.key_span.start,
                None => node.span.start..members.first()?.key_span.start,
            };
            self.out.push_str(text.get(lead)?);
            self.out
                .push_str(text.get(m.key_span.start..m.value.span.start)?);
            self.value(
                &m.value,
                old.get(&m.key)?,
                value,
                indent_of(blank_before(text, m.key_span.start)),
            )?;
            last = Some(m.key_span.start);
        }
        match members.last() {
            Some(_) if last.is_none() => self.container("{", &added, added.first().and(indent)),
            end => self.append(
                &added,
                last,
                node,
                end.map_or(node.span.start, |m| m.value.span.end),
                indent,
            )?,
        }
        Some(())
    }

    fn array(
        &mut self,
        node: &Node,
        items: &[Node],
        old: &[Value],
        new: &[Value],
        indent: Option<&str>,
    ) -> Option<()> {
        let mut at = node.span.start;
        for (item, (o, n)) in items.iter().zip(old.iter().zip(new)) {
            self.out.push_str(self.text.get(at..item.span.start)?);
            self.value(
                item,
                o,
                n,
                indent_of(blank_before(self.text, item.span.start)),
            )?;
            at = item.span.end;
        }
        let added: Vec<_> = new.iter().skip(old.len()).map(|v| (None, v)).collect();
        self.append(&added, items.last().map(|i| i.span.start), node, at, indent)
    }

    /// Writes members or items after the last one, in its manner, and the rest of the container
    /// from `at`.
    fn append(
        &mut self,
        added: &[(Option<&String>, &Value)],
        last: Option<usize>,
        node: &Node,
        at: usize,
        indent: Option<&str>,
    ) -> Option<()> {
        let text = self.text;
        let Some(last) = last.or(added.is_empty().then_some(at)) else {
            self.container(text.get(at..=at)?, added, indent);
            return Some(());
        };
        // A list within a line stays within it, whatever comes in.
        let blank = blank_before(text, last);
        let gap = if blank.is_empty() && self.style.spaced {
            " "
        } else {
            blank
        };
        for (key, value) in added {
            self.out.push(',');
            self.out.push_str(gap);
            self.member(*key, value, indent_of(blank));
        }
        self.out.push_str(text.get(at..node.span.end)?);
        Some(())
    }

    fn member(&mut self, key: Option<&String>, value: &Value, indent: Option<&str>) {
        if let Some(key) = key {
            self.out.push_str(&Value::from(key.as_str()).to_string());
            self.out.push_str(&self.style.colon);
        }
        self.fresh(value, indent);
    }

    fn fresh(&mut self, value: &Value, indent: Option<&str>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                self.container(
                    "{",
                    &map.iter().map(|(k, v)| (Some(k), v)).collect::<Vec<_>>(),
                    indent,
                );
            }
            Value::Array(items) if !items.is_empty() => {
                self.container(
                    "[",
                    &items.iter().map(|v| (None, v)).collect::<Vec<_>>(),
                    indent,
                );
            }
            plain => self.out.push_str(&plain.to_string()),
        }
    }

    fn container(
        &mut self,
        open: &str,
        members: &[(Option<&String>, &Value)],
        indent: Option<&str>,
    ) {
        let inner = indent
            .zip(self.style.unit.as_deref())
            .map(|(indent, unit)| format!("{indent}{unit}"));
        self.out.push_str(open);
        for (i, (key, value)) in members.iter().enumerate() {
            match &inner {
                Some(inner) => {
                    let comma = if i > 0 { "," } else { "" };
                    self.out
                        .push_str(&format!("{comma}{}{inner}", self.style.newline));
                }
                None if i > 0 => self.out.push_str(self.style.comma()),
                None => {}
            }
            self.member(*key, value, inner.as_deref());
        }
        if let (Some(_), Some(indent)) = (&inner, indent) {
            self.out
                .push_str(&format!("{}{indent}", self.style.newline));
        }
        self.out.push_str(if open == "{" { "}" } else { "]" });
    }
}
