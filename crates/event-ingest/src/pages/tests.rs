//! The rules of gathering, one case each.

use domain::{BlockHash, HashSeed};

use super::*;

/// Tokens a page and a block.
pub(super) const PAGE: u32 = 2;
pub(super) const BLOCK: u32 = 6;

pub(super) fn pages() -> Pages {
    let (page, block) = (size(PAGE), size(BLOCK));
    let geometry = Geometry::of(page, block).unwrap();
    Pages::new("m".parse().unwrap(), geometry, block)
}

pub(super) fn size(tokens: u32) -> BlockSize {
    BlockSize::new(tokens).unwrap()
}

/// The engine's name of the last page of a path, after all of it.
pub(super) fn name(path: &[u8]) -> PageName {
    path.iter().fold(7, |name: u64, page| {
        name.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(*page + 1)
    })
}

pub(super) fn tokens(path: &[u8]) -> Vec<u32> {
    path.iter()
        .flat_map(|page| [u32::from(*page), u32::from(*page) + 100])
        .collect()
}

pub(super) fn store(pages: &mut Pages, path: &[u8], from: usize, tier: Tier) -> Vec<KvOp> {
    let names: Vec<PageName> = (from..path.len()).map(|at| name(&path[..=at])).collect();
    let chain = Chain {
        parent: (0 < from).then(|| name(&path[..from])),
        names: &names,
        tokens: &tokens(&path[from..]),
        tier,
        extra: None,
        session: None,
    };
    pages.store(0, &chain)
}

fn stored_names(ops: &[KvOp]) -> Vec<Vec<EngineHash>> {
    let chain = |op: &KvOp| match op {
        KvOp::Stored(stored) => Some(
            stored
                .blocks
                .iter()
                .map(|it| it.engine_hash.clone())
                .collect(),
        ),
        _ => None,
    };
    ops.iter().filter_map(chain).collect()
}

#[test]
fn a_block_is_called_after_its_last_page_and_hangs_on_the_last_page_before_it() {
    let mut pages = pages();
    let path = [0, 1, 0, 1, 0, 1, 1];
    let ops = store(&mut pages, &path, 0, Tier::Gpu);
    let [KvOp::Stored(chain)] = &ops[..] else {
        panic!("{ops:?}");
    };
    assert_eq!(chain.parent, None);
    let names = [name(&path[..3]), name(&path[..6])].map(EngineHash::Int);
    assert_eq!(stored_names(&ops), [names]);
    let ops = store(&mut pages, &[0, 1, 0, 1, 0, 1, 1, 0, 0], 7, Tier::Gpu);
    let [KvOp::Stored(chain)] = &ops[..] else {
        panic!("{ops:?}");
    };
    assert_eq!(chain.parent, Some(EngineHash::Int(name(&path[..6]))));
}

#[test]
fn one_page_an_event_makes_the_same_blocks_as_a_chain_of_them() {
    let path = [0, 1, 0, 1, 0, 1, 1, 1];
    let mut chain = pages();
    let whole = store(&mut chain, &path, 0, Tier::Gpu);
    let mut single = pages();
    let ops: Vec<KvOp> = (0..path.len())
        .flat_map(|from| store(&mut single, &path[..=from], from, Tier::Gpu))
        .collect();
    assert_eq!(stored_names(&ops).concat(), stored_names(&whole).concat());
    assert_eq!(single.said(), chain.said());
}

#[test]
fn blocks_that_share_pages_go_with_any_of_them_and_come_back_with_it() {
    let mut pages = pages();
    store(&mut pages, &[0, 0, 0], 0, Tier::Gpu);
    store(&mut pages, &[0, 0, 1], 2, Tier::Gpu);
    assert_eq!(pages.said().len(), 2);
    let ops = pages.remove(0, &[name(&[0])], Tier::Gpu);
    let [KvOp::Removed { engine_hashes, .. }] = &ops[..] else {
        panic!("{ops:?}");
    };
    assert_eq!(engine_hashes.len(), 2);
    assert_eq!(pages.remove(0, &[name(&[0]), 99], Tier::Gpu), []);
    let ops = store(&mut pages, &[0], 0, Tier::Gpu);
    assert_eq!(stored_names(&ops).concat().len(), 2);
    let counts = pages.take_counts();
    assert_eq!(counts["unknown"], 2);
    assert_eq!(counts["removed"], 1);
}

#[test]
fn a_block_lies_where_its_slowest_page_does() {
    let mut pages = pages();
    let path = [0, 0, 0];
    store(&mut pages, &path, 0, Tier::Gpu);
    assert_eq!(store(&mut pages, &path, 0, Tier::Host), []);
    let ops = pages.remove(0, &[name(&path[..2])], Tier::Gpu);
    let engine_hashes = vec![EngineHash::Int(name(&path))];
    assert_eq!(
        ops,
        [KvOp::Retiered {
            group: 0,
            engine_hashes,
            from: Tier::Gpu,
            to: Tier::Host
        }]
    );
}

#[test]
fn a_page_under_a_name_that_stood_for_another_takes_its_place() {
    let mut pages = pages();
    store(&mut pages, &[0, 0, 0], 0, Tier::Gpu);
    let names = [name(&[0])];
    let chain = Chain {
        parent: None,
        names: &names,
        tokens: &[8, 8],
        tier: Tier::Gpu,
        extra: None,
        session: None,
    };
    let ops = pages.store(0, &chain);
    assert!(matches!(&ops[..], [KvOp::Removed { .. }]), "{ops:?}");
    assert_eq!(pages.tree.len(), 1);
    assert_eq!(pages.take_counts()["renamed"], 1);
}

#[test]
fn a_page_that_hangs_on_itself_is_left_out() {
    let mut pages = pages();
    store(&mut pages, &[0, 0], 0, Tier::Gpu);
    let names = [name(&[0])];
    let chain = Chain {
        parent: Some(name(&[0, 0])),
        names: &names,
        tokens: &[0, 100],
        tier: Tier::Gpu,
        extra: None,
        session: None,
    };
    assert_eq!(pages.store(0, &chain), []);
    assert_eq!(pages.take_counts()["contradiction"], 1);
}

#[test]
fn salt_and_adapter_of_a_root_hold_for_its_whole_chain() {
    let mut pages = pages();
    let extra = Extra {
        lora: None,
        salt: Some("tenant".into()),
    };
    let path = [0_u8; 6];
    let names: Vec<PageName> = (1..=2).map(|len| name(&path[..len])).collect();
    let chain = Chain {
        parent: None,
        names: &names,
        tokens: &tokens(&path[..2]),
        tier: Tier::Gpu,
        extra: Some(Arc::new(extra)),
        session: None,
    };
    assert_eq!(pages.store(0, &chain), []);
    let ops = store(&mut pages, &path, 2, Tier::Gpu);
    let [KvOp::Stored(chain)] = &ops[..] else {
        panic!("{ops:?}");
    };
    assert_eq!(chain.namespace.salt.as_deref(), Some("tenant"));
    let hashes: Vec<BlockHash> = chain.blocks.iter().map(|it| it.block_hash).collect();
    let seed = HashSeed::of(None, Some("tenant"));
    assert_eq!(hashes, block_hashes(&tokens(&path), size(BLOCK), seed));
}

/// <https://github.com/sgl-project/sglang/issues/24568> (BC-45): names that leave out the salt.
#[test]
fn of_two_salts_under_one_name_the_later_holds_and_the_other_is_not_extended() {
    let mut pages = pages();
    let salted = |salt: &str| {
        let salt = Some(salt.into());
        Some(Arc::new(Extra { lora: None, salt }))
    };
    let path = [0_u8; 6];
    let names: Vec<PageName> = (1..=6).map(|len| name(&path[..len])).collect();
    let chain = |from: usize, until: usize, salt| Chain {
        parent: from.checked_sub(1).map(|at| names[at]),
        names: &names[from..until],
        tokens: &[],
        tier: Tier::Gpu,
        extra: salted(salt),
        session: None,
    };
    let all = tokens(&path);
    let of = |from: usize, until: usize| &all[2 * from..2 * until];
    let first = Chain {
        tokens: of(0, 3),
        ..chain(0, 3, "a")
    };
    assert_eq!(stored_names(&pages.store(0, &first)).len(), 1);
    let second = Chain {
        tokens: of(0, 3),
        ..chain(0, 3, "b")
    };
    let ops = pages.store(0, &second);
    let [KvOp::Removed { .. }, KvOp::Stored(stored)] = &ops[..] else {
        panic!("{ops:?}");
    };
    assert_eq!(stored.namespace.salt.as_deref(), Some("b"));
    let late = Chain {
        tokens: of(3, 6),
        ..chain(3, 6, "a")
    };
    assert_eq!(pages.store(0, &late), []);
    assert_eq!(pages.take_counts()["other_salt"], 3);
}

#[test]
fn a_page_takes_no_more_than_its_share() {
    assert!(size_of::<tree::Page>() <= 32);
}
