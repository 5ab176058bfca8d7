//! An element of the file, as NCCL's parser reads it.

use std::fmt::Write;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;

/// Characters in a value: MAX_STR_LEN of src/graph/xml.h, less the end and the quote.
pub(super) const VALUE: usize = 253;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Element {
    pub(super) tag: &'static str,
    pub(super) attributes: Vec<(&'static str, String)>,
    pub(super) children: Vec<Element>,
}

impl Element {
    pub(super) fn count(&self) -> usize {
        1 + self.children.iter().map(Element::count).sum::<usize>()
    }

    pub(super) fn widest(&self) -> usize {
        self.children
            .iter()
            .map(Element::widest)
            .fold(self.children.len(), usize::max)
    }

    pub(super) fn check(&self) -> Result<()> {
        for (name, value) in &self.attributes {
            if value.len() > VALUE {
                let length = value.len();
                let text = format!(
                    "NCCL reads values of {VALUE} characters, {name} of a {} has {length}",
                    self.tag
                );
                return Err(ErrorClass::Refused.error(text));
            }
        }
        self.children.iter().try_for_each(Element::check)
    }

    pub(super) fn write(&self, text: &mut String, depth: usize) {
        let indent = "  ".repeat(depth);
        let attributes: String =
            self.attributes
                .iter()
                .fold(String::new(), |mut all, (name, value)| {
                    // Writing to a String cannot fail.
                    let _ = write!(all, " {name}=\"{value}\"");
                    all
                });
        let tag = self.tag;
        if self.children.is_empty() {
            text.push_str(&format!("{indent}<{tag}{attributes}/>\n"));
            return;
        }
        text.push_str(&format!("{indent}<{tag}{attributes}>\n"));
        for child in &self.children {
            child.write(text, depth + 1);
        }
        text.push_str(&format!("{indent}</{tag}>\n"));
    }
}
