//! Names of variants in JSON. Part of the API: they outlive the variants' own.

use affinity::{Evidence, MoveReason};
use domain::{EngineKind, RankControl, TargetState};
use placement::{Barred, Place};
use routing::{BindingAction, Reason, Status};

pub(crate) fn place(place: &Place) -> String {
    match place {
        Place::Target(target) => target.to_string(),
        Place::Worker { worker, epoch } => format!("{worker}#{epoch}"),
    }
}

pub(crate) fn reason(reason: Reason) -> String {
    match reason {
        Reason::Policy(by) => by.to_string(),
        Reason::Bound => "bound".to_owned(),
        Reason::BoundForLackOfOthers => "bound_for_lack_of_others".to_owned(),
        Reason::Excursion => "excursion".to_owned(),
        Reason::Followed => "followed".to_owned(),
        Reason::Pinned => "pinned".to_owned(),
    }
}

/// A reason without the number of those that it chose from.
pub(crate) fn reason_kind(by: Reason) -> String {
    let mut name = reason(by);
    if let Some((kind, among)) = name.rsplit_once("_of_")
        && among.bytes().all(|it| it.is_ascii_digit())
    {
        name.truncate(kind.len());
    }
    name
}

pub(crate) fn binding(action: BindingAction) -> String {
    match action {
        BindingAction::None => "none".to_owned(),
        BindingAction::Create => "create".to_owned(),
        BindingAction::Keep => "keep".to_owned(),
        BindingAction::Excursion => "hold".to_owned(),
        BindingAction::Rebind(why) => format!("rebind_{}", moved(why)),
    }
}

pub(crate) const fn engine(engine: EngineKind) -> &'static str {
    match engine {
        EngineKind::Vllm => "vllm",
        EngineKind::Sglang => "sglang",
        EngineKind::TensorRtLlm => "tensorrt-llm",
        EngineKind::LlamaCpp => "llama.cpp",
    }
}

pub(crate) const fn rank_control(control: RankControl) -> &'static str {
    match control {
        RankControl::Strict => "strict",
        RankControl::FirstTurn => "first_turn",
        RankControl::None => "none",
    }
}

pub(crate) const fn barred(barred: Barred) -> &'static str {
    match barred {
        Barred::Tried => "tried",
        Barred::NoAdapter => "no_adapter",
        Barred::FailedLately => "failed_lately",
    }
}

/// Why a barred target was left out, in words.
pub(crate) const fn why_barred(barred: Barred) -> &'static str {
    match barred {
        Barred::Tried => "this request had failed there already",
        Barred::NoAdapter => "no adapter of its worker was reached",
        Barred::FailedLately => "requests had failed there within 10 s",
    }
}

/// Why a target of that state took nothing, or was believed less, in words.
pub(crate) const fn why_state(state: TargetState) -> Option<&'static str> {
    match state {
        TargetState::Ready | TargetState::Partial => None,
        TargetState::Suspect => {
            Some("events of it were missing, so that half of what it holds counted")
        }
        TargetState::Warming => Some("it was starting and took nothing yet"),
        TargetState::Draining | TargetState::Leaving => Some("it was drained and took nothing new"),
        TargetState::Gone => Some("it was gone"),
    }
}

pub(crate) const fn status(status: Status) -> &'static str {
    match status {
        Status::Served => "served",
        Status::Refused => "refused",
        Status::Failed => "failed",
        Status::RankRefused => "rank_refused",
        Status::Unreachable => "unreachable",
        Status::NoAdapter => "no_adapter",
        Status::Invalid => "invalid",
        Status::Cancelled => "cancelled",
    }
}

pub(crate) const fn evidence(evidence: Evidence) -> &'static str {
    match evidence {
        Evidence::None => "none",
        Evidence::Asked => "asked",
        Evidence::Event => "event",
        Evidence::Answer => "answer",
    }
}

pub(crate) const fn moved(why: MoveReason) -> &'static str {
    match why {
        MoveReason::Fenced => "fenced",
        MoveReason::Gone => "gone",
        MoveReason::Drained => "drained",
        MoveReason::PrefixLost => "prefix_lost",
        MoveReason::Operator => "operator",
        MoveReason::Failed => "failed",
        MoveReason::Observed => "observed",
        MoveReason::Cheaper => "cheaper",
    }
}
