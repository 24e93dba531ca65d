//! What a caller sees of a server that sends what is no gRPC.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use bytes::Bytes;
use contracts::grpc::{Peer, RemoteDispatch, RemoteIndex, server};
use contracts::rpc::{CallError, Dispatch, DispatchError, Index};
use http_body_util::{BodyExt as _, Full};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderMap, HeaderValue, Request, Response};
use tonic::server::NamedService;
use tonic::transport::server::TcpIncoming;

use crate::dispatch::head;
use crate::origin::PATIENCE;

/// Refuses every call with details that are not base64.
#[derive(Clone)]
struct Hostile<const INDEX: bool> {
    /// Whether it says so at once, or behind a body.
    at_once: bool,
}

impl NamedService for Hostile<true> {
    const NAME: &'static str = "rankway.v1.Index";
}

impl NamedService for Hostile<false> {
    const NAME: &'static str = "rankway.v1.Dispatch";
}

impl<const INDEX: bool> Service<Request<Body>> for Hostile<INDEX> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let mut response = Response::new(Body::empty());
        if self.at_once {
            response.headers_mut().extend(refusal());
        } else {
            let trailers = async { Some(Ok(refusal())) };
            *response.body_mut() = Body::new(Full::new(Bytes::new()).with_trailers(trailers));
        }
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert("content-type", grpc);
        ready(Ok(response))
    }
}

fn refusal() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("grpc-status", HeaderValue::from_static("3"));
    headers.insert("grpc-message", HeaderValue::from_static("no"));
    let details = HeaderValue::from_static("*not base64*");
    headers.insert("grpc-status-details-bin", details);
    headers
}

async fn start(at_once: bool) -> (Peer, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let serving = server()
            .add_service(Hostile::<true> { at_once })
            .add_service(Hostile::<false> { at_once })
            .serve_with_incoming(TcpIncoming::from(listener));
        serving.await.unwrap();
    });
    (Peer::at(&address, None).unwrap(), tasks)
}

#[tokio::test]
async fn an_error_whose_details_cannot_be_read_comes_without_them() {
    for at_once in [true, false] {
        let (peer, _tasks) = start(at_once).await;
        let digests = RemoteIndex::new(peer.clone());
        let refused = timeout(PATIENCE, digests.digests()).await.unwrap();
        let said = CallError::InvalidArgument {
            why: "no".to_owned(),
        };
        assert_eq!(refused.unwrap_err(), said, "at once: {at_once}");

        let dispatch = RemoteDispatch::new(peer);
        let called = timeout(PATIENCE, dispatch.call(head(), Bytes::new())).await;
        let Err(error) = called.unwrap() else {
            panic!("it was refused");
        };
        assert!(matches!(error, DispatchError::Adapter { .. }), "{error:?}");
    }
}
