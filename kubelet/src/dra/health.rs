//! What the kubelet writes into the status of pods: whether their rails are well.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::dra::{api, slice};
use crate::node::Node;
use crate::rail::Shown;

/// The kubelet calls a device unknown of which it hears nothing for that long.
const COUNTS: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_secs(10);
/// In characters: a message may have 1,024 bytes.
const LONGEST: usize = 256;

/// All rails, at once, with each change, and each 10 s, until `ended` becomes true.
pub fn stream(
    node: &Node,
    pool: &str,
    mut ended: watch::Receiver<bool>,
) -> ReceiverStream<Result<api::Healths, Status>> {
    let (to, from) = mpsc::channel(1);
    let (mut changes, pool) = (node.subscribe(), pool.to_owned());
    tokio::spawn(async move {
        loop {
            let now = healths(&changes.borrow_and_update(), &pool);
            if to.send(Ok(now)).await.is_err() {
                return;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(AGAIN) => {}
                _ = ended.wait_for(|ended| *ended) => return,
                () = to.closed() => return,
            }
        }
    });
    ReceiverStream::new(from)
}

fn healths(shown: &Shown, pool: &str) -> api::Healths {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let (devices, _) = slice::devices(shown);
    let devices = devices.into_iter().map(|device| {
        let why = device.rail.unhealthy.as_deref();
        api::Health {
            health: match why {
                None => api::HEALTHY,
                Some(_) => api::UNHEALTHY,
            },
            message: why.unwrap_or_default().chars().take(LONGEST).collect(),
            device: Some(api::Identifier {
                pool_name: pool.to_owned(),
                device_name: device.name,
            }),
            last_updated_time: now.as_secs() as i64,
            health_check_timeout_seconds: COUNTS.as_secs() as i64,
        }
    });
    api::Healths {
        devices: devices.collect(),
    }
}
