//! What a policy in the shadow would have done.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use placement::Policy;
use routing::Rivalry;
use serde::Serialize;

use super::names;
use crate::shadow::{Flip, Report};

#[derive(Serialize)]
pub(crate) struct ShadowView {
    /// The policy in the shadow, and the one that decides.
    shadow: String,
    policy: String,
    #[serde(flatten)]
    total: RivalryView,
    /// By what decided where the requests went.
    by_reason: BTreeMap<String, RivalryView>,
    /// Decisions that were not compared because too many waited.
    dropped: u64,
    waiting: usize,
    last_flip: Option<FlipView>,
}

/// Gains are what the policy in the shadow is better by, as our cost predicts.
#[derive(Serialize)]
struct RivalryView {
    decisions: u64,
    /// The others were bound, and would have been for both.
    asked: u64,
    flips: u64,
    /// Flips from or to a place that has no price.
    unpriced: u64,
    gain_seconds: f64,
    gained_seconds: f64,
    lost_seconds: f64,
    gained_tokens: f64,
    lost_tokens: f64,
}

#[derive(Serialize)]
struct FlipView {
    decision: String,
    went: String,
    would_go: String,
    gain_seconds: Option<f64>,
    gain_tokens: f64,
}

impl ShadowView {
    pub(crate) fn of(report: &Report, policy: Policy) -> Self {
        let found = &report.found;
        let by_reason = found.by_reason.iter();
        Self {
            shadow: report.policy.to_string(),
            policy: policy.to_string(),
            total: RivalryView::of(&found.total),
            by_reason: by_reason
                .map(|(name, it)| (name.clone(), RivalryView::of(it)))
                .collect(),
            dropped: report.dropped,
            waiting: report.waiting,
            last_flip: found.last_flip.as_ref().map(FlipView::of),
        }
    }
}

impl RivalryView {
    fn of(sums: &Rivalry) -> Self {
        Self {
            decisions: sums.decisions,
            asked: sums.asked,
            flips: sums.flips,
            unpriced: sums.unpriced,
            gain_seconds: sums.gain(),
            gained_seconds: sums.gained_seconds,
            lost_seconds: sums.lost_seconds,
            gained_tokens: sums.gained_tokens,
            lost_tokens: sums.lost_tokens,
        }
    }
}

impl FlipView {
    fn of(flip: &Flip) -> Self {
        Self {
            decision: flip.decision.id.to_string(),
            went: names::place(&flip.decision.place),
            would_go: names::place(&flip.rival.place),
            gain_seconds: flip.rival.gain,
            gain_tokens: flip.rival.held,
        }
    }
}

/// As a person reads it.
pub(crate) fn describe_shadow(view: &ShadowView) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut text, view);
    text
}

fn write(text: &mut String, view: &ShadowView) -> std::fmt::Result {
    let ShadowView { total, .. } = view;
    writeln!(
        text,
        "{} in the shadow of {}: of {} decisions {} were its to make, and {} of those would have gone elsewhere",
        view.shadow, view.policy, total.decisions, total.asked, total.flips,
    )?;
    let (verb, seconds) = match total.gain_seconds < 0.0 {
        true => ("lost", -total.gain_seconds),
        false => ("gained", total.gain_seconds),
    };
    writeln!(
        text,
        "by our cost that would have {verb} {seconds:.3} s (gained {:.3}, lost {:.3}), and its places held {:.0} more \
         cached tokens and {:.0} fewer",
        total.gained_seconds, total.lost_seconds, total.gained_tokens, total.lost_tokens,
    )?;
    if 0 < total.unpriced {
        writeln!(text, "{} flips have no price", total.unpriced)?;
    }
    if 0 < view.dropped {
        writeln!(
            text,
            "{} decisions were not compared: too many waited",
            view.dropped
        )?;
    }
    if view.by_reason.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "\n  {:<24} {:>9} {:>9} {:>12}",
        "decided by", "decisions", "flips", "gain s"
    )?;
    for (reason, it) in &view.by_reason {
        let (decisions, flips, gain) = (it.decisions, it.flips, it.gain_seconds);
        writeln!(
            text,
            "  {reason:<24} {decisions:>9} {flips:>9} {gain:>12.3}"
        )?;
    }
    if let Some(flip) = &view.last_flip {
        let gain = flip.gain_seconds;
        let gain = gain.map_or("at no known price".to_owned(), |it| {
            format!("gaining {it:.3} s")
        });
        writeln!(
            text,
            "\nlast: {} went to {}, would have gone to {}, {gain}",
            flip.decision, flip.went, flip.would_go
        )?;
    }
    Ok(())
}
