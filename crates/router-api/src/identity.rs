//! Which conversation a request belongs to, where that takes more than the request: what earlier ones were.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use affinity::{Binding, Claim, Correlations, Kin, Lineage, SourceKind};
use bus::{Bus, Change};
use contracts::{ReservationBatch, topics};
use domain::{Endpoint, ReservationChange, SequenceHash, Target, Tokens};
use routing::{Decision, Lead};

use crate::follow::{follow_table, read};
use crate::intake::{Blocks, Intake};
use crate::replica::Replica;

/// Tokens by which a chat template opens the answer, at most. The next turn's prompt need not have them: what
/// opened a thought is left out where the thought is.
const OPENING: Tokens = Tokens::new(8);
/// Where a request's conversation was told, if nowhere.
const NOWHERE: &str = "none";

/// What is remembered of earlier requests.
#[derive(Default)]
pub(crate) struct Memory {
    /// Guards both; held for one request.
    past: Mutex<Past>,
}

#[derive(Default)]
struct Past {
    lineage: Lineage,
    correlations: Correlations,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Replica {
    /// Finds the request's conversation, now that its blocks are known. With `record` the request counts as
    /// one of those that later ones go on with.
    pub(crate) fn identify(&self, intake: &mut Intake, blocks: &Blocks, record: bool) {
        if intake.endpoint == Endpoint::Embeddings {
            // It leaves nothing that a later turn could use.
            return;
        }
        let source = self.settle(intake, blocks, record);
        if record {
            let source = source.map_or(NOWHERE, SourceKind::name);
            self.metrics.sources.with_label_values(&[source]).inc();
        }
    }

    /// Remembers where a request without a name of its own has been sent: what goes on with it is led there.
    pub(crate) fn remember_place(&self, intake: &Intake, blocks: &Blocks, decision: &Decision) {
        let ([.., end], Some(target)) = (lasting(blocks), decision.reserved_at()) else {
            return;
        };
        if intake.endpoint != Endpoint::Embeddings && intake.conversation.is_none() {
            let kin = Kin::of(&intake.model);
            let now = self.clock.now();
            self.memory.lock().lineage.ran(kin, *end, target, now);
        }
    }

    /// Hears where the requests of a peer end and run, so that any of them is gone on with here.
    pub(crate) fn hear_ends(&self, batch: &ReservationBatch) {
        if batch.router == self.instance {
            return;
        }
        let router = self.mind.lock();
        let ends = batch.changes.iter().filter_map(|change| match change {
            ReservationChange::Reserve {
                target, landmarks, ..
            } => {
                let worker = router.worker(&target.worker)?;
                let target = Target {
                    // One copy of the name for all that ran there.
                    worker: worker.id.clone(),
                    ..target.clone()
                };
                Some((worker.model.clone(), *landmarks.last()?, target))
            }
            ReservationChange::Release { .. } => None,
        });
        let ends: Vec<_> = ends.collect();
        drop(router);
        let now = self.clock.now();
        let lineage = &mut self.memory.lock().lineage;
        for (model, end, target) in ends {
            let kin = Kin::of(&model);
            lineage.ran(kin, end, &target, now);
        }
    }

    /// Takes the first claim that holds, and tells which kind that was.
    fn settle(&self, intake: &mut Intake, blocks: &Blocks, record: bool) -> Option<SourceKind> {
        let now = self.clock.now();
        let hashes = lasting(blocks);
        let mut source = None;
        for claim in std::mem::take(&mut intake.claims) {
            match claim {
                Claim::Named(named) => {
                    intake.keeps_its_id = named.keeps_its_id();
                    intake.conversation = Some(intake.key(named.id));
                    return Some(named.source.kind);
                }
                Claim::Correlated(named) => {
                    let key = intake.key(named.id);
                    let correlations = &mut self.memory.lock().correlations;
                    let proven = correlations.is_proven(&key, hashes, now);
                    if record {
                        correlations.record(&key, hashes, proven, now);
                    }
                    if proven {
                        intake.conversation = Some(key);
                        return Some(SourceKind::CorrelationId);
                    }
                }
                Claim::Bucket(bucket) => {
                    intake.bucket = Some(bucket);
                    source = source.or(Some(SourceKind::PromptCacheKey));
                }
                Claim::Lineage => {
                    let kin = Kin::of(&intake.model);
                    let lineage = &mut self.memory.lock().lineage;
                    let found = lineage.find(kin, hashes, now);
                    if record {
                        lineage.record(kin, hashes, found.origin, now);
                    }
                    intake.lead = found.lead.map(|it| lead(it, blocks));
                    if let Some(origin) = found.origin {
                        intake.conversation = Some(intake.key(origin.id()));
                        return Some(SourceKind::Lineage);
                    }
                }
            }
        }
        source
    }
}

/// The blocks of a prompt that its next turn will have too.
fn lasting(blocks: &Blocks) -> &[SequenceHash] {
    let Some((size, hashes)) = blocks.hashes.first() else {
        return &[];
    };
    let lasting = blocks.isl.saturating_sub(OPENING).get() / u64::from(size.get());
    let lasting = usize::try_from(lasting).unwrap_or(usize::MAX);
    &hashes[..lasting.min(hashes.len())]
}

/// What has been found by these blocks, in tokens.
fn lead(found: affinity::Lead, blocks: &Blocks) -> Lead {
    let size = blocks.hashes.first().map(|it| it.0);
    let count = u32::try_from(found.blocks).unwrap_or(u32::MAX);
    Lead {
        held: size.map_or(Tokens::ZERO, |it| it.tokens(count)),
        target: found.target,
    }
}

/// Hears of the conversations that any router has bound, for ever: what one has found by its lineage, all find.
pub(crate) async fn follow_bindings(replica: Arc<Replica>, bus: Arc<dyn Bus>) {
    let apply = |change: Change| {
        if let Change::Put(_, entry) = change
            && let Some(binding) = read::<Binding>(&replica, &topics::BINDINGS, &entry)
        {
            let now = replica.clock.now();
            replica.memory.lock().lineage.hear(&binding.key, now);
            replica.heard.hear(binding);
        }
    };
    follow_table(bus.as_ref(), &topics::BINDINGS, apply).await;
}
