//! What engines' Prometheus metrics say of their ranks, and the text format itself.

use std::collections::BTreeMap;

use domain::{BlockSize, DpRank, RankLoad, Timestamp, Tokens};

/// The most ranks one server can list.
pub(crate) const MAX_RANKS: usize = domain::MAX_RANKS as usize;

/// What one rank's metrics say; none where they do not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Requests being prefilled or decoded.
    pub running: Option<u32>,
    /// Requests in the engine's own queue.
    pub waiting: Option<u32>,
    /// The share of KV blocks in use by running requests, 0 to 1. Blocks that are only cached do not count.
    pub kv_used: Option<f64>,
    /// Prompt tokens looked up in the prefix cache since the engine started.
    pub prefix_queries: Option<Tokens>,
    /// Of those, tokens found.
    pub prefix_hits: Option<Tokens>,
    /// Tokens per block.
    pub block_size: Option<BlockSize>,
    /// Blocks this rank can hold.
    pub kv_blocks: Option<u64>,
}

/// What a server's metrics say, by rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape {
    /// The gauges of each rank that has any.
    pub ranks: BTreeMap<DpRank, Gauges>,
    /// Lines of the metrics named here that could not be read.
    pub unreadable: usize,
}

impl Gauges {
    /// The rank's load as of `at`; none unless all of it is known.
    pub fn load(&self, dp_rank: DpRank, at: Timestamp) -> Option<RankLoad> {
        Some(RankLoad {
            dp_rank,
            running: self.running?,
            waiting: self.waiting?,
            kv_used: self.kv_used?,
            at,
        })
    }
}

pub(crate) fn count(value: f64) -> Option<u64> {
    (value >= 0.0 && value < u64::MAX as f64).then_some(value as u64)
}

/// One line of the Prometheus text format.
pub(crate) struct Series<'a> {
    labels: Vec<(&'a str, String)>,
    pub(crate) value: f64,
}

/// The metric's name, and what follows it.
pub(crate) fn name_of(line: &str) -> (&str, &str) {
    line.split_at(line.find(['{', ' ']).unwrap_or(line.len()))
}

impl<'a> Series<'a> {
    /// Reads what follows a metric's name; none when it cannot be read.
    pub(crate) fn parse(rest: &'a str) -> Option<Self> {
        let (labels, value) = labels(rest)?;
        let value = value.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Self { labels, value })
    }

    pub(crate) fn label(&self, wanted: &str) -> Option<&str> {
        let found = self.labels.iter().find(|(label, _)| *label == wanted);
        found.map(|(_, value)| value.as_str())
    }
}

impl Scrape {
    /// The gauges of `rank`, to be filled; none beyond the most ranks a server can have.
    pub(crate) fn rank(&mut self, rank: DpRank) -> Option<&mut Gauges> {
        match self.ranks.len() < MAX_RANKS || self.ranks.contains_key(&rank) {
            true => Some(self.ranks.entry(rank).or_default()),
            false => None,
        }
    }
}

/// A label's value as the text format writes it.
pub(crate) fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\");
    value.replace('"', "\\\"").replace('\n', "\\n")
}

/// Splits what follows a metric's name into its labels and the rest of the line.
fn labels(rest: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut labels = Vec::new();
    let Some(mut rest) = rest.strip_prefix('{') else {
        return Some((labels, rest));
    };
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(value) = rest.strip_prefix('}') {
            return Some((labels, value));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let (value, after) = unquoted(quoted)?;
        labels.push((name, value));
        rest = after;
    }
}

/// The text up to the closing quote, with escapes resolved, and what follows the quote.
fn unquoted(quoted: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut characters = quoted.char_indices();
    loop {
        match characters.next()? {
            (end, '"') => return Some((text, &quoted[end + 1..])),
            (_, '\\') => match characters.next()? {
                (_, 'n') => text.push('\n'),
                (_, escaped) => text.push(escaped),
            },
            (_, character) => text.push(character),
        }
    }
}
