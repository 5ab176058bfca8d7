//! Hosts of public reports, re-made: a folder each below tests/cases/reports, with the host as what
//! is different of one of tests/cases/hosts, the command lines, and what they print. A line may
//! begin with variables. `UPDATE_GOLDEN=1` writes what is printed; read the diff.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use testkit::Said;

/// What the lines of a case print, each behind itself.
fn said(case: &Path) -> String {
    let host: Value = testkit::golden::host(case);
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("host.json");
    fs::write(&file, host.to_string()).unwrap();
    let lines = fs::read_to_string(case.join("commands")).unwrap();
    let mut all = String::new();
    for line in lines.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let count = words.iter().take_while(|w| w.starts_with("NCCL_")).count();
        let pairs = words[..count]
            .iter()
            .map(|pair| pair.split_once('=').unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        let command = command
            .env_clear()
            .envs(pairs)
            .args(["--config", "/dev/null", "--run-dir"])
            .args([work.path(), Path::new("--state-dir"), work.path()])
            .args(&words[count..])
            .arg("--snapshot")
            .arg(&file);
        let Said { code, out, err } = testkit::run(command, "");
        all += &format!("$ {line}\n{out}{err}exit {}\n\n", code.unwrap());
    }
    all
}

#[test]
fn hosts_of_reports_get_the_right_answer() {
    let mut wrong = Vec::new();
    for case in testkit::golden::cases("reports", 8) {
        let (file, text) = (case.join("expected.txt"), said(&case));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&file, &text).unwrap();
        }
        if fs::read_to_string(&file).unwrap_or_default() != text {
            wrong.push(format!("{}:\n{text}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
