//! Which of those that cost little takes the request.

use domain::Target;

use super::{Scored, Weights, scores};
use crate::choose::{Choice, Place, Reason};
use crate::draw::{Draw, rendezvous};
use crate::snapshot::{Candidate, Hint, Request, Snapshot};

/// Chooses the cheapest, or of those that are as good as the cheapest the one that suits best.
pub(crate) fn choose(
    request: &Request,
    snapshot: &Snapshot,
    weights: &Weights,
    draw: &mut Draw,
) -> Option<Choice> {
    let scores = scores(request, snapshot, weights);
    let near = near(request, snapshot, weights, &scores);
    let (target, reason) = pick(request, snapshot, near, draw)?;
    Some(Choice {
        place: Place::Target(target),
        reason,
        scores,
    })
}

/// Those that cost as good as the least.
fn near<'a>(
    request: &Request,
    snapshot: &'a Snapshot,
    weights: &Weights,
    scores: &[Scored],
) -> Vec<&'a Candidate> {
    let is_open = snapshot.is_open();
    let scored = snapshot.candidates.iter().filter(|it| it.takes_new());
    let open = || scored.clone().zip(scores).filter(|it| is_open(it.0));
    let cheapest = open().min_by(|a, b| a.1.cost.total_cmp(&b.1.cost));
    let (least, wait) = cheapest.map_or((f64::INFINITY, 0.0), |(_, it)| (it.cost, it.terms.wait()));
    let limit = match request.hint {
        Some(Hint::Home(_)) => least + weights.home_seconds,
        _ => least + (wait * weights.near_share).max(weights.near_seconds),
    };
    let near = open().filter(|(_, scored)| scored.cost <= limit);
    near.map(|(candidate, _)| candidate).collect()
}

fn pick(
    request: &Request,
    snapshot: &Snapshot,
    near: Vec<&Candidate>,
    draw: &mut Draw,
) -> Option<(Target, Reason)> {
    if near.is_empty() {
        return None;
    }
    let among = u32::try_from(near.len()).unwrap_or(u32::MAX);
    if let [only] = near[..] {
        return Some((only.target.clone(), Reason::LeastCost));
    }
    if let Some(Hint::Home(key)) = request.hint {
        let home = home(key, &near);
        return Some((home.target.clone(), Reason::Rendezvous { among }));
    }
    if let Some(hinted) = request.hint.as_ref().and_then(|it| it.among(&near)) {
        return Some((hinted.target.clone(), Reason::Hinted { among }));
    }
    let all_known = near.iter().all(|it| it.index_known);
    if let (false, Some(key)) = (all_known, request.conversation) {
        let highest = near.iter().max_by_key(|it| rendezvous(key, &it.target))?;
        return Some((highest.target.clone(), Reason::Rendezvous { among }));
    }
    let near = least_obliged(request, near);
    let (first, second) = draw.two_below(near.len());
    let better = better_of(snapshot, near[first], near[second]);
    Some((better.target.clone(), Reason::NearTie { among }))
}

/// Who holds most, and of several the first in the conversation's own order.
fn home<'a>(key: u64, near: &[&'a Candidate]) -> &'a Candidate {
    let weight = |it: &&&Candidate| (it.held.disk.max(it.in_flight), rendezvous(key, &it.target));
    let home = near.iter().max_by_key(weight);
    home.expect("the cheapest is among them")
}

/// Those that a conversation had best join: least is expected there, by less than half of what one is expected to ask,
/// and of these the ones with the fewest. A few busy conversations weigh more than many that are not.
fn least_obliged<'a>(request: &Request, mut near: Vec<&'a Candidate>) -> Vec<&'a Candidate> {
    if request.conversation.is_none() {
        return near;
    }
    let obligations = || near.iter().map(|it| it.obligation);
    let conversations: u32 = obligations().map(|it| it.conversations).sum();
    let tokens: f64 = obligations().map(|it| it.tokens).sum();
    let of_one = tokens / f64::from(conversations.max(1));
    let least = obligations()
        .map(|it| it.tokens)
        .fold(f64::INFINITY, f64::min);
    near.retain(|it| it.obligation.tokens <= least + of_one / 2.0);
    let fewest = near.iter().map(|it| it.obligation.conversations).min();
    near.retain(|it| Some(it.obligation.conversations) == fewest);
    near
}

impl Hint {
    /// The one of these that it points to.
    fn among<'a>(&self, near: &[&'a Candidate]) -> Option<&'a Candidate> {
        let near = near.iter().copied();
        match self {
            Self::Near(target) => near.into_iter().find(|it| it.target == *target),
            Self::Bucket(key) | Self::Home(key) => {
                near.max_by_key(|it| rendezvous(*key, &it.target))
            }
        }
    }
}

/// Of two equally dear candidates the one that holds more of what few hold, then the less busy one.
fn better_of<'a>(
    snapshot: &Snapshot,
    first: &'a Candidate,
    second: &'a Candidate,
) -> &'a Candidate {
    let rarity = rare_tokens(snapshot, second).total_cmp(&rare_tokens(snapshot, first));
    let busy = || (first.pending, first.active).cmp(&(second.pending, second.active));
    if rarity.then_with(busy).is_gt() {
        second
    } else {
        first
    }
}

/// The tokens `candidate` holds, each weighed by how few hold it: `log2(targets / holders) / log2(targets)`,
/// so that a system prompt held everywhere weighs nothing and a private prefix its full length.
fn rare_tokens(snapshot: &Snapshot, candidate: &Candidate) -> f64 {
    let targets = snapshot.candidates.len() as f64;
    let own = candidate.held.disk;
    let mut depths: Vec<_> = snapshot.candidates.iter().map(|it| it.held.disk).collect();
    depths.sort_unstable();
    let mut below = domain::Tokens::ZERO;
    let mut rare = 0.0;
    for (index, depth) in depths.iter().enumerate() {
        let depth = (*depth).min(own);
        let holders = (depths.len() - index) as f64;
        if depth > below && targets > 1.0 {
            let weight = (targets / holders).log2() / targets.log2();
            rare += depth.saturating_sub(below).as_f64() * weight;
            below = depth;
        }
    }
    rare
}
