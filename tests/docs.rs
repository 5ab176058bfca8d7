//! What README tells from the types is regenerated and compared; `UPDATE_GOLDEN=1` rewrites it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use rdma_model::error_class::ErrorClass;
use rdmaprep::kernel::process::capabilities::KEPT;

/// The part of `text` between a section's markers.
fn section<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let start = text.find(begin).expect(begin) + text[text.find(begin).unwrap()..].find('\n').unwrap() + 1;
    let length = text[start..].find(end).expect(end);
    &text[start..start + length]
}

/// Insists that the section of a file between `<!-- NAME … -->` and `<!-- /NAME -->` is this table.
fn is_told(file: &str, name: &str, table: &str) {
    let path = format!("{}/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    let end = format!("<!-- /{name} -->");
    let now = section(&text, &format!("<!-- {name}"), &end);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text.replacen(&format!("-->\n{now}{end}"), &format!("-->\n{table}{end}"), 1)).unwrap();
        return;
    }
    assert_eq!(now, table, "run the tests once with UPDATE_GOLDEN=1");
}

#[test]
fn exit_codes_in_readme_are_those_of_the_program() {
    let mut table = "| code | meaning |\n|---|---|\n| 0 | done, or nothing to do |\n".to_owned();
    table.extend(ErrorClass::ALL.iter().map(|f| format!("| {} | {} |\n", f.code(), f.meaning())));
    is_told("README.md", "exit-codes", &table);
}

#[test]
fn capabilities_in_security_md_are_those_that_a_hook_keeps() {
    let mut table = "| capability | what for |\n|---|---|\n".to_owned();
    table.extend(KEPT.iter().map(|(_, name, why)| format!("| {name} | {why} |\n")));
    is_told("SECURITY.md", "capabilities", &table);
}

#[test]
fn readme_stays_short() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    assert!(readme.lines().count() <= 200);
}
