//! The examples and the ready-made hook definitions are what the program reads.

use std::path::PathBuf;

use rdmaprep::cli::{CdiCommand, Cli, Command};
use rdmaprep::kernel::process::capabilities::KEPT;
use rdmaprep::oci::state::State;

/// Files below a folder of the repository whose names begin like this, with their texts.
fn files(folder: &str, prefix: &str) -> Vec<(PathBuf, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    paths.retain(|p| p.file_name().unwrap().to_str().unwrap().starts_with(prefix));
    paths.sort();
    assert!(!paths.is_empty(), "no {prefix}* there");
    paths
        .into_iter()
        .map(|p| (p.clone(), std::fs::read_to_string(p).unwrap()))
        .collect()
}

#[test]
fn states_of_the_runtimes_are_read() {
    for (path, text) in files("examples", "state-") {
        let state =
            State::parse(text.as_bytes()).unwrap_or_else(|e| panic!("{}: {e:#}", path.display()));
        let creating = path.to_str().unwrap().contains("create");
        assert_eq!(state.init().is_ok(), creating, "{}", path.display());
    }
}

#[test]
fn hook_definitions_call_a_stage_that_exists() {
    for (path, text) in [
        files("hooks/oci-hooks.d", "rdmaprep-"),
        files("hooks/gvisor-hooks.d", "rdmaprep-"),
    ]
    .concat()
    {
        let hook: serde_json::Value = serde_json::from_str(&text).unwrap();
        let args: Vec<&str> = hook["hook"]["args"]
            .as_array()
            .unwrap()
            .iter()
            .map(|a| a.as_str().unwrap())
            .collect();
        let Command::Hook(parsed) = Cli::read(&args).unwrap().command else {
            panic!("{}", path.display())
        };
        assert_eq!(
            hook["stages"],
            serde_json::json!([parsed.stage.name()]),
            "{}",
            path.display()
        );
        let when = &hook["when"]["annotations"];
        let (key, value) = when.as_object().unwrap().iter().next().unwrap();
        assert!(
            regex::Regex::new(key)
                .unwrap()
                .is_match(rdmaprep::oci::edit::PLAN_ANNOTATION)
        );
        assert!(
            regex::Regex::new(value.as_str().unwrap())
                .unwrap()
                .is_match("default")
        );
    }
}

/// podman's own stage has a folder of its own: an engine that does not know it refuses all that is
/// beside it.
#[test]
fn the_precreate_hook_edits_and_stands_alone() {
    let (path, text) = files("hooks/podman-hooks.d", "").remove(0);
    let hook: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        hook["stages"],
        serde_json::json!(["precreate"]),
        "{}",
        path.display()
    );
    let args: Vec<&str> = hook["hook"]["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a.as_str().unwrap())
        .collect();
    assert!(matches!(
        Cli::read(&args).unwrap().command,
        Command::Spec(_)
    ));
    let others = [
        files("hooks/oci-hooks.d", ""),
        files("hooks/gvisor-hooks.d", ""),
    ]
    .concat();
    assert!(others.iter().all(|(_, text)| !text.contains("precreate")));
    let when =
        |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["when"].clone();
    assert!(others.iter().all(|(_, other)| when(other) == hook["when"]));
}

#[test]
fn units_call_what_exists_and_allow_what_it_needs() {
    for (path, text) in files("hooks/systemd", "rdmaprep-")
        .into_iter()
        .filter(|(_, t)| t.contains("[Service]"))
    {
        let value = |key: &str| {
            text.lines()
                .find_map(|l| l.strip_prefix(key))
                .unwrap_or_else(|| panic!("{key} {path:?}"))
        };
        let args: Vec<&str> = value("ExecStart=").split(' ').collect();
        let kept: Vec<&str> = match Cli::read(&args).unwrap().command {
            Command::Restore(parsed) if parsed.all => {
                KEPT.iter().map(|(_, name, _)| *name).collect()
            }
            Command::Prepare(parsed) if parsed.configured && parsed.keep => {
                vec!["CAP_NET_ADMIN", "CAP_SYS_ADMIN"]
            }
            // It looks into namespaces, and changes nothing there.
            Command::Metrics(parsed) if parsed.textfile.is_some() => KEPT
                .iter()
                .map(|(_, name, _)| *name)
                .filter(|name| value("CapabilityBoundingSet=").contains(name))
                .collect(),
            // It looks as a hook does, and writes a file into a folder that systemd makes.
            Command::Cdi(CdiCommand::Generate(parsed)) if parsed.keep => {
                vec!["CAP_NET_ADMIN", "CAP_SYS_ADMIN"]
            }
            _ => panic!("{}", path.display()),
        };
        assert_eq!(
            value("CapabilityBoundingSet="),
            kept.join(" "),
            "{}",
            path.display()
        );
        // A mount namespace would keep the pins of network namespaces.
        let hides = [
            "ProtectSystem=",
            "ProtectHome=",
            "ProtectKernel",
            "ProtectControlGroups=",
            "ProtectProc=",
            "Private",
        ];
        let restores = ["restore", "metrics"]
            .iter()
            .any(|word| args.contains(word));
        assert!(
            !restores || !text.lines().any(|l| hides.iter().any(|h| l.starts_with(h))),
            "{}",
            path.display()
        );
    }
}

#[test]
fn stored_forms_are_read() {
    let read = |name: &str| files("examples", name).remove(0).1;
    let plan: rdmaprep::plan::Plan = serde_json::from_str(&read("plan.json")).unwrap();
    let report: rdmaprep::report::Report = serde_json::from_str(&read("report.json")).unwrap();
    assert_eq!(
        plan.nics.iter().map(|n| n.name()).collect::<Vec<_>>(),
        report.nics.iter().collect::<Vec<_>>()
    );
}

#[test]
fn a_snapshot_can_be_fed_back() {
    let snapshot = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/snapshot.json");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_rdmaprep"))
        .args([
            "prepare",
            "--dry-run",
            "--snapshot",
            snapshot,
            "--config",
            "/dev/null",
        ])
        .args(["--state-dir", "/nonexistent", "--run-dir", "/nonexistent"])
        .env_clear()
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        text.lines().last(),
        Some("RDMA_PEER_IFACES=\"rdma0 rdma1\""),
        "{text}"
    );
    assert!(text.contains("\nNCCL_IB_HCA==rxe0,rxe1"), "{text}");
}
