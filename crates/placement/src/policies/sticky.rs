//! Policies that keep a conversation where it is by themselves: by a hash, or by a table of this router's.

use super::field::{Field, Pick, active};
use crate::choose::Reason;
use crate::draw::{Draw, rendezvous};
use crate::policy::parameters;
use crate::snapshot::Candidate;

parameters! {
    /// Of consistent hashing with bounded loads.
    BoundedHash {
        /// How many times the mean load one may have.
        c = 1.5 in 1.0..=1000.0;
    }
}

parameters! {
    /// Of verl's and Vidur's sticky least-outstanding rule. The sources set no margin; the default is ours.
    VerlMargin {
        /// Requests more than the least busy has, beyond which a conversation leaves.
        margin = 4.0 in 0.0..=1_000_000.0;
    }
}

/// The first in the key's own order with `A <= c mean A`. The key is the conversation; without one it is drawn.
///
/// The source walks a ring on which each target has many points. Here each key has an order of its own over the targets
/// (rendezvous hashing): what a ring comes to with ever more points, and found in one pass.
pub(super) fn bounded_hash(field: &Field<'_>, numbers: &BoundedHash, draw: &mut Draw) -> Pick {
    let weighed = field.weigh(active);
    let limit = numbers.c * field.mean(active);
    let is_in = |it: &&Candidate| active(it) <= limit;
    let among = field.open.iter().filter(|it| is_in(it)).count();
    let key = key(field, draw);
    let first = || field.open.iter().enumerate();
    let order = |it: &(usize, &&Candidate)| rendezvous(key, &it.1.target);
    let within = first().filter(|it| is_in(it.1)).max_by_key(order);
    let at = within.or_else(|| first().max_by_key(order));
    let at = at.map_or(0, |it| it.0);
    let among = u32::try_from(among).unwrap_or(u32::MAX);
    field.pick(at, Reason::Rendezvous { among }, weighed)
}

/// Where the conversation is stuck, while that can serve; else to whom fewest conversations are stuck, of equals the
/// first in the conversation's own order. Counts conversations, not tokens.
pub(super) fn sticky_least(field: &Field<'_>, draw: &mut Draw) -> Pick {
    let weighed = field.weigh(|it| f64::from(it.tally.conversations));
    if let Some(at) = stuck_at(field) {
        return field.pick(at, Reason::Stuck, weighed);
    }
    let key = key(field, draw);
    let order = |it: &(usize, &&Candidate)| {
        let fewest = std::cmp::Reverse(it.1.tally.conversations);
        (fewest, rendezvous(key, &it.1.target))
    };
    let first = field.open.iter().enumerate().max_by_key(order);
    let at = first.map_or(0, |it| it.0);
    let least = weighed[at];
    let among = weighed.iter().filter(|it| **it <= least).count();
    let reason = match u32::try_from(among).unwrap_or(u32::MAX) {
        1 => Reason::LeastCost,
        among => Reason::Rendezvous { among },
    };
    field.pick(at, reason, weighed)
}

/// Where the conversation is stuck, while `A - min A <= margin` there; else `argmin A`, where it is stuck from then on.
pub(super) fn verl_margin(field: &Field<'_>, numbers: &VerlMargin, draw: &mut Draw) -> Pick {
    let weighed = field.weigh(active);
    let limit = field.fewest(active) + numbers.margin;
    match stuck_at(field).filter(|at| weighed[*at] <= limit) {
        Some(at) => field.pick(at, Reason::Stuck, weighed),
        None => field.least(weighed, draw),
    }
}

/// The candidate where the request's conversation is stuck, if it may be chosen.
pub(super) fn stuck_at(field: &Field<'_>) -> Option<usize> {
    let stuck = field.request.stuck.as_ref()?;
    field.find(&stuck.target)
}

fn key(field: &Field<'_>, draw: &mut Draw) -> u64 {
    field.request.conversation.unwrap_or_else(|| draw.next())
}
