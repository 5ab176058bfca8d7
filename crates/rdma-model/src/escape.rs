//! Text from elsewhere, escaped for a terminal or a log.

use std::borrow::Cow;

/// Columns that a table may take. Settings that are made to be copied stay on one line, however
/// long.
pub const WIDTH: u16 = 100;

/// Whether all of it are ASCII letters, digits and these signs.
pub fn is_plain(text: &str, signs: &[u8]) -> bool {
    text.bytes()
        .all(|b| b.is_ascii_alphanumeric() || signs.contains(&b))
}

/// `1 NIC`, `2 NICs`.
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// A word of a command that is pasted into a shell: bare where that is safe.
pub fn shell_word(text: &str) -> String {
    if !text.is_empty() && is_plain(text, b"-_.") && !text.starts_with('-') {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Escapes one line: every character that could steer a terminal or forge a line becomes Rust's
/// escape of it (`\n`, `\u{1b}`).
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| {
            if is_unsafe(c) {
                c.escape_default().to_string()
            } else {
                c.to_string()
            }
        })
        .collect()
}

/// Escapes text of several lines; line ends and tabs stay.
pub fn printable_lines(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        let cells: Vec<String> = line.split('\t').map(printable).collect();
        lines += &cells.join("\t");
        lines.push('\n');
    }
    lines
}

/// At most that many characters of it, and a mark where there are more.
pub fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// Whether a character is a control, or a mark that reverses or hides what stands beside it
/// (Unicode's format characters).
pub fn is_unsafe(c: char) -> bool {
    let marks = [
        '\u{200b}'..='\u{200f}',
        '\u{2028}'..='\u{202e}',
        '\u{2060}'..='\u{206f}',
        '\u{feff}'..='\u{feff}',
    ];
    c.is_control() || marks.iter().any(|m| m.contains(&c))
}
