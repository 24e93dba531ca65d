//! The attention-DP routers inside TensorRT-LLM, as if they chose among all targets.

use super::blind::in_turn;
use super::field::{Field, Pick, active, held, pending};
use super::sticky::stuck_at;
use crate::choose::Reason;
use crate::draw::Draw;
use crate::policy::parameters;
use crate::snapshot::Candidate;

parameters! {
    /// Of TensorRT-LLM's router that looks into caches (PR 12315).
    TrtKvAdp {
        /// Of load, against tokens held.
        beta = 1.0 in 0.0..=1000.0;
        /// The share of a request that has to be held somewhere for it to count.
        gate = 0.1 in 0.0..=1.0;
        /// How many times its share of all requests a rank may have.
        fair = 2.0 in 1.0..=1000.0;
    }
}

parameters! {
    /// Of TensorRT-LLM's router that keeps conversations (PR 14983).
    TrtConvAdp {
        /// How many times its share of all requests a rank may have to be given more than it keeps.
        fair = 2.0 in 1.0..=1000.0;
        /// Requests a rank runs at once: beyond, even those it keeps go elsewhere.
        hard = 2048.0 in 1.0..=1_000_000.0;
        /// Above 0, a new conversation goes where least is pending (#16294), else to the next in turn.
        least_queued = 0.0 in 0.0..=1.0;
    }
}

/// `argmin L - (max m / L > gate ? m : 0) + beta P / max(sum P, L) L` among those with
/// `A < fair ceil((sum A + 1) / R)`.
///
/// Left out: the router takes a batch of requests at once, longest first within those of one beginning, so that one
/// choice sees the others of its batch.
pub(super) fn kv_adp(field: &Field<'_>, numbers: &TrtKvAdp, draw: &mut Draw) -> Pick {
    let isl = field.isl();
    let counts = field.most(|it| field.share(it)) > numbers.gate;
    let all: f64 = field.open.iter().map(|it| pending(it)).sum();
    let all = all.max(isl).max(1.0);
    let weight = |it: &Candidate| {
        let held = if counts { held(it).min(isl) } else { 0.0 };
        isl - held + numbers.beta * pending(it) / all * isl
    };
    let limit = fair_limit(field, numbers.fair);
    field.least_of(field.weigh(weight), |it| active(it) < limit, draw)
}

/// Where the conversation is stuck, while `A < hard` there; is it full, the turn goes to the next in turn under the fair
/// limit and the conversation stays stuck where it is. A new one goes to the next in turn under that limit.
pub(super) fn conv_adp(field: &Field<'_>, numbers: &TrtConvAdp, draw: &mut Draw) -> Pick {
    let stuck = stuck_at(field);
    if let Some(at) = stuck.filter(|at| active(field.open[*at]) < numbers.hard) {
        return field.pick(at, Reason::Stuck, field.weigh(active));
    }
    let limit = fair_limit(field, numbers.fair).min(numbers.hard);
    let has_room = |it: &Candidate| active(it) < limit;
    if stuck.is_none() && numbers.least_queued > 0.0 {
        return field.least_of(field.weigh(pending), has_room, draw);
    }
    let reason = match stuck {
        Some(_) => Reason::Overflow,
        None => Reason::Turn,
    };
    let room = || (0..field.open.len()).filter(|at| has_room(field.open[*at]));
    let at = match room().count() {
        0 => in_turn(field.open.len(), field.turn),
        count => room().nth(in_turn(count, field.turn)).unwrap_or(0),
    };
    field.pick(at, reason, field.weigh(active))
}

/// Requests that no rank may have when it is given one more.
fn fair_limit(field: &Field<'_>, fair: f64) -> f64 {
    let all: f64 = field.open.iter().map(|it| active(it)).sum();
    fair * ((all + 1.0) / field.open.len() as f64).ceil()
}
