//! Whether what is drawn has the published figures.

use std::collections::HashSet;

use super::agents::{Agents, Decode};
use super::agentx::agentx;
use super::code_gen::code_gen;
use super::codex::codex;
use super::grpo::grpo;
use super::saas::saas;
use super::{Begins, CATALOGUE, Session, Source, TRACE_BLOCK_TOKENS, Turn, Workload, named};

fn turns(workload: &Workload) -> impl Iterator<Item = &Turn> {
    workload.sessions.iter().flat_map(|it| &it.turns)
}

fn main_agents(workload: &Workload) -> impl Iterator<Item = &Session> {
    workload.sessions.iter().filter(|it| it.parent.is_none())
}

/// Checks quantiles, each given as its share, its value and by how much the drawn one may differ.
fn check(what: &str, values: impl IntoIterator<Item = f64>, published: &[(f64, f64, f64)]) {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    for (share, value, tolerance) in published {
        let drawn = values[((values.len() - 1) as f64 * share).round() as usize];
        let off = drawn / value - 1.0;
        assert!(
            off.abs() <= *tolerance,
            "{what}: {drawn} at {share}, published {value}"
        );
    }
}

/// The share of the prompts' blocks that an earlier one of the same tenant had, and the tokens of the others for each
/// request. Sessions are read one after the other.
fn ceiling(workload: &Workload) -> (f64, f64) {
    let mut seen = HashSet::new();
    let (mut new, mut all) = (0.0, 0.0);
    for session in &workload.sessions {
        for turn in &session.turns {
            for block in turn.prompt(workload.block_size) {
                all += 1.0;
                new += f64::from(u8::from(seen.insert((session.tenant, *block))));
            }
        }
    }
    let tokens = new * f64::from(workload.block_size.get());
    (1.0 - new / all, tokens / workload.requests() as f64)
}

/// What everything else relies on.
fn is_sound(workload: &Workload) {
    let block = u64::from(workload.block_size.get());
    for (number, session) in workload.sessions.iter().enumerate() {
        assert!(!session.turns.is_empty());
        let before = match session.begins {
            Begins::At(_) => 0,
            Begins::After { session, turn, .. } => {
                assert!(turn < workload.sessions[session].turns.len());
                session
            }
            Begins::AfterGroup { first, end } => {
                assert!(first < end);
                end - 1
            }
        };
        assert!(before <= number && session.parent.is_none_or(|it| it < number));
        for turn in &session.turns {
            assert!(turn.isl.get() > 0 && turn.osl.get() > 0);
            assert!(turn.isl <= turn.kept && turn.kept.get() <= turn.isl.get() + turn.osl.get());
            let full = turn.prompt(workload.block_size).len() as u64;
            assert_eq!(full, turn.isl.get() / block);
            let kept = turn.keeps(workload.block_size).len() as u64;
            assert_eq!(kept, turn.kept.get() / block);
        }
    }
}

#[test]
fn agents_have_the_published_prompts_answers_gaps_and_resets() {
    let agents = Agents {
        decode: Decode::Here,
        ..agentx(150, 40_000)
    };

    let workload = agents.draw(1);

    is_sound(&workload);
    assert_eq!(workload.requests(), 40_000);
    let isl = turns(&workload).map(|it| it.isl.as_f64());
    check(
        "isl",
        isl,
        &[(0.5, 142e3, 0.1), (0.9, 521e3, 0.15), (0.99, 849e3, 0.1)],
    );
    let osl = turns(&workload).map(|it| it.osl.as_f64());
    check(
        "osl",
        osl,
        &[
            (0.5, 444.0, 0.05),
            (0.9, 1705.0, 0.05),
            (0.99, 7551.0, 0.15),
        ],
    );
    let later = workload.sessions.iter().flat_map(|it| &it.turns[1..]);
    // Turns behind a long one are more often behind the end of the run.
    let gaps = later.map(|it| it.gap.as_secs_f64());
    check(
        "gap",
        gaps,
        &[(0.5, 2.0, 0.1), (0.9, 24.0, 0.15), (0.99, 684.0, 0.4)],
    );
    let pairs = main_agents(&workload).flat_map(|it| it.turns.windows(2));
    let grown: Vec<f64> = pairs
        .filter(|it| it[1].content == it[0].content)
        .map(|it| it[1].isl.as_f64() - it[0].isl.as_f64())
        .collect();
    check(
        "growth",
        grown.iter().copied(),
        &[(0.5, 632.0, 0.1), (0.9, 3735.0, 0.1)],
    );
    let later = main_agents(&workload).map(|it| it.turns.len() - 1);
    let anew = 1.0 - grown.len() as f64 / later.sum::<usize>() as f64;
    let (share, _) = ceiling(&workload);
    assert!((share - 0.96).abs() < 0.02, "{share}");
    assert!((0.024..0.04).contains(&anew), "{anew}");
}

#[test]
fn agents_share_nothing_with_other_trees_and_a_system_prompt_with_their_own() {
    let mut agents = agentx(20, 2_000);
    let own = agents.draw(3);
    agents.one_system = true;
    let one = agents.draw(3);
    agents.tenants = 4;
    let salted = agents.draw(3);

    let first = |it: &Session| it.turns[0].content.chain()[0];
    let distinct = |workload: &Workload| {
        let firsts = workload.sessions.iter().map(|it| (it.tenant, first(it)));
        firsts.collect::<HashSet<_>>().len()
    };
    assert_eq!(distinct(&own), main_agents(&own).count());
    assert_eq!(distinct(&one), 1);
    assert_eq!(distinct(&salted), 4);
    for sub in own.sessions.iter().filter(|it| it.parent.is_some()) {
        let parent = &own.sessions[sub.parent.unwrap()];
        assert_eq!(first(sub), first(parent));
        assert!(matches!(sub.begins, Begins::After { .. }));
    }
    assert!(ceiling(&salted).0 < ceiling(&one).0);
}

#[test]
fn before_prefill_workers_the_answer_is_part_of_the_pause() {
    let elsewhere = agentx(10, 300);
    let here = Agents {
        decode: Decode::Here,
        ..elsewhere
    };

    let waited = |agents: Agents| {
        let workload = agents.draw(2);
        is_sound(&workload);
        let all: f64 = turns(&workload).map(|it| it.gap.as_secs_f64()).sum();
        (all, workload.sessions[0].turns[0].osl.get())
    };

    let (short, answer) = waited(here);
    let (long, token) = waited(elsewhere);
    assert!(short < long && answer > 1 && token == 1);
}

#[test]
fn codex_grows_from_12k_to_80k() {
    let agents = Agents {
        decode: Decode::Here,
        ..codex(100, 20_000)
    };

    let workload = agents.draw(1);

    is_sound(&workload);
    let isl: f64 = turns(&workload).map(|it| it.isl.as_f64()).sum();
    let osl: f64 = turns(&workload).map(|it| it.osl.as_f64()).sum();
    assert!((isl / osl / 131.0 - 1.0).abs() < 0.25, "{}", isl / osl);
    let first = main_agents(&workload).filter(|it| !matches!(it.begins, Begins::At(_)));
    let first: Vec<&Session> = first.collect();
    let isl = first.iter().map(|it| it.turns[0].isl.as_f64());
    check("first", isl, &[(0.5, 12e3, 0.05)]);
    let pairs = first.iter().flat_map(|it| it.turns.windows(2));
    let grown: Vec<f64> = pairs
        .map(|it| it[1].isl.as_f64() - it[0].isl.as_f64())
        .collect();
    let mean = grown.iter().sum::<f64>() / grown.len() as f64;
    assert!((mean / 2242.0 - 1.0).abs() < 0.1, "{mean}");
    let (share, _) = ceiling(&workload);
    assert!((share - 0.942).abs() < 0.02, "{share}");
}

#[test]
fn tenants_arrive_faster_and_faster_and_ask_the_same_again() {
    let workload = saas(8_000, 1);

    is_sound(&workload);
    let at = |number: usize| match workload.sessions[number].begins {
        Begins::At(at) => at.as_secs_f64(),
        _ => f64::NAN,
    };
    let rate = |from: usize, to: usize| (to - from) as f64 / (at(to) - at(from));
    assert!((rate(0, 400) / 4.4 - 1.0).abs() < 0.2, "{}", rate(0, 400));
    assert!((rate(7_500, 7_999) / 58.0 - 1.0).abs() < 0.2);
    let distinct: HashSet<_> = turns(&workload).map(|it| it.content.chain()[55]).collect();
    assert_eq!(distinct.len(), 750);
    let prefixes: HashSet<_> = turns(&workload).map(|it| it.content.chain()[45]).collect();
    assert_eq!(prefixes.len(), 150);
    // 73 % of eight times 307,328 tokens.
    let blocks: HashSet<_> = turns(&workload).flat_map(|it| it.content.chain()).collect();
    let demand = blocks.len() as f64 * 128.0 / (8.0 * 307_328.0);
    assert!((demand - 0.73).abs() < 0.03, "{demand}");
}

#[test]
fn conversations_about_code_have_the_published_prompts_and_turns() {
    let workload = code_gen(60, 12_000, 1);

    is_sound(&workload);
    assert_eq!(workload.requests(), 12_000);
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    let count = mean(
        workload
            .sessions
            .iter()
            .map(|it| it.turns.len() as f64)
            .collect(),
    );
    assert!((count / 6.0 - 1.0).abs() < 0.1, "{count}");
    let first = |it: &Session| it.turns[0].isl.as_f64() - 1_500.0;
    let system = mean(workload.sessions.iter().map(first).collect());
    assert!((system / 55e3 - 1.0).abs() < 0.05, "{system}");
    let longest = workload.sessions.iter().map(first).fold(0.0, f64::max);
    assert!((95e3..=100e3).contains(&longest), "{longest}");
}

#[test]
fn streams_of_a_group_share_their_prompt_and_a_step_waits_for_the_one_before() {
    let workload = grpo(4, 2_000, 1);

    is_sound(&workload);
    assert_eq!(workload.sessions.len(), 2 * 4 * 16);
    for group in workload.sessions.chunks(16) {
        let firsts: HashSet<_> = group
            .iter()
            .map(|it| it.turns[0].content.chain()[0])
            .collect();
        assert_eq!(firsts.len(), 1);
        let ends: HashSet<_> = group
            .iter()
            .map(|it| it.turns[23].content.chain()[60])
            .collect();
        assert_eq!(ends.len(), 16);
    }
    let waits = workload.sessions[64..].iter().map(|it| it.begins);
    let step = Begins::AfterGroup { first: 0, end: 64 };
    assert!(waits.into_iter().all(|it| it == step));
}

#[test]
fn the_same_seed_draws_the_same_and_another_does_not() {
    let draws: [fn(u64) -> Workload; 4] = [
        |seed| agentx(8, 200).draw(seed),
        |seed| saas(200, seed),
        |seed| code_gen(4, 200, seed),
        |seed| grpo(1, 200, seed),
    ];
    for draw in draws {
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }
}

#[test]
fn every_name_is_one_workload_that_bears_it() {
    for it in CATALOGUE {
        assert!(std::ptr::eq(named(it.name).unwrap(), it));
        let fleet = (it.setting)().fleet;
        // The longest prompts are of a million tokens, those of traces of 200,000.
        let tokens = match it.source {
            Source::Drawn { draw, .. } => fleet.kv_blocks * draw(1, 1).block_size.get(),
            Source::File(_) => fleet.kv_blocks * TRACE_BLOCK_TOKENS,
        };
        assert!(
            200_000 < tokens && 0 < fleet.workers * fleet.ranks,
            "{}",
            it.name
        );
        if let Source::Drawn { draw, .. } = it.source {
            let workload = draw(300, 1);
            is_sound(&workload);
            assert_eq!(workload.name, it.name);
            assert!(workload.requests() >= 300);
        }
    }
}
