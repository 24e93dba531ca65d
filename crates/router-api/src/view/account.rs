//! The waterfall of many requests: its sums, by what they fall apart, and in words where the gap between what could have
//! come from a cache and what did is to be closed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use accounting::{Gap, Totals};
use serde::Serialize;

use super::waterfall::TotalsView;
use crate::ledger::Sheet;

/// The waterfall of all requests since the start, or of the last minutes.
#[derive(Serialize)]
pub(crate) struct AccountView {
    /// Of the requests that ended in so many last seconds; none of all since the start.
    window_seconds: Option<u64>,
    #[serde(flatten)]
    total: GroupView,
    /// Where most is to be won, in a sentence.
    says: String,
    by_model: BTreeMap<String, GroupView>,
    by_worker: BTreeMap<String, GroupView>,
    /// By what decided where the request went.
    by_reason: BTreeMap<String, GroupView>,
}

#[derive(Serialize)]
struct GroupView {
    #[serde(flatten)]
    totals: TotalsView,
    gap: GapView,
}

/// What of the ceiling was not realised, over the requests whose engines say what was.
#[derive(Serialize)]
struct GapView {
    tokens: i64,
    parts: BTreeMap<&'static str, PartView>,
}

#[derive(Serialize)]
struct PartView {
    tokens: i64,
    /// Of all that was lost, 0 to 1.
    share: Option<f64>,
}

impl AccountView {
    pub(crate) fn of(sheet: &Sheet, window: Option<Duration>) -> Self {
        let groups = |of: &BTreeMap<String, Totals>| {
            let groups = of.iter();
            groups
                .map(|(name, totals)| (name.clone(), GroupView::of(totals)))
                .collect()
        };
        Self {
            window_seconds: window.map(|it| it.as_secs()),
            total: GroupView::of(&sheet.total),
            says: advice(&sheet.total).to_owned(),
            by_model: groups(&sheet.by_model),
            by_worker: groups(&sheet.by_worker),
            by_reason: groups(&sheet.by_reason),
        }
    }
}

impl GroupView {
    fn of(totals: &Totals) -> Self {
        let gap = Gap::of(totals);
        let parts = gap.named().into_iter().map(|(name, tokens)| {
            let share = gap.share(tokens);
            (name, PartView { tokens, share })
        });
        Self {
            totals: TotalsView::of(totals),
            gap: GapView {
                tokens: gap.sum(),
                parts: parts.collect(),
            },
        }
    }
}

/// What an operator does about the largest loss.
fn advice(totals: &Totals) -> &'static str {
    if totals.measured.requests == 0 {
        return match totals.unmeasured.requests {
            0 => "No request has been served.",
            _ => {
                "No engine says how much it took from its cache: start them so that they do \
                 (--enable-prompt-tokens-details, --enable-cache-report)."
            }
        };
    }
    match Gap::of(totals).largest() {
        None => "Nothing was lost: all that could come from a cache did.",
        Some(("memory", _)) => {
            "Memory is short: most of what was lost had been evicted everywhere. More KV cache, or fewer conversations at \
             once, would win it back."
        }
        Some(("router", _)) => {
            "The router gave it away: most of what was lost was held by a rank that could have taken the request. \
             `rankway explain ID` says of one what was worth more."
        }
        Some(("index", _)) => {
            "The index is wrong or late: most of what was lost had been promised and was not found, or was computed and \
             never announced. Look at `rankway index verify` and rankway_event_gaps_total."
        }
        Some(("unavailable", _)) => {
            "Ranks are missing: most of what was lost is held only where nothing new may go. `rankway targets ls` says \
             which are drained, warming or failing."
        }
        Some(_) => {
            "Requests overlap in time: most of what was lost was still being computed for another request."
        }
    }
}

/// The account as a person reads it.
pub(crate) fn describe_account(sheet: &Sheet, window: Option<Duration>) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = total(&mut text, &sheet.total, window);
    for (by, groups) in [
        ("model", &sheet.by_model),
        ("worker", &sheet.by_worker),
        ("reason", &sheet.by_reason),
    ] {
        let _ = breakdown(&mut text, by, groups);
    }
    let _ = writeln!(text, "\n{}", advice(&sheet.total));
    text
}

fn total(text: &mut String, totals: &Totals, window: Option<Duration>) -> std::fmt::Result {
    let when = match window {
        Some(window) => format!("in the last {} min", window.as_secs().div_ceil(60)),
        None => "since the start".to_owned(),
    };
    let all = totals.all();
    let cacheable = percent(totals.ceiling_over_isl());
    writeln!(
        text,
        "{when}: {} requests, {} input tokens, of which {} ({cacheable}) could have come from a cache",
        all.requests,
        all.isl.get(),
        all.ceiling.get(),
    )?;
    if 0 < totals.unmeasured.requests {
        let unknown = totals.unmeasured.requests;
        writeln!(
            text,
            "of {unknown} requests the engine does not say what did; they are left out below"
        )?;
    }
    let measured = &totals.measured;
    writeln!(
        text,
        "{} of {} ({}) did",
        measured.realised.get(),
        measured.ceiling.get(),
        percent(totals.realised_over_ceiling()),
    )?;
    let gap = Gap::of(totals);
    writeln!(text, "\n  lost to           tokens   share")?;
    for (name, tokens) in gap.named() {
        let share = percent(gap.share(tokens));
        writeln!(
            text,
            "  {name:<12} {tokens:>11} {share:>7}  {}",
            meaning(name)
        )?;
    }
    writeln!(text, "  {:<12} {:>11}", "together", gap.sum())
}

fn meaning(part: &str) -> &'static str {
    match part {
        "memory" => "evicted everywhere",
        "router" => "held by a rank that could have taken the request",
        "index" => "promised and not found, or never announced; negative: found beyond the promise",
        "unavailable" => "held only where nothing new may go",
        _ => "still being computed for another request",
    }
}

fn breakdown(text: &mut String, by: &str, groups: &BTreeMap<String, Totals>) -> std::fmt::Result {
    let width = groups
        .keys()
        .map(String::len)
        .max()
        .unwrap_or(0)
        .max(by.len());
    if groups.len() < 2 && by != "reason" {
        return Ok(());
    }
    writeln!(
        text,
        "\n  {by:<width$} {:>9} {:>12} {:>9} {:>11}  most lost to",
        "requests", "ceiling", "realised", "gap"
    )?;
    for (name, totals) in groups {
        let gap = Gap::of(totals);
        let largest = gap
            .largest()
            .map_or("nothing".to_owned(), |(name, tokens)| {
                format!("{name} ({})", percent(gap.share(tokens)))
            });
        writeln!(
            text,
            "  {name:<width$} {:>9} {:>12} {:>9} {:>11}  {largest}",
            totals.all().requests,
            totals.measured.ceiling.get(),
            percent(totals.realised_over_ceiling()),
            gap.sum(),
        )?;
    }
    Ok(())
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |it| format!("{:.1} %", it * 1e2))
}
