//! The index as the admin API shows it, and its comparison with what engines say they hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use contracts::rpc::Index;
use domain::Target;
use serde::{Deserialize, Serialize};

/// What `/api/v1/index` answers.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct IndexAnswer {
    pub(crate) targets: Vec<IndexedTarget>,
}

/// What the index holds of one target.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct IndexedTarget {
    pub(crate) target: String,
    pub(crate) worker: String,
    pub(crate) epoch: u64,
    pub(crate) dp_rank: u32,
    pub(crate) blocks: u64,
    /// 16 hexadecimal digits.
    pub(crate) digest: String,
    pub(crate) state: String,
}

/// `GET /api/v1/index`.
pub(crate) fn routes(index: Arc<dyn Index>) -> Router {
    Router::new()
        .route("/api/v1/index", get(show))
        .with_state(index)
}

async fn show(State(index): State<Arc<dyn Index>>) -> Response {
    match read(&*index).await {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

/// Asks the index for its digests.
pub(crate) async fn read(index: &dyn Index) -> Result<IndexAnswer, contracts::rpc::CallError> {
    let of = |it: contracts::rpc::TargetDigest| {
        let Target {
            worker,
            epoch,
            dp_rank,
        } = &it.target;
        IndexedTarget {
            worker: worker.to_string(),
            epoch: epoch.get(),
            dp_rank: dp_rank.get(),
            target: it.target.to_string(),
            blocks: it.blocks,
            digest: format!("{:016x}", it.digest),
            state: it.state.name().to_owned(),
        }
    };
    let targets = index.digests().await?.into_iter().map(of).collect();
    Ok(IndexAnswer { targets })
}

/// What a fake engine's `/debug/kv_blocks` answers.
#[derive(Debug, Deserialize)]
pub(crate) struct HeldAnswer {
    pub(crate) ranks: BTreeMap<u32, HeldRank>,
}

/// What one rank holds by its own account.
#[derive(Debug, Deserialize)]
pub(crate) struct HeldRank {
    pub(crate) blocks: u64,
    pub(crate) digest: String,
}

/// The state of a rank of which the index knows nothing.
pub(crate) const UNKNOWN: &str = "unknown";

/// One rank compared.
#[derive(Debug, Serialize)]
pub(crate) struct ComparedRank {
    pub(crate) worker: String,
    pub(crate) dp_rank: u32,
    pub(crate) engine_blocks: u64,
    pub(crate) index_blocks: u64,
    pub(crate) state: String,
    pub(crate) equal: bool,
}

/// Compares every rank of an engine with the newest incarnation of it that the index knows. A rank of which
/// the index knows nothing holds no blocks.
pub(crate) fn compare(worker: &str, held: &HeldAnswer, index: &IndexAnswer) -> Vec<ComparedRank> {
    let of = |(dp_rank, rank): (&u32, &HeldRank)| {
        let indexed = index
            .targets
            .iter()
            .filter(|it| it.worker == worker && it.dp_rank == *dp_rank)
            .max_by_key(|it| it.epoch);
        let (blocks, digest, state) = match indexed {
            Some(it) => (it.blocks, it.digest.as_str(), it.state.as_str()),
            None => (0, "0000000000000000", UNKNOWN),
        };
        ComparedRank {
            worker: worker.to_owned(),
            dp_rank: *dp_rank,
            engine_blocks: rank.blocks,
            index_blocks: blocks,
            state: state.to_owned(),
            equal: rank.blocks == blocks && rank.digest == digest,
        }
    };
    held.ranks.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::{HeldAnswer, IndexAnswer, compare};

    #[test]
    fn ranks_are_equal_when_blocks_and_digest_of_the_newest_incarnation_are() {
        let held: HeldAnswer = serde_json::from_str(
            r#"{"ranks":{"0":{"blocks":2,"digest":"0000000000000007"},
                         "1":{"blocks":0,"digest":"0000000000000000"},
                         "2":{"blocks":1,"digest":"0000000000000001"}}}"#,
        )
        .unwrap();
        let target = |rank: u32, epoch: u64, blocks: u64, digest: &str| {
            format!(
                r#"{{"target":"w1#{epoch}/{rank}","worker":"w1","epoch":{epoch},"dp_rank":{rank},
                    "blocks":{blocks},"digest":"{digest}","state":"ready"}}"#
            )
        };
        let targets = [
            target(0, 1, 9, "0000000000000009"),
            target(0, 2, 2, "0000000000000007"),
            target(2, 2, 1, "0000000000000002"),
        ];
        let index: IndexAnswer =
            serde_json::from_str(&format!(r#"{{"targets":[{}]}}"#, targets.join(","))).unwrap();

        let equal: Vec<bool> = compare("w1", &held, &index)
            .iter()
            .map(|it| it.equal)
            .collect();

        assert_eq!(equal, [true, true, false]);
    }
}
