//! The store's side.

use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{StreamExt as _, stream};
use tonic::{Request, Response, Status};

use super::{Get, Import, Released, Renewed, Unbound};
use crate::convert::{Wire, wire};
use crate::grpc::{limits, status};
use crate::rpc::{Affinity, Bound, Search};

pub(in crate::grpc) struct AffinityServer(pub(in crate::grpc) Arc<dyn Affinity>);

/// Answers within the limit of this service.
fn answer<T: Wire>(
    answer: Result<T, crate::rpc::CallError>,
) -> Result<Response<T::Message>, Status> {
    status::write_answer(answer, limits::AFFINITY_ANSWER)
}

#[async_trait]
impl wire::affinity_server::Affinity for AffinityServer {
    type ListStream = BoxStream<'static, Result<wire::BoundList, Status>>;

    async fn get(
        &self,
        request: Request<wire::GetRequest>,
    ) -> Result<Response<wire::MaybeBound>, Status> {
        let Get(key) = status::read(request.into_inner())?;
        answer(self.0.get(&key).await)
    }

    async fn acquire(
        &self,
        request: Request<wire::AcquireRequest>,
    ) -> Result<Response<wire::Bound>, Status> {
        let request = status::read(request.into_inner())?;
        answer(self.0.acquire(request).await)
    }

    async fn confirm(
        &self,
        request: Request<wire::ConfirmRequest>,
    ) -> Result<Response<wire::Bound>, Status> {
        let request = status::read(request.into_inner())?;
        answer(self.0.confirm(request).await)
    }

    async fn r#move(
        &self,
        request: Request<wire::MoveRequest>,
    ) -> Result<Response<wire::Bound>, Status> {
        let request = status::read(request.into_inner())?;
        answer(self.0.rebind(request).await)
    }

    async fn release(
        &self,
        request: Request<wire::ReleaseRequest>,
    ) -> Result<Response<wire::ReleaseAnswer>, Status> {
        let request = status::read(request.into_inner())?;
        answer(self.0.release(request).await.map(|()| Released))
    }

    async fn renew(
        &self,
        request: Request<wire::RenewRequest>,
    ) -> Result<Response<wire::RenewAnswer>, Status> {
        let request = status::read(request.into_inner())?;
        answer(self.0.renew(request).await.map(|()| Renewed))
    }

    async fn list(
        &self,
        request: Request<wire::ListRequest>,
    ) -> Result<Response<Self::ListStream>, Status> {
        let limit = usize::try_from(request.into_inner().limit).unwrap_or(usize::MAX);
        let all = self.0.list(limit).await;
        let mut rest = all.map_err(|why| status::write_call_error(&why))?;
        let parts = std::iter::from_fn(move || {
            let later = rest.split_off(rest.len().min(limits::PAGE));
            let part: Vec<Bound> = std::mem::replace(&mut rest, later);
            (!part.is_empty()).then(|| Ok(part.to_wire()))
        });
        Ok(Response::new(stream::iter(parts).boxed()))
    }

    async fn search(
        &self,
        request: Request<wire::SearchRequest>,
    ) -> Result<Response<wire::SearchPage>, Status> {
        let search: Search = status::read(request.into_inner())?;
        let search = Search {
            limit: search.limit.min(limits::PAGE),
            ..search
        };
        answer(self.0.search(search).await)
    }

    async fn reassign(
        &self,
        request: Request<wire::ReassignRequest>,
    ) -> Result<Response<wire::Bound>, Status> {
        let request = status::read(request.into_inner())?;
        answer(self.0.reassign(request).await)
    }

    async fn unbind(
        &self,
        request: Request<wire::UnbindRequest>,
    ) -> Result<Response<wire::UnbindAnswer>, Status> {
        let request = status::read(request.into_inner())?;
        answer(self.0.unbind(request).await.map(|()| Unbound))
    }

    async fn import(
        &self,
        request: Request<wire::ImportRequest>,
    ) -> Result<Response<wire::MaybeBound>, Status> {
        let Import(binding) = status::read(request.into_inner())?;
        answer(self.0.import(binding).await)
    }
}
