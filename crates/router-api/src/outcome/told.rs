//! A report, as it is read and checked.

use std::time::Duration;

use contracts::rpc::{CallEnd, RankEvidence};
use domain::{DecisionId, DpRank, Target, Tokens, Usage};
use routing::Status;
use serde::Deserialize;

use crate::error::{ApiError, excerpt};
use crate::query::wrong;
use crate::turn::Turn;

/// The longest time that a report may tell: a day.
const LONGEST_MS: f64 = 86_400_000.0;
/// The most tokens that a report may tell: more than any context.
const MOST_TOKENS: u64 = 1 << 24;
/// Tokens that an engine may count beyond those that were hashed: of a template, a last block that is not full, and
/// images.
const BEYOND_HASHED: u64 = 1 << 14;

/// How far the request has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// Its answer has begun.
    FirstToken,
    /// It is over.
    #[default]
    Done,
}

/// What somebody tells of a decision.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) decision: DecisionId,
    pub(super) phase: Phase,
    report: Report,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    decision: String,
    #[serde(default)]
    phase: Phase,
    status: Option<StatusName>,
    worker: Option<String>,
    dp_rank: Option<u32>,
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    ttft_ms: Option<f64>,
    duration_ms: Option<f64>,
    response_id: Option<String>,
}

/// As decisions are shown with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StatusName {
    Served,
    Refused,
    Failed,
    RankRefused,
    Unreachable,
    Invalid,
    Cancelled,
}

impl Told {
    pub(super) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let report: Report = serde_json::from_slice(body).map_err(|error| {
            let error = error.to_string();
            ApiError::invalid(format!("read the outcome: {}", excerpt(&error)))
        })?;
        let decision = report.decision.parse();
        let decision = decision.map_err(|why| wrong("decision", &why))?;
        for (name, time) in [
            ("ttft_ms", report.ttft_ms),
            ("duration_ms", report.duration_ms),
        ] {
            if time.is_some_and(|it| !(0.0..=LONGEST_MS).contains(&it)) {
                return Err(wrong(name, &"it is between 0 and a day"));
            }
        }
        for (name, tokens) in [
            ("prompt_tokens", report.prompt_tokens),
            ("completion_tokens", report.completion_tokens),
            ("cached_tokens", report.cached_tokens),
        ] {
            if tokens.is_some_and(|it| MOST_TOKENS < it) {
                return Err(wrong(name, &"no prompt and no answer has so many"));
            }
        }
        if report.phase == Phase::FirstToken
            && !matches!(report.status, None | Some(StatusName::Served))
        {
            let why =
                "a request with a first token is being served: say how it ended once it is done";
            return Err(wrong("status", &why));
        }
        Ok(Self {
            decision,
            phase: report.phase,
            report,
        })
    }

    pub(super) fn status(&self) -> Status {
        match self.report.status.unwrap_or(StatusName::Served) {
            StatusName::Served => Status::Served,
            StatusName::Refused => Status::Refused,
            StatusName::Failed => Status::Failed,
            StatusName::RankRefused => Status::RankRefused,
            StatusName::Unreachable => Status::Unreachable,
            StatusName::Invalid => Status::Invalid,
            StatusName::Cancelled => Status::Cancelled,
        }
    }

    pub(super) fn ttft(&self) -> Option<Duration> {
        self.report.ttft_ms.map(milliseconds)
    }

    pub(super) fn duration(&self) -> Option<Duration> {
        self.report.duration_ms.map(milliseconds)
    }

    pub(super) fn response_id(&self) -> Option<&str> {
        self.report.response_id.as_deref()
    }

    /// What the answer said, where that can be of `turn`.
    pub(super) fn end(&self, turn: &Turn) -> Result<CallEnd, ApiError> {
        let report = &self.report;
        let decision = &turn.decision;
        let decided = decision.place.worker();
        if report
            .worker
            .as_ref()
            .is_some_and(|it| it != decided.as_str())
        {
            let why = format!(
                "the decision is for worker {decided}: of a request that went elsewhere tell `cancelled`, and route it \
                 anew"
            );
            return Err(wrong("worker", &why));
        }
        let ranks = decision.snapshot.candidates.iter().map(|it| &it.target);
        let mut ranks = ranks.filter(|it| it.worker == *decided);
        let rank = report.dp_rank.map(DpRank::new);
        if let Some(rank) = rank
            && !ranks.any(|Target { dp_rank, .. }| *dp_rank == rank)
        {
            let why = format!("worker {decided} has no rank {rank}");
            return Err(wrong("dp_rank", &why));
        }
        Ok(CallEnd {
            usage: self.usage(turn)?,
            observed_rank: rank.map(|it| (it, RankEvidence::Body)),
        })
    }

    /// None where nothing is told; a count that is left out is the decision's, or none.
    fn usage(&self, turn: &Turn) -> Result<Option<Usage>, ApiError> {
        let report = &self.report;
        let isl = turn.decision.request.isl;
        let most = isl.get().saturating_add(BEYOND_HASHED);
        if turn.tokens_known() && report.prompt_tokens.is_some_and(|it| most < it) {
            let why = format!("the decision is for a prompt of {} tokens", isl.get());
            return Err(wrong("prompt_tokens", &why));
        }
        let told = [
            report.prompt_tokens,
            report.completion_tokens,
            report.cached_tokens,
        ];
        if told.iter().all(Option::is_none) {
            return Ok(None);
        }
        let usage = Usage {
            prompt: report.prompt_tokens.map_or(isl, Tokens::new),
            completion: Tokens::new(report.completion_tokens.unwrap_or(0)),
            cached: report.cached_tokens.map(Tokens::new),
        };
        if usage.cached.is_some_and(|it| usage.prompt < it) {
            let why = format!("a prompt of {} has no more cached ones", usage.prompt.get());
            return Err(wrong("cached_tokens", &why));
        }
        Ok(Some(usage))
    }
}

fn milliseconds(told: f64) -> Duration {
    Duration::from_secs_f64(told / 1e3)
}
