//! What a process serves.

use std::sync::Arc;

use tonic::server::NamedService;
use tonic::service::{Routes, RoutesBuilder};
use tonic::transport::Server;

use super::affinity::AffinityServer;
use super::dispatch::DispatchServer;
use super::feed::FeedServer;
use super::index::IndexServer;
use super::limits;
use crate::convert::wire;
use crate::rpc::{Affinity, Dispatch, Feed, Index};

/// Services by their names, to be added to a server.
#[derive(Clone, Debug, Default)]
pub struct Services {
    routes: RoutesBuilder,
    names: Vec<&'static str>,
}

impl Services {
    /// Serves an index.
    #[must_use]
    pub fn index(mut self, index: Arc<dyn Index>) -> Self {
        let served = wire::index_server::IndexServer::new(IndexServer(index))
            .max_decoding_message_size(limits::INDEX_REQUEST)
            .max_encoding_message_size(limits::INDEX_ANSWER);
        self.names.push(name_of(&served));
        self.routes.add_service(served);
        self
    }

    /// Serves bindings.
    #[must_use]
    pub fn affinity(mut self, affinity: Arc<dyn Affinity>) -> Self {
        let served = wire::affinity_server::AffinityServer::new(AffinityServer(affinity))
            .max_decoding_message_size(limits::AFFINITY_REQUEST)
            .max_encoding_message_size(limits::AFFINITY_ANSWER);
        self.names.push(name_of(&served));
        self.routes.add_service(served);
        self
    }

    /// Serves events once more.
    #[must_use]
    pub fn feed(mut self, feed: Arc<dyn Feed>) -> Self {
        let served = wire::feed_server::FeedServer::new(FeedServer(feed))
            .max_decoding_message_size(limits::FEED_REQUEST);
        self.names.push(name_of(&served));
        self.routes.add_service(served);
        self
    }

    /// Serves engines.
    #[must_use]
    pub fn dispatch(mut self, dispatch: Arc<dyn Dispatch>) -> Self {
        let served = wire::dispatch_server::DispatchServer::new(DispatchServer::new(dispatch))
            .max_decoding_message_size(limits::DISPATCH_PART)
            .max_encoding_message_size(limits::DISPATCH_PART);
        self.names.push(name_of(&served));
        self.routes.add_service(served);
        self
    }

    /// Their names, such as `rankway.v1.Index`.
    pub fn names(&self) -> &[&'static str] {
        &self.names
    }

    /// As a server takes them.
    pub fn into_routes(self) -> Routes {
        self.routes.routes()
    }
}

fn name_of<S: NamedService>(_served: &S) -> &'static str {
    S::NAME
}

/// A server that keeps to [`limits`]. Callers give up in crowds when something is slow, so that as many streams may
/// be given up unseen as there may be: peers are trusted not to do it for its own sake.
pub fn server() -> Server {
    Server::builder()
        .initial_stream_window_size(limits::STREAM_WINDOW)
        .initial_connection_window_size(limits::CONNECTION_WINDOW)
        .max_concurrent_streams(limits::STREAMS)
        .http2_max_pending_accept_reset_streams(Some(limits::STREAMS as usize))
        .http2_max_local_error_reset_streams(Some(limits::STREAMS as usize))
        .http2_max_header_list_size(limits::HEADERS)
        .http2_keepalive_interval(Some(limits::PING_EVERY))
        .http2_keepalive_timeout(Some(limits::PING_WITHIN))
        .tcp_nodelay(true)
}
