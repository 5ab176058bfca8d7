//! Properties of the edits of daemon.json and config.toml.

use super::*;

/// A tree in memory.
#[derive(Clone, Default, PartialEq, Debug)]
struct Files(BTreeMap<String, Content>);

impl ReadTree for Files {
    fn content(&self, path: &str) -> Result<Option<Content>> {
        Ok(self.0.get(path).cloned())
    }
    fn list(&self, folder: &str) -> Result<Vec<String>> {
        let name = |path: &String| Some(path.strip_prefix(folder)?.strip_prefix('/')?.to_owned());
        Ok(self
            .0
            .keys()
            .filter_map(name)
            .filter(|name| !name.contains('/'))
            .collect())
    }
    fn holds(&self, path: &str, words: &str) -> Result<bool> {
        let content = self.content(path)?;
        Ok(matches!(content, Some(Content::Text(text)) if text.contains(words)))
    }

    fn exists(&self, path: &str) -> bool {
        self.0.keys().any(|p| {
            p.strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
    fn followed(&self, path: &str) -> Result<String> {
        Ok(path.to_owned())
    }
}

impl Files {
    fn one(path: &str, text: &str) -> Files {
        Files([(path.to_owned(), Content::Text(text.to_owned()))].into())
    }
    fn text(&self, path: &str) -> String {
        match &self.0[path] {
            Content::Text(text) => text.clone(),
            other => panic!("{other:?}"),
        }
    }
    fn after(mut self, changes: &[Change]) -> Files {
        for change in changes {
            assert_eq!(self.0.get(&change.path), change.before.as_ref());
            match &change.after {
                Some(content) => drop(self.0.insert(change.path.clone(), content.clone())),
                None => drop(self.0.remove(&change.path)),
            }
        }
        self
    }
    fn installed(&self, target: Target) -> Result<(Files, Installation)> {
        let wanted = InstallRequest {
            targets: vec![target],
            program: "/usr/bin/rdmaprep".into(),
            ..InstallRequest::default()
        };
        let done = install::install(&wanted, self, &Manifest::default())?;
        let after = self.clone().after(&done.changes);
        let again = install::install(&wanted, &after, &done.manifest)?;
        assert_eq!(
            (again.changes, &again.manifest),
            (Vec::new(), &done.manifest),
            "twice is not once"
        );
        Ok((after, done))
    }
    fn uninstalled(self, manifest: &Manifest) -> Files {
        let removal = install::uninstall(manifest, &self, false).unwrap();
        assert_eq!(removal.left, Vec::<String>::new());
        self.after(&removal.done.changes)
    }
}

const DAEMON: &str = "/etc/docker/daemon.json";

const CONFIG: &str = "/etc/containerd/config.toml";

/// What may be in daemon.json.
fn daemon() -> impl Strategy<Value = (Value, String)> {
    let scalar = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[ -~]{0,8}".prop_map(Value::from)
    ];
    let value = scalar.prop_recursive(3, 16, 4, |inner| {
        let map = prop::collection::vec(("[a-z]{1,6}", inner.clone()), 0..4)
            .prop_map(|m| Value::Object(m.into_iter().collect()));
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::Array),
            map
        ]
    });
    let runtimes = prop::option::of(prop::collection::vec(("[a-q]{1,6}", value.clone()), 0..3));
    let rest = prop::collection::vec(("[a-q]{1,6}", value), 0..5);
    (rest, runtimes, any::<bool>()).prop_map(|(rest, runtimes, pretty)| {
        let mut all: serde_json::Map<String, Value> = rest.into_iter().collect();
        let runtimes = runtimes.map(|list| Value::Object(list.into_iter().collect()));
        all.extend(runtimes.map(|r| ("runtimes".to_owned(), r)));
        let value = Value::Object(all);
        let text = if pretty {
            serde_json::to_string_pretty(&value)
        } else {
            serde_json::to_string(&value)
        };
        (value, text.unwrap())
    })
}

/// A file that `install` created and an administrator filled keeps the version that it was filled
/// for.
#[test]
fn what_was_added_to_a_file_of_ours_keeps_its_version() {
    let root = TempDir::new().unwrap();
    let run = |command: &str, more: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        let output = program
            .env_clear()
            .arg(command)
            .arg("--root")
            .arg(root.path())
            .args(more)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    run(
        "install",
        &["--containerd", "--program", "/usr/bin/rdmaprep"],
    );
    let path = root.path().join("etc/containerd/config.toml");
    let own = "[plugins.\"io.containerd.grpc.v1.cri\".registry]\nconfig_path = \"/etc/certs\"\n";
    let made = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{made}{own}")).unwrap();
    run("uninstall", &[]);
    assert_eq!(
        fs::read_to_string(&path).unwrap().trim(),
        format!("version = 2\n{own}").trim()
    );
}

/// What may be in config.toml: sections of others, comments, and ours in four forms.
fn config() -> impl Strategy<Value = String> {
    let section = prop_oneof![
        Just(""),
        Just("[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = \"/usr/lib/cni\" # there\n"),
        Just(
            "[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    # why\n    sandbox_image = \
            'x'\n"
        ),
        Just("[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes]\n  # none yet\n"),
    ];
    let head = prop_oneof![
        Just(""),
        Just("# a file\n"),
        Just("imports = []\n"),
        Just("imports = [ '/x.toml', ] # two\n")
    ];
    let other = prop_oneof![
        Just(""),
        Just("[grpc]\n  gid = 7\n"),
        Just("\n# end\n[debug]\nlevel='info'\n\n\n")
    ];
    let root = prop_oneof![Just("root = '/r'\n"), Just("oom_score=-999\r\n"), Just("")];
    (head, root, other.clone(), section, other).prop_filter_map(
        "twice",
        |(head, root, a, section, b)| {
            (a.is_empty() || a != b).then(|| format!("{head}version = 2\n{root}{a}{section}{b}"))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn daemon_json_comes_back((_, text) in daemon()) {
        let before = Files::one(DAEMON, &text);
        let (after, done) = before.installed(Target::Docker).unwrap();
        let new: Value = serde_json::from_str(&after.text(DAEMON)).unwrap();
        prop_assert_eq!(&new["runtimes"]["rdmaprep"]["path"], "/usr/bin/rdmaprep-runtime");
        prop_assert_eq!(after.uninstalled(&done.manifest), before);
    }

    /// An edit made between install and uninstall is kept, wherever it is.
    #[test]
    fn what_is_added_to_daemon_json_stays(
        (value, text) in daemon(), below in any::<bool>(), replaced in any::<bool>(),
    ) {
        let (after, done) = Files::one(DAEMON, &text).installed(Target::Docker).unwrap();
        let edit = |mut value: Value| {
            let at = if below { &mut value["runtimes"] } else { &mut value };
            at["zeta"] = json!({"path": "/z"});
            if replaced && value.get("a").is_some() {
                value["a"] = json!([null]);
            }
            value
        };
        let edited = edit(serde_json::from_str(&after.text(DAEMON)).unwrap());
        let mut files = after;
        files.0
            .insert(DAEMON.into(), Content::Text(serde_json::to_string_pretty(&edited).unwrap()));
        let end = files.uninstalled(&done.manifest);
        let end: Value = serde_json::from_str(&end.text(DAEMON)).unwrap();
        prop_assert_eq!(end, edit(value));
    }

    #[test]
    fn config_toml_comes_back(text in config()) {
        let before = Files::one(CONFIG, &text);
        let (after, done) = before.installed(Target::Containerd).unwrap();
        let all: toml::Table = after.0.keys().filter(|path| path.ends_with(".toml")).map(|path| {
            let table: toml::Table = toml::from_str(&after.text(path)).unwrap();
            (path.clone(), toml::Value::Table(table))
        }).collect();
        let ours = |file: &toml::Value| {
            let runtimes = file.get("plugins")?.get("io.containerd.grpc.v1.cri")?.get("containerd")?
                .get("runtimes")?;
            Some(runtimes.get("rdmaprep")?.get("options")?.get("BinaryName")?
                .as_str()? == "/usr/bin/rdmaprep-runtime")
        };
        prop_assert_eq!(all.values().filter_map(ours).collect::<Vec<_>>(), [true]);
        prop_assert_eq!(after.uninstalled(&done.manifest), before);
    }

    /// A comment added since stays, and so does each byte that was there before the install.
    #[test]
    fn what_is_added_to_config_toml_stays(text in config()) {
        let (mut after, done) = Files::one(CONFIG, &text).installed(Target::Containerd).unwrap();
        let edit = |text: &str| format!("{text}\n[zeta] # new\nx = 1\n");
        let edited = edit(&after.text(CONFIG));
        after.0.insert(CONFIG.into(), Content::Text(edited));
        let end = after.uninstalled(&done.manifest);
        let (end, expected) = (end.text(CONFIG), edit(&text));
        prop_assert_eq!(toml::from_str::<toml::Table>(&end).unwrap(),
            toml::from_str::<toml::Table>(&expected).unwrap());
        let comments = |text: &str| text.split('#').skip(1)
            .map(|c| c.lines().next().unwrap().to_owned()).collect::<Vec<_>>();
        prop_assert_eq!(comments(&end), comments(&expected));
    }
}
