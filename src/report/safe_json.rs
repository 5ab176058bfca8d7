//! JSON that cannot steer a terminal, whatever a host or a container has put into them.

use std::io;

use rdma_model::escape;
use serde::Serialize;

/// Pretty JSON that is safe on a terminal too: JSON itself would let DEL and C1 controls through.
pub fn json(value: &impl Serialize) -> anyhow::Result<String> {
    let mut text = Vec::new();
    write_json(&mut text, value)?;
    Ok(String::from_utf8(text)?)
}

/// Writes such JSON piece by piece: for what is large.
pub fn write_json(out: impl io::Write, value: &impl Serialize) -> serde_json::Result<()> {
    serde_json::to_writer_pretty(Safe(out), value)
}

/// Escapes everything that could steer a terminal but the ends of lines: of those that JSON has in
/// its strings, serde_json has escaped each. It writes no piece of a character.
struct Safe<W>(W);

impl<W: io::Write> io::Write for Safe<W> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let mut rest = std::str::from_utf8(piece).map_err(io::Error::other)?;
        while let Some(at) = rest.find(|c| escape::is_unsafe(c) && c != '\n') {
            let (plain, after) = rest.split_at(at);
            let mut after = after.chars();
            let code = after.next().map_or(0, u32::from);
            write!(self.0, "{plain}\\u{code:04x}")?;
            rest = after.as_str();
        }
        self.0.write_all(rest.as_bytes())?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
