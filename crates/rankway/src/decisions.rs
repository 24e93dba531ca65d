//! Decisions that a router has made: exported as they are recorded, and made again from that, under their own policy to
//! the last bit, and then under others.

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;

use anyhow::Context as _;
use contracts::{DecisionRecord, Encoding as _, RecordedChoice};
use placement::{Policy, choose};
use routing::{Made, Rival, Rivalry};
use serde::Serialize;

use crate::cli::{DecisionsArgs, DecisionsCommand};
use crate::client::JsonClient;
use crate::failure::Failure;
use crate::report::{print_json, print_line};

/// Decisions asked for at once: some 10 MB among 128 targets.
const PAGE: usize = 200;
/// The longest first line that may be a decision, in bytes: one among 10,000 targets.
const LONGEST_LINE: u64 = 16 << 20;
/// Decisions named that did not come out the same.
const MAX_NAMED: usize = 10;

/// Runs `rankway decisions`.
pub(crate) fn run(args: &DecisionsArgs) -> Result<(), Failure> {
    let DecisionsCommand::Export {
        whole,
        since,
        limit,
        admin,
    } = &args.command;
    let base = admin.admin_url.trim_end_matches('/');
    let client = JsonClient::of_admin(admin);
    let runtime = crate::runtime()?;
    let mut left = limit.unwrap_or(usize::MAX);
    let mut before = String::new();
    while 0 < left {
        let page = left.min(PAGE);
        let mut url = format!("{base}/api/v1/decisions?whole={whole}&limit={page}{before}");
        if let Some(since) = since {
            url.push_str(&format!("&since={}", since.as_secs()));
        }
        let lines = runtime.block_on(client.get_text(&url))?;
        let lines: Vec<&str> = lines.lines().collect();
        for line in &lines {
            print_line(line)?;
        }
        left -= lines.len().min(left);
        let Some(last) = lines.last().filter(|_| lines.len() == page) else {
            break;
        };
        let last = DecisionRecord::from_json(last).context("understand what the router printed")?;
        before = format!("&before={}", last.id);
    }
    Ok(())
}

/// What making decisions again has shown.
#[derive(Debug, Default, Serialize)]
struct Replayed {
    file: String,
    decisions: u64,
    /// Recorded in part, and left out.
    partial: u64,
    /// Came out otherwise than it is recorded, under its own policy and seed.
    mismatches: u64,
    policies: Vec<Judged>,
}

/// What another policy would have made of them.
#[derive(Debug, Serialize)]
struct Judged {
    #[serde(serialize_with = "in_words")]
    policy: Policy,
    decisions: u64,
    /// The others were bound, for it too.
    asked: u64,
    flips: u64,
    unpriced: u64,
    gain_seconds: f64,
    gained_seconds: f64,
    lost_seconds: f64,
    gained_tokens: f64,
    lost_tokens: f64,
}

fn in_words<S: serde::Serializer>(policy: &Policy, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(policy)
}

/// Whether a path is a file of decisions rather than a trace: its first line says it.
pub(crate) fn are_in(path: &Path) -> bool {
    // What can be read only once is a trace.
    let Some(file) = File::open(path).ok().filter(|_| path.is_file()) else {
        return false;
    };
    let lines = BufReader::new(file.take(LONGEST_LINE)).lines();
    let mut lines = lines.map_while(Result::ok);
    let first = lines.find(|it| !it.trim().is_empty());
    // A damaged one is to be refused as the decision that it was.
    let keys = ["\"policy\":", "\"seed\":", "\"asked\":"];
    let of_decisions = |line: &str| keys.iter().filter(|key| line.contains(**key)).count();
    first.is_some_and(|it| 1 < of_decisions(&it))
}

/// Makes the decisions of a file again, and asks `policies` about them. Fails where one comes out otherwise.
pub(crate) fn replay(path: &Path, policies: &[Policy], json: bool) -> Result<(), Failure> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("open the decisions {shown}"))?;
    let mut replayed = Replayed {
        file: shown.to_string(),
        ..Replayed::default()
    };
    let mut rivalries = vec![Rivalry::default(); policies.len()];
    let mut named = Vec::new();
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let line = line.with_context(|| format!("read {shown}"))?;
        if line.trim().is_empty() {
            continue;
        }
        let record = DecisionRecord::from_json(&line);
        let record = record
            .with_context(|| format!("line {} of {shown} is no recorded decision", number + 1))
            .map_err(Failure::wrong_use_chain)?;
        if !record.is_whole() {
            replayed.partial += 1;
            continue;
        }
        replayed.decisions += 1;
        if !comes_out_the_same(&record) {
            replayed.mismatches += 1;
            named.push(record.id.to_string());
            named.truncate(MAX_NAMED);
        }
        let made = Made {
            asked: &record.asked,
            snapshot: &record.snapshot,
            seed: record.seed,
            place: &record.place,
            free: record.free,
        };
        for (policy, rivalry) in policies.iter().zip(&mut rivalries) {
            if let Some(rival) = Rival::of(&made, *policy) {
                rivalry.add(&rival);
            }
        }
    }
    let judged = policies.iter().zip(&rivalries);
    replayed.policies = judged.map(|(policy, it)| Judged::of(*policy, it)).collect();
    replayed.print(json)?;
    match replayed {
        Replayed { decisions: 0, .. } => Err(Failure::WrongUse(format!(
            "no decision of {shown} is whole: export them with --whole"
        ))),
        Replayed { mismatches: 0, .. } => Ok(()),
        Replayed { mismatches, .. } => Err(anyhow::anyhow!(
            "{mismatches} decisions came out otherwise than they were recorded, by another version's policy or a changed \
             file: {}",
            named.join(", ")
        )
        .into()),
    }
}

/// Whether a decision's own policy chooses the same again, for the same prices, to the last bit.
fn comes_out_the_same(record: &DecisionRecord) -> bool {
    let again = choose(&record.asked, &record.snapshot, record.policy, record.seed);
    match (again, &record.choice) {
        (Ok(again), Some(then)) => RecordedChoice::of(&again).to_bytes() == then.to_bytes(),
        (Err(_), None) => true,
        (Ok(_), None) | (Err(_), Some(_)) => false,
    }
}

impl Replayed {
    fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            self.policies.iter().try_for_each(print_json)?;
            return print_json(self);
        }
        let Self {
            file,
            decisions,
            partial,
            mismatches,
            ..
        } = self;
        print_line(&format!(
            "{file}: {decisions} decisions made again under their own policies, {mismatches} came out otherwise"
        ))?;
        if 0 < *partial {
            print_line(&format!(
                "{partial} are recorded in part, and were left out"
            ))?;
        }
        print_line(&format!(
            "\n  {:<24} {:>9} {:>9} {:>10} {:>10} {:>10} {:>14}",
            "policy", "asked", "flips", "gained s", "lost s", "gain s", "cached tokens"
        ))?;
        for it in &self.policies {
            print_line(&format!(
                "  {:<24} {:>9} {:>9} {:>10.3} {:>10.3} {:>10.3} {:>+14.0}",
                it.policy.to_string(),
                it.asked,
                it.flips,
                it.gained_seconds,
                it.lost_seconds,
                it.gain_seconds,
                it.gained_tokens - it.lost_tokens,
            ))?;
        }
        print_line(
            "\nflips: would have gone elsewhere. gain: seconds that this would have cost less, as kv's cost predicts; \
             what was bound is bound for policies that keep conversations.",
        )
    }
}

impl Judged {
    fn of(policy: Policy, sums: &Rivalry) -> Self {
        Self {
            policy,
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
