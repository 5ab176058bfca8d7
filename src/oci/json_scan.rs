//! Where the values of a JSON text stand.

use std::ops::Range;

pub(super) struct Node {
    pub(super) span: Range<usize>,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    Object(Vec<Member>),
    Array(Vec<Node>),
    Scalar,
}

pub(super) struct Member {
    pub(super) key: String,
    pub(super) key_span: Range<usize>,
    pub(super) value: Node,
}

/// Finds values in a text that serde_json has accepted; what it does not understand ends the scan.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl Node {
    /// The outermost value of a text; absent where that is no JSON.
    pub(super) fn parse(text: &str) -> Option<Node> {
        Scanner { text, at: 0 }.node()
    }
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blank(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn node(&mut self) -> Option<Node> {
        self.blank();
        let start = self.at;
        let kind = match self.peek()? {
            b'{' => Kind::Object(self.items(b'}', Self::member)?),
            b'[' => Kind::Array(self.items(b']', Self::node)?),
            b'"' => self.string().map(|_| Kind::Scalar)?,
            _ => {
                while self
                    .peek()
                    .is_some_and(|b| !b.is_ascii_whitespace() && !matches!(b, b',' | b']' | b'}'))
                {
                    self.at += 1;
                }
                Kind::Scalar
            }
        };
        Some(Node {
            span: start..self.at,
            kind,
        })
    }

    fn items<T>(&mut self, close: u8, item: fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut items = Vec::new();
        self.at += 1;
        loop {
            self.blank();
            match self.peek()? {
                b',' => self.at += 1,
                b if b == close => {
                    self.at += 1;
                    return Some(items);
                }
                _ => items.push(item(self)?),
            }
        }
    }

    fn member(&mut self) -> Option<Member> {
        let key_span = self.string()?;
        let key = serde_json::from_str(self.text.get(key_span.clone())?).ok()?;
        self.blank();
        self.at += 1;
        Some(Member {
            key,
            key_span,
            value: self.node()?,
        })
    }

    fn string(&mut self) -> Option<Range<usize>> {
        let start = self.at;
        loop {
            self.at += 1;
            match self.peek()? {
                b'\\' => self.at += 1,
                b'"' => {
                    self.at += 1;
                    return Some(start..self.at);
                }
                _ => {}
            }
        }
    }
}
