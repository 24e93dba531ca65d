//! What an answer that was asked to says of its making: the rank that ran, and the tokens taken from the cache.

use std::ops::Range;

use domain::{DpRank, Tokens};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// What an answer says of its making.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct MetaInfo {
    /// The rank that ran, from 0 on; none where it is not said.
    #[serde(default)]
    dp_rank: Option<u32>,
    /// Input tokens taken from the cache.
    #[serde(default)]
    cached_tokens: Option<u64>,
}

impl MetaInfo {
    /// That of a request which ran on `dp_rank` and took `cached_tokens` of its input from the cache.
    pub fn new(dp_rank: DpRank, cached_tokens: u64) -> Self {
        Self {
            dp_rank: Some(dp_rank.get()),
            cached_tokens: Some(cached_tokens),
        }
    }

    /// Input tokens taken from the cache, where it is said.
    pub fn cached_tokens(&self) -> Option<Tokens> {
        self.cached_tokens.map(Tokens::new)
    }

    /// The rank that ran, as the server numbers it.
    pub fn dp_rank(&self) -> Option<DpRank> {
        self.dp_rank.map(DpRank::new)
    }
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    meta_info: Option<&'a RawValue>,
}

/// Reads the `meta_info` of an answer's first choice, and says which bytes of the answer to leave out so that
/// no choice has any; they do not overlap and ascend. None where there is none.
pub fn parse_meta_info(answer: &[u8]) -> Option<(MetaInfo, Vec<Range<usize>>)> {
    let text = str::from_utf8(answer).ok()?;
    let parsed: Answer<'_> = serde_json::from_str(text).ok()?;
    let mut infos = parsed
        .choices
        .iter()
        .filter_map(|it| it.meta_info)
        .peekable();
    let first = serde_json::from_str(infos.peek()?.get()).ok()?;
    let cuts = infos.filter_map(|info| member(text, info.get()));
    Some((first, cuts.collect()))
}

/// Where in `text` the member with this `value`, a part of it, is, with one of the commas beside it.
fn member(text: &str, value: &str) -> Option<Range<usize>> {
    let start = value.as_ptr() as usize - text.as_ptr() as usize;
    let end = start + value.len();
    let before = text[..start].trim_end().strip_suffix(':')?.trim_end();
    let before = before.strip_suffix("\"meta_info\"")?.trim_end();
    if let Some(before) = before.strip_suffix(',') {
        return Some(before.len()..end);
    }
    let after = text[end..].trim_start();
    let after = after.strip_prefix(',').unwrap_or(after);
    Some(before.len()..text.len() - after.len())
}

/// The value of a choice's `meta_info`.
pub fn encode_meta_info(info: &MetaInfo) -> String {
    serde_json::to_string(info).expect("numbers have a JSON form")
}
