//! Calls of gRPC on unix sockets, from either side. The kubelet's messages are few: no protoc, and
//! no generated code.

use std::convert::Infallible;
use std::future::Future;
use std::path::Path;

use http::uri::PathAndQuery;
use prost::Message;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::client::Grpc as Client;
use tonic::server::Grpc as Server;
use tonic::transport::{self, Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::Service;

use crate::authority::AnyAuthority;

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Empty {}

/// Until `ended` becomes true.
pub async fn serve<S>(
    listener: UnixListener,
    service: S,
    mut ended: watch::Receiver<bool>,
    log: fn(&str),
) where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let end = async move {
        let _ = ended.wait_for(|ended| *ended).await;
    };
    let incoming = UnixListenerStream::new(listener).map(|it| it.map(AnyAuthority::new));
    let served = transport::Server::builder().serve_with_incoming_shutdown(service, incoming, end);
    if let Err(e) = served.await {
        log(&format!("serving: {e}"));
    }
}

/// Answers one call.
pub async fn unary<Q, A, F>(
    request: http::Request<Body>,
    answer: impl Fn(Q) -> F,
) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    F: Future<Output = Result<A, Status>>,
{
    let service = tower::service_fn(|request: Request<Q>| {
        let answer = answer(request.into_inner());
        async { answer.await.map(Response::new) }
    });
    Server::new(ProstCodec::<A, Q>::default())
        .unary(service, request)
        .await
}

/// Answers one call with a stream.
pub async fn streaming<Q, A, S>(request: http::Request<Body>, stream: S) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    S: tokio_stream::Stream<Item = Result<A, Status>> + Send + 'static,
{
    let mut stream = Some(stream);
    let service = tower::service_fn(|_: Request<Q>| {
        let stream = stream
            .take()
            .ok_or_else(|| Status::internal("a call is answered once"));
        std::future::ready(stream.map(Response::new))
    });
    Server::new(ProstCodec::<A, Q>::default())
        .server_streaming(service, request)
        .await
}

pub async fn connect(socket: &Path) -> Result<Channel, transport::Error> {
    Endpoint::from_shared(format!("unix://{}", socket.display()))?
        .connect()
        .await
}

async fn ready(channel: Channel) -> Result<Client<Channel>, Status> {
    let mut client = Client::new(channel);
    client
        .ready()
        .await
        .map_err(|e| Status::unavailable(e.to_string()))?;
    Ok(client)
}

pub async fn call<Q, A>(channel: &Channel, method: &'static str, message: Q) -> Result<A, Status>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    let (mut client, path) = (
        ready(channel.clone()).await?,
        PathAndQuery::from_static(method),
    );
    Ok(client
        .unary(Request::new(message), path, ProstCodec::<Q, A>::default())
        .await?
        .into_inner())
}

/// As the kubelet watches; for the stand-in of the tests.
pub async fn call_streaming<Q, A>(
    channel: &Channel,
    method: &'static str,
    message: Q,
) -> Result<Streaming<A>, Status>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    let (mut client, path) = (
        ready(channel.clone()).await?,
        PathAndQuery::from_static(method),
    );
    Ok(client
        .server_streaming(Request::new(message), path, ProstCodec::<Q, A>::default())
        .await?
        .into_inner())
}
