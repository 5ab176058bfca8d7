//! The kubelet's calls, on both of our sockets.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;
use tonic::body::Body;

use crate::dra::driver::Driver;
use crate::dra::{DRIVER, api, health};
use crate::grpc;

#[derive(Clone)]
pub struct Service {
    pub driver: Arc<Driver>,
    /// Of the driver's socket.
    pub endpoint: String,
    /// Becomes true with the end of the sockets: streams end.
    pub ended: watch::Receiver<bool>,
}

impl tower::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let at = self.clone();
        Box::pin(async move { Ok(at.answer(request).await) })
    }
}

impl Service {
    async fn answer(&self, request: http::Request<Body>) -> http::Response<Body> {
        let log = self.driver.node.log;
        match request.uri().path() {
            api::INFO => {
                let info = api::Info {
                    kind: api::TYPE.to_owned(),
                    name: DRIVER.to_owned(),
                    endpoint: self.endpoint.clone(),
                    supported_versions: api::SERVICES.map(str::to_owned).to_vec(),
                };
                let answer = |_: grpc::Empty| std::future::ready(Ok(info.clone()));
                grpc::unary(request, answer).await
            }
            api::STATUS => {
                let answer = |status: api::RegistrationStatus| {
                    match status.plugin_registered {
                        true => log("the kubelet has registered the driver"),
                        false => log(&format!("the kubelet refuses the driver: {}", status.error)),
                    }
                    std::future::ready(Ok(grpc::Empty {}))
                };
                grpc::unary(request, answer).await
            }
            api::PREPARE => {
                grpc::unary(request, |asked| {
                    let driver = self.driver.clone();
                    async move { Ok(driver.prepare(asked).await) }
                })
                .await
            }
            api::UNPREPARE => {
                grpc::unary(request, |asked| {
                    let driver = self.driver.clone();
                    async move { Ok(driver.unprepare(asked).await) }
                })
                .await
            }
            api::HEALTH => {
                let (node, name) = (&self.driver.node, &self.driver.name);
                let health = health::stream(node, name, self.ended.clone());
                grpc::streaming::<grpc::Empty, _, _>(request, health).await
            }
            other => tonic::Status::unimplemented(format!("{other} is unknown")).into_http(),
        }
    }
}
