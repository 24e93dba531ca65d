//! What each kind of event becomes.

use domain::{DpRank, Timestamp};
use engine_wire::{Removed, SpecKind};

use super::*;

fn translator() -> Translator {
    let secret = Some(Arc::from("a secret"));
    Translator::new("m".parse().unwrap(), BlockSize::new(2).unwrap(), secret)
}

fn batch(events: Vec<Event>) -> EventBatch {
    EventBatch {
        ts: Timestamp::from_micros(1),
        dp_rank: Some(DpRank::new(0)),
        events,
    }
}

fn int(hash: u64) -> EngineHash {
    EngineHash::Int(hash)
}

fn stored(hashes: &[u64], parent: Option<u64>, tokens: &[u32]) -> Stored {
    Stored {
        block_hashes: hashes.iter().map(|hash| int(*hash)).collect(),
        parent: parent.map(int),
        token_ids: tokens.to_vec(),
        opaque_tokens: 0,
        block_size: 2,
        medium: Medium::Tier(Tier::Gpu),
        group: Some(0),
        spec_kind: Some(SpecKind::FullAttention),
        lora: None,
        salt: None,
        session: None,
    }
}

fn removed(hash: u64, medium: Medium, group: Option<u32>) -> Event {
    Event::Removed(Removed {
        block_hashes: vec![int(hash)],
        medium,
        group,
    })
}

/// The one chain that `event` becomes.
fn chain(translator: &mut Translator, event: Stored) -> StoredBlocks {
    let translated = translator.translate(EventSeq::new(0), &batch(vec![Event::Stored(event)]));
    match <[KvOp; 1]>::try_from(translated.ops) {
        Ok([KvOp::Stored(stored)]) => stored,
        other => panic!("{other:?}, skipped {:?}", translated.skipped),
    }
}

fn skipped(translator: &mut Translator, event: Event) -> Vec<&'static str> {
    let translated = translator.translate(EventSeq::new(0), &batch(vec![event]));
    assert_eq!(translated.ops, []);
    translated.skipped.into_keys().collect()
}

#[test]
fn content_is_hashed_under_the_namespace_and_tokens_are_gone() {
    let mut event = stored(&[10, 11], Some(9), &[1, 2, 3, 4]);
    event.lora = Some(Lora::Named("adapter".into()));
    let chain = chain(&mut translator(), event);
    let hashes: Vec<_> = chain.blocks.iter().map(|it| it.block_hash).collect();
    let seed = domain::HashSeed::of(Some("adapter"), None);
    let expected = block_hashes(&[1, 2, 3, 4], BlockSize::new(2).unwrap(), seed);
    assert_eq!(hashes, expected);
    assert_eq!(chain.parent, Some(int(9)));
    assert_eq!(chain.namespace.lora.as_deref(), Some("adapter"));
    assert_eq!(chain.session, None);
}

#[test]
fn a_child_without_a_salt_has_its_parents() {
    let mut translator = translator();
    let mut root = stored(&[10], None, &[1, 2]);
    root.salt = Some("tenant".into());
    chain(&mut translator, root);
    let child = chain(&mut translator, stored(&[11], Some(10), &[3, 4]));
    assert_eq!(child.namespace.salt.as_deref(), Some("tenant"));
    let grandchild = chain(&mut translator, stored(&[12], Some(11), &[5, 6]));
    assert_eq!(grandchild.namespace.salt.as_deref(), Some("tenant"));
    let other = chain(&mut translator, stored(&[20], Some(7), &[3, 4]));
    assert_eq!(other.namespace.salt, None);
    translator.reset();
    let later = chain(&mut translator, stored(&[13], Some(12), &[3, 4]));
    assert_eq!(later.namespace.salt, None);
}

#[test]
fn the_first_group_that_stands_for_its_prefix_is_indexed_alone() {
    let mut translator = translator();
    let in_group = |group, kind| Stored {
        group: Some(group),
        spec_kind: Some(kind),
        ..stored(&[10], None, &[1, 2])
    };
    let window = in_group(0, SpecKind::Other("sliding_window".into()));
    assert_eq!(
        skipped(&mut translator, Event::Stored(window)),
        ["part_of_prefix"]
    );
    let full = chain(&mut translator, in_group(1, SpecKind::FullAttention));
    assert_eq!(full.group, 1);
    let second = in_group(2, SpecKind::MlaAttention);
    assert_eq!(
        skipped(&mut translator, Event::Stored(second)),
        ["other_group"]
    );
    let gpu = Medium::Tier(Tier::Gpu);
    assert_eq!(
        skipped(&mut translator, removed(10, gpu.clone(), Some(2))),
        ["other_group"]
    );
    let kept = translator.translate(EventSeq::new(0), &batch(vec![removed(10, gpu, Some(1))]));
    assert_eq!(kept.ops.len(), 1);
}

#[test]
fn what_cannot_be_indexed_is_skipped_with_its_reason_and_the_rest_stays() {
    let mut translator = translator();
    let mut placeholder = stored(&[10], None, &[]);
    placeholder.block_size = 0;
    let mut page = stored(&[10], None, &[1]);
    page.block_size = 1;
    let mut nowhere = stored(&[10], None, &[1, 2]);
    nowhere.medium = Medium::Unknown("MOON".into());
    let events = vec![
        Event::Stored(placeholder),
        Event::Stored(page),
        Event::Stored(nowhere),
        removed(1, Medium::Remote, None),
        Event::Unknown { tag: "New".into() },
        Event::Cleared,
        Event::Stored(stored(&[10], None, &[1, 2])),
    ];
    let translated = translator.translate(EventSeq::new(0), &batch(events));
    assert_eq!(translated.ops.len(), 2);
    assert_eq!(translated.ops[0], KvOp::Cleared);
    let reasons: Vec<_> = translated.skipped.into_iter().collect();
    assert_eq!(
        reasons,
        [
            ("block_size", 1),
            ("placeholder", 1),
            ("remote_medium", 1),
            ("unknown_event", 1),
            ("unknown_medium", 1),
        ]
    );
}

#[test]
fn a_chain_ends_before_its_first_opaque_block() {
    let mut event = stored(&[10, 11, 12], None, &[1, 2]);
    event.opaque_tokens = 4;
    let chain = chain(&mut translator(), event);
    assert_eq!(chain.blocks.len(), 1);
}

#[test]
fn a_session_is_named_by_its_tag_only() {
    let mut event = stored(&[10], None, &[1, 2]);
    event.session = Some("conversation 7".into());
    let tagged = chain(&mut translator(), event.clone());
    let expected = SessionTag::of("conversation 7", b"a secret");
    assert_eq!(tagged.session, Some(expected));
    let mut without_secret = translator();
    without_secret.session_secret = None;
    assert_eq!(chain(&mut without_secret, event).session, None);
}

#[test]
fn no_more_salts_are_remembered_than_the_bound() {
    let mut salts = Salts::default();
    let salt = Arc::from("salt");
    let hashes = 0..MAX_SALTED as u64 + 10;
    salts.remember(hashes.map(int), &salt);
    assert_eq!(salts.of(&int(9)), None);
    assert_eq!(salts.of(&int(10)), Some(salt));
    assert_eq!(salts.of.len(), MAX_SALTED);
}
