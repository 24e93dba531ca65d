//! `index`: every part in turn, then what came of it.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::event::Naming;
use crate::report::{Row, tables};
use crate::settings::{Part, Settings};
use crate::verify::{self, Evicted, verify};
use crate::{children, matrix, ratios, traces};

/// Random events of one stream, and streams of each kind.
const STEPS: usize = 6_000;
const STREAMS: u64 = 6;

/// Measures what `settings` ask for. Answers whether every ratio that was measured is reached.
pub fn run(settings: &Settings) -> anyhow::Result<bool> {
    let start = Instant::now();
    let note = |text: &str| eprintln!("[{:>4} s] {text}", start.elapsed().as_secs());
    note(&format!("comparing {}", children::names(&settings.kinds())));
    let rows = measure(settings, &note)?;
    let findings = ratios::findings(&rows);
    let mut text = tables(&rows, &settings.kinds());
    if !findings.is_empty() {
        text += &ratios::table(&findings);
    }
    if settings.json {
        eprintln!("{text}");
        rows.iter().for_each(|it| println!("{}", it.json()));
        println!("{}", ratios::summary(&findings));
    } else {
        println!("{text}");
    }
    Ok(findings.iter().all(|it| it.met))
}

/// The rows of every part that `settings` ask for.
pub fn measure(settings: &Settings, note: &dyn Fn(&str)) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    if settings.does(Part::Verify) {
        rows.extend(exactness(settings, note));
    }
    rows.extend(matrix::measure(settings, note));
    if settings.does(Part::Traces) {
        rows.extend(traces::measure(settings, note));
    }
    if settings.does(Part::Memory) {
        rows.extend(children::memory(settings, note)?);
    }
    if settings.does(Part::Growth) {
        rows.extend(children::growth(settings, note)?);
    }
    if settings.does(Part::Instructions) {
        let counted = children::instructions(settings, &rows, note)?;
        rows.extend(counted);
    }
    Ok(rows)
}

fn exactness(settings: &Settings, note: &dyn Fn(&str)) -> Vec<Row> {
    let kinds = settings.kinds();
    let mut rows = Vec::new();
    for (evicted, what) in [
        (Evicted::Leaves, "leaves evicted"),
        (Evicted::Anything, "anything evicted"),
    ] {
        for naming in [Naming::Canonical, Naming::Foreign, Naming::PerTarget] {
            note(&format!("verify: {what}, {} engine hashes", naming.text()));
            let mut totals = vec![verify::Verdict::default(); kinds.len()];
            for seed in 0..STREAMS {
                let verdicts = verify(&kinds, evicted, naming, settings.fewer(STEPS), seed);
                for (total, verdict) in totals.iter_mut().zip(verdicts) {
                    total.answers += verdict.answers;
                    total.wrong += verdict.wrong;
                    total.claiming += verdict.claiming;
                }
            }
            for (part, count) in [
                ("wrong", (|it| it.wrong) as fn(&verify::Verdict) -> usize),
                ("claiming more than is held", |it| it.claiming),
            ] {
                let share = |it: &verify::Verdict| 100.0 * count(it) as f64 / it.answers as f64;
                let of: BTreeMap<_, _> = kinds
                    .iter()
                    .copied()
                    .zip(totals.iter().map(share))
                    .collect();
                rows.push(Row {
                    case: format!("{what}, {} engine hashes: answers {part}", naming.text()),
                    targets: verify::TARGETS,
                    depth: verify::DEPTH,
                    unit: "%",
                    of,
                });
            }
        }
    }
    rows
}
