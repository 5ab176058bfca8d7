//! What the kubelet hears of rails.

use std::time::Duration;

use rdmaprep_kubelet::dra::api;
use tokio_stream::StreamExt;

use crate::kubelet::find;
use crate::machine::Machine;
use crate::server::NODE;

/// The whole list each time, in the order of rails; with a pod's rail as it was.
#[tokio::test]
async fn health_of_all_rails_is_said_with_each_change() {
    let machine = Machine::new();
    let running = machine.start();
    let kubelet = find(machine.folder.path()).await;
    let mut stream = kubelet.health().await;
    let mut next = async || {
        let message = tokio::time::timeout(Duration::from_secs(5), stream.next()).await;
        message.unwrap().unwrap().unwrap().devices
    };
    let all = next().await;
    assert_eq!(all.len(), 4);
    let first = all[0].device.clone().unwrap();
    assert_eq!(
        (first.pool_name.as_str(), first.device_name.as_str()),
        (NODE, "rdma0")
    );
    assert!(
        all.iter()
            .all(|d| d.health == api::HEALTHY && d.message.is_empty())
    );
    assert!(
        all.iter()
            .all(|d| d.health_check_timeout_seconds == 30 && d.last_updated_time > 0)
    );
    machine.set(2, |rail| rail.unhealthy = Some("no carrier".to_owned()));
    machine.away(1, true);
    running.driver.node.refresh().await.unwrap();
    let all = next().await;
    assert_eq!(
        (all[2].health, all[2].message.as_str()),
        (api::UNHEALTHY, "no carrier")
    );
    assert_eq!(all[1].health, api::HEALTHY);
}
