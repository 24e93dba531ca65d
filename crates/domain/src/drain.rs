//! What an operator takes out of service.

use crate::{DpRank, InstanceId, Timestamp, WorkerId};

/// No new conversations here, in whatever incarnation, until it is undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// The worker.
    pub worker: WorkerId,
    /// Its rank; none for all of them.
    pub dp_rank: Option<DpRank>,
    /// Whether the conversations there go elsewhere at their next turn. If not, they stay until they are idle.
    pub moves: bool,
    /// Who wants it.
    pub actor: InstanceId,
    /// Since when.
    pub since: Timestamp,
}

impl Drain {
    /// Text form of what is drained: `worker` or `worker/dp_rank`. No worker's id contains the separator.
    pub fn place(&self) -> String {
        Self::place_of(&self.worker, self.dp_rank)
    }

    /// The same of a worker or one of its ranks.
    pub fn place_of(worker: &WorkerId, dp_rank: Option<DpRank>) -> String {
        match dp_rank {
            Some(dp_rank) => format!("{worker}/{dp_rank}"),
            None => worker.to_string(),
        }
    }
}
