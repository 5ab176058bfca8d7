//! What a container asks for by annotations, as the hook gets it.

use super::*;

#[test]
fn a_plan_of_the_host_keeps_no_container_from_starting() {
    alone(|host| {
        host.rails(1);
        let fake = Fake::new(host, "");
        let runtime = fake.dir.join("runc");
        let mut shared = spec(json!({}));
        shared["linux"]["namespaces"] = json!([{"type": "mount"}]);
        for plan in ["default", "auto"] {
            host.configure(&format!("runtime = {runtime:?}\nplan = {plan:?}"));
            let text = fake.config(&shared);
            let said = fake.create(host);
            assert_eq!(said.code, Some(37), "{said:?}");
            assert_eq!(said.err, "");
            let (level, message) = fake.logged();
            assert!(
                level == "warning" && message.contains("left as it is"),
                "{level} {message}"
            );
            assert_eq!(fake.seen("seen").unwrap(), text);
        }
        fake.config(&spec(json!({})));
        assert_eq!(fake.create(host).code, Some(37));
        assert!(
            fake.now().contains("\"rdmaprep.io/plan\""),
            "{}",
            fake.now()
        );
        // One that can have NICs does not start without the host's plan, by any way.
        host.configure(&format!("runtime = {runtime:?}\nplan = \"default\""));
        let text = fake.config(&spec(json!({})));
        assert_eq!(fake.create(host).code, Some(3));
        assert!(
            fake.logged().1.contains("plan default is not stored"),
            "{:?}",
            fake.logged()
        );
        assert_eq!(fake.now(), text);
        run(&mut host.command(&["spec"]), &text).fails(3, &["plan default is not stored"]);
    });
}

/// The hook as a config.json has it, with no more of an environment than some runtimes give.
fn hook_of(host: &Host, config: &str, container: &Container) -> Said {
    let config: Value = serde_json::from_str(config).unwrap();
    let args = config["hooks"]["createRuntime"][0]["args"]
        .as_array()
        .unwrap()
        .clone();
    let args: Vec<&str> = args
        .iter()
        .skip(1)
        .map(|arg| arg.as_str().unwrap())
        .collect();
    run(&mut host.command(&args), &container.state())
}

#[test]
fn a_plan_that_was_not_prepared_is_for_this_container_only() {
    alone(|host| {
        host.rails(2);
        let fake = Fake::new(host, "");
        let edit = |ifaces: &str| {
            fake.config(&spec(json!({"rdmaprep.io/plan": "auto"})));
            let args = ["create", "--bundle", fake.bundle.to_str().unwrap(), "id"];
            run(
                shim(host, "rdmaprep-runtime")
                    .env("RDMA_IFACES", ifaces)
                    .args(args),
                "",
            )
        };
        let edited = |ifaces: &str| {
            let said = edit(ifaces);
            assert_eq!(said.code, Some(37), "{said:?}");
            fake.now()
        };
        let asks = |id: &str| Container::new(id).annotated(json!({"rdmaprep.io/plan": "auto"}));
        let mut first = asks("first");
        run(
            host.command(&["hook", "createRuntime"])
                .env("RDMA_IFACES", "r0"),
            &first.state(),
        )
        .ok();
        // With a NIC less than were named, no container starts.
        edit("r0 r1").fails(
            9,
            &[
                "--ifaces names NICs that cannot be taken",
                "container first holds r0",
            ],
        );
        let less = edited("r1");
        assert!(less.contains("\"--ifaces=r1\""), "{less}");
        first.stop(host).ok();
        let all = edited("r0 r1");
        assert!(all.contains("\"--ifaces=r0,r1\""), "{all}");
        let mut second = asks("second");
        hook_of(host, &all, &second).ok();
        assert_eq!(host.report("second")["nics"], json!(["r0", "r1"]));
        // Nor does one get less than it was edited for.
        second.stop(host).ok();
        let mut third = asks("third");
        hook_of(host, &less, &third).ok();
        assert_eq!(host.report("third")["nics"], json!(["r1"]));
        let fourth = asks("fourth");
        hook_of(host, &all, &fourth).fails(9, &["r1 is held by container third"]);
        third.stop(host).ok();
        host.is_clean();
        assert!(!ours(host).contains("/plans/"), "{}", ours(host));
    });
}

#[test]
fn what_was_asked_reaches_the_hook_as_flags() {
    let cases: [(&[&str], &[&str]); 3] = [
        (&[], &[]),
        (
            &[
                "--ifaces",
                "a b",
                "--ifaces",
                "c",
                "--exclude",
                "-x",
                "--family=6",
                "--sysfs",
                "off",
                "--ib",
            ],
            &[
                "--ifaces=a b,c",
                "--exclude=-x",
                "--family=6",
                "--ib=1",
                "--sysfs=off",
            ],
        ),
        (
            &[
                "--exclude=",
                "--no-auto-skip",
                "--no-nccl-topo",
                "--peer-ifaces=a",
                "--topo=no",
                "--arp-profile",
                "off",
            ],
            &[
                "--exclude=",
                "--peer-ifaces=a",
                "--no-auto-skip",
                "--arp-profile=off",
                "--topo=no",
                "--no-nccl-topo",
            ],
        ),
    ];
    let select = |words: &[&str]| match Cli::read([&["rdmaprep", "spec"], words].concat())
        .unwrap()
        .command
    {
        Subcommand::Spec(args) => args.select,
        other => panic!("{other:?}"),
    };
    for (said, flags) in cases {
        let select_of = select(said);
        assert_eq!(select_of.flags(), flags);
        // They are read as what they were made of.
        let again: Vec<String> = select_of.flags();
        let again = select(&again.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(again.flags(), flags);
    }
}

#[test]
fn the_hosts_own_namespace_by_a_path_is_no_containers() {
    alone(|host| {
        host.rails(1);
        let fake = Fake::new(host, "");
        let place = fake.dir.join("default");
        sh(&format!(
            "touch {0}; mount --bind /proc/self/ns/net {0}",
            place.display()
        ));
        let joining = |mut config: Value| {
            config["linux"]["namespaces"] =
                json!([{"type": "network", "path": place}, {"type": "mount"}]);
            config
        };
        let text = fake.config(&joining(asking()));
        assert_eq!(fake.create(host).code, Some(3));
        assert!(
            fake.logged().1.contains("is the host's own"),
            "{:?}",
            fake.logged()
        );
        assert_eq!((fake.now(), fake.seen("args")), (text, None));
        // As `docker run --network host` of one that asks for nothing.
        host.configure(&format!(
            "runtime = {:?}\nplan = \"default\"",
            fake.dir.join("runc")
        ));
        let text = fake.config(&joining(spec(json!({}))));
        let said = fake.create(host);
        assert_eq!(said.code, Some(37), "{said:?}");
        assert_eq!(fake.now(), text);
    });
}

#[test]
fn a_namespace_that_has_its_nics_keeps_the_plan_of_then() {
    alone(|host| {
        let rails = host.rails(2);
        host.prepare(&rails);
        let hold = Hold::new(host, POOL);
        fs::remove_file(host.run.join("plans/default.json")).unwrap();
        let fake = Fake::new(host, "");
        let joining = |mut config: Value| {
            config["linux"]["namespaces"] =
                json!([{"type": "network", "path": "/run/netns/pool"}, {"type": "mount"}]);
            config
        };
        fake.config(&joining(asking()));
        assert_eq!(fake.create(host).code, Some(37), "{:?}", fake.logged());
        let config = serde_json::from_str(&fake.now()).unwrap();
        let mut one = Container::joining("one", "/run/netns/pool").bundled(host, &config);
        hook_of(host, &fake.now(), &one).ok();
        assert_eq!(host.report("one")["nics"], json!(["r0", "r1"]));
        // Another plan's it cannot have as well.
        let text = fake.config(&joining(spec(json!({"rdmaprep.io/plan": "other"}))));
        assert_eq!(fake.create(host).code, Some(3));
        assert!(
            fake.logged()
                .1
                .contains("has NICs by plan default, not other"),
            "{:?}",
            fake.logged()
        );
        assert_eq!(fake.now(), text);
        one.stop(host).ok();
        hold.end(Signal::SIGTERM).ok();
        host.is_clean();
    });
}
