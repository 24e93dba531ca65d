//! What another policy would have made of a decision, by our prices: for a policy in the shadow, and for decisions that
//! were recorded.

use domain::Target;
use placement::{Candidate, Choice, Place, Policy, Request, Snapshot, choose};

/// A decision that was made.
#[derive(Clone, Copy, Debug)]
pub struct Made<'a> {
    /// What was asked.
    pub asked: &'a Request,
    /// The whole fleet that was seen.
    pub snapshot: &'a Snapshot,
    /// The seed that was drawn from.
    pub seed: u64,
    /// Where the request went.
    pub place: &'a Place,
    /// Whether a policy chose it, rather than a binding, or somebody who insisted.
    pub free: bool,
}

/// What another policy would have made of one decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Rival {
    /// Where the request would have gone.
    pub place: Place,
    /// Whether that is elsewhere.
    pub flips: bool,
    /// Whether the policy was asked. One that keeps conversations would have found this one bound.
    pub asked: bool,
    /// Seconds that it would have cost less, by the cost of `kv` with its usual numbers; negative where it would have cost
    /// more. None where one of the places has no price.
    pub gain: Option<f64>,
    /// Tokens of the request that are held there beyond those held where it went.
    pub held: f64,
}

/// What another policy would have made of many decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rivalry {
    /// Decisions compared.
    pub decisions: u64,
    /// Of those, where the policy was asked: the others were bound, for it too.
    pub asked: u64,
    /// Of those, that would have gone elsewhere.
    pub flips: u64,
    /// Of those, where one of the places has no price.
    pub unpriced: u64,
    /// Seconds saved where it would have been cheaper.
    pub gained_seconds: f64,
    /// Seconds lost where it would have been dearer.
    pub lost_seconds: f64,
    /// Tokens of requests held where they would have gone beyond those held where they went.
    pub gained_tokens: f64,
    /// The same where fewer are held.
    pub lost_tokens: f64,
}

impl Rival {
    /// Asks `policy` what it would have done; none where no target could take the request.
    pub fn of(made: &Made<'_>, policy: Policy) -> Option<Self> {
        let again = |policy| choose(made.asked, made.snapshot, policy, made.seed).ok();
        if !made.free && !policy.is_baseline() {
            return Some(Self {
                place: made.place.clone(),
                flips: false,
                asked: false,
                gain: Some(0.0),
                held: 0.0,
            });
        }
        let choice = again(policy)?;
        let flips = goes_elsewhere(made.place, &choice.place);
        let gain = match flips {
            true => {
                let prices = again(Policy::KV)?;
                let before = price(&prices, made.place);
                before
                    .zip(price(&prices, &choice.place))
                    .map(|(before, after)| before - after)
            }
            false => Some(0.0),
        };
        let held = match flips {
            true => held(made.snapshot, &choice.place) - held(made.snapshot, made.place),
            false => 0.0,
        };
        Some(Self {
            place: choice.place,
            flips,
            asked: true,
            gain,
            held,
        })
    }
}

impl Rivalry {
    /// Adds one decision.
    pub fn add(&mut self, rival: &Rival) {
        self.decisions += 1;
        self.asked += u64::from(rival.asked);
        self.flips += u64::from(rival.flips);
        match rival.gain {
            Some(gain) => {
                self.gained_seconds += gain.max(0.0);
                self.lost_seconds += (-gain).max(0.0);
            }
            None => self.unpriced += 1,
        }
        self.gained_tokens += rival.held.max(0.0);
        self.lost_tokens += (-rival.held).max(0.0);
    }

    /// Seconds saved in all; negative where it would have been dearer.
    pub fn gain(&self) -> f64 {
        self.gained_seconds - self.lost_seconds
    }
}

/// Whether two places are not the same. One that leaves the rank to the engine is where any rank of its worker is.
fn goes_elsewhere(one: &Place, other: &Place) -> bool {
    match (one, other) {
        (Place::Target(one), Place::Target(other)) => one != other,
        _ => one.worker() != other.worker(),
    }
}

/// What a request costs at a place; where the engine chooses the rank, the mean of its ranks.
fn price(choice: &Choice, place: &Place) -> Option<f64> {
    let scores = choice.scores.iter();
    mean(
        scores
            .filter(|it| is_at(&it.target, place))
            .map(|it| it.cost),
    )
}

fn held(snapshot: &Snapshot, place: &Place) -> f64 {
    let ranks = snapshot.candidates.iter();
    let ranks = ranks.filter(|it| is_at(&it.target, place));
    mean(ranks.map(|it: &Candidate| it.held.disk.as_f64())).unwrap_or(0.0)
}

fn is_at(target: &Target, place: &Place) -> bool {
    match place {
        Place::Target(it) => it == target,
        Place::Worker { worker, epoch } => target.worker == *worker && target.epoch == *epoch,
    }
}

fn mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = numbers.fold((0_u32, 0.0), |(count, sum), it| (count + 1, sum + it));
    (0 < count).then(|| sum / f64::from(count))
}
