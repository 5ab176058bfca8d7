//! Which runtime is started.

use super::*;

#[test]
fn the_runtime_is_found_or_nothing_happens() {
    alone(|host| {
        host.rails(1);
        let fake = Fake::new(host, "");
        let text = fake.config(&spec(json!({"rdmaprep.io/plan": "auto"})));
        let runtime = |value: &str| host.configure(&format!("runtime = {value:?}"));
        let own = env!("CARGO_BIN_EXE_rdmaprep");
        let (link, plain) = (fake.dir.join("link"), fake.dir.join("plain"));
        symlink(own, &link).unwrap();
        fs::write(&plain, "").unwrap();
        fake.script("ring", &format!("exec -a rdmaprep-runtime {own} \"$@\""));
        fake.script(
            "circle",
            &format!("(exec -a rdmaprep-runtime {own} \"$@\"); exit $?"),
        );
        sh(&format!(
            "sed -i 's,/bin/sh,/bin/bash,' {0}/ring {0}/circle",
            fake.dir.display()
        ));
        fake.script("broken", "");
        sh(&format!(
            "sed -i 's,/bin/sh,/nonexistent,' {}/broken",
            fake.dir.display()
        ));
        for (value, word) in [
            ("/nonexistent/runc", "/nonexistent/runc"),
            ("no-such-runtime", "no-such-runtime in PATH"),
            ("bin/runc", "neither a name nor an absolute path"),
            (plain.to_str().unwrap(), "is no program"),
            (fake.dir.to_str().unwrap(), "is no program"),
            (own, "is rdmaprep itself"),
            (link.to_str().unwrap(), "is rdmaprep itself"),
            (fake.dir.join("broken").to_str().unwrap(), "running "),
        ] {
            runtime(value);
            let said = fake.create(host);
            assert_eq!(said.code, Some(2), "{value}: {said:?}");
            assert!(
                fake.logged().1.contains(word),
                "{value}: {:?}",
                fake.logged()
            );
            assert_eq!(
                (fake.now(), fake.seen("args")),
                (text.clone(), None),
                "{value}"
            );
            assert!(!ours(host).contains("/plans/"), "{value}: {}", ours(host));
        }
        // A script that leads back to us: it would never end.
        fake.config(&spec(json!({})));
        for script in ["ring", "circle"] {
            runtime(fake.dir.join(script).to_str().unwrap());
            assert_eq!(fake.create(host).code, Some(2));
            assert!(fake.logged().1.contains("has led back to it") && fake.seen("args").is_none());
        }
        // Containers are stopped whatever else is wrong in the config file, but only by a runtime
        // that it names without doubt.
        host.configure(&format!(
            "runtime = {:?}\nno_such_key = 1",
            fake.dir.join("runc")
        ));
        assert_eq!(
            run(shim(host, "rdmaprep-runtime").args(["delete", "id"]), "").code,
            Some(37)
        );
        fs::write(&host.config, "runtime = \"runc\" \"crun\"").unwrap();
        run(shim(host, "rdmaprep-runtime").args(["delete", "id"]), "").fails(2, &["config.toml"]);
        // A link to us in PATH is passed over.
        host.configure("");
        let first = fake.dir.join("first");
        fs::create_dir(&first).unwrap();
        symlink(own, first.join("runc")).unwrap();
        let path = format!("{}:{}", first.display(), fake.dir.display());
        assert_eq!(
            run(
                shim(host, "rdmaprep-runtime")
                    .env("PATH", format!("{path}:/bin"))
                    .arg("state"),
                ""
            )
            .code,
            Some(37)
        );
        assert!(fake.seen("args").unwrap().contains("/fake/runc\0state\0"));
        // Our name chooses, too.
        fs::rename(fake.dir.join("runc"), fake.dir.join("crun")).unwrap();
        let said = run(
            shim(host, "/usr/bin/rdmaprep-runtime-crun")
                .env("PATH", format!("{path}:/bin"))
                .arg("state"),
            "",
        );
        assert_eq!(said.code, Some(37), "{said:?}");
        run(shim(host, "rdmaprep-runtime-sh").args(["-c", "true"]), "")
            .fails(2, &["names no known runtime"]);
    });
}

/// Processes in between hide from each of us that it was called by another one.
#[test]
fn a_circle_of_runtimes_ends_and_a_wrapper_works() {
    alone(|host| {
        let fake = Fake::new(host, "");
        let own = env!("CARGO_BIN_EXE_rdmaprep");
        // One that leads back by processes in between: the eighth of us ends it, and its error is
        // that of all.
        let count = fake.dir.join("count");
        fake.script(
            "long",
            &format!(
                "echo >> {}; bash -c '(exec -a rdmaprep-runtime {own} \"$@\"); exit $?' \
                bash \"$@\"; exit $?",
                count.display()
            ),
        );
        let runtime = |value: &str| host.configure(&format!("runtime = {value:?}"));
        runtime(fake.dir.join("long").to_str().unwrap());
        let mut bounded = Command::new("timeout");
        let called = shim(host, "rdmaprep-runtime");
        bounded
            .args([
                "60",
                "bash",
                "-c",
                "exec -a rdmaprep-runtime \"$@\"",
                "bash",
                own,
                "state",
                "id",
            ])
            .env_clear();
        bounded.envs(
            called
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        run(&mut bounded, "").fails(2, &["has led back to it 8 times"]);
        assert_eq!(fs::read_to_string(&count).unwrap().lines().count(), 8);
        // A wrapper that calls us once, as one for each engine in another one's container does, is
        // none.
        let inner = format!(
            "bash -c '(RDMAPREP_CONFIG={}/inner.toml exec -a rdmaprep-runtime {own} \"$@\"); exit \
            $?' bash \"$@\"; exit $?",
            fake.dir.display()
        );
        fake.script("wrapper", &inner);
        fs::write(
            fake.dir.join("inner.toml"),
            format!("runtime = {:?}", fake.dir.join("runc")),
        )
        .unwrap();
        runtime(fake.dir.join("wrapper").to_str().unwrap());
        assert_eq!(
            run(shim(host, "rdmaprep-runtime").args(["state", "id"]), "").code,
            Some(37)
        );
    });
}
