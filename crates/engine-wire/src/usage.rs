//! What a request cost, as an answer's `usage` says.

use domain::{Tokens, Usage};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Answer {
    usage: Option<Counts>,
}

#[derive(Deserialize, Serialize)]
struct Counts {
    #[serde(alias = "input_tokens")]
    prompt_tokens: u64,
    #[serde(alias = "output_tokens", default)]
    completion_tokens: u64,
    #[serde(default)]
    total_tokens: u64,
    #[serde(alias = "input_tokens_details")]
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize, Serialize)]
struct Details {
    cached_tokens: Option<u64>,
}

/// Beyond any context: a count above it is no count.
const MAX_TOKENS: u64 = 1 << 40;

/// Reads the usage from a whole answer or from the data of one server-sent event; none where there is none,
/// as in most events of a stream and in `[DONE]`. A count that no engine
/// can have made is unknown, and with it all of them.
pub fn parse_usage(json: &[u8]) -> Option<Usage> {
    // Most events of a stream have no usage: look before parsing.
    const KEY: &[u8] = b"\"usage\"";
    if !json.windows(KEY.len()).any(|window| window == KEY) {
        return None;
    }
    let counts = serde_json::from_slice::<Answer>(json).ok()?.usage?;
    let cached = counts
        .prompt_tokens_details
        .and_then(|details| details.cached_tokens);
    let counted = [
        counts.prompt_tokens,
        counts.completion_tokens,
        cached.unwrap_or(0),
    ];
    if counted.iter().any(|count| MAX_TOKENS < *count) {
        return None;
    }
    Some(Usage {
        prompt: Tokens::new(counts.prompt_tokens),
        completion: Tokens::new(counts.completion_tokens),
        cached: cached.map(Tokens::new),
    })
}

/// The value of an answer's `usage`; without `cached`, as from a server that does not report it.
pub fn encode_usage(usage: &Usage) -> String {
    let counts = Counts {
        prompt_tokens: usage.prompt.get(),
        completion_tokens: usage.completion.get(),
        total_tokens: (usage.prompt + usage.completion).get(),
        prompt_tokens_details: usage.cached.map(|cached| Details {
            cached_tokens: Some(cached.get()),
        }),
    };
    serde_json::to_string(&counts).expect("numbers have a JSON form")
}
