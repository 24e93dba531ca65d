//! NVIDIA Dynamo's default cost.

use super::field::{Field, Pick, active, pending};
use crate::draw::Draw;
use crate::policy::parameters;
use crate::snapshot::Candidate;

parameters! {
    /// Of Dynamo's default cost (1.6.1).
    Dynamo {
        /// Of a block held in GPU memory.
        credit = 1.0 in 0.0..=1000.0;
        /// How fast that credit fades on targets with more to do than the least busy.
        decay = 0.0 in 0.0..=1_000_000.0;
        /// Of a block held in host memory only.
        host = 0.75 in 0.0..=1000.0;
        /// Of a block held on disk only.
        disk = 0.25 in 0.0..=1000.0;
        /// Of prefill, against decoding.
        prefill = 1.0 in 0.0..=1000.0;
        /// Of each active request.
        active = 0.0 in 0.0..=1000.0;
        /// Above 0, a target is drawn the likelier the less it costs.
        temperature = 0.0 in 0.0..=1000.0;
    }
}

/// In blocks, `cost = prefill max(0, raw / B - credited) + D + active A`, with
/// `raw = P + max(L, round(credited B))`, `credited = credit fade gpu + host (in host only) + disk (on disk only)`,
/// `fade = 1 / (1 + decay ((P - min P) / B) / max(1, L / B))`, and `D` the blocks active there with those of the request
/// that are not among them.
///
/// At temperature 0 the least cost wins; above, targets are drawn with `p ~ exp(-(c - min) / ((max - min) T))`. Left out:
/// taints, a shared cache, the second tree of predicted blocks, and that its pending prefill stays whole until the
/// first token.
pub(super) fn dynamo(field: &Field<'_>, numbers: &Dynamo, draw: &mut Draw) -> Pick {
    let least_pending = field.fewest(pending);
    let weighed = field.weigh(|it| cost(field, it, numbers, least_pending));
    if numbers.temperature <= 0.0 {
        return field.least(weighed, draw);
    }
    soft(field, weighed, numbers.temperature, draw)
}

fn cost(field: &Field<'_>, candidate: &Candidate, numbers: &Dynamo, least_pending: f64) -> f64 {
    let block = f64::from(candidate.block_size.get());
    let isl = field.isl();
    let work = pending(candidate);
    let excess = (work - least_pending) / block / (isl / block).max(1.0);
    let fade = 1.0 / (1.0 + numbers.decay * excess);
    let held = candidate.held;
    let gpu = held.gpu.as_f64() / block;
    let host = held.host.saturating_sub(held.gpu).as_f64() / block;
    let disk = held.disk.saturating_sub(held.host).as_f64() / block;
    let credited = numbers.credit * fade * gpu + numbers.host * host + numbers.disk * disk;
    let raw = work + isl.max((credited * block).round());
    let prefill = (raw / block - credited).max(0.0);
    let blocks = (isl / block).floor();
    let joined = f64::from(candidate.tally.joined_blocks).min(blocks);
    let decode = f64::from(candidate.tally.active_blocks) + blocks - joined;
    numbers.prefill * prefill + decode + numbers.active * active(candidate)
}

/// Draws one, the likelier the less it costs.
fn soft(field: &Field<'_>, weighed: Vec<f64>, temperature: f64, draw: &mut Draw) -> Pick {
    let costs = || weighed.iter().copied();
    let least = costs().fold(f64::INFINITY, f64::min);
    let span = costs().fold(f64::NEG_INFINITY, f64::max) - least;
    let likely = |cost: f64| match span > 0.0 && span.is_finite() {
        true => (-(cost - least) / (span * temperature)).exp(),
        false => 1.0,
    };
    let mut left = draw.unit() * costs().map(likely).sum::<f64>();
    let drawn = costs().position(|cost| {
        left -= likely(cost);
        left < 0.0
    });
    let at = drawn.unwrap_or(weighed.len() - 1);
    field.pick(at, crate::Reason::Drawn, weighed)
}
