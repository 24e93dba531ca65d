//! A decision as a person reads it.

use std::fmt::Write as _;

use super::DecisionView;
use super::decision::{CandidateView, CostView, RanView};

/// Renders the whole decision: where the request went and why, what came of it, and every candidate with
/// every term of its cost, dearest last.
pub(crate) fn describe(decision: &DecisionView) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = heading(&mut text, decision);
    let _ = outcome(&mut text, decision);
    let _ = candidates(&mut text, decision);
    text
}

fn heading(text: &mut String, decision: &DecisionView) -> std::fmt::Result {
    let place = decision.target.as_deref().unwrap_or(&decision.worker);
    writeln!(text, "decision {}", decision.id)?;
    let conversation = match &decision.conversation {
        Some(id) => format!("conversation {id}"),
        None => "no conversation".to_owned(),
    };
    writeln!(
        text,
        "{} input tokens for {} at {}, {conversation}",
        decision.isl, decision.model, decision.endpoint
    )?;
    write!(text, "went to {place}: {}", decision.reason)?;
    if let Some(preferred) = decision.policy_choice.as_deref().filter(|it| *it != place) {
        write!(text, "; policy {} preferred {preferred}", decision.policy)?;
    }
    writeln!(text, "; binding: {}", decision.binding)?;
    if 0.0 < decision.queued_seconds {
        let seconds = decision.queued_seconds;
        writeln!(
            text,
            "waited {seconds:.3} s in the router, every target past its limit"
        )?;
    }
    if let Some(first) = &decision.retry_of {
        writeln!(text, "a retry of {first}")?;
    }
    if !decision.degraded.is_empty() {
        writeln!(text, "degraded: {}", decision.degraded.join(", "))?;
    }
    Ok(())
}

fn outcome(text: &mut String, decision: &DecisionView) -> std::fmt::Result {
    let expected = number(decision.overlap_tokens);
    let age = decision.index_age_seconds;
    let age = age.map_or("silent".to_owned(), |it| format!("{:.0} ms old", it * 1e3));
    write!(text, "expected {expected} cached tokens (index {age})")?;
    match &decision.outcome {
        Some(outcome) => writeln!(
            text,
            "; {}: {} cached, first token after {}, end after {}",
            outcome.status,
            number(outcome.cached_tokens),
            milliseconds(outcome.ttft_ms),
            milliseconds(outcome.duration_ms),
        )?,
        None => writeln!(text, "; still running")?,
    }
    if let Some(it) = &decision.ran {
        ran(text, it)?;
    }
    if let Some(waterfall) = &decision.waterfall {
        writeln!(text, "{}", waterfall.describe())?;
    }
    Ok(())
}

/// Where it ran, as far as anything shows it.
fn ran(text: &mut String, ran: &RanView) -> std::fmt::Result {
    if let (Some(rank), Some(evidence)) = (ran.dp_rank, ran.evidence) {
        write!(text, "ran on rank {rank}, by its {evidence}")?;
    } else {
        write!(text, "nothing shows where it ran")?;
    }
    match ran.fault {
        Some(fault) => writeln!(text, "; fault: {fault}"),
        None => writeln!(text),
    }
}

fn candidates(text: &mut String, decision: &DecisionView) -> std::fmt::Result {
    let price = |it: &CandidateView| it.cost.as_ref().map_or(f64::INFINITY, CostView::total);
    let mut sorted: Vec<&CandidateView> = decision.candidates.iter().collect();
    sorted.sort_by(|a, b| price(a).total_cmp(&price(b)));
    let width = sorted
        .iter()
        .map(|it| it.target.len())
        .max()
        .unwrap_or(0)
        .max(6);
    write!(
        text,
        "\n  {:<width$} {:>9} {:>8} {:>9} {:>8} {:>6} {:>9}   cost ms =",
        "target", "state", "held", "in flight", "pending", "active", "computed"
    )?;
    let names = CostView::TERMS.map(|(name, _)| name);
    writeln!(text, " {}", names.join(" + "))?;
    for it in sorted {
        let mark = if it.chosen { '*' } else { ' ' };
        write!(
            text,
            "{mark} {:<width$} {:>9} {:>8} {:>9} {:>8} {:>6}",
            it.target,
            it.barred.unwrap_or(it.state),
            it.held_tokens,
            it.in_flight_tokens,
            it.pending_tokens + it.foreign_tokens,
            it.active,
        )?;
        match &it.cost {
            Some(cost) => {
                let terms = CostView::TERMS.map(|(_, term)| format!("{:.1}", term(cost) * 1e3));
                let total = cost.total() * 1e3;
                writeln!(
                    text,
                    " {:>9} {total:>9.1} = {}",
                    cost.uncached(),
                    terms.join(" + ")
                )?;
            }
            None => writeln!(text, "         -         - (takes nothing new)")?,
        }
    }
    Ok(())
}

fn number(value: Option<u64>) -> String {
    value.map_or("unknown".to_owned(), |it| it.to_string())
}

fn milliseconds(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |it| format!("{it:.1} ms"))
}
