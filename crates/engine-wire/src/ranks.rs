//! How each engine is told on which rank to run a request, and how it says where it ran, by version and endpoint.
//!
//! Found by reading the sources of releases and by asking running servers; a way that was never seen is not here.
//! An engine that does not know a field or header ignores it and answers as if nothing had been asked, so what this
//! table does not list must never be sent. Unlisted too are ways that need a setting of the server's
//! (`x-override-routed-dp-rank`) and the endpoints that Rankway does not serve, such as SGLang's `/generate`.

use domain::{ByEndpoint, Capability, Endpoint, EngineKind, FirstRank, HeaderSpace, RankControl};

use crate::{Version, sglang};

/// What carries a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A request header.
    Header(&'static str),
    /// A field of the request's JSON object.
    Field(&'static str),
    /// Nothing: the engine decides, whatever it is sent.
    Nothing,
}

/// From which number on a front end counts the ranks that it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// As its events do. It has no ranks elsewhere, so they begin with 0.
    FromZero,
    /// As its events do, or from 0 on each node where it is one of several: which of the two depends on the front
    /// end (vLLM's in Python counts from 0, its in Rust does not), and only its operator knows.
    ByFrontEnd,
}

/// What makes an answer say which rank ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Nothing does.
    Never,
    /// A field of the request, set to `true`, where the answer is not streamed.
    Asked(&'static str),
}

/// How one engine treats the rank of a request at some endpoints, over a range of versions.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The engine.
    pub engine: EngineKind,
    /// The endpoints.
    pub endpoints: &'static [Endpoint],
    /// The first version.
    pub since: Version,
    /// The first version after the last; none while there is none.
    pub until: Option<Version>,
    /// What carries the rank.
    pub carrier: Carrier,
    /// How it is numbered.
    pub numbering: Numbering,
    /// How the answer says it.
    pub report: Report,
}

use Carrier::{Field, Header, Nothing};
use Endpoint::{Chat, Completions, Embeddings, Messages, Responses};
use EngineKind::{LlamaCpp, Sglang, TensorRtLlm, Vllm};
use Numbering::{ByFrontEnd, FromZero};
use Report::{Asked, Never};

/// Also vLLM's, and that of the worker for TensorRT-LLM: names of headers have no case.
const RANK: Carrier = Header(sglang::RANK_HEADER);
const SLOT: Carrier = Field("id_slot");
const REPORT: Report = Asked(sglang::REPORT_FIELD);

/// The table. Of each engine and endpoint, every version is in exactly one row.
#[rustfmt::skip]
pub const RANKS: [Row; 21] = [
    // vLLM has known the header since 0.11.2 wherever it generates; a value that is no number is ignored, one out of
    // range refused. Embeddings go to whichever rank is least loaded.
    row(Vllm, &[Chat, Completions, Responses, Messages], ZERO,          to(0, 11, 2), Nothing, ByFrontEnd, Never),
    row(Vllm, &[Chat, Completions, Responses, Messages], at(0, 11, 2),  None,         RANK,    ByFrontEnd, Never),
    row(Vllm, &[Embeddings],                             ZERO,          None,         Nothing, ByFrontEnd, Never),

    // SGLang knew a field first, then renamed it and put the header above it. Its answers say the rank where they are
    // asked to, which streams refuse.
    row(Sglang, &[Chat],        ZERO,         to(0, 5, 6),  Nothing,                     FromZero, Never),
    row(Sglang, &[Chat],        at(0, 5, 6),  to(0, 5, 10), Field("data_parallel_rank"), FromZero, Never),
    row(Sglang, &[Chat],        at(0, 5, 10), to(0, 5, 13), RANK,                        FromZero, Never),
    row(Sglang, &[Chat],        at(0, 5, 13), None,         RANK,                        FromZero, REPORT),
    row(Sglang, &[Completions], ZERO,         to(0, 5, 6),  Nothing,                     FromZero, Never),
    row(Sglang, &[Completions], at(0, 5, 6),  to(0, 5, 10), Field("data_parallel_rank"), FromZero, Never),
    row(Sglang, &[Completions], at(0, 5, 10), None,         RANK,                        FromZero, Never),
    // The header only: a field is dropped when the request is turned into one of chat.
    row(Sglang, &[Messages],    ZERO,         to(0, 5, 10), Nothing,                     FromZero, Never),
    row(Sglang, &[Messages],    at(0, 5, 10), None,         RANK,                        FromZero, Never),
    // Of a call that the server answers in several rounds, with tools of its own, the first.
    row(Sglang, &[Responses],   ZERO,         to(0, 5, 20), Nothing,                     FromZero, Never),
    row(Sglang, &[Responses],   at(0, 5, 20), None,         RANK,                        FromZero, Never),
    row(Sglang, &[Embeddings],  ZERO,         None,         Nothing,                     FromZero, Never),

    // TensorRT-LLM takes a rank from Python only, which the worker in `deploy/trtllm` hands on from the header.
    // trtllm-serve takes none, and is registered as a front end without a header space.
    row(TensorRtLlm, &[Chat, Completions],                ZERO, None, RANK,    FromZero, Never),
    row(TensorRtLlm, &[Responses, Messages, Embeddings],  ZERO, None, Nothing, FromZero, Never),

    // llama.cpp's slots. It takes a number beyond the last slot modulo their count, without a word. Build 11549 was
    // seen to heed the field of responses and to ignore that of messages; of older builds it is not known.
    row(LlamaCpp, &[Chat, Completions],    ZERO,            None,            SLOT,    FromZero, Never),
    row(LlamaCpp, &[Responses],            ZERO,            to(11549, 0, 0), Nothing, FromZero, Never),
    row(LlamaCpp, &[Responses],            at(11549, 0, 0), None,            SLOT,    FromZero, Never),
    row(LlamaCpp, &[Messages, Embeddings], ZERO,            None,            Nothing, FromZero, Never),
];

const ZERO: Version = Version::ZERO;

const fn at(major: u32, minor: u32, patch: u32) -> Version {
    Version::new(major, minor, patch)
}

const fn to(major: u32, minor: u32, patch: u32) -> Option<Version> {
    Some(at(major, minor, patch))
}

const fn row(
    engine: EngineKind,
    endpoints: &'static [Endpoint],
    since: Version,
    until: Option<Version>,
    carrier: Carrier,
    numbering: Numbering,
    report: Report,
) -> Row {
    Row {
        engine,
        endpoints,
        since,
        until,
        carrier,
        numbering,
        report,
    }
}

/// The oldest version of each engine whose KV events can be used.
///
/// vLLM's batches have said their rank since 0.9.1. SGLang's hashes were Python's own and chained to nothing up to
/// 0.5.8, and up to 0.5.7 only rank 0 published.
pub const OLDEST: [(EngineKind, Version); 4] = [
    (Vllm, at(0, 9, 1)),
    (Sglang, at(0, 5, 9)),
    (TensorRtLlm, ZERO),
    (LlamaCpp, ZERO),
];

/// A version whose KV events cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("version {version}, whose KV events cannot be used: run {oldest} or newer")]
pub struct TooOld {
    /// The version.
    pub version: Version,
    /// The oldest that can be used.
    pub oldest: Version,
}

/// Checks that the events of an engine's version can be used. An unknown version passes.
pub fn check_version(engine: EngineKind, version: &str) -> Result<(), TooOld> {
    let oldest = OLDEST.iter().find(|(it, _)| *it == engine);
    match (Version::parse(version), oldest) {
        (Some(version), Some((_, oldest))) if version < *oldest => Err(TooOld {
            version,
            oldest: *oldest,
        }),
        _ => Ok(()),
    }
}

impl Row {
    /// How `engine` treats ranks at `endpoint`. A version that says nothing (see [`Version::parse`]) is taken for
    /// the newest: what runs without a version was built from its newest source.
    pub fn of(engine: EngineKind, version: &str, endpoint: Endpoint) -> &'static Self {
        let version = Version::parse(version);
        RANKS
            .iter()
            .filter(|row| row.engine == engine && row.endpoints.contains(&endpoint))
            .find(|row| match version {
                Some(version) => row.covers(version),
                None => row.until.is_none(),
            })
            .expect("every version of an engine is in one row of each endpoint, as a test shows")
    }

    /// Whether `version` is in its range.
    pub fn covers(&self, version: Version) -> bool {
        self.since <= version && self.until.is_none_or(|until| version < until)
    }
}

/// What may be asked of a worker with `dp_size` ranks. `header_space` is how its front end numbers them: with
/// [`HeaderSpace::None`] it is asked for none. A worker's only rank is the one that runs.
pub fn capability(
    engine: EngineKind,
    version: &str,
    dp_size: u32,
    header_space: HeaderSpace,
) -> Capability {
    let control = |endpoint| match Row::of(engine, version, endpoint).carrier {
        _ if dp_size == 1 => RankControl::Strict,
        Header(_) | Field(_) if header_space != HeaderSpace::None => RankControl::Strict,
        Header(_) | Field(_) | Nothing => RankControl::None,
    };
    let report = |endpoint| Row::of(engine, version, endpoint).report != Never;
    Capability {
        rank_control: ByEndpoint::of(control),
        header_space,
        rank_report: ByEndpoint::of(report),
        owns_bindings: false,
        first_rank: FirstRank::Unasked,
    }
}

/// What an engine says when it is asked for a rank that it does not have: its words, where `body` is such an answer
/// of status 400 to a request that named the rank `asked`. Engines quote what is wrong with a request, so nothing but
/// their whole sentence, about that number, is one: a client could have any other written.
pub fn rank_refusal(body: &[u8], asked: u32) -> Option<String> {
    let answer: serde_json::Value = serde_json::from_slice(body).ok()?;
    // vLLM's error is an object of its own, SGLang's is the answer.
    let error = answer.get("error").unwrap_or(&answer);
    let message = error.get("message")?.as_str()?;
    refuses(message, asked).then(|| message.to_owned())
}

/// Whether it says that `asked` is none of an engine's ranks: `data_parallel_rank 7 is out of range [0, 2).` of vLLM,
/// without the full stop of the worker in `deploy/trtllm`, `routed_dp_rank=7 out of range [0, 2)` of SGLang.
fn refuses(message: &str, asked: u32) -> bool {
    let of_vllm = format!("data_parallel_rank {asked} is out of range [");
    let of_sglang = format!("routed_dp_rank={asked} out of range [");
    let range = match message.strip_prefix(&of_vllm) {
        Some(range) => range.strip_suffix('.').or(Some(range)),
        None => message.strip_prefix(&of_sglang),
    };
    let bounds = range
        .and_then(|it| it.strip_suffix(')'))
        .and_then(|it| it.split_once(", "));
    let ranks = bounds.and_then(|(first, end)| {
        let first = first.parse::<u32>().ok()?;
        Some(first..end.parse().ok()?)
    });
    ranks.is_some_and(|ranks| !ranks.contains(&asked))
}
