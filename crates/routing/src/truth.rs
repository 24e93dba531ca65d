//! Whether engines run requests on the ranks they are asked for.
//!
//! Each finished turn that shows where it ran is compared with what was asked. Two turns in a row that ran
//! elsewhere make a worker's endpoint untrusted: its engine takes the rank and ignores it. It is trusted again
//! after so many honoured turns in a row that chance explains them in at most one case of a hundred, or with the
//! worker's next incarnation. What peers have found counts for as long as they say so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::{Distrust, DpRank, Endpoint, Epoch, InstanceId, Timestamp, WorkerId};

/// Turns in a row that ran elsewhere before an endpoint is untrusted: one may be an accident of evidence.
const IGNORED_IN_A_ROW: u32 = 2;
/// Honoured turns in a row are chance with at most one in so many.
const CHANCE: u64 = 100;
/// Blocks announced so long after the first token are late: the next turn of a conversation may have begun.
const LATE: Duration = Duration::from_secs(1);
/// How long a finding is told after it was last made.
const FINDING_LEASE: Duration = Duration::from_secs(10 * 60);
/// Endpoints of workers about which something is known: 800 workers.
const MAX_RECORDS: usize = 4_096;
/// Findings told at once. Beyond, the oldest is forgotten.
const MAX_FINDINGS: usize = 4_096;
/// Routers whose word is heard.
const MAX_PEERS: usize = 1_024;
/// Endpoints that one of them may distrust; the rest of a longer list is not heard.
const MAX_TOLD: usize = 4_096;

/// A turn that named a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The worker.
    pub worker: WorkerId,
    /// Its incarnation at the decision.
    pub epoch: Epoch,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The worker's first rank.
    pub start_rank: u32,
    /// How many ranks it has.
    pub dp_size: u32,
    /// The rank asked for.
    pub dp_rank: DpRank,
}

/// What shows where a turn ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing does.
    Nothing,
    /// The engine's answer names the rank.
    Named(DpRank),
    /// The rank announced blocks that only this turn has.
    Announced {
        /// The rank.
        dp_rank: DpRank,
        /// How long after the first token, as far as somebody waited for it; else zero.
        after: Duration,
    },
    /// The turn had a new full block, and no rank has announced it.
    Silence,
    /// The engine says that it has no such rank.
    Refusal,
}

/// What is wrong with how a worker treats the rank it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// The turn ran on another rank.
    Ignored,
    /// It ran on the rank that the number means in the other numbering: local for global, or the reverse.
    Numbering,
    /// The engine says that it has no such rank.
    Refused,
    /// The rank does not announce what it holds.
    Silent,
    /// The rank announces what it holds more than a second after the first token.
    Late,
}

impl Fault {
    /// Its name in metrics, JSON and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ignored => "ignored",
            Self::Numbering => "numbering",
            Self::Refused => "refused",
            Self::Silent => "silent",
            Self::Late => "late",
        }
    }

    /// Whether the turn ran elsewhere without a word.
    pub const fn is_elsewhere(self) -> bool {
        match self {
            Self::Ignored | Self::Numbering => true,
            Self::Refused | Self::Silent | Self::Late => false,
        }
    }
}

/// A fault that is present.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Finding {
    /// The worker.
    pub worker: WorkerId,
    /// Its incarnation.
    pub epoch: Epoch,
    /// The endpoint at which it showed.
    pub endpoint: Endpoint,
    /// The rank asked for.
    pub dp_rank: DpRank,
    /// What is wrong.
    pub fault: Fault,
}

/// What one router knows of all workers.
#[derive(Debug, Default)]
pub struct RankTruth {
    records: BTreeMap<(WorkerId, Endpoint), Record>,
    /// When each was last made.
    findings: BTreeMap<Finding, Timestamp>,
    told: BTreeMap<InstanceId, Told>,
    dropped: u64,
}

/// One endpoint of one incarnation.
#[derive(Clone, Copy, Debug)]
struct Record {
    epoch: Epoch,
    ignored_in_a_row: u32,
    honoured_in_a_row: u32,
    untrusted: bool,
}

#[derive(Debug)]
struct Told {
    distrust: BTreeSet<Distrust>,
    lease_until: Timestamp,
}

impl RankTruth {
    /// Takes in a turn that named a rank, and says what was wrong with it. What is learnt of an incarnation that
    /// has ended says nothing of the present one.
    pub fn judge(&mut self, asked: &Asked, seen: Seen, now: Timestamp) -> Option<Fault> {
        let fault = fault_of(asked, seen);
        if !self.follow_epoch(asked) {
            return None;
        }
        if let Seen::Named(ran) | Seen::Announced { dp_rank: ran, .. } = seen {
            match ran == asked.dp_rank {
                true => self.honoured(asked, seen),
                false => self.ran_elsewhere(asked),
            }
        }
        if let Some(fault) = fault {
            self.find(asked, fault, now);
        }
        fault
    }

    /// Takes in whether the rank that a turn's answer names, the one `asked` names here, has announced the turn's
    /// blocks, and says what was wrong with that. Where the turn ran is not judged again.
    pub fn judge_announcement(
        &mut self,
        asked: &Asked,
        seen: Seen,
        now: Timestamp,
    ) -> Option<Fault> {
        let fault = fault_of(asked, seen).filter(|it| !it.is_elsewhere());
        if !self.follow_epoch(asked) {
            return None;
        }
        if matches!(seen, Seen::Announced { dp_rank, .. } if dp_rank == asked.dp_rank) {
            self.announced(asked);
        }
        if let Some(fault) = fault {
            self.find(asked, fault, now);
        }
        fault
    }

    /// Whether the ranks asked of this endpoint are ignored, by this router's own finding or a peer's.
    pub fn is_untrusted(
        &self,
        worker: &WorkerId,
        epoch: Epoch,
        endpoint: Endpoint,
        now: Timestamp,
    ) -> bool {
        let key = Distrust {
            worker: worker.clone(),
            epoch,
            endpoint,
        };
        let mut live = self.told.values().filter(|it| now < it.lease_until);
        self.distrusts(&key) || live.any(|it| it.distrust.contains(&key))
    }

    /// This router's own findings, for its peers.
    pub fn distrust(&self) -> Vec<Distrust> {
        let untrusted = self.records.iter().filter(|(_, it)| it.untrusted);
        let distrust = untrusted.map(|((worker, endpoint), record)| Distrust {
            worker: worker.clone(),
            epoch: record.epoch,
            endpoint: *endpoint,
        });
        distrust.collect()
    }

    /// Everything untrusted now, by whomever.
    pub fn untrusted(&self, now: Timestamp) -> BTreeSet<Distrust> {
        let live = self.told.values().filter(|it| now < it.lease_until);
        let told = live.flat_map(|it| it.distrust.iter().cloned());
        self.distrust().into_iter().chain(told).collect()
    }

    /// A peer's whole list, in place of its last one.
    pub fn hear(&mut self, peer: &InstanceId, distrust: &[Distrust], lease_until: Timestamp) {
        if MAX_PEERS <= self.told.len() && !self.told.contains_key(peer) {
            self.dropped += 1;
            return;
        }
        self.dropped += distrust.len().saturating_sub(MAX_TOLD) as u64;
        let told = Told {
            distrust: distrust.iter().take(MAX_TOLD).cloned().collect(),
            lease_until,
        };
        self.told.insert(peer.clone(), told);
    }

    /// A peer has gone, and its word with it.
    pub fn forget_peer(&mut self, peer: &InstanceId) {
        self.told.remove(peer);
    }

    /// The faults present now: made within the last ten minutes and not disproved, and those for which an
    /// endpoint is untrusted.
    pub fn findings(&self, now: Timestamp) -> impl Iterator<Item = &Finding> {
        let findings = self.findings.iter();
        findings
            .filter(move |(finding, at)| now < **at + FINDING_LEASE || self.stands(finding))
            .map(|(finding, _)| finding)
    }

    /// What was not kept because a bound was reached, since the start.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Forgets incarnations that are no more, words that have run out, and findings that are not told any more.
    pub fn expire(&mut self, now: Timestamp, is_live: impl Fn(&WorkerId, Epoch) -> bool) {
        self.records
            .retain(|(worker, _), record| is_live(worker, record.epoch));
        self.told.retain(|_, it| now < it.lease_until);
        let told: BTreeSet<Finding> = self.findings(now).cloned().collect();
        self.findings
            .retain(|it, _| told.contains(it) && is_live(&it.worker, it.epoch));
    }

    /// Makes room for what a turn says; false where it says nothing of the present incarnation.
    fn follow_epoch(&mut self, asked: &Asked) -> bool {
        let key = (asked.worker.clone(), asked.endpoint);
        let fresh = Record {
            epoch: asked.epoch,
            ignored_in_a_row: 0,
            honoured_in_a_row: 0,
            untrusted: false,
        };
        let full = MAX_RECORDS <= self.records.len();
        match self.records.get_mut(&key) {
            Some(record) if asked.epoch < record.epoch => return false,
            Some(record) if record.epoch < asked.epoch => {
                *record = fresh;
                self.findings
                    .retain(|it, _| it.worker != asked.worker || asked.epoch <= it.epoch);
            }
            Some(_) => {}
            None if full => {
                self.dropped += 1;
                return false;
            }
            None => {
                self.records.insert(key, fresh);
            }
        }
        true
    }

    fn honoured(&mut self, asked: &Asked, seen: Seen) {
        let record = self.record_mut(asked);
        record.ignored_in_a_row = 0;
        record.honoured_in_a_row = record.honoured_in_a_row.saturating_add(1);
        let proven = proof(asked.dp_size) <= record.honoured_in_a_row;
        record.untrusted &= !proven;
        if let Seen::Announced { .. } = seen {
            self.announced(asked);
        }
        self.findings.retain(|it, _| {
            let here = it.worker == asked.worker && it.endpoint == asked.endpoint;
            let rank = it.worker == asked.worker && it.dp_rank == asked.dp_rank;
            let disproved = match it.fault {
                Fault::Ignored | Fault::Numbering => here && proven,
                Fault::Refused => here && rank,
                Fault::Silent | Fault::Late => false,
            };
            !disproved
        });
    }

    /// A rank announces what it computes.
    fn announced(&mut self, asked: &Asked) {
        self.findings.retain(|it, _| {
            let rank = it.worker == asked.worker && it.dp_rank == asked.dp_rank;
            !(rank && matches!(it.fault, Fault::Silent | Fault::Late))
        });
    }

    fn ran_elsewhere(&mut self, asked: &Asked) {
        let record = self.record_mut(asked);
        record.honoured_in_a_row = 0;
        record.ignored_in_a_row = record.ignored_in_a_row.saturating_add(1);
        // A single rank runs everything, whatever it is called.
        record.untrusted |= 1 < asked.dp_size && IGNORED_IN_A_ROW <= record.ignored_in_a_row;
    }

    fn record_mut(&mut self, asked: &Asked) -> &mut Record {
        let key = (asked.worker.clone(), asked.endpoint);
        self.records
            .get_mut(&key)
            .expect("`follow_epoch` has made the record")
    }

    fn find(&mut self, asked: &Asked, fault: Fault, now: Timestamp) {
        let finding = Finding {
            worker: asked.worker.clone(),
            epoch: asked.epoch,
            endpoint: asked.endpoint,
            dp_rank: asked.dp_rank,
            fault,
        };
        self.findings.insert(finding, now);
        if MAX_FINDINGS < self.findings.len() {
            let oldest = self.findings.iter().min_by_key(|(_, at)| **at);
            if let Some(oldest) = oldest.map(|(finding, _)| finding.clone()) {
                self.findings.remove(&oldest);
                self.dropped += 1;
            }
        }
    }

    /// Whether it is a reason for which its endpoint is untrusted.
    fn stands(&self, finding: &Finding) -> bool {
        let key = Distrust {
            worker: finding.worker.clone(),
            epoch: finding.epoch,
            endpoint: finding.endpoint,
        };
        finding.fault.is_elsewhere() && self.distrusts(&key)
    }

    fn distrusts(&self, key: &Distrust) -> bool {
        let record = self.records.get(&(key.worker.clone(), key.endpoint));
        record.is_some_and(|it| it.untrusted && it.epoch == key.epoch)
    }
}

fn fault_of(asked: &Asked, seen: Seen) -> Option<Fault> {
    let rank = asked.dp_rank.get();
    match seen {
        Seen::Nothing => None,
        Seen::Silence => Some(Fault::Silent),
        Seen::Refusal => Some(Fault::Refused),
        Seen::Announced { dp_rank, after } if dp_rank == asked.dp_rank => {
            (LATE < after).then_some(Fault::Late)
        }
        Seen::Named(ran) if ran == asked.dp_rank => None,
        Seen::Named(ran) | Seen::Announced { dp_rank: ran, .. } => {
            let start = asked.start_rank;
            let as_local = rank.checked_add(start);
            let as_global = rank.checked_sub(start);
            let renumbered = [as_local, as_global].contains(&Some(ran.get()));
            Some(match renumbered {
                true => Fault::Numbering,
                false => Fault::Ignored,
            })
        }
    }
}

/// Honoured turns in a row that chance alone explains in at most 1 % of cases: the smallest `n` with
/// `dp_size^-n <= 1 / 100`.
fn proof(dp_size: u32) -> u32 {
    let (mut turns, mut outcomes) = (0, 1_u64);
    while outcomes < CHANCE && 1 < dp_size {
        turns += 1;
        outcomes *= u64::from(dp_size);
    }
    turns
}

#[cfg(test)]
mod tests;
