//! Giving all that the index holds to another indexer, a rank at a time: each rank is taken by the loop, between
//! two batches, and only when what came before has been fetched.

use std::collections::VecDeque;

use contracts::index_store::{Fence, LogCursors};
use contracts::rpc::{CallError, DumpItem, DumpStream, DumpedRank};
use domain::Target;
use futures::{StreamExt, stream};
use prefix_index::RankSnapshot;
use tokio::sync::{mpsc, oneshot};

/// Blocks in one item: some 300 KB in memory.
const DUMPED_BLOCKS: usize = 4096;
/// Dumps that may wait for the loop at once; others wait for these.
const MAX_WAITING: usize = 4;

/// Asks the loop for parts of dumps.
#[derive(Clone)]
pub(crate) struct Dumps(mpsc::Sender<Wanted>);

/// What a dump asks the loop for.
pub(crate) enum Wanted {
    /// Its beginning.
    Begin(oneshot::Sender<Beginning>),
    /// A rank; none if it has gone.
    Rank(
        Target,
        oneshot::Sender<Option<(DumpedRank, Option<RankSnapshot>)>>,
    ),
}

/// What a dump begins with.
pub(crate) struct Beginning {
    pub(crate) cursors: LogCursors,
    pub(crate) fences: Vec<Fence>,
    pub(crate) ranks: VecDeque<Target>,
}

/// A dump under way.
struct Dumping {
    dumps: Dumps,
    ranks: VecDeque<Target>,
    ready: VecDeque<DumpItem>,
    ended: bool,
}

/// A way to ask, and what is asked.
pub(crate) fn dumps() -> (Dumps, mpsc::Receiver<Wanted>) {
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    (Dumps(sender), receiver)
}

impl Dumps {
    /// Waits until the store has been read.
    pub(crate) async fn begin(&self) -> Result<DumpStream, CallError> {
        let beginning = self.ask(Wanted::Begin).await?;
        let begin = DumpItem::Begin {
            cursors: beginning.cursors,
            fences: beginning.fences,
        };
        let dumping = Dumping {
            dumps: self.clone(),
            ranks: beginning.ranks,
            ready: VecDeque::from([begin]),
            ended: false,
        };
        Ok(stream::unfold(dumping, Dumping::next).boxed())
    }

    async fn ask<T>(
        &self,
        wanted: impl FnOnce(oneshot::Sender<T>) -> Wanted,
    ) -> Result<T, CallError> {
        let stopped = || CallError::Unavailable {
            service: "indexer",
            why: "it is stopping".to_owned(),
        };
        let (reply, answer) = oneshot::channel();
        let sent = self.0.send(wanted(reply)).await;
        sent.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())
    }
}

impl Dumping {
    async fn next(mut self) -> Option<(Result<DumpItem, CallError>, Self)> {
        while self.ready.is_empty() && !self.ended {
            if let Err(why) = self.refill().await {
                self.ended = true;
                return Some((Err(why), self));
            }
        }
        let item = self.ready.pop_front()?;
        Some((Ok(item), self))
    }

    async fn refill(&mut self) -> Result<(), CallError> {
        let Some(target) = self.ranks.pop_front() else {
            self.ended = true;
            self.ready.push_back(DumpItem::End);
            return Ok(());
        };
        let rank = self.dumps.ask(|reply| Wanted::Rank(target, reply)).await?;
        if let Some((rank, snapshot)) = rank {
            self.ready.push_back(DumpItem::Rank(rank));
            let pieces = snapshot.iter().flat_map(|it| it.pieces(DUMPED_BLOCKS));
            self.ready.extend(pieces.map(DumpItem::Blocks));
        }
        Ok(())
    }
}
