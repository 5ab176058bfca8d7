//! The command lines of runtimes.

use super::*;

fn described(asked: &RuntimeCommand) -> String {
    let config = asked
        .config
        .as_ref()
        .map_or("none".to_owned(), |path| path.display().to_string());
    let log = asked
        .log
        .as_ref()
        .map(|path| format!(", log {}", path.display()));
    let json = if asked.json { ", json" } else { "" };
    format!("{config}{}{json}", log.unwrap_or_default())
}

#[test]
fn every_form_of_a_command_line() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/shim/args.txt");
    let golden = fs::read_to_string(path).unwrap();
    let mut now = String::new();
    for line in golden.lines() {
        let form = line.split_once(" -> ").map_or(line, |(form, _)| form);
        if form.is_empty() || line.starts_with('#') {
            now += &format!("{line}\n");
            continue;
        }
        let words: Vec<OsString> = form
            .split(' ')
            .map(|word| if word == "''" { "" } else { word }.into())
            .collect();
        now += &format!(
            "{form} -> {}\n",
            described(&shim::read(Path::new(&words[0]), &words[1..]))
        );
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path, &now).unwrap();
    }
    testkit::same("what is read of command lines", &golden, &now);
}

proptest! {
    /// Whatever else stands there: the last `--bundle` before the id counts, and no word makes it
    /// panic.
    #[test]
    fn a_bundle_is_found_among_other_options(
        program in "runc|crun|runsc|youki|x",
        before in prop::collection::vec("--root=/[a-z]{1,5}|--debug|--log=/[a-z]|--systemd-cgroup",
            0..4),
        own in prop::collection::vec("--pid-file=/[a-z \
            ]{1,5}|--console-socket=/[a-z]|--no-pivot|--bundle=/[a-z]{1,5}", 0..5),
        bundle in "/[a-zA-Z =-]{1,9}",
    ) {
        let all = before.into_iter().chain(["create".to_owned()]).chain(own);
        let all = all.chain(["--bundle".to_owned(), bundle.clone(), "id".to_owned()]);
        let asked = shim::read(Path::new(&program), &all.map(OsString::from).collect::<Vec<_>>());
        prop_assert_eq!(asked.config, Some(Path::new(&bundle).join("config.json")));
        prop_assert_eq!(asked.id.as_deref(), Some("id"));
    }

    #[test]
    fn any_words_are_read(
        program in "runc|crun|runsc|youki",
        words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 0..8),
    ) {
        shim::read(Path::new(&program),
            &words.into_iter().map(OsString::from_vec).collect::<Vec<_>>());
    }
}

fn call(words: &[&str]) -> Option<Call> {
    Call::parse(words.iter().map(OsString::from))
}

#[test]
fn it_is_a_runtime_by_its_name_alone() {
    let asked = |named: Option<&str>, args: &[&str]| {
        Some(Call {
            named: named.map(str::to_owned),
            args: args.iter().map(OsString::from).collect(),
        })
    };
    assert_eq!(
        call(&["rdmaprep-runtime", "--version"]),
        asked(None, &["--version"])
    );
    assert_eq!(call(&["/usr/bin/rdmaprep-runtime"]), asked(None, &[]));
    assert_eq!(
        call(&["/x/rdmaprep-runtime-crun", "run", "runtime"]),
        asked(Some("crun"), &["run", "runtime"])
    );
    assert_eq!(
        call(&["rdmaprep", "runtime", "--config", "x"]),
        asked(None, &["--config", "x"])
    );
    for own in [
        &["rdmaprep", "prepare", "runtime"][..],
        &["rdmaprep"],
        &["rdmaprep", "--config", "runtime"],
        &["/rdmaprep-runtime/rdmaprep", "spec"],
        &["rdmaprep-runtimes", "x"],
        &[],
    ] {
        assert_eq!(call(own), None, "{own:?}");
    }
}

#[test]
fn config_file_and_our_name_alone_choose_the_program() {
    let names =
        |names: &[&str]| RuntimeChoice::Names(names.iter().map(|n| (*n).to_owned()).collect());
    for (named, configured, wanted) in [
        (None, None, names(&["runc", "crun"])),
        (None, Some("crun"), names(&["crun"])),
        (
            None,
            Some("/opt/runc"),
            RuntimeChoice::Path("/opt/runc".into()),
        ),
        (Some("runsc"), None, names(&["runsc"])),
        (Some("runsc"), Some("/opt/runc"), names(&["runsc"])),
        (
            Some("runsc"),
            Some("/opt/runsc"),
            RuntimeChoice::Path("/opt/runsc".into()),
        ),
        (
            Some("nvidia"),
            Some("runc"),
            names(&["nvidia-container-runtime"]),
        ),
    ] {
        assert_eq!(
            shim::choose_runtime(named, configured).unwrap(),
            wanted,
            "{named:?} {configured:?}"
        );
    }
    for (named, configured) in [
        (None, Some("")),
        (None, Some("./runc")),
        (None, Some("../../tmp/runc")),
        (Some("crun"), Some("bin/crun")),
        (Some("sh"), None),
        (Some(""), None),
        (Some("../../tmp/x"), None),
    ] {
        assert!(
            shim::choose_runtime(named, configured).is_err(),
            "{named:?} {configured:?}"
        );
    }
    let places = shim::places(&["runc".into(), "crun".into()], OsStr::new("/a:rel::/b:."));
    assert_eq!(
        places,
        ["/a/runc", "/b/runc", "/a/crun", "/b/crun"].map(PathBuf::from)
    );
    // What is wrong elsewhere must not keep containers from being stopped.
    assert_eq!(
        ConfigFile::new("runtime = \"crun\"\nno_such_key = 1")
            .shim()
            .unwrap()
            .runtime
            .as_deref(),
        Some("crun")
    );
    assert!(
        ConfigFile::new("runtime = 7").shim().is_err()
            && ConfigFile::new("runtime = ").shim().is_err()
    );
}
