//! What README tells from the types is regenerated and compared; `UPDATE_GOLDEN=1` rewrites it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use rdmaprep::fault::Fault;

/// The part of `text` between a section's markers.
fn section<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let start = text.find(begin).expect(begin) + text[text.find(begin).unwrap()..].find('\n').unwrap() + 1;
    let length = text[start..].find(end).expect(end);
    &text[start..start + length]
}

#[test]
fn exit_codes_in_readme_are_those_of_the_program() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let readme = std::fs::read_to_string(path).unwrap();
    let mut table = "| code | meaning |\n|---|---|\n| 0 | done, or nothing to do |\n".to_owned();
    table.extend(Fault::ALL.iter().map(|f| format!("| {} | {} |\n", f.code(), f.meaning())));
    let now = section(&readme, "<!-- exit-codes", "<!-- /exit-codes -->");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(
            path,
            readme.replacen(&format!("fault.rs -->\n{now}<!-- /exit"), &format!("fault.rs -->\n{table}<!-- /exit"), 1),
        )
        .unwrap();
        return;
    }
    assert_eq!(now, table, "run the tests once with UPDATE_GOLDEN=1");
}

#[test]
fn readme_stays_short() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    assert!(readme.lines().count() <= 200);
}
