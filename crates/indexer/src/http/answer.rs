//! What is answered: what each worker and each of its ranks holds, in tokens, and what the answer does not know.

use std::collections::BTreeMap;

use contracts::rpc::OverlapAnswer;
use domain::{BlockSize, Depths, DpRank, Epoch, Target, Tokens, Worker, WorkerId};
use serde::Serialize;

use crate::answers::Answers;

/// By worker.
type ByWorker<T> = BTreeMap<String, T>;
/// By rank.
type ByRank<T> = BTreeMap<String, T>;

/// The answer to a query.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    /// Leading tokens in the engine's own memory.
    scores: ByWorker<ByRank<u64>>,
    frequencies: [u32; 0],
    instances: ByWorker<Instance>,
    coverage: Coverage,
    #[serde(skip)]
    live: BTreeMap<WorkerId, Epoch>,
    #[serde(skip)]
    held: BTreeMap<(WorkerId, DpRank), Held>,
}

/// What one worker holds: in each tier the most that a rank holds up to it.
#[derive(Debug, Default, Serialize)]
struct Instance {
    longest_matched: u64,
    gpu: u64,
    dp: ByRank<u64>,
    cpu: u64,
    disk: u64,
}

/// What an answer is made of.
#[derive(Debug, Serialize)]
struct Coverage {
    /// The share of the log that this index follows.
    shard: String,
    /// How far it is behind the log.
    index_age_seconds: f64,
    /// Ranks of the model of which nothing is known here: other shards follow them.
    unknown: ByWorker<Vec<u32>>,
    /// Ranks of the model whose claims are incomplete.
    not_ready: ByWorker<ByRank<&'static str>>,
}

#[derive(Debug)]
struct Held {
    epoch: Epoch,
    size: BlockSize,
    depths: Depths,
}

impl Answer {
    /// Nothing held yet by `workers`, which are all of the model.
    pub(super) fn new(answers: &Answers, workers: &[Worker]) -> Self {
        let unknown = answers.shard.unknown();
        let unknown = workers.iter().filter_map(|worker| {
            let ranks = worker.ranks().filter(|it| {
                unknown.contains(&Target {
                    worker: worker.id.clone(),
                    epoch: worker.epoch,
                    dp_rank: *it,
                })
            });
            let ranks: Vec<u32> = ranks.map(DpRank::get).collect();
            (!ranks.is_empty()).then(|| (worker.id.to_string(), ranks))
        });
        Self {
            scores: BTreeMap::new(),
            frequencies: [],
            instances: BTreeMap::new(),
            coverage: Coverage {
                shard: answers.shard.to_string(),
                index_age_seconds: 0.0,
                unknown: unknown.collect(),
                not_ready: BTreeMap::new(),
            },
            live: workers.iter().map(|it| (it.id.clone(), it.epoch)).collect(),
            held: BTreeMap::new(),
        }
    }

    /// Adds what the index says in one block size.
    pub(super) fn add(&mut self, size: BlockSize, overlap: OverlapAnswer) {
        let age = overlap.index_age.as_secs_f64();
        let coverage = &mut self.coverage;
        coverage.index_age_seconds = coverage.index_age_seconds.max(age);
        for (target, state) in overlap.not_ready {
            if self.live.contains_key(&target.worker) {
                let ranks = coverage.not_ready.entry(target.worker.to_string());
                let ranks = ranks.or_default();
                ranks.insert(target.dp_rank.to_string(), state.name());
            }
        }
        for group in overlap.groups {
            for target in group.targets {
                self.hold(target, size, group.depths);
            }
        }
    }

    /// An incarnation that has ended holds nothing.
    fn hold(&mut self, target: Target, size: BlockSize, depths: Depths) {
        let Target {
            worker,
            epoch,
            dp_rank,
        } = target;
        let known = self.held.get(&(worker.clone(), dp_rank));
        let newest = known.is_none_or(|it| it.epoch <= epoch);
        if newest && self.live.get(&worker).is_some_and(|it| *it <= epoch) {
            let held = Held {
                epoch,
                size,
                depths,
            };
            self.held.insert((worker, dp_rank), held);
        }
    }

    /// Makes of all that was added what is answered.
    pub(super) fn settle(&mut self) {
        for ((worker, rank), Held { size, depths, .. }) in &self.held {
            let [gpu, cpu, disk] = [depths.gpu, depths.host, depths.disk]
                .map(|blocks| size.tokens(blocks))
                .map(Tokens::get);
            let (worker, rank) = (worker.to_string(), rank.to_string());
            if 0 < gpu {
                let scores = self.scores.entry(worker.clone()).or_default();
                scores.insert(rank.clone(), gpu);
            }
            let instance = self.instances.entry(worker).or_default();
            instance.dp.insert(rank, gpu);
            instance.gpu = instance.gpu.max(gpu);
            instance.cpu = instance.cpu.max(cpu);
            instance.disk = instance.disk.max(disk);
            instance.longest_matched = instance.longest_matched.max(disk);
        }
    }
}
