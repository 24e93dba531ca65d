//! The worker adapter, and answers that say more than its engines do: which rank ran, or that there is none such.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use contracts::rpc::{CallHead, CallStream, Dispatch, DispatchError, Down, HttpHead, RankEvidence};
use domain::DpRank;
use futures::StreamExt;

/// The header by which an engine of these tests says which rank ran.
pub(crate) const RAN: &str = "x-test-ran";
/// The header by which it says that it has no such rank.
pub(crate) const NO_RANK: &str = "x-test-no-rank";

pub(crate) struct Telling(pub(crate) Arc<dyn Dispatch>);

#[async_trait]
impl Dispatch for Telling {
    async fn call(
        &self,
        head: CallHead,
        body: Bytes,
    ) -> Result<(HttpHead, CallStream), DispatchError> {
        let (worker, asked) = (head.worker.clone(), head.dp_rank);
        let (head, stream) = self.0.call(head, body).await?;
        let header = |name: &str| {
            let found = head.headers.iter().find(|it| it.0 == name);
            found.map(|it| it.1.clone())
        };
        if let (Some(why), Some(dp_rank)) = (header(NO_RANK), asked) {
            return Err(DispatchError::Rank {
                worker,
                dp_rank,
                why,
            });
        }
        let ran = header(RAN).map(|it| DpRank::new(it.parse().unwrap()));
        let stream = stream.map(move |down| match down {
            Ok(Down::End(mut end)) => {
                end.observed_rank = ran.map(|it| (it, RankEvidence::Body)).or(end.observed_rank);
                Ok(Down::End(end))
            }
            other => other,
        });
        Ok((head, stream.boxed()))
    }
}
