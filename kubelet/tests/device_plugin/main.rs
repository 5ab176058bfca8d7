//! The service against a stand-in for the kubelet: a server of Registration, a client of
//! DevicePlugin.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod pools;
mod random;
mod stand_in;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use prost::Message;
use rdma_model::error_class::ErrorClass;
use rdmaprep_kubelet::device_plugin::{api, session};
use rdmaprep_kubelet::grpc;
use rdmaprep_kubelet::node::Node;
use stand_in::{
    Kubelet, RESOURCE, SOON, allocate, list, names, next, plugin, plugin_with, prefer, soon,
};
use tokio::net::UnixListener;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::{Code, Status};

#[tokio::test]
async fn from_registration_to_cdi_devices() {
    let plugin = plugin("");
    let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
    let _run = plugin.run();
    let (asked, channel) = kubelet.plugin().await;
    assert_eq!(
        (asked.version.as_str(), asked.resource_name.as_str()),
        ("v1beta1", RESOURCE)
    );
    assert_eq!(asked.endpoint, "rdmaprep.io_rail.sock");
    let options: api::Options = soon(grpc::call(&channel, api::OPTIONS, grpc::Empty {}))
        .await
        .unwrap();
    assert_eq!(Some(&options), asked.options.as_ref());
    assert!(options.get_preferred_allocation_available && !options.pre_start_required);

    let mut stream = list(&channel).await;
    let devices = soon(stream.next()).await.unwrap().unwrap().devices;
    let numa: Vec<i64> = devices
        .iter()
        .map(|d| d.topology.as_ref().unwrap().nodes[0].id)
        .collect();
    assert_eq!(numa, [0, 0, 0, 0, 1, 1, 1, 1]);

    let all = names("0 1 2 3 4 5 6 7");
    let chosen = prefer(&channel, &all, &names("5"), 2).await;
    assert_eq!(chosen, names("5 6"));
    assert_eq!(
        allocate(&channel, &chosen).await.unwrap(),
        ["rdmaprep.io/rail=rdma5", "rdmaprep.io/rail=rdma6"]
    );
    let _: grpc::Empty = soon(grpc::call(
        &channel,
        api::PRE_START,
        api::Ids { ids: chosen },
    ))
    .await
    .unwrap();

    let unknown = soon(grpc::call::<_, grpc::Empty>(
        &channel,
        "/v1beta1.DevicePlugin/Other",
        grpc::Empty {},
    ))
    .await;
    assert_eq!(unknown.unwrap_err().code(), Code::Unimplemented);
}

/// A driver for claims runs beside it: it has no part in what the kubelet counts.
#[tokio::test]
async fn rail_of_a_claim_is_no_other_pods() {
    let plugin = plugin("");
    let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
    let _run = plugin.run();
    let (_, channel) = kubelet.plugin().await;
    let mut stream = list(&channel).await;
    next(&mut stream).await;
    plugin
        .fake
        .claims
        .lock()
        .unwrap()
        .insert("rdma3".into(), "jobs/a".into());
    let refused = allocate(&channel, &names("3")).await.unwrap_err();
    assert_eq!(refused.message(), "rail rdma3: claimed: jobs/a");
    assert_eq!(next(&mut stream).await.1, names("3"));
    plugin.fake.claims.lock().unwrap().clear();
    allocate(&channel, &names("3")).await.unwrap();
}

#[tokio::test]
async fn a_rail_goes_away_and_comes_back() {
    let plugin = plugin("");
    let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
    let _run = plugin.run();
    let (_, channel) = kubelet.plugin().await;
    let mut stream = list(&channel).await;
    assert_eq!(
        next(&mut stream).await,
        (names("0 1 2 3 4 5 6 7"), Vec::new())
    );
    plugin.set("rdma1", Some("no carrier")).await;
    assert_eq!(
        next(&mut stream).await,
        (names("0 2 3 4 5 6 7"), names("1"))
    );
    // The event of this one is still on its way: Allocate looks itself.
    plugin.fake.set("rdma2", Some("held by container abc"));
    let refused = allocate(&channel, &names("0 2")).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (
            Code::FailedPrecondition,
            "rail rdma2: held by container abc"
        )
    );
    assert_eq!(next(&mut stream).await.1, names("1 2"));
    plugin.set("rdma1", None).await;
    assert_eq!(next(&mut stream).await.1, names("2"));
    assert_eq!(
        allocate(&channel, &names("1")).await.unwrap(),
        ["rdmaprep.io/rail=rdma1"]
    );
    for (ids, why) in [
        ("0 9", "rdma9 is no rail of rdmaprep.io/rail"),
        ("0 0", "rail rdma0 is named twice"),
    ] {
        assert_eq!(
            allocate(&channel, &names(ids)).await.unwrap_err().message(),
            why
        );
    }
    assert_eq!(
        allocate(&channel, &["all".to_owned()])
            .await
            .unwrap_err()
            .code(),
        Code::NotFound
    );
    let cases = [
        ("0 1", "0 1", 1, "1 rails, 2 of them named"),
        ("0 1", "", -1, "-1 rails, 0 of them named"),
        ("0 1", "9", 1, "rdma9 is no rail of rdmaprep.io/rail"),
        (
            "0 3",
            "",
            3,
            "3 rails of rdmaprep.io/rail are asked for, 2 are free",
        ),
        (
            "",
            "",
            1,
            "1 rails of rdmaprep.io/rail are asked for, 0 are free",
        ),
    ];
    for (available, must, size, why) in cases {
        let wrong = api::ContainerPreferredRequest {
            available: names(available),
            must_include: names(must),
            size,
        };
        let wrong = api::PreferredRequest {
            containers: vec![wrong],
        };
        let wrong = soon(grpc::call::<_, api::PreferredResponse>(
            &channel,
            api::PREFERRED,
            wrong,
        ))
        .await;
        assert_eq!(wrong.unwrap_err().message(), why);
    }
}

#[tokio::test]
async fn the_kubelet_starts_late_and_again() {
    let plugin = plugin("");
    let run = plugin.run();
    let own = plugin.folder.path().join(session::socket_name(RESOURCE));
    let begun = Instant::now();
    while !own.exists() {
        assert!(begun.elapsed() < SOON);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for _ in 0..3 {
        let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
        // The start of a kubelet may be two events: its last registration counts.
        let (_, channel) = kubelet.plugin().await;
        let mut stream = list(&channel).await;
        assert_eq!(next(&mut stream).await.0.len(), 8);
        kubelet.server.abort();
    }
    // A socket that is left of a kubelet which was killed.
    let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
    kubelet.plugin().await;
    assert!(!run.is_finished());
    run.abort();
    assert!(soon(run).await.unwrap_err().is_cancelled());
    assert!(!own.exists(), "it is removed at the end");
}

#[tokio::test]
async fn several_resources_have_a_socket_each() {
    let pools = "[[resource]]\nname = 'a.example/one'\nnuma = [0]\n[[resource]]\nname = \
        'a.example/two'\nsubnets = ['192.0.1.0/24']\n";
    let plugin = plugin(pools);
    let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
    let _run = plugin.run();
    for (name, rails) in [("a.example/one", "0 1 2 3"), ("a.example/two", "4 5 6 7")] {
        let (asked, channel) = kubelet.plugin().await;
        assert_eq!(asked.resource_name, name);
        assert_eq!(next(&mut list(&channel).await).await.0, names(rails));
        assert_eq!(
            allocate(&channel, &names("3")).await.is_ok(),
            name == "a.example/one"
        );
    }
}

#[tokio::test]
async fn a_kubelet_that_says_no_and_a_socket_that_is_served() {
    let plugin = plugin("");
    let _kubelet = Kubelet::start(
        plugin.folder.path(),
        Err(Status::unknown("no such version")),
    );
    let e = soon(plugin.run()).await.unwrap().unwrap_err();
    assert_eq!(ErrorClass::of(&e), ErrorClass::Refused);
    assert_eq!(
        e.to_string(),
        "the kubelet refuses rdmaprep.io/rail: no such version"
    );

    let own = plugin.folder.path().join(session::socket_name(RESOURCE));
    let other = UnixListener::bind(&own).unwrap();
    let e = soon(plugin.run()).await.unwrap().unwrap_err();
    assert_eq!(ErrorClass::of(&e), ErrorClass::Locked);
    assert_eq!(
        e.to_string(),
        format!("another program serves {}: stop that first", own.display())
    );
    drop(other);
    // Left by a program that was killed; a file is nothing that a program of ours leaves.
    let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
    drop(UnixListener::bind(&own).unwrap());
    let run = plugin.run();
    kubelet.plugin().await;
    run.abort();
    let _ = run.await;
    fs::write(&own, "").unwrap();
    let e = soon(plugin.run()).await.unwrap().unwrap_err();
    assert_eq!(ErrorClass::of(&e), ErrorClass::Refused);
}

/// A kubelet under load: its socket is there, and no notification says when it answers again.
#[tokio::test]
async fn a_kubelet_that_was_too_slow_is_asked_again() {
    let plugin = plugin("");
    let slow = Kubelet::start(plugin.folder.path(), Err(Status::unavailable("it starts")));
    let run = plugin.run();
    let mut registered = slow.registered;
    for _ in 0..2 {
        assert_eq!(
            soon(registered.recv()).await.unwrap().resource_name,
            RESOURCE
        );
    }
    assert!(!run.is_finished());
}

#[tokio::test]
async fn the_kubelets_folder_is_made_again() {
    let plugin = plugin("");
    let folder = plugin.folder.path().to_owned();
    let mut kubelet = Kubelet::start(&folder, Ok(()));
    let run = plugin.run();
    kubelet.plugin().await;
    for _ in 0..2 {
        fs::rename(&folder, folder.with_extension("old")).unwrap();
        fs::create_dir(&folder).unwrap();
        fs::remove_dir_all(folder.with_extension("old")).unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut kubelet = Kubelet::start(&folder, Ok(()));
        let (_, channel) = kubelet.plugin().await;
        assert_eq!(next(&mut list(&channel).await).await.0.len(), 8);
        assert!(!run.is_finished());
    }
}

/// Its ctime changes by that, as by a label of SELinux.
#[tokio::test]
async fn own_socket_with_another_mode_stays_own() {
    let plugin = plugin("");
    let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
    let mut run = plugin.run();
    let (asked, channel) = kubelet.plugin().await;
    let own = plugin.folder.path().join(asked.endpoint);
    fs::set_permissions(&own, Permissions::from_mode(0o600)).unwrap();
    // An event, so that it looks at its socket.
    fs::write(plugin.folder.path().join("kubelet_internal_checkpoint"), "").unwrap();
    let ended = timeout(Duration::from_millis(500), &mut run).await;
    assert!(ended.is_err(), "{ended:?}");
    assert!(
        kubelet.registered.try_recv().is_err(),
        "it was registered again"
    );
    assert_eq!(next(&mut list(&channel).await).await.0.len(), 8);
}

/// As in a CDI file that someone has made: the kubelet asks for a pod all the same, for one rail as
/// for all.
#[tokio::test]
async fn twenty_thousand_cdi_devices_do_not_stop_allocate() {
    let plugin = plugin_with("", 20_000 - 8);
    let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
    let _run = plugin.run();
    let (_, channel) = kubelet.plugin().await;
    let shown = soon(list(&channel).await.next()).await.unwrap().unwrap();
    // What the kubelet's gRPC takes of a message.
    assert!(shown.encoded_len() < 4 << 20, "{}", shown.encoded_len());
    let all: Vec<String> = shown.devices.into_iter().map(|d| d.id).collect();
    assert_eq!(all.len(), 20_000);
    for size in [2, 20_000] {
        let begun = Instant::now();
        let chosen = prefer(&channel, &all, &all[..size / 2], size as i32).await;
        let given = allocate(&channel, &chosen).await.unwrap();
        assert_eq!((chosen.len(), given.len()), (size, size));
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(4), "{size}: {took:?}");
    }
}

/// What cannot be looked at is not given, and is as before when it can.
#[tokio::test]
async fn a_node_that_cannot_be_looked_at_gives_nothing() {
    let plugin = plugin("");
    plugin.set("rdma1", Some("no carrier")).await;
    plugin.node.lost("there is no file");
    let why = |node: &Node| {
        node.rails(RESOURCE)
            .into_iter()
            .map(|r| r.unhealthy.unwrap_or_default())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        why(&plugin.node)[..3],
        ["there is no file", "no carrier", "there is no file"]
    );
    plugin.node.refresh().await.unwrap();
    assert_eq!(why(&plugin.node)[..3], ["", "no carrier", ""]);
}
