//! The tree of /sys that a container gets.

use super::*;

/// The hook as the runtime's child, with the environment that it has.
fn hook(host: &Host, before: &str) -> String {
    let (program, root) = (
        env!("CARGO_BIN_EXE_rdmaprep"),
        host.run.parent().unwrap().display(),
    );
    format!(
        "{before}\n{program} hook createRuntime < {root}/stdin.json > {root}/hook.out 2>&1 || \
        exit 99"
    )
}

#[test]
fn the_runtimes_process_holds_what_the_hook_reads() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        // The files are gone by then.
        let fake = Fake::new(
            host,
            &hook(host, &format!("rm -r {}/views", host.run.display())),
        );
        fake.config(&spec(json!({})));
        fake.create(host);
        let count = |fds: &str| fds.lines().filter(|line| line.contains(" -> ")).count();
        let bare = count(&fake.seen("fds").unwrap());
        let mut c = Container::new("id");
        fake.config(&asking());
        let here = |state: String| state.replace("\"/b\"", &format!("{:?}", fake.bundle));
        fs::write(
            host.run.parent().unwrap().join("stdin.json"),
            here(c.state()),
        )
        .unwrap();
        let said = fake.create(host);
        let hook = fs::read_to_string(host.run.parent().unwrap().join("hook.out"));
        assert_eq!(said.code, Some(37), "{said:?} {hook:?}");
        let report = host.report("id");
        assert_eq!(
            (&report["outcome"], &report["taken"]),
            (&json!("ok"), &json!(["sysfs"])),
            "{report:#}"
        );
        let (env, fds) = (fake.seen("env").unwrap(), fake.seen("fds").unwrap());
        assert!(
            env.contains("RDMAPREP_HANDLES=sysfs=h1.") && fds.contains("memfd:rdmaprep-sysfs"),
            "{env}\n{fds}"
        );
        // Nothing else of ours is open there.
        assert_eq!(count(&fds), bare + 1, "{fds}");
        c.kill();
        host.hook("poststop", &here(c.stopped())).ok();
        host.is_clean();
    });
}

#[test]
fn a_runtime_that_hands_everything_on_is_given_nothing() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let fake = Fake::new(host, "");
        for (name, kept) in [
            ("runc", true),
            ("runsc", false),
            ("crun", true),
            ("youki", false),
            ("mine", false),
        ] {
            let place = fake.dir.join(name);
            if !place.exists() {
                fs::copy(fake.dir.join("runc"), &place).unwrap();
            }
            host.configure(&format!("runtime = {place:?}"));
            fake.config(&asking());
            assert_eq!(fake.create(host).code, Some(37), "{name}");
            assert!(fake.now().contains("createRuntime"), "{name}");
            assert_eq!(
                fake.seen("fds").unwrap().contains("memfd:rdmaprep"),
                kept,
                "{name}"
            );
            assert_eq!(
                fake.seen("env").unwrap().contains("RDMAPREP_HANDLES"),
                kept,
                "{name}"
            );
        }
    });
}

#[test]
fn a_sandbox_gets_a_tree_of_files() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let fake = Fake::new(host, "");
        let runsc = fake.dir.join("runsc");
        fs::copy(fake.dir.join("runc"), &runsc).unwrap();
        // The mounts of ours, by destination.
        let mounts = |program: &str, before: &[&str]| {
            host.configure(&format!("runtime = {:?}", fake.dir.join(program)));
            fake.config(&asking());
            let args = [
                before,
                &["create", "--bundle", fake.bundle.to_str().unwrap(), "id"],
            ]
            .concat();
            assert_eq!(
                run(shim(host, "rdmaprep-runtime").args(args), "").code,
                Some(37)
            );
            let now: Value = serde_json::from_str(&fake.now()).unwrap();
            let views = host.run.join("views").display().to_string();
            let own = |m: &&Value| {
                m["source"]
                    .as_str()
                    .is_some_and(|source| source.starts_with(&views))
            };
            let all = now["mounts"].as_array().unwrap().iter().filter(own);
            all.map(|m| m["destination"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let live = mounts("runc", &[]);
        assert!(
            !live.is_empty() && live.iter().all(|at| at.starts_with("/sys/")),
            "{live:?}"
        );
        assert_eq!(mounts("runsc", &[]), ["/sys"]);
        assert_eq!(mounts("runsc", &["--rdmaproxy"]), [""; 0]);
        // What is asked for stays.
        run(
            &mut host.command(&["prepare", "--ifaces", "r0", "--sysfs", "live"]),
            "",
        )
        .ok();
        assert_eq!(mounts("runsc", &[]), live);
    });
}

#[test]
fn a_handle_of_something_else_is_not_believed() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let own = Process::current().unwrap();
        let links = |name: &str| {
            [(format!("class/infiniband/{name}"), Node::Link("x".into()))]
                .into_iter()
                .collect::<Tree>()
        };
        let evil = sealed(
            "rdmaprep-sysfs",
            Store::view_text(&links("evil")).unwrap().as_bytes(),
        )
        .unwrap();
        let handle = handle_for(&own, &evil).unwrap();
        let config = serde_json::from_str(
            &run(&mut host.command(&["spec"]), &asking().to_string())
                .ok()
                .out,
        )
        .unwrap();
        for (handles, note) in [
            (
                format!("sysfs={handle}"),
                "sysfs is read from its file: what the handle names is another one",
            ),
            (
                format!(
                    "sysfs={}",
                    Handle {
                        ino: handle.ino + 1,
                        ..handle.clone()
                    }
                ),
                "is another object now",
            ),
            (
                format!(
                    "sysfs={}",
                    Handle {
                        fd: 777,
                        ..handle.clone()
                    }
                ),
                "has closed descriptor 777",
            ),
            ("sysfs=nonsense".to_owned(), ""),
            ("=,=,sysfs,,topology=".to_owned(), ""),
        ] {
            let mut c = Container::new("id").bundled(host, &config);
            let said = run(
                host.command(&["hook", "createRuntime"])
                    .env("RDMAPREP_HANDLES", &handles),
                &c.state(),
            );
            said.ok();
            let report = host.report("id");
            assert_eq!(
                (&report["outcome"], report.get("taken")),
                (&json!("ok"), None),
                "{handles}: {report:#}"
            );
            let notes = report["notes"].to_string();
            assert!(
                note.is_empty() || notes.contains(note),
                "{handles}: {notes}"
            );
            c.stop(host).ok();
            host.is_clean();
        }
    });
}

#[test]
fn a_topology_file_places_the_plans_hcas_alone() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let store = Store::new(&host.run, &host.state);
        let own = Process::current().unwrap();
        // Of NICs without an HCA: a file that places one speaks of others.
        for (xml, code) in [
            ("<system><net name=\"mlx5_9\"/></system>", 3),
            ("<system/>", 0),
        ] {
            let tree = topo_file::tree(xml);
            let name = Store::view_name(&tree).unwrap();
            let mut config = asking();
            let source = store.views().join(&name).join(topo_file::FILE);
            config["mounts"]
                .as_array_mut()
                .unwrap()
                .push(json!({"destination": topo_file::PLACE, "source": source}));
            let file = sealed("rdmaprep-topology", xml.as_bytes()).unwrap();
            let handles = format!("topology={}", handle_for(&own, &file).unwrap());
            for (handles, kept) in [(handles.as_str(), false), ("", true)] {
                let json = host.run.join(format!("views/{name}.json"));
                let _ = fs::remove_file(&json);
                if kept {
                    store.save_view(&name, &tree).unwrap();
                }
                let mut c = Container::new("id").bundled(host, &config);
                let said = run(
                    host.command(&["hook", "createRuntime", "--sysfs", "off"])
                        .env("RDMAPREP_HANDLES", handles),
                    &c.state(),
                );
                assert_eq!(said.code, Some(code), "{said:?}");
                let report = host.report("id");
                let taken = if kept {
                    None
                } else {
                    Some(&json!(["topology"]))
                };
                assert_eq!(report.get("taken"), taken, "{report:#}");
                if code != 0 {
                    said.fails(3, &["other HCAs than those of plan default"]);
                }
                c.stop(host).ok();
                host.is_clean();
            }
        }
    });
}
