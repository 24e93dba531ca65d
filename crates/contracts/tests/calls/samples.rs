//! Values of every shape that calls carry.

use affinity::{Binding, BindingKey, BindingState, ConversationKey, Evidence, MoveReason, Owner};
use bus::Revision;
use contracts::rpc::{Bound, CallError};
use domain::{
    BlockSize, DpRank, Epoch, InstanceId, Namespace, SequenceHash, Target, TargetState, Timestamp,
    Tokens, WorkerId,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

pub(crate) fn worker() -> impl Strategy<Value = WorkerId> {
    "[A-Za-z0-9._:-]{1,128}".prop_map(|it| it.parse().unwrap())
}

pub(crate) fn instance() -> impl Strategy<Value = InstanceId> {
    "[A-Za-z0-9._:-]{1,128}".prop_map(|it| it.parse().unwrap())
}

pub(crate) fn target() -> impl Strategy<Value = Target> {
    (worker(), any::<u64>(), any::<u32>()).prop_map(|(worker, epoch, dp_rank)| Target {
        worker,
        epoch: Epoch::new(epoch),
        dp_rank: DpRank::new(dp_rank),
    })
}

pub(crate) fn namespace() -> impl Strategy<Value = Namespace> {
    let text = || option::of("\\PC{0,20}".prop_map(|it| it.as_str().into()));
    ("[a-z/]{1,20}", text(), text(), 1_u32..4096).prop_map(|(model, lora, salt, size)| Namespace {
        model: model.parse().unwrap(),
        lora,
        salt,
        block_size: BlockSize::new(size).unwrap(),
    })
}

pub(crate) fn hashes() -> impl Strategy<Value = Vec<SequenceHash>> {
    vec(any::<u64>().prop_map(SequenceHash::new), 0..200)
}

pub(crate) fn state() -> impl Strategy<Value = TargetState> {
    prop::sample::select(vec![
        TargetState::Ready,
        TargetState::Suspect,
        TargetState::Partial,
    ])
}

pub(crate) fn key() -> impl Strategy<Value = ConversationKey> {
    let id = || "[a-z\u{e4}\u{20ac} ]{1,80}";
    (id(), id(), id()).prop_map(|(tenant, model, conversation)| ConversationKey {
        tenant: tenant.parse().unwrap(),
        model: model.parse().unwrap(),
        conversation: conversation.parse().unwrap(),
    })
}

pub(crate) fn binding_key() -> impl Strategy<Value = BindingKey> {
    any::<[u8; 16]>().prop_map(|it| BindingKey::from_bytes(&it).unwrap())
}

pub(crate) fn owner() -> impl Strategy<Value = Owner> {
    prop::sample::select(vec![Owner::Router, Owner::Engine])
}

pub(crate) fn evidence() -> impl Strategy<Value = Evidence> {
    let all = [Evidence::None, Evidence::Asked, Evidence::Event];
    prop::sample::select([&all[..], &[Evidence::Answer]].concat())
}

pub(crate) fn reason() -> impl Strategy<Value = MoveReason> {
    prop::sample::select(MoveReason::ALL.to_vec())
}

fn time() -> impl Strategy<Value = Timestamp> {
    // Zero stands for what an earlier release did not say.
    (1..u64::MAX).prop_map(Timestamp::from_micros)
}

pub(crate) fn binding() -> impl Strategy<Value = Binding> {
    let state = prop_oneof![
        Just(BindingState::Confirmed),
        time().prop_map(|lease_until| BindingState::Provisional { lease_until }),
    ];
    let placed = (key(), target(), owner(), state, evidence());
    let told = (option::of(reason()), instance(), any::<u64>(), any::<u32>());
    (placed, told, time(), time()).prop_map(|(placed, told, since, last_end)| {
        let (key, target, owner, state, evidence) = placed;
        let (moved, actor, held, turns) = told;
        Binding {
            key,
            target,
            owner,
            state,
            evidence,
            since,
            moved,
            actor,
            held: Tokens::new(held),
            turns,
            last_end,
        }
    })
}

pub(crate) fn bound() -> impl Strategy<Value = Bound> {
    (binding(), any::<u64>()).prop_map(|(binding, revision)| Bound {
        binding,
        revision: Revision(revision),
    })
}

/// Every way to fail that a service knows of.
pub(crate) fn failures(service: &'static str) -> Vec<CallError> {
    let why = || "it says: 100 % \u{20ac}\nno".to_owned();
    vec![
        CallError::Unavailable {
            service,
            why: why(),
        },
        CallError::DeadlineExceeded { service },
        CallError::FailedPrecondition { why: why() },
        CallError::InvalidArgument { why: why() },
    ]
}
