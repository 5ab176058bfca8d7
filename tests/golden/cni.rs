//! Calls of CNI that end before anything is looked at: tests/cases/cni/NAME/{call,config.json} give
//! expected.txt, the exit code and both outputs. A `call` has a variable a line. `UPDATE_GOLDEN=1`
//! rewrites them.

use std::fs;
use std::path::Path;
use std::process::Command;

use testkit::run;

#[test]
fn golden_cases() {
    for dir in testkit::golden::cases("cni", 18) {
        let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
        let call = read("call");
        let variables = call.lines().map(|line| line.split_once('=').unwrap());
        // No folder of this machine is looked into.
        let empty = tempfile::TempDir::new().unwrap();
        let folder = |variable, name: &str| (variable, empty.path().join(name));
        let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        program.env_clear().envs(variables).envs([
            folder("RDMAPREP_RUN_DIR", "run"),
            folder("RDMAPREP_STATE_DIR", "state"),
            ("RDMAPREP_CONFIG", "/dev/null".into()),
        ]);
        let said = run(&mut program, &read("config.json"));
        let text = format!(
            "exit code {}\n\n{}\n{}",
            said.code.unwrap(),
            said.out,
            said.err
        );
        golden(&dir.join("expected.txt"), &text);
        assert!(
            !empty.path().join("run").exists(),
            "{}: something was written",
            dir.display()
        );
    }
}

fn golden(file: &Path, actual: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(file, actual).unwrap();
    }
    assert_eq!(
        actual,
        fs::read_to_string(file).unwrap(),
        "{}",
        file.display()
    );
}
