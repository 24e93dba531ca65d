//! What is killed comes back to what holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::conversation::Conversation;
use crate::fleet::{Engine, Killed, Up};
use crate::process::{PATIENCE, POLL};
use crate::settled::index_equals;

const ROUNDS: u32 = 10;
const CONVERSATIONS: u32 = 8;
/// Requests in flight at any time.
const IN_FLIGHT: u32 = 64;
/// Answers before the first kill; before the second twice as many, and so on.
const ANSWERS: u32 = 30;
/// Blocks of a rank: too few for the conversations of all rounds, so that blocks go as well as come.
const KV_BLOCKS: &str = "200";

/// Sends turns until nobody answers any more.
async fn insist(mut conversation: Conversation, api: String, answered: Arc<AtomicU32>) {
    while let Some(answer) = conversation.attempt(&api).await {
        assert_eq!(answer.status, 200, "{}", answer.text());
        answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// Puts `up` under load and kills it in the middle.
async fn killed_under_load(up: Up, round: u32) -> Killed {
    let answered = Arc::new(AtomicU32::new(0));
    let mut lanes = JoinSet::new();
    for number in 0..IN_FLIGHT {
        let conversation = Conversation::new(round * CONVERSATIONS + number % CONVERSATIONS);
        lanes.spawn(insist(conversation, up.api.clone(), answered.clone()));
    }
    let deadline = Instant::now() + PATIENCE;
    while answered.load(Ordering::Relaxed) < round * ANSWERS {
        let enough = Instant::now() < deadline;
        assert!(enough, "{answered:?} answers\n{}", up.log());
        sleep(POLL).await;
    }
    let killed = up.kill().await;
    while let Some(lane) = lanes.join_next().await {
        lane.unwrap();
    }
    killed
}

#[tokio::test]
async fn killed_again_and_again_under_load_it_resumes_where_the_engines_are() {
    let data = TempDir::new().unwrap();
    let engines = [
        Engine::start_with(KV_BLOCKS).await,
        Engine::start_with(KV_BLOCKS).await,
    ];
    let both = [&engines[0], &engines[1]];
    let mut up = Up::start(data.path(), &both).await;

    for round in 1..=ROUNDS {
        let mut killed = killed_under_load(up, round).await;
        if round % 3 == 0 {
            killed = killed.stumble(data.path(), &both).await;
        }
        up = killed.start(data.path(), &both).await;
        index_equals(&up, 2).await;
    }

    for number in 0..CONVERSATIONS {
        let mut conversation = Conversation::new(ROUNDS * CONVERSATIONS + number);
        let one = conversation.turn(&up.api).await;
        index_equals(&up, 2).await;
        let next = conversation.turn(&up.api).await;
        assert_eq!(next.target, one.target);
        assert!(next.overlap > 0 && next.cached > 0, "{next:?}");
    }
}

/// Two engines, `up`, and a conversation that has had two turns.
struct Scene {
    up: Up,
    home: Engine,
    _other: Engine,
    _data: TempDir,
    conversation: Conversation,
}

async fn scene() -> Scene {
    let data = TempDir::new().unwrap();
    let engines = [Engine::start().await, Engine::start().await];
    let up = Up::start(data.path(), &[&engines[0], &engines[1]]).await;
    let mut conversation = Conversation::new(1);
    let first = conversation.turn(&up.api).await;
    index_equals(&up, 2).await;
    let second = conversation.turn(&up.api).await;
    assert_eq!(second.target, first.target);
    index_equals(&up, 2).await;
    let [one, two] = engines;
    let (home, other) = match first.target.starts_with(one.name()) {
        true => (one, two),
        false => (two, one),
    };
    Scene {
        up,
        home,
        _other: other,
        _data: data,
        conversation,
    }
}

#[tokio::test]
async fn an_engine_that_comes_back_empty_is_known_to_be_empty() {
    let mut scene = scene().await;

    let _home = scene.home.kill().await.start().await;
    scene.conversation.turn(&scene.up.api).await;

    index_equals(&scene.up, 2).await;
    let later = scene.conversation.turn(&scene.up.api).await;
    index_equals(&scene.up, 2).await;
    let last = scene.conversation.turn(&scene.up.api).await;
    assert_eq!(last.target, later.target);
    assert!(last.overlap > 0 && last.cached > 0, "{last:?}");
}

#[tokio::test]
async fn a_conversation_whose_engine_is_down_goes_on_at_another() {
    let mut scene = scene().await;
    let before = scene.conversation.turn(&scene.up.api).await;
    let (gone, rank) = before.target.split_once('/').unwrap();
    assert_eq!(gone, scene.home.name());

    let ports = scene.home.kill().await;
    let elsewhere = scene.conversation.turn(&scene.up.api).await;
    let next = scene.conversation.turn(&scene.up.api).await;

    assert!(!elsewhere.target.starts_with(gone), "{elsewhere:?}");
    assert_eq!(next.target, elsewhere.target);
    assert!(next.cached > 0, "{next:?}");
    let home = ports.start().await;
    // It is its first word after the start that gives it away.
    home.answer(rank.parse().unwrap(), 700_000).await;
    index_equals(&scene.up, 2).await;
}
