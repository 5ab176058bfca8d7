//! Text from elsewhere, escaped for a terminal or a log.

use std::borrow::Cow;

/// Columns that a table may take. Settings that are made to be copied stay on one line, however
/// long.
pub const WIDTH: u16 = 100;

/// A word of a command that is pasted into a shell: bare where that is safe.
pub fn shell_word(text: &str) -> String {
    let plain = !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if plain && !text.starts_with('-') {
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
    let line = |line: &str| {
        line.split('\t')
            .map(printable)
            .collect::<Vec<_>>()
            .join("\t")
            + "\n"
    };
    text.lines().map(line).collect()
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
