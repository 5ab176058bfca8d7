//! kubelet's service `v1beta1.DevicePlugin` for one resource.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rdmaprep::cdi::KIND;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::body::Body;

use crate::device_plugin::api;
use crate::device_plugin::preferred::preferred;
use crate::grpc;
use crate::node::Node;
use crate::rail::{Rail, Shown};

pub const OPTIONS: api::Options = api::Options {
    pre_start_required: false,
    get_preferred_allocation_available: true,
};

#[derive(Clone)]
pub struct Service {
    pub node: Arc<Node>,
    pub resource: Arc<str>,
    /// Becomes true with the end of the session: streams end.
    pub ended: watch::Receiver<bool>,
}

impl tower::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let at = self.clone();
        Box::pin(async move {
            Ok(match request.uri().path() {
                api::OPTIONS => grpc::unary(request, async |_: grpc::Empty| Ok(OPTIONS)).await,
                api::LIST_AND_WATCH => {
                    grpc::streaming::<grpc::Empty, _, _>(request, at.stream()).await
                }
                api::PREFERRED => {
                    grpc::unary(request, |asked| std::future::ready(at.prefer(&asked))).await
                }
                api::ALLOCATE => {
                    grpc::unary(request, |asked| {
                        let at = at.clone();
                        async move { at.allocate(&asked).await }
                    })
                    .await
                }
                api::PRE_START => {
                    grpc::unary(request, async |_: api::Ids| Ok(grpc::Empty {})).await
                }
                other => Status::unimplemented(format!("{other} is unknown")).into_http(),
            })
        })
    }
}

impl Service {
    fn stream(&self) -> ReceiverStream<Result<api::Devices, Status>> {
        let (to, from) = mpsc::channel(1);
        let (resource, mut ended, mut changes) = (
            self.resource.clone(),
            self.ended.clone(),
            self.node.subscribe(),
        );
        tokio::spawn(async move {
            let mut sent = None;
            loop {
                let now = devices(&changes.borrow_and_update(), &resource);
                if sent.as_ref() != Some(&now) {
                    if to.send(Ok(now.clone())).await.is_err() {
                        return;
                    }
                    sent = Some(now);
                }
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return },
                    _ = ended.wait_for(|ended| *ended) => return,
                    () = to.closed() => return,
                }
            }
        });
        ReceiverStream::new(from)
    }

    fn prefer(&self, asked: &api::PreferredRequest) -> Result<api::PreferredResponse, Status> {
        let rails = self.node.rails(&self.resource);
        let one = |asked: &api::ContainerPreferredRequest| {
            let size = usize::try_from(asked.size)
                .ok()
                .filter(|size| *size >= asked.must_include.len());
            let wrong = || {
                Status::invalid_argument(format!(
                    "{} rails, {} of them named",
                    asked.size,
                    asked.must_include.len()
                ))
            };
            let size = size.ok_or_else(wrong)?;
            let ids = preferred(&rails, &asked.available, &asked.must_include, size);
            let chosen: BTreeSet<&String> = ids.iter().collect();
            let lacks = asked.must_include.iter().find(|id| !chosen.contains(id));
            let unknown =
                |id: &String| Status::not_found(format!("{id} is no rail of {}", self.resource));
            lacks.map_or(Ok(()), |id| Err(unknown(id)))?;
            let few = || {
                format!(
                    "{size} rails of {} are asked for, {} are free",
                    self.resource,
                    ids.len()
                )
            };
            if ids.len() < size {
                Err(Status::resource_exhausted(few()))
            } else {
                Ok(api::Ids { ids })
            }
        };
        let containers = asked
            .containers
            .iter()
            .map(one)
            .collect::<Result<_, Status>>()?;
        Ok(api::PreferredResponse { containers })
    }

    /// What the kubelet was shown may be out of date: it is looked at again.
    async fn allocate(
        &self,
        asked: &api::AllocateRequest,
    ) -> Result<api::AllocateResponse, Status> {
        self.node
            .refresh()
            .await
            .map_err(|e| Status::unavailable(format!("{e:#}")))?;
        let rails = self.node.rails(&self.resource);
        let rails: BTreeMap<&str, &Rail> = rails.iter().map(|r| (r.name.as_str(), r)).collect();
        let containers = asked
            .containers
            .iter()
            .map(|ids| self.devices_of(&rails, &ids.ids));
        Ok(api::AllocateResponse {
            containers: containers.collect::<Result<_, Status>>()?,
        })
    }

    fn devices_of(
        &self,
        rails: &BTreeMap<&str, &Rail>,
        ids: &[String],
    ) -> Result<api::Allocated, Status> {
        let (mut named, mut cdi_devices) = (BTreeSet::new(), Vec::new());
        for id in ids {
            let rail = rails.get(id.as_str()).ok_or_else(|| {
                Status::not_found(format!("{id} is no rail of {}", self.resource))
            })?;
            if let Some(why) = rail.why_not_counted() {
                return Err(Status::failed_precondition(format!("rail {id}: {why}")));
            }
            if !named.insert(id) {
                return Err(Status::invalid_argument(format!(
                    "rail {id} is named twice"
                )));
            }
            cdi_devices.push(api::CdiDevice {
                name: format!("{KIND}={id}"),
            });
        }
        Ok(api::Allocated { cdi_devices })
    }
}

fn devices(shown: &Shown, resource: &str) -> api::Devices {
    let device = |rail: &Rail| api::Device {
        id: rail.name.clone(),
        health: if rail.why_not_counted().is_none() {
            api::HEALTHY
        } else {
            api::UNHEALTHY
        }
        .to_owned(),
        topology: rail.numa.map(|id| api::Topology {
            nodes: vec![api::NumaNode { id }],
        }),
    };
    let rails = shown
        .iter()
        .filter(|(name, _)| name == resource)
        .flat_map(|(_, rails)| rails);
    api::Devices {
        devices: rails.map(device).collect(),
    }
}
