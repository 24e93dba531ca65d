//! llm-d's scheduler.

use super::field::{Field, Pick, active, pending};
use crate::draw::Draw;
use crate::policy::parameters;
use crate::snapshot::Candidate;

parameters! {
    /// Of llm-d's prefix affinity under a limit of waiting.
    LlmdAffinity {
        /// The share of a request that one has to hold to be preferred.
        share = 0.8 in 0.0..=1.0;
        /// Seconds that may be waited longer for it.
        seconds = 18.0 in 0.0..=100_000.0;
        /// Above 0, of those considered the one with fewest requests is chosen, else that with least prefill.
        decode_bound = 0.0 in 0.0..=1.0;
    }
}

parameters! {
    /// Of llm-d's weighed scorers.
    LlmdBlend {
        /// Of the share of the request that is held.
        prefix = 3.0 in 0.0..=1000.0;
        /// Of a short queue.
        queue = 2.0 in 0.0..=1000.0;
        /// Of free KV blocks.
        kv = 2.0 in 0.0..=1000.0;
        /// Of the longest time without a request that found nothing.
        cold = 2.0 in 0.0..=1000.0;
    }
}

/// `S` are those with `m / L >= share`, and `ttft = P / rate`. If `S` is not empty and its least `ttft` is at most
/// `seconds` above the least of the others, only `S` is considered, else all: `argmin P + miss`, or `argmin A` where
/// decoding is what binds.
pub(super) fn affinity(field: &Field<'_>, numbers: &LlmdAffinity, draw: &mut Draw) -> Pick {
    let is_warm = |it: &Candidate| field.share(it) >= numbers.share;
    let ttft = |it: &Candidate| (pending(it) / it.prefill_rate).min(f64::MAX);
    let soonest = |warm: bool| {
        let side = field.open.iter().filter(|it| is_warm(it) == warm);
        side.map(|it| ttft(it)).fold(f64::INFINITY, f64::min)
    };
    let (warm, cold) = (soonest(true), soonest(false));
    let prefers = warm.is_finite() && (!cold.is_finite() || warm - cold <= numbers.seconds);
    let weighed = match numbers.decode_bound > 0.0 {
        true => field.weigh(active),
        false => field.weigh(|it| pending(it) + field.miss(it)),
    };
    field.least_of(weighed, |it| !prefers || is_warm(it), draw)
}

/// `argmax prefix m / L + queue (max q - q) / (max q - min q) + kv (1 - used) + cold lru`, with `q` the requests waiting and
/// `used` the share of KV blocks by the last gauge. `lru` is one half of a request of which somebody holds something;
/// of others it falls from 1 for who was never sent such a request, or longest ago, to 0 for who was last.
pub(super) fn blend(field: &Field<'_>, numbers: &LlmdBlend, draw: &mut Draw) -> Pick {
    let (longest, shortest) = (field.most(waiting), field.fewest(waiting));
    let span = longest - shortest;
    let queue = |it: &Candidate| match span > 0.0 {
        true => (longest - waiting(it)) / span,
        false => 1.0,
    };
    let weight = |it: &Candidate| {
        let prefix = numbers.prefix * field.share(it);
        prefix + numbers.queue * queue(it) + numbers.kv * (1.0 - used(it))
    };
    let mut weighed = field.weigh(|it| -weight(it));
    let colds = colds(field);
    for (weight, cold) in weighed.iter_mut().zip(colds) {
        *weight -= numbers.cold * cold;
    }
    field.least(weighed, draw)
}

fn waiting(candidate: &Candidate) -> f64 {
    let gauge = candidate.gauge.as_ref();
    gauge.map_or(0.0, |it| f64::from(it.waiting))
}

/// By the gauge; without one what was sent there over what it can hold.
fn used(candidate: &Candidate) -> f64 {
    let sent = || {
        let capacity = candidate.capacity.map_or(f64::INFINITY, |it| it.as_f64());
        candidate.resident.as_f64() / capacity.max(1.0)
    };
    let gauge = candidate.gauge.as_ref();
    let used = gauge.map_or_else(sent, |it| it.kv_used);
    if used.is_nan() {
        0.0
    } else {
        used.clamp(0.0, 1.0)
    }
}

/// How long each has been spared requests that found nothing, from 1 for the longest to 0.
fn colds(field: &Field<'_>) -> Vec<f64> {
    let count = field.open.len();
    if count < 2 || field.open.iter().any(|it| field.share(it) > 0.0) {
        return vec![0.5; count];
    }
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|at| field.open[*at].tally.cold_at);
    let mut colds = vec![1.0; count];
    for (place, at) in order.into_iter().enumerate() {
        if field.open[at].tally.cold_at.is_some() {
            colds[at] = 1.0 - place as f64 / (count - 1) as f64;
        }
    }
    colds
}
