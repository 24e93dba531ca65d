//! Traces in Mooncake's format: one JSON object a line, with the prompt as ids of its blocks.
//!
//! Source: kvcache-ai/Mooncake, FAST25-release/traces. An id stands for a block and everything before it;
//! the last one may stand for a block that is not full.

use std::collections::HashMap;
use std::io::{BufRead, Read as _};
use std::time::Duration;

use domain::{BlockHash, BlockSize, SequenceHash, Tokens, sequence_hashes};
use serde::Deserialize;

/// The longest prompt taken, in tokens: beyond every known trace, and small enough to hold.
pub(crate) const MAX_TOKENS: u64 = 1 << 24;

/// The longest line taken, in bytes: a day's tree of agents has some ten million.
const LONGEST_LINE: u64 = 256 << 20;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// When it arrives, from the start of the trace.
    pub at: Duration,
    /// Its session's number in order of appearance, where the trace names sessions (`session_id`).
    pub session: Option<u32>,
    /// Input tokens.
    pub isl: Tokens,
    /// Output tokens.
    pub osl: Tokens,
    /// All of its block ids, also that of a last block that is not full.
    pub ids: Vec<u64>,
    /// Its full blocks by content.
    pub blocks: Vec<BlockHash>,
    /// Its full blocks as prefixes.
    pub chain: Vec<SequenceHash>,
}

/// A trace, in order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Its requests.
    pub requests: Vec<TraceRequest>,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A line is no request.
    #[error("line {line}: {why}")]
    Line {
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// It has no requests.
    #[error("the trace has no requests")]
    Empty,
    /// Reading failed.
    #[error("read line {line}")]
    Io {
        /// Which line, from 1.
        line: usize,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

#[derive(Deserialize)]
struct Row {
    /// Milliseconds.
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
    session_id: Option<String>,
}

impl Trace {
    /// Reads at most `limit` requests; blank lines are skipped, unknown fields ignored.
    pub fn read(
        lines: impl BufRead,
        block_size: BlockSize,
        limit: Option<usize>,
    ) -> Result<Self, TraceError> {
        let mut requests = Vec::new();
        let mut sessions = HashMap::new();
        for (index, text) in bounded_lines(lines).enumerate() {
            if limit.is_some_and(|limit| requests.len() >= limit) {
                break;
            }
            let line = index + 1;
            let text = text.map_err(|cause| cause.at(line))?;
            if text.trim().is_empty() {
                continue;
            }
            let request = parse(&text, block_size, &mut sessions);
            requests.push(request.map_err(|why| TraceError::Line { line, why })?);
        }
        if requests.is_empty() {
            return Err(TraceError::Empty);
        }
        requests.sort_by_key(|it| it.at);
        Ok(Self {
            block_size,
            requests,
        })
    }

    /// The same with requests of one instant spread evenly until the next. Published traces round their times, the
    /// Mooncake conversations to three seconds: some ten requests seem to arrive at once, and router replicas cannot
    /// know of each other's, which clients that know nothing of each other would not do to them.
    #[must_use]
    pub fn spread(mut self) -> Self {
        let mut rest = &mut self.requests[..];
        while let Some(at) = rest.first().map(|it| it.at) {
            let count = rest.iter().take_while(|it| it.at == at).count();
            let (together, later) = std::mem::take(&mut rest).split_at_mut(count);
            // The last ones have no next.
            let next = later.first().map_or(at, |it| it.at);
            // A trace has less than four billion requests.
            let apart = (next - at) / count as u32;
            for (number, it) in (0..).zip(together) {
                it.at += apart * number;
            }
            rest = later;
        }
        self
    }

    /// The share of all block ids that an earlier request had too: what one infinite cache would hit.
    pub fn ceiling_of_hash_ids(&self) -> f64 {
        let mut seen = std::collections::HashSet::new();
        let (mut hits, mut total) = (0_u64, 0_u64);
        for request in &self.requests {
            total += request.ids.len() as u64;
            hits += request.ids.iter().filter(|id| seen.contains(*id)).count() as u64;
            seen.extend(request.ids.iter().copied());
        }
        hits as f64 / total.max(1) as f64
    }
}

/// Why a line could not be had.
pub(crate) enum NoLine {
    Io(std::io::Error),
    TooLong,
}

impl NoLine {
    /// What is wrong with which line.
    pub(crate) fn at(self, line: usize) -> TraceError {
        match self {
            Self::Io(source) => TraceError::Io { line, source },
            Self::TooLong => TraceError::Line {
                line,
                why: format!(
                    "it is longer than {LONGEST_LINE} bytes: each request or tree is a line"
                ),
            },
        }
    }
}

/// Lines, none of which is held where it is too long to be a request.
pub(crate) fn bounded_lines(
    mut lines: impl BufRead,
) -> impl Iterator<Item = Result<String, NoLine>> {
    std::iter::from_fn(move || {
        let mut bytes = Vec::new();
        let mut line = lines.by_ref().take(LONGEST_LINE + 1);
        match line.read_until(b'\n', &mut bytes) {
            Ok(0) => None,
            Ok(_) if LONGEST_LINE < bytes.len() as u64 => Some(Err(NoLine::TooLong)),
            Ok(_) => Some(String::from_utf8(bytes).map_err(|why| {
                NoLine::Io(std::io::Error::new(std::io::ErrorKind::InvalidData, why))
            })),
            Err(why) => Some(Err(NoLine::Io(why))),
        }
    })
}

fn parse(
    text: &str,
    block_size: BlockSize,
    sessions: &mut HashMap<String, u32>,
) -> Result<TraceRequest, String> {
    let row: Row = serde_json::from_str(text).map_err(|why| why.to_string())?;
    if !(0.0..=1e15).contains(&row.timestamp) {
        return Err(format!("timestamp {} is no time", row.timestamp));
    }
    for (name, tokens) in [
        ("input_length", row.input_length),
        ("output_length", row.output_length),
    ] {
        if tokens == 0 || tokens > MAX_TOKENS {
            return Err(format!("{name} {tokens} is not between 1 and {MAX_TOKENS}"));
        }
    }
    let size = u64::from(block_size.get());
    let full = row.input_length / size;
    let ids = row.hash_ids.len() as u64;
    if ids < full || ids > row.input_length.div_ceil(size) {
        return Err(format!(
            "{ids} hash_ids do not fit {} tokens in blocks of {size}",
            row.input_length
        ));
    }
    let blocks: Vec<BlockHash> = row
        .hash_ids
        .iter()
        .take(usize::try_from(full).unwrap_or(usize::MAX))
        .map(|id| BlockHash::new(*id))
        .collect();
    let session = row.session_id.map(|id| {
        let next = sessions.len() as u32;
        *sessions.entry(id).or_insert(next)
    });
    Ok(TraceRequest {
        session,
        at: Duration::from_secs_f64(row.timestamp / 1e3),
        isl: Tokens::new(row.input_length),
        osl: Tokens::new(row.output_length),
        ids: row.hash_ids,
        chain: sequence_hashes(&blocks),
        blocks,
    })
}

#[cfg(test)]
mod tests {
    use domain::BlockSize;

    use super::{Trace, TraceError};

    fn read(text: &str) -> Result<Trace, TraceError> {
        let block_size = BlockSize::new(4).expect("not zero");
        Trace::read(text.as_bytes(), block_size, None)
    }

    #[test]
    fn a_last_block_that_is_not_full_counts_for_the_ceiling_of_ids_only() {
        let row = r#"{"timestamp": 10, "input_length": 6, "output_length": 1, "hash_ids": [7, 8]}"#;

        let trace = read(&format!("{row}\n\n{row}\n")).unwrap();

        assert_eq!(trace.requests[0].chain.len(), 1);
        assert_eq!(trace.requests[1].at.as_millis(), 10);
        assert!((trace.ceiling_of_hash_ids() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn requests_of_one_instant_are_spread_until_the_next() {
        let row = |at| {
            format!(r#"{{"timestamp":{at},"input_length":4,"output_length":1,"hash_ids":[1]}}"#)
        };
        let rows = [0, 0, 0, 3_000, 6_000, 6_000].map(row).join("\n");

        let spread = read(&rows).unwrap().spread();

        let times = spread.requests.iter().map(|it| it.at.as_millis());
        let times: Vec<u128> = times.collect();
        assert_eq!(times, [0, 1_000, 2_000, 3_000, 6_000, 6_000]);
    }

    #[test]
    fn an_error_names_its_line() {
        let good = r#"{"timestamp":0,"input_length":4,"output_length":1,"hash_ids":[1]}"#;
        for bad in [
            "{",
            r#"{"timestamp":-1,"input_length":4,"output_length":1,"hash_ids":[1]}"#,
            r#"{"timestamp":0,"input_length":0,"output_length":1,"hash_ids":[]}"#,
            r#"{"timestamp":0,"input_length":4,"output_length":1,"hash_ids":[1,2,3]}"#,
            r#"{"timestamp":0,"input_length":40,"output_length":1,"hash_ids":[1]}"#,
        ] {
            let error = read(&format!("{good}\n{bad}\n")).unwrap_err().to_string();
            assert!(error.starts_with("line 2: "), "{error}");
        }
        assert!(matches!(read("\n"), Err(TraceError::Empty)));
    }
}
