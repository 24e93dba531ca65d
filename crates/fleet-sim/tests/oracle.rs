//! A trace served as a few lines of arithmetic have it: each rank takes its requests one after another, and keeps the
//! blocks used last.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use domain::{BlockSize, SequenceHash};
use engine_model::StepTime;
use fleet_sim::{Decode, Fleet, Setting, Trace, Workload, run};
use placement::Policy;

const RANKS: usize = 8;
const KV_BLOCKS: usize = 600;
/// Prompt tokens a second.
const RATE: u32 = 4_000;
const BLOCK: u32 = 512;

/// One rank's cache: of one prompt the first block is evicted last.
#[derive(Default)]
struct Cache {
    used: HashMap<SequenceHash, u64>,
    oldest: BTreeMap<u64, SequenceHash>,
    clock: u64,
}

impl Cache {
    fn held(&self, prompt: &[SequenceHash]) -> usize {
        let held = prompt.iter().take_while(|it| self.used.contains_key(it));
        held.count()
    }

    fn compute(&mut self, prompt: &[SequenceHash]) {
        for block in prompt.iter().rev() {
            self.clock += 1;
            let before = self.used.insert(*block, self.clock);
            before.and_then(|it| self.oldest.remove(&it));
            self.oldest.insert(self.clock, *block);
        }
        while KV_BLOCKS < self.used.len() {
            let (_, block) = self.oldest.pop_first().unwrap();
            self.used.remove(&block);
        }
    }
}

fn trace() -> Trace {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../rankway/traces/mooncake_first_1000.jsonl");
    let lines = std::fs::read(path).unwrap();
    Trace::read(&lines[..], BlockSize::new(BLOCK).unwrap(), None).unwrap()
}

/// Mean time to first token in seconds, and tokens from caches, where ranks are taken in turn.
fn by_hand(trace: &Trace) -> (f64, u64) {
    let mut ranks: Vec<(f64, Cache)> = (0..RANKS).map(|_| Default::default()).collect();
    let (mut waited, mut cached) = (0.0, 0);
    for (number, request) in trace.requests.iter().enumerate() {
        let (free, cache) = &mut ranks[number % RANKS];
        // The last token is always computed.
        let cacheable = (request.isl.get() - 1) / u64::from(BLOCK);
        let prompt = &request.chain[..(cacheable as usize).min(request.chain.len())];
        // Requests come in order, so what ran before this one on its rank is all there is.
        let held = cache.held(prompt) as u64 * u64::from(BLOCK);
        let sent = request.at.as_secs_f64();
        *free = free.max(sent) + (request.isl.get() - held) as f64 / f64::from(RATE);
        waited += *free - sent;
        cached += held;
        cache.compute(&request.chain);
    }
    (waited / trace.requests.len() as f64, cached)
}

#[test]
fn ranks_taken_in_turn_serve_a_trace_as_arithmetic_has_it() {
    let trace = trace();
    let workload = Workload::of_trace("trace", &trace, Decode::ELSEWHERE);
    let setting = Setting {
        fleet: Fleet {
            workers: RANKS as u32,
            ranks: 1,
            kv_blocks: KV_BLOCKS as u32,
            pass_tokens: BLOCK,
            step: StepTime {
                base: Duration::ZERO,
                per_prefill_token: Duration::from_secs(1) / RATE,
                per_sequence: Duration::ZERO,
            },
            ..Fleet::default()
        },
        policy: Policy::TargetRoundRobin,
        ..Setting::default()
    };

    let report = run(&workload, &setting, |_| {}).unwrap();

    let (mean, cached) = by_hand(&trace);
    let sums = report.totals.measured;
    let (ttft, hits) = (report.ttft_mean().unwrap(), sums.realised.get());
    let figures = format!("{ttft:.2} s and {hits} tokens, by hand {mean:.2} s and {cached}");
    assert!((ttft / mean - 1.0).abs() < 0.02, "{figures}");
    assert!(
        (hits as f64 / cached as f64 - 1.0).abs() < 0.02,
        "{figures}"
    );
}
