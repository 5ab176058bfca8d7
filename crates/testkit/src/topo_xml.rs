//! NCCL's parser of topology files, as strict as it is, and stricter where it would only ignore
//! something: what it reads is what src/graph/xml.cc of NCCL 2.30.7 reads.

/// MAX_STR_LEN (src/graph/xml.h).
const STRING: usize = 255;
/// MAX_ATTR_COUNT.
const ATTRIBUTES: usize = 16;
/// MAX_SUBS.
const CHILDREN: usize = 640;
/// NCCL_TOPO_XML_MAX_NODES (src/graph/topo.h).
const NODES: usize = 256;

/// An element.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    pub tag: String,
    pub attributes: Vec<(String, String)>,
    pub children: Vec<Node>,
}

impl Node {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.attributes
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    pub fn all<'n>(&'n self, tag: &'n str) -> Box<dyn Iterator<Item = &'n Node> + 'n> {
        let own = std::iter::once(self).filter(move |n| n.tag == tag);
        Box::new(own.chain(self.children.iter().flat_map(move |c| c.all(tag))))
    }

    pub fn count(&self) -> usize {
        1 + self.children.iter().map(Node::count).sum::<usize>()
    }
}

struct Reader<'t> {
    text: &'t [u8],
    at: usize,
    nodes: usize,
}

#[derive(PartialEq)]
enum Kind {
    Open,
    Single,
    Close,
}

type Result<T> = std::result::Result<T, String>;

/// Reads a file and checks that a graph can be built of it. The error says why NCCL would not take
/// it.
pub fn read(text: &str) -> Result<Node> {
    let top = parse(text)?;
    let [system] = top.as_slice() else {
        return Err(format!("{} elements at the top", top.len()));
    };
    graph(system)?;
    Ok(system.clone())
}

/// What the parser alone takes.
pub fn parse(text: &str) -> Result<Vec<Node>> {
    let mut reader = Reader {
        text: text.as_bytes(),
        at: 0,
        nodes: 0,
    };
    reader.children(None)
}

/// What may be below what (`ncclTopoXmlLoad*`).
fn allowed(parent: Option<&str>) -> &'static [&'static str] {
    match parent {
        None => &["system"],
        Some("system") => &["cpu"],
        Some("cpu") => &["pci", "nic"],
        Some("pci") => &["pci", "gpu", "nic", "pcilink"],
        Some("gpu") => &["nvlink", "c2c"],
        Some("nic") => &["net"],
        _ => &[],
    }
}

impl Reader<'_> {
    fn char(&mut self) -> Result<u8> {
        self.at += 1;
        self.text
            .get(self.at - 1)
            .copied()
            .ok_or("unexpected end".to_owned())
    }

    /// A name, up to a blank or an end, or with `=` its value; and the character behind.
    fn token(&mut self) -> Result<(String, Option<String>, u8)> {
        let mut name = Vec::new();
        loop {
            match self.char()? {
                b'=' => {
                    let (value, last) = self.value()?;
                    return Ok((text(name)?, Some(value), last));
                }
                last @ (b' ' | b'>' | b'/' | b'\n' | b'\r') => {
                    return Ok((text(name)?, None, last));
                }
                _ if name.len() + 1 == STRING => return Err("a name is too long".to_owned()),
                c => name.push(c),
            }
        }
    }

    fn value(&mut self) -> Result<(String, u8)> {
        let quote = self.char()?;
        if !matches!(quote, b'"' | b'\'') {
            return Err("a value without a quote".to_owned());
        }
        let mut value = Vec::new();
        loop {
            let c = self.char()?;
            if value.len() == STRING - 1 {
                return Err(format!("a value is longer than {}", STRING - 2));
            }
            if c == quote {
                return Ok((text(value)?, self.char()?));
            }
            value.push(c);
        }
    }

    /// The next tag; none at the end of the file.
    fn tag(&mut self) -> Result<Option<(Kind, Node)>> {
        while self
            .text
            .get(self.at)
            .is_some_and(|c| matches!(c, b' ' | b'\n' | b'\r'))
        {
            self.at += 1;
        }
        if self.at >= self.text.len() {
            return Ok(None);
        }
        if self.char()? != b'<' {
            return Err(format!("'<' expected at byte {}", self.at - 1));
        }
        let (tag, None, mut last) = self.token()? else {
            return Err("a value instead of a tag".to_owned());
        };
        if tag.is_empty() && last == b'/' {
            let (tag, None, b'>') = self.token()? else {
                return Err("an end tag with more in it".to_owned());
            };
            return Ok(Some((
                Kind::Close,
                Node {
                    tag,
                    ..Node::default()
                },
            )));
        }
        let mut node = Node {
            tag,
            ..Node::default()
        };
        while last == b' ' {
            let (name, value, next) = self.token()?;
            let value = value.ok_or(format!("attribute {name:?} of {} has no value", node.tag))?;
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
                return Err(format!("attribute name {name:?} of {}", node.tag));
            }
            if node.get(&name).is_some() || node.attributes.len() == ATTRIBUTES {
                return Err(format!(
                    "{} has {name} twice, or more than {ATTRIBUTES} attributes",
                    node.tag
                ));
            }
            node.attributes.push((name, value));
            last = next;
        }
        let mut kind = Kind::Open;
        if last == b'/' {
            kind = Kind::Single;
            last = self.token()?.2;
        }
        if last != b'>' {
            Err(format!("'>' expected in {}", node.tag))
        } else {
            Ok(Some((kind, node)))
        }
    }

    fn children(&mut self, parent: Option<&str>) -> Result<Vec<Node>> {
        let mut children = Vec::new();
        loop {
            if self.nodes == NODES {
                return Err(format!("room for {NODES} nodes is full"));
            }
            let Some((kind, mut node)) = self.tag()? else {
                return if parent.is_some() {
                    Err("unterminated".to_owned())
                } else {
                    Ok(children)
                };
            };
            if kind == Kind::Close {
                return if parent == Some(&node.tag) {
                    Ok(children)
                } else {
                    Err(format!("</{}>", node.tag))
                };
            }
            if !allowed(parent).contains(&node.tag.as_str()) {
                return Err(format!("{} below {parent:?}", node.tag));
            }
            if children.len() == CHILDREN {
                return Err(format!("more than {CHILDREN} children"));
            }
            self.nodes += 1;
            if kind == Kind::Open {
                node.children = self.children(Some(&node.tag.clone()))?;
            }
            children.push(node);
        }
    }
}

fn text(bytes: Vec<u8>) -> Result<String> {
    let text = String::from_utf8(bytes).map_err(|e| e.to_string())?;
    if text.contains(|c: char| c.is_control() || matches!(c, '<' | '>' | '&')) {
        Err(format!("{text:?}"))
    } else {
        Ok(text)
    }
}

/// What the graph is built of (src/graph/topo.cc), and what would make it wrong without a word.
fn graph(system: &Node) -> Result<()> {
    let need = |node: &Node, names: &[&str]| {
        let missing = names.iter().find(|n| node.get(n).is_none());
        missing.map_or(Ok(()), |n| Err(format!("a {} has no {n}", node.tag)))
    };
    if system.get("version") != Some("1") {
        return Err("version".to_owned());
    }
    let (mut addresses, mut names, mut numas) = (Vec::new(), Vec::new(), Vec::new());
    for cpu in system.all("cpu") {
        need(cpu, &["numaid", "arch"])?;
        cpu.get("numaid")
            .unwrap_or_default()
            .parse::<i32>()
            .map_err(|e| format!("numaid: {e}"))?;
        numas.push(cpu.get("numaid"));
        if cpu.get("arch") == Some("x86_64") {
            need(cpu, &["vendor", "familyid", "modelid"])?;
        }
        if cpu.children.is_empty() {
            return Err("a cpu with nothing".to_owned());
        }
    }
    for pci in system.all("pci") {
        need(pci, &["class", "busid", "link_speed", "link_width"])?;
        let at = pci.get("busid").unwrap_or_default();
        let shape = |(n, c): (usize, char)| match at.len().checked_sub(n) {
            Some(2) => c == '.',
            Some(5 | 8) => c == ':',
            _ => matches!(c, '0'..='9' | 'a'..='f'),
        };
        if !(12..=16).contains(&at.len()) || !at.chars().enumerate().all(shape) {
            return Err(format!("busid {at:?}"));
        }
        addresses.push(at);
        let bridge = pci.get("class").is_some_and(|c| c.starts_with("0x0604"));
        if bridge && !pci.children.iter().any(|c| c.tag == "pci") {
            return Err(format!("{at} is a switch with nothing below it"));
        }
    }
    for net in system.all("net") {
        names.push(net.get("name").ok_or("a net has no name")?);
    }
    for mut list in [addresses, names] {
        list.sort_unstable();
        if let Some(two) = list.windows(2).find(|two| two[0] == two[1]) {
            return Err(format!("{} twice", two[0]));
        }
    }
    numas.sort_unstable();
    if numas.windows(2).any(|two| two[0] == two[1]) {
        Err("a NUMA node twice".to_owned())
    } else {
        Ok(())
    }
}
