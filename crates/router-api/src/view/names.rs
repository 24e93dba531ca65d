//! Names of variants in JSON. Part of the API: they outlive the variants' own.

use affinity::{Evidence, MoveReason};
use domain::{EngineKind, RankControl};
use placement::{Barred, Choice, Place};
use routing::{BindingAction, Reason, Status};

pub(super) fn choice(choice: &Choice) -> String {
    match &choice.place {
        Place::Target(target) => target.to_string(),
        Place::Worker { worker, epoch } => format!("{worker}#{epoch}"),
    }
}

pub(super) fn reason(reason: Reason) -> String {
    match reason {
        Reason::Policy(by) => by.to_string(),
        Reason::Bound => "bound".to_owned(),
        Reason::BoundForLackOfOthers => "bound_for_lack_of_others".to_owned(),
        Reason::Excursion => "excursion".to_owned(),
        Reason::Followed => "followed".to_owned(),
        Reason::Pinned => "pinned".to_owned(),
    }
}

pub(super) fn binding(action: BindingAction) -> String {
    match action {
        BindingAction::None => "none".to_owned(),
        BindingAction::Create => "create".to_owned(),
        BindingAction::Keep => "keep".to_owned(),
        BindingAction::Excursion => "hold".to_owned(),
        BindingAction::Rebind(why) => format!("rebind_{}", moved(why)),
    }
}

pub(super) const fn engine(engine: EngineKind) -> &'static str {
    match engine {
        EngineKind::Vllm => "vllm",
        EngineKind::Sglang => "sglang",
        EngineKind::TensorRtLlm => "tensorrt-llm",
        EngineKind::LlamaCpp => "llama.cpp",
    }
}

pub(super) const fn rank_control(control: RankControl) -> &'static str {
    match control {
        RankControl::Strict => "strict",
        RankControl::FirstTurn => "first_turn",
        RankControl::None => "none",
    }
}

pub(super) const fn barred(barred: Barred) -> &'static str {
    match barred {
        Barred::Tried => "tried",
        Barred::NoAdapter => "no_adapter",
        Barred::FailedLately => "failed_lately",
    }
}

pub(super) const fn status(status: Status) -> &'static str {
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

pub(super) const fn evidence(evidence: Evidence) -> &'static str {
    match evidence {
        Evidence::None => "none",
        Evidence::Asked => "asked",
        Evidence::Event => "event",
        Evidence::Answer => "answer",
    }
}

pub(super) const fn moved(why: MoveReason) -> &'static str {
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
