//! The kubelet's side: it finds the driver by its socket, and calls it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use rdmaprep_kubelet::dra::api;
use rdmaprep_kubelet::grpc;
use tonic::transport::Channel;

use crate::server::NODE;

/// As its plugin manager finds a driver.
pub async fn find(folder: &Path) -> Kubelet {
    let socket = folder.join("plugins_registry/rdmaprep.io-reg.sock");
    let until = Instant::now() + Duration::from_secs(20);
    let channel = loop {
        match grpc::connect(&socket).await {
            Ok(channel) => break channel,
            Err(e) if Instant::now() > until => panic!("{e:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let info = grpc::call(&channel, api::INFO, grpc::Empty {});
    let info = tokio::time::timeout(Duration::from_secs(1), info).await;
    let info: api::Info = info.expect("the kubelet waits for a second").unwrap();
    assert_eq!(
        (info.kind.as_str(), info.name.as_str()),
        ("DRAPlugin", "rdmaprep.io")
    );
    let services = ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"];
    assert_eq!(info.supported_versions, services);
    let status = api::RegistrationStatus {
        plugin_registered: true,
        error: String::new(),
    };
    let _: grpc::Empty = grpc::call(&channel, api::STATUS, status).await.unwrap();
    Kubelet {
        channel: grpc::connect(Path::new(&info.endpoint)).await.unwrap(),
    }
}

pub struct Kubelet {
    channel: Channel,
}

/// By claim: CDI devices, or the error.
pub type Answers = BTreeMap<String, Result<Vec<String>, String>>;

impl Kubelet {
    pub async fn prepare(&self, claims: &[&api::Claim]) -> Answers {
        let asked = api::Claims {
            claims: claims.iter().map(|c| (*c).clone()).collect(),
        };
        let said: api::Prepared = grpc::call(&self.channel, api::PREPARE, asked)
            .await
            .unwrap();
        assert_eq!(
            said.claims.len(),
            claims.len(),
            "the kubelet takes that for a failure"
        );
        let of = |c: api::PreparedClaim| match c.error.as_str() {
            "" => {
                let all = c.devices.into_iter().inspect(|d| {
                    assert_eq!((d.pool_name.as_str(), d.request_names.len()), (NODE, 1));
                });
                Ok(all.flat_map(|d| d.cdi_device_ids).collect())
            }
            _ => Err(c.error),
        };
        said.claims
            .into_iter()
            .map(|(uid, c)| (uid, of(c)))
            .collect()
    }

    pub async fn health(&self) -> tonic::Streaming<api::Healths> {
        grpc::call_streaming(&self.channel, api::HEALTH, grpc::Empty {})
            .await
            .unwrap()
    }

    pub async fn one(&self, claim: &api::Claim) -> Result<Vec<String>, String> {
        self.prepare(&[claim]).await.remove(&claim.uid).unwrap()
    }

    pub async fn unprepare(&self, claim: &api::Claim) -> Result<(), String> {
        let asked = api::Claims {
            claims: vec![claim.clone()],
        };
        let mut said: api::Unprepared = grpc::call(&self.channel, api::UNPREPARE, asked)
            .await
            .unwrap();
        let error = said.claims.remove(&claim.uid).unwrap().error;
        error.is_empty().then_some(()).ok_or(error)
    }
}
