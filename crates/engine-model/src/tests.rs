//! The engine's promises, one by one; `naive` compares it with a model made of counted sets, `silent` one that tells of
//! every token with one that does not.

mod naive;
mod silent;

use std::sync::Arc;
use std::time::Duration;

use domain::{BlockSize, DpRank, SequenceHash, Timestamp, Tokens};

use crate::{Cache, Config, Effect, Engine, RankInUse, Refused, Request, RequestId, StepTime};

const RANK_0: DpRank = DpRank::new(0);
const RANK_1: DpRank = DpRank::new(1);

fn config() -> Config {
    Config {
        block_size: BlockSize::new(4).unwrap(),
        kv_blocks: 16,
        max_running: 4,
        pass_tokens: 16,
        step: StepTime {
            base: Duration::from_millis(10),
            per_prefill_token: Duration::from_millis(2),
            per_sequence: Duration::from_millis(1),
        },
        cache: Cache::Blocks,
    }
}

fn engine(ranks: u32) -> Engine {
    Engine::new(config(), ranks).unwrap()
}

fn radix_engine() -> Engine {
    let config = Config {
        cache: Cache::Radix,
        ..config()
    };
    Engine::new(config, 1).unwrap()
}

fn chain(values: impl IntoIterator<Item = u64>) -> Arc<[SequenceHash]> {
    values.into_iter().map(SequenceHash::new).collect()
}

fn request(id: u64, isl: u64, osl: u64, blocks: impl IntoIterator<Item = u64>) -> Request {
    Request {
        id: RequestId::new(id),
        isl: Tokens::new(isl),
        osl: Tokens::new(osl),
        chain: chain(blocks),
        rank: Some(RANK_0),
    }
}

/// Runs passes until the engine is idle; the effects of each.
fn run(engine: &mut Engine) -> Vec<Vec<Effect>> {
    let mut passes = Vec::new();
    let mut now = Timestamp::ZERO;
    while let Some(pass) = engine.next_pass(now) {
        now = pass.ends_at;
        passes.push(engine.finish_pass());
    }
    passes
}

fn cached(passes: &[Vec<Effect>], id: u64) -> Option<u64> {
    passes.iter().flatten().find_map(|effect| match effect {
        Effect::Cached { id: it, tokens } if it.get() == id => Some(tokens.get()),
        _ => None,
    })
}

fn stored(passes: &[Vec<Effect>]) -> Vec<u64> {
    let blocks = passes.iter().flatten().filter_map(|effect| match effect {
        Effect::Stored { blocks, .. } => Some(blocks),
        _ => None,
    });
    blocks.flatten().map(|it| it.get()).collect()
}

fn removed(passes: &[Vec<Effect>]) -> Vec<u64> {
    let blocks = passes.iter().flatten().filter_map(|effect| match effect {
        Effect::Removed { blocks, .. } => Some(blocks),
        _ => None,
    });
    blocks.flatten().map(|it| it.get()).collect()
}

#[test]
fn a_pass_lasts_as_long_as_its_slowest_rank() {
    let mut engine = engine(2);
    engine.submit(request(1, 10, 1, [])).unwrap();
    let on_rank_1 = |id| Request {
        rank: Some(RANK_1),
        ..request(id, 3, 1, [])
    };
    engine.submit(on_rank_1(2)).unwrap();
    engine.submit(on_rank_1(3)).unwrap();
    let pass = engine.next_pass(Timestamp::from_micros(5)).unwrap();
    // Rank 0: 10 + 2 x 10 + 1 x 1; rank 1: 10 + 2 x 6 + 1 x 2.
    assert_eq!(pass.ends_at, Timestamp::from_micros(31_005));
    assert_eq!(engine.next_pass(Timestamp::from_micros(7)), Some(pass));
}

#[test]
fn a_long_prompt_takes_several_passes_and_a_short_one_shares_the_last() {
    let mut engine = engine(1);
    engine.submit(request(1, 20, 1, 0..5)).unwrap();
    engine.submit(request(2, 8, 1, 10..12)).unwrap();
    let passes = run(&mut engine);
    assert_eq!(passes.len(), 2);
    assert!(!passes[0].contains(&Effect::FirstToken {
        id: RequestId::new(1)
    }));
    assert_eq!(stored(&passes[..1]), [0, 1, 2, 3]);
    assert_eq!(stored(&passes[1..]), [4, 10, 11]);
}

#[test]
fn an_idle_engine_has_no_pass() {
    let mut engine = engine(2);
    assert_eq!(engine.next_pass(Timestamp::ZERO), None);
    assert_eq!(engine.finish_pass(), []);
}

#[test]
fn a_prompt_repeated_hits_all_full_blocks_below_its_last_token_and_stores_the_rest_again() {
    let mut engine = engine(1);
    engine.submit(request(1, 8, 1, 0..2)).unwrap();
    run(&mut engine);
    engine.submit(request(2, 8, 1, 0..2)).unwrap();
    let again = run(&mut engine);
    assert_eq!(cached(&again, 2), Some(4));
    assert_eq!(stored(&again), [1]);
}

#[test]
fn blocks_filled_by_decoding_are_announced_and_hit_by_the_next_turn() {
    let mut engine = engine(1);
    // 6 tokens in and 7 out: the last one is never fed back, so 12 tokens fill 3 blocks.
    engine.submit(request(1, 6, 7, 0..3)).unwrap();
    let first = run(&mut engine);
    assert_eq!(stored(&first), [0, 1, 2]);
    assert_eq!(first.len(), 7);
    engine.submit(request(2, 14, 1, 0..3)).unwrap();
    assert_eq!(cached(&run(&mut engine), 2), Some(12));
}

#[test]
fn blocks_without_known_content_take_room_but_are_never_announced() {
    let mut engine = engine(1);
    engine.submit(request(1, 4, 9, [7])).unwrap();
    assert_eq!(stored(&run(&mut engine)), [7]);
    assert_eq!(engine.held(RANK_0).count(), 1);
}

#[test]
fn evictions_come_leaf_first_in_the_pass_that_needs_the_room_and_before_its_stores() {
    let mut engine = engine(1);
    engine.submit(request(1, 16, 1, 0..4)).unwrap();
    engine.submit(request(2, 40, 1, 10..20)).unwrap();
    run(&mut engine);
    engine.submit(request(3, 16, 1, 20..24)).unwrap();
    let passes = run(&mut engine);
    assert_eq!(removed(&passes), [3, 2]);
    assert!(matches!(passes[0][0], Effect::Removed { .. }));
    assert!(matches!(passes[0][1], Effect::Stored { .. }));
}

#[test]
fn of_two_copies_the_content_is_held_until_both_have_left() {
    let mut engine = engine(1);
    for id in 1..=2 {
        engine.submit(request(id, 8, 1, 0..2)).unwrap();
    }
    assert_eq!(stored(&run(&mut engine)), [0, 1, 0, 1]);
    assert_eq!(engine.held(RANK_0).count(), 2);
    engine.submit(request(3, 56, 1, 10..24)).unwrap();
    assert_eq!(removed(&run(&mut engine)), [1, 0]);
    assert_eq!(engine.overlap(RANK_0, &chain(0..2)), 2);
}

#[test]
fn a_request_waits_until_the_blocks_in_use_leave_room_for_it() {
    let mut engine = engine(1);
    engine.submit(request(1, 16, 20, 0..4)).unwrap();
    engine.submit(request(2, 60, 1, 10..25)).unwrap();
    let passes = run(&mut engine);
    let at = |wanted: Effect| passes.iter().position(|it| it.contains(&wanted)).unwrap();
    let (first, second) = (RequestId::new(1), RequestId::new(2));
    assert!(at(Effect::Finished { id: first }) < at(Effect::FirstToken { id: second }));
}

#[test]
fn when_decoding_runs_out_of_blocks_the_latest_request_gives_way_and_still_ends() {
    let mut engine = engine(1);
    engine.submit(request(1, 28, 30, 0..7)).unwrap();
    engine.submit(request(2, 28, 30, 10..17)).unwrap();
    let passes = run(&mut engine);
    let count = |wanted: &Effect| passes.iter().flatten().filter(|it| *it == wanted).count();
    let (first, second) = (RequestId::new(1), RequestId::new(2));
    assert!(count(&Effect::Preempted { id: second }) > 0);
    assert_eq!(count(&Effect::Preempted { id: first }), 0);
    for id in [first, second] {
        assert_eq!(count(&Effect::FirstToken { id }), 1);
        assert_eq!(count(&Effect::Token { id }), 29);
        assert_eq!(count(&Effect::Finished { id }), 1);
    }
}

#[test]
fn what_cannot_be_served_is_refused_with_the_reason() {
    let mut engine = engine(2);
    let needs = |needed| Refused::NeverFits {
        needed,
        available: 16,
    };
    assert_eq!(engine.submit(request(1, 60, 6, [])), Err(needs(17)));
    assert_eq!(engine.submit(request(1, 60, 5, [])), Ok(RANK_0));
    let twice = Refused::Duplicate(RequestId::new(1));
    assert_eq!(engine.submit(request(1, 1, 1, [])), Err(twice));
    assert_eq!(engine.submit(request(2, 0, 1, [])), Err(Refused::Empty));
    let elsewhere = Request {
        rank: Some(DpRank::new(7)),
        ..request(2, 1, 1, [])
    };
    let refused = engine.submit(elsewhere).unwrap_err();
    assert_eq!(refused.to_string(), "rank 7 is out of range [0, 2)");
}

#[test]
fn an_aborted_request_leaves_its_blocks_at_once_and_says_nothing_more() {
    let mut engine = engine(1);
    engine.submit(request(1, 16, 40, 0..4)).unwrap();
    engine.next_pass(Timestamp::ZERO);
    engine.finish_pass();
    engine.next_pass(Timestamp::ZERO);
    assert!(engine.abort(RequestId::new(1)));
    assert!(!engine.abort(RequestId::new(1)));
    let status = engine.status(RANK_0).unwrap();
    assert_eq!((status.running, status.kv_used), (0, 0.0));
    assert_eq!(engine.finish_pass(), []);
    assert_eq!(engine.next_pass(Timestamp::ZERO), None);
    assert_eq!(engine.overlap(RANK_0, &chain(0..4)), 4);
}

#[test]
fn a_cleared_cache_is_announced_with_the_next_pass_of_its_rank() {
    let mut engine = engine(2);
    engine.submit(request(1, 8, 1, 0..2)).unwrap();
    run(&mut engine);
    engine.clear(RANK_0).unwrap();
    assert_eq!(engine.overlap(RANK_0, &chain(0..2)), 0);
    let on_rank_1 = Request {
        rank: Some(RANK_1),
        ..request(2, 4, 1, [5])
    };
    engine.submit(on_rank_1).unwrap();
    assert_eq!(stored(&run(&mut engine)), [5]);
    engine.submit(request(3, 8, 1, 0..2)).unwrap();
    let passes = run(&mut engine);
    assert_eq!(passes[0][0], Effect::Cleared { rank: RANK_0 });
    assert_eq!(cached(&passes, 3), Some(0));
}

#[test]
fn a_cache_in_use_is_not_cleared() {
    let mut engine = engine(1);
    engine.submit(request(1, 8, 9, 0..2)).unwrap();
    engine.next_pass(Timestamp::ZERO);
    assert_eq!(engine.clear(RANK_0), Err(RankInUse(RANK_0)));
}

#[test]
fn without_a_rank_equals_take_turns_and_the_less_loaded_one_wins() {
    let mut engine = engine(3);
    let anywhere = |id| Request {
        rank: None,
        ..request(id, 4, 1, [])
    };
    let ranks: Vec<_> = (0..4)
        .map(|id| engine.submit(anywhere(id)).unwrap().get())
        .collect();
    assert_eq!(ranks, [0, 1, 2, 0]);
    for id in 10..13 {
        let on_rank_1 = Request {
            rank: Some(RANK_1),
            ..request(id, 4, 1, [])
        };
        engine.submit(on_rank_1).unwrap();
    }
    let ranks: Vec<_> = (20..23)
        .map(|id| engine.submit(anywhere(id)).unwrap().get())
        .collect();
    assert_eq!(ranks, [2, 0, 2]);
}

#[test]
fn a_radix_cache_announces_an_answer_when_its_request_ends() {
    let mut engine = radix_engine();
    engine.submit(request(1, 8, 9, [1, 2, 3, 4])).unwrap();
    let passes = run(&mut engine);
    let announced: Vec<_> = passes
        .iter()
        .map(|pass| stored(std::slice::from_ref(pass)))
        .filter(|it| !it.is_empty())
        .collect();
    assert_eq!(announced, [vec![1, 2], vec![3, 4]]);
    assert_eq!(stored(&passes[passes.len() - 1..]), [3, 4]);
}

#[test]
fn a_radix_cache_holds_and_announces_a_content_once() {
    let mut engine = radix_engine();
    // Two at once, and a repeat whose last block is computed again.
    engine.submit(request(1, 8, 1, [1, 2])).unwrap();
    engine.submit(request(2, 8, 1, [1, 2])).unwrap();
    assert_eq!(stored(&run(&mut engine)), [1, 2]);
    engine.submit(request(3, 8, 1, [1, 2])).unwrap();
    let repeat = run(&mut engine);
    assert_eq!((cached(&repeat, 3), stored(&repeat)), (Some(4), vec![]));
    // Nothing lies twice: 14 more blocks find room, and only the next one evicts.
    engine.submit(request(4, 56, 1, 10..24)).unwrap();
    assert_eq!(removed(&run(&mut engine)), Vec::<u64>::new());
    engine.submit(request(5, 4, 1, [30])).unwrap();
    assert_eq!(removed(&run(&mut engine)), [2]);
}

#[test]
fn a_cleared_radix_cache_is_announced_at_once() {
    let mut engine = radix_engine();
    engine.submit(request(1, 8, 1, [1, 2])).unwrap();
    run(&mut engine);
    let cleared = Effect::Cleared { rank: RANK_0 };
    assert_eq!(engine.clear(RANK_0), Ok(Some(cleared.clone())));
    engine.submit(request(2, 8, 1, [1, 2])).unwrap();
    let passes = run(&mut engine);
    assert_eq!(cached(&passes, 2), Some(0));
    assert!(!passes.concat().contains(&cleared));
}
