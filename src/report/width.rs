//! How wide texts are.

use std::sync::atomic::{AtomicU16, Ordering};

use super::WIDTH;

/// Less is not read as lines, more not as one.
const MIN_WIDTH: u16 = 60;
const MAX_WIDTH: u16 = 140;

/// Columns of a text. A file has [`WIDTH`] of them, whatever terminal it is written from.
static COLUMNS: AtomicU16 = AtomicU16::new(WIDTH);

/// Makes texts as wide as the terminal that they go to, within what can be read.
pub fn fit(terminal: u16) {
    COLUMNS.store(terminal.clamp(MIN_WIDTH, MAX_WIDTH), Ordering::Relaxed);
}

pub(super) fn width() -> u16 {
    COLUMNS.load(Ordering::Relaxed)
}
