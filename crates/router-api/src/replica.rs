//! One router replica: what all of its requests share.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use affinity::{Binding, ConversationKey};
use axum::http::{HeaderValue, StatusCode};
use contracts::rpc::{
    Affinity, Bound, CallError, Dispatch, Index, OverlapRequest, PrefixHashes, Shards, Unknown,
};
use domain::{DpRank, InstanceId, ModelName, Target, WorkerId};
use futures::future::join_all;
use routing::OverlapView;
use service_kit::{Clock, Context};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::admission::Admission;
use crate::body::Budget;
use crate::bound::Heard;
use crate::breaker::Breaker;
use crate::caller::Audit;
use crate::config::Config;
use crate::emptied::Emptied;
use crate::evidence::Evidence;
use crate::identity::Memory;
use crate::intake::{Blocks, Intake, TokenSource};
use crate::leases::Leases;
use crate::ledger::Ledger;
use crate::metrics::{Metrics, UNKNOWN_MODEL};
use crate::mind::{Ids, Mind};
use crate::mismatch::MismatchWatch;
use crate::openai::Fields;
use crate::records::Records;
use crate::shadow::Shadow;
use crate::tenant::Tenants;

/// How long index and affinity store may take before a decision is made without them.
pub(crate) const ASK_TIMEOUT: Duration = Duration::from_millis(50);
// A late shard is given up before the whole index is.
const _: () = assert!(Shards::DEADLINE.as_millis() < ASK_TIMEOUT.as_millis());
/// How long a request waits for the fleet to be read for the first time.
const FLEET_PATIENCE: Duration = Duration::from_secs(5);
/// How long after a write that failed others may have failed too: as long as an announcement is waited for.
const UNWRITTEN: Duration = Duration::from_secs(20);
/// How long an engine may take to tokenise: about 1 s for a million tokens.
const TOKENIZE_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct Replica {
    pub(crate) config: Config,
    pub(crate) instance: InstanceId,
    pub(crate) context: Context,
    pub(crate) clock: Clock,
    pub(crate) mind: Mind,
    pub(crate) ids: Ids,
    pub(crate) index: Arc<dyn Index>,
    pub(crate) affinity: Arc<dyn Affinity>,
    /// What the store's answers have come to, and what its writes have.
    pub(crate) store_reads: Breaker,
    pub(crate) store_writes: Breaker,
    pub(crate) index_reads: Breaker,
    /// Bindings as the bus tells of them.
    pub(crate) heard: Heard,
    /// Whether the workers that there are have been read.
    pub(crate) fleet_read: watch::Sender<bool>,
    pub(crate) dispatch: Arc<dyn Dispatch>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) evidence: Evidence,
    pub(crate) ledger: Ledger,
    pub(crate) records: Records,
    pub(crate) shadow: Shadow,
    pub(crate) bodies: Budget,
    /// Requests for which no target has room.
    pub(crate) admission: Admission,
    pub(crate) metrics: Metrics,
    pub(crate) mismatch: MismatchWatch,
    /// Which worker tokenises next.
    pub(crate) tokenizer: AtomicUsize,
    pub(crate) memory: Memory,
    pub(crate) tenants: Tenants,
    pub(crate) audit: Audit,
    pub(crate) emptied: Emptied,
}

/// What others know of a request.
pub(crate) struct Known {
    /// The index's answer in each block size; none when it did not answer.
    pub(crate) views: Option<Vec<OverlapView>>,
    pub(crate) binding: BindingAnswer,
    /// Where the conversation runs that this one was started from.
    pub(crate) parent: Option<Target>,
}

/// What the affinity store says of a request's conversation.
pub(crate) enum BindingAnswer {
    /// Nobody was asked: no conversation, or affinity is off.
    NotAsked,
    Bound(Box<Bound>),
    Unbound,
    /// It did not answer, or takes no writes. What was last heard of the binding.
    Silent(Option<Box<Binding>>),
}

impl Replica {
    /// Resolves once the workers that there are are known, or after a few seconds: a balancer may not have noticed
    /// yet that this router has just started.
    pub(crate) async fn knows_workers(&self) {
        let mut read = self.fleet_read.subscribe();
        // Read or not, the request is told what is known.
        let _late = timeout(FLEET_PATIENCE, read.wait_for(|read| *read)).await;
    }

    /// Asks index and affinity store side by side.
    pub(crate) async fn ask(&self, intake: &Intake, blocks: &Blocks, record: bool) -> Known {
        let (views, binding, parent) = tokio::join!(
            self.ask_index(intake, blocks, record),
            self.ask_affinity(intake),
            self.ask_parent(intake)
        );
        Known {
            views,
            binding,
            parent,
        }
    }

    /// Asks again for a request that has waited. Where the index has recorded it by its answer `before`, its ceiling
    /// stays as it was then: by now it is itself among those that carried its prompt.
    pub(crate) async fn ask_again(
        &self,
        intake: &Intake,
        blocks: &Blocks,
        before: Option<&Known>,
    ) -> Known {
        let before = before.and_then(|it| it.views.as_deref());
        let mut known = self.ask(intake, blocks, before.is_none()).await;
        let before = before.unwrap_or_default();
        for view in known.views.iter_mut().flatten() {
            let then = before.iter().find(|it| it.block_size == view.block_size);
            if let Some(then) = then {
                view.ceiling = then.ceiling.max(view.stored);
            }
        }
        known
    }

    async fn ask_index(
        &self,
        intake: &Intake,
        blocks: &Blocks,
        record: bool,
    ) -> Option<Vec<OverlapView>> {
        if blocks.hashes.is_empty() || !self.index_reads.allows() {
            return None;
        }
        let asked = blocks.hashes.iter().map(async |(block_size, hashes)| {
            let request = OverlapRequest {
                namespace: intake.namespace(*block_size),
                hashes: PrefixHashes::Dense(hashes.clone()),
                record,
            };
            let answer = self.index.overlap(request).await?;
            Ok::<_, CallError>(OverlapView {
                block_size: *block_size,
                groups: answer.groups,
                ceiling: answer.ceiling,
                stored: answer.stored,
                not_ready: answer.not_ready,
                unknown: self.unknown_ranks(&intake.model, &answer.unknown),
                index_age: answer.index_age,
            })
        });
        let answers = timeout(ASK_TIMEOUT, join_all(asked)).await.ok();
        let answers = answers.and_then(|it| it.into_iter().collect::<Result<_, _>>().ok());
        self.index_reads.saw(answers.is_some());
        answers
    }

    /// The ranks of `model` of which an answer of the index says nothing.
    fn unknown_ranks(&self, model: &ModelName, unknown: &Unknown) -> BTreeSet<(WorkerId, DpRank)> {
        if unknown.is_nothing() {
            return BTreeSet::new();
        }
        let router = self.mind.lock();
        let workers = router.workers().filter(|it| it.model == *model);
        let targets = workers.flat_map(|worker| {
            worker.ranks().map(|dp_rank| Target {
                worker: worker.id.clone(),
                epoch: worker.epoch,
                dp_rank,
            })
        });
        let unknown = targets.filter(|it| unknown.contains(it));
        unknown.map(|it| (it.worker, it.dp_rank)).collect()
    }

    /// Asks for the binding of the request's conversation.
    pub(crate) async fn ask_affinity(&self, intake: &Intake) -> BindingAnswer {
        let key = match &intake.conversation {
            Some(key) if self.binds(intake) => key,
            _ => return BindingAnswer::NotAsked,
        };
        if !self.store_reads.allows() {
            return self.as_heard(key);
        }
        let answer = within_deadline(self.affinity.get(key)).await;
        self.store_reads.saw(answer.is_ok());
        match answer {
            Ok(Some(bound)) => BindingAnswer::Bound(Box::new(bound)),
            // What cannot be bound is not placed as if it could.
            Ok(None) if !self.store_writes.allows() => BindingAnswer::Silent(None),
            Ok(None) => BindingAnswer::Unbound,
            Err(_) => self.as_heard(key),
        }
    }

    /// What is known of a binding without its store.
    pub(crate) fn as_heard(&self, key: &ConversationKey) -> BindingAnswer {
        BindingAnswer::Silent(self.heard.get(key).map(Box::new))
    }

    /// Has a binding written, if the store does so in time.
    pub(crate) async fn written<T>(
        &self,
        call: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let written = within_deadline(call).await;
        let answered = match &written {
            Ok(_)
            | Err(CallError::FailedPrecondition { .. } | CallError::InvalidArgument { .. }) => true,
            Err(
                CallError::Unavailable { .. }
                | CallError::Unreached { .. }
                | CallError::DeadlineExceeded { .. },
            ) => false,
        };
        self.store_writes.saw(answered);
        written
    }

    /// Whether the store of bindings has failed of late.
    pub(crate) fn bindings_fail(&self) -> bool {
        let stores = [&self.store_reads, &self.store_writes];
        stores.iter().any(|it| it.has_failed_within(UNWRITTEN))
    }

    /// Whether what is written of late may not have been taken: then that nothing is heard of an engine says nothing
    /// of the engine.
    pub(crate) fn writes_fail(&self) -> bool {
        self.store_writes.has_failed_within(UNWRITTEN) || self.context.health.bus_fails()
    }

    /// Asks where the conversation runs that this one was started from. Silence costs a hint and no more.
    async fn ask_parent(&self, intake: &Intake) -> Option<Target> {
        let parent = intake.parent.as_ref()?;
        if !self.binds(intake) || intake.conversation.as_ref() == Some(parent) {
            return None;
        }
        let bound = within_deadline(self.affinity.get(parent)).await.ok()??;
        Some(bound.binding.target)
    }

    /// Whether bindings mean anything to the request.
    pub(crate) fn binds(&self, intake: &Intake) -> bool {
        let mode = self.mind.lock().config().affinity(&intake.model);
        mode != affinity::Mode::Off && intake.pin.is_none()
    }

    /// The request's blocks, asking a tokenizer where that is needed.
    pub(crate) async fn blocks(
        &self,
        source: TokenSource,
        intake: &Intake,
        fields: &Fields<'_>,
        body: &[u8],
        authorization: Option<&HeaderValue>,
    ) -> Blocks {
        let unknown = || Blocks {
            isl: fields.estimated_tokens(),
            hashes: Vec::new(),
        };
        match source {
            TokenSource::Known(blocks) => blocks,
            TokenSource::Nobody => unknown(),
            TokenSource::Tokenizer => {
                let tokens = self.tokenize(&intake.model, body, authorization);
                let tokens = timeout(TOKENIZE_TIMEOUT, tokens).await;
                match tokens.ok().flatten() {
                    Some(tokens) => intake.blocks_of(self, &tokens),
                    None => unknown(),
                }
            }
        }
    }

    /// Counts an answer to a client.
    pub(crate) fn count(&self, model: Option<&ModelName>, status: StatusCode) {
        let model = model.map_or(UNKNOWN_MODEL, ModelName::as_str);
        let labels = [model, status.as_str()];
        self.metrics.requests.with_label_values(&labels).inc();
    }
}

/// The answer of a service that a request waits for.
pub(crate) async fn within_deadline<T>(
    call: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    timeout(ASK_TIMEOUT, call)
        .await
        .unwrap_or(Err(CallError::DeadlineExceeded {
            service: "affinity",
        }))
}
