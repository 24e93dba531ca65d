//! What a request cost, as an answer says at each endpoint and engine.

use domain::{Tokens, Usage};
use serde::Deserialize;

/// An answer, or one event of a stream, as far as it counts tokens.
#[derive(Deserialize)]
struct Answer {
    usage: Option<Counts>,
    /// The end of a streamed `/v1/responses`.
    response: Option<Inner>,
    /// The beginning of a streamed `/v1/messages`.
    message: Option<Inner>,
    /// llama.cpp.
    timings: Option<Timings>,
}

#[derive(Deserialize)]
struct Inner {
    usage: Option<Counts>,
}

#[derive(Deserialize)]
struct Timings {
    cache_n: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Counts {
    #[serde(alias = "input_tokens")]
    prompt_tokens: Option<u64>,
    #[serde(alias = "output_tokens")]
    completion_tokens: Option<u64>,
    #[serde(alias = "input_tokens_details")]
    prompt_tokens_details: Option<Details>,
    /// In `/v1/messages`, where `input_tokens` does not count these.
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

/// Beyond any context: a count above it is no count.
const MAX_TOKENS: u64 = 1 << 40;

/// Reads the usage of one answer from its events, each of which may say a part of it. What a later one says counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsageReader {
    prompt: Option<u64>,
    completion: Option<u64>,
    cached: Option<u64>,
}

impl UsageReader {
    /// Reads a whole answer, or the data of one server-sent event; most events have none. Whether it had any: a
    /// count that no engine can have made is as none, and so are all beside it.
    pub fn read(&mut self, json: &[u8]) -> bool {
        // Most events of a stream have no usage: look before parsing.
        const KEY: &[u8] = b"\"usage\"";
        if !json.windows(KEY.len()).any(|window| window == KEY) {
            return false;
        }
        let Ok(answer) = serde_json::from_slice::<Answer>(json) else {
            return false;
        };
        let inner = answer.response.or(answer.message);
        let Some(counts) = answer.usage.or(inner.and_then(|it| it.usage)) else {
            return false;
        };
        let details = counts.prompt_tokens_details.as_ref();
        let cached = details.and_then(|it| it.cached_tokens);
        let cached = cached
            .or(counts.cache_read_input_tokens)
            .or(answer.timings.and_then(|it| it.cache_n));
        let all = [
            counts.prompt_tokens,
            counts.completion_tokens,
            cached,
            counts.cache_read_input_tokens,
            counts.cache_creation_input_tokens,
        ];
        if all.into_iter().flatten().any(|count| MAX_TOKENS < count) {
            return false;
        }
        let beside = [
            counts.cache_read_input_tokens,
            counts.cache_creation_input_tokens,
        ];
        let beside: u64 = beside.into_iter().flatten().sum();
        // A stream may begin before its prompt is counted, and says 0.
        let prompt = counts.prompt_tokens.map(|counted| counted + beside);
        self.prompt = prompt.filter(|count| *count != 0).or(self.prompt);
        self.completion = counts.completion_tokens.or(self.completion);
        self.cached = cached.or(self.cached);
        true
    }

    /// What the answer has cost; none until it says how long its prompt is.
    pub fn usage(&self) -> Option<Usage> {
        Some(Usage {
            prompt: Tokens::new(self.prompt?),
            completion: Tokens::new(self.completion.unwrap_or(0)),
            cached: self.cached.map(Tokens::new),
        })
    }
}

/// Reads the usage from a whole answer or from one event that says all of it; none where there is none, as in most
/// events of a stream and in `[DONE]`.
pub fn parse_usage(json: &[u8]) -> Option<Usage> {
    let mut reader = UsageReader::default();
    reader.read(json);
    reader.usage()
}
