//! A decision as a person reads it.

use std::fmt::Write as _;

use super::DecisionView;
use super::decision::{CandidateView, RanView, TiesView};
use super::why_not::WhyNotView;

/// Renders the whole decision: where the request went and why, what came of it, and every candidate with
/// every term of its cost, dearest last.
pub(crate) fn describe(decision: &DecisionView) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = heading(&mut text, decision);
    let _ = outcome(&mut text, decision);
    let _ = comparison(&mut text, decision);
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

/// How close it was, and why not elsewhere.
fn comparison(text: &mut String, decision: &DecisionView) -> std::fmt::Result {
    if let Some(margin) = &decision.margin {
        write!(
            text,
            "{} was cheapest, by {} before {}",
            margin.cheapest,
            milliseconds(Some(margin.seconds * 1e3)),
            margin.second,
        )?;
        let over = margin.over_cheapest_seconds.filter(|it| 0.0 < *it);
        match over {
            Some(over) => writeln!(
                text,
                "; it went where it cost {} more",
                milliseconds(Some(over * 1e3))
            )?,
            None => writeln!(text)?,
        }
    }
    match &decision.ties {
        Some(TiesView { among: 1, .. }) => writeln!(text, "no other was as good as equal")?,
        Some(TiesView { among, decided }) => {
            writeln!(
                text,
                "{among} were as good as equal; what decided: {decided}"
            )?;
        }
        None => {}
    }
    match &decision.why_not {
        Some(why_not) => self::why_not(text, why_not),
        None => Ok(()),
    }
}

fn why_not(text: &mut String, why_not: &WhyNotView) -> std::fmt::Result {
    let target = &why_not.target;
    writeln!(text, "\nwhy not {target}:")?;
    for because in &why_not.because {
        writeln!(text, "  {because}")?;
    }
    if let (Some(dearer), Some(against)) = (why_not.dearer_seconds, &why_not.against) {
        let (than, dearer) = match dearer < 0.0 {
            true => ("less than", -dearer),
            false => ("more than", dearer),
        };
        let dearer = milliseconds(Some(dearer * 1e3));
        writeln!(text, "  it cost {dearer} {than} {against}:")?;
        for term in why_not.terms.iter().filter(|it| it.dearer_seconds != 0.0) {
            let name = term.name;
            let milliseconds = term.dearer_seconds * 1e3;
            writeln!(text, "    {name:<12} {milliseconds:>+10.1} ms")?;
        }
    }
    Ok(())
}

fn candidates(text: &mut String, decision: &DecisionView) -> std::fmt::Result {
    let price = |it: &CandidateView| {
        it.cost
            .as_ref()
            .map_or(f64::INFINITY, |cost| cost.total_seconds)
    };
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
    let priced = decision.candidates.iter().find_map(|it| it.cost.as_ref());
    let terms = priced.map_or(&[][..], |it| &it.terms);
    let names: Vec<&str> = terms.iter().map(|it| it.0).collect();
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
                let terms = cost.terms.iter();
                let terms: Vec<String> = terms.map(|it| format!("{:.1}", it.1 * 1e3)).collect();
                let total = cost.total_seconds * 1e3;
                writeln!(
                    text,
                    " {:>9} {total:>9.1} = {}",
                    cost.uncached_tokens,
                    terms.join(" + ")
                )?;
                if let Some(weighed) = cost.weighed {
                    let policy = &decision.policy;
                    writeln!(text, "  {:<width$} {policy} weighs it {weighed:.4}", "")?;
                }
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
