//! What NCCL's released libraries said, and what `rdmaprep nccl explain` prints.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]
mod judge_support;
mod support;

use judge_support::case::Case;

#[test]
fn explain_says_what_the_libraries_said() {
    let folder = Case::folder();
    let mut names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    assert!(names.len() >= 15, "{} has only {names:?}", folder.display());
    for dir in names {
        let case = Case::read(&dir);
        assert!(case.says.len() >= 5, "{}", dir.display());
        assert_eq!(case.differences(), [""; 0], "{}", dir.display());
    }
}
