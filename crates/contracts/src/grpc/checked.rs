//! A connection as clients use it. tonic takes it for granted that the details of an error are base64, and panics where
//! they are not; so what a server sends there is looked at first.

use std::task::{Context, Poll};

use futures::future::BoxFuture;
use futures::{FutureExt as _, TryFutureExt as _};
use http_body_util::BodyExt as _;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::metadata::{BinaryMetadataKey, MetadataMap};
use tonic::transport::Channel;

/// A connection on which an error comes without its details where those cannot be read.
#[derive(Clone, Debug)]
pub(super) struct Checked(pub(super) Channel);

impl Service<Request<Body>> for Checked {
    type Response = Response<Body>;
    type Error = tonic::transport::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, tonic::transport::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.0.call(request).map_ok(checked).boxed()
    }
}

fn checked(mut answer: Response<Body>) -> Response<Body> {
    check(answer.headers_mut());
    answer.map(|body| {
        Body::new(body.map_frame(|mut frame| {
            if let Some(trailers) = frame.trailers_mut() {
                check(trailers);
            }
            frame
        }))
    })
}

fn check(headers: &mut HeaderMap) {
    let Some(details) = headers.get(Status::GRPC_STATUS_DETAILS) else {
        return;
    };
    let alone = HeaderMap::from_iter([(Status::GRPC_STATUS_DETAILS, details.clone())]);
    let alone = MetadataMap::from_headers(alone);
    let key = BinaryMetadataKey::from_bytes(Status::GRPC_STATUS_DETAILS.as_str().as_bytes());
    let readable = key
        .ok()
        .and_then(|key| alone.get_bin(key)?.to_bytes().ok())
        .is_some();
    if !readable {
        headers.remove(Status::GRPC_STATUS_DETAILS);
    }
}
