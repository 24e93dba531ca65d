//! Services of one kind that have been given different secrets.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::{ServiceKind, Share};
use service_kit::{CancellationToken, Context, Presence, SameSecret};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::world::{PATIENCE, World, context};

const KIND: ServiceKind = ServiceKind::AffinityStore;

/// A store as far as the fleet sees it.
struct Store {
    context: Context,
    end: CancellationToken,
    keeping: JoinSet<()>,
}

impl Store {
    fn start(world: &World, id: &str, secret: &str) -> Self {
        let presence = Presence {
            id: id.parse().unwrap(),
            kind: KIND,
            address: "127.0.0.1:1".to_owned(),
            share: Share::Whole,
            secret: Some(SameSecret::new("affinity.secret", secret)),
        };
        let (context, end) = (context(), CancellationToken::new());
        let mut keeping = JoinSet::new();
        keeping.spawn(presence.keep(world.bus.clone(), context.clone(), Vec::new, end.clone()));
        Self {
            context,
            end,
            keeping,
        }
    }

    async fn until_missing(&self, part: Option<&str>) {
        let seen = async {
            loop {
                let missing = self.context.health.missing();
                let why = missing.get("affinity.secret");
                match (why, part) {
                    (None, None) => return,
                    (Some(why), Some(part)) if why.contains(part) => return,
                    _ => sleep(Duration::from_millis(5)).await,
                }
            }
        };
        let seen = timeout(PATIENCE, seen).await;
        seen.unwrap_or_else(|_| panic!("{part:?}: {:?}", self.context.health.missing()));
    }

    async fn stop(self) {
        self.end.cancel();
        self.keeping.join_all().await;
    }
}

fn ids(world: &World) -> Vec<String> {
    let live = world.fleet.live(KIND);
    live.iter().map(|it| it.id.to_string()).collect()
}

#[tokio::test]
async fn who_comes_with_another_secret_stays_out_until_those_before_have_gone() {
    let world = World::new();
    let first = Store::start(&world, "b", "one secret");
    world.until(KIND, |live| live.len() == 1).await;
    first.until_missing(None).await;

    let other = Store::start(&world, "a", "another secret");
    let why = "differs from that of b: set the same for all";
    other.until_missing(Some(why)).await;
    let second = Store::start(&world, "c", "one secret");
    world.until(KIND, |live| live.len() == 2).await;
    assert_eq!(ids(&world), ["b", "c"]);
    assert!(world.entry("a").await.is_none());
    assert!(first.context.health.missing().is_empty());

    first.stop().await;
    other.until_missing(Some("that of c")).await;
    assert_eq!(ids(&world), ["c"]);
    second.stop().await;
    other.until_missing(None).await;
    world.until(KIND, |live| live.len() == 1).await;
    assert_eq!(ids(&world), ["a"]);
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_those_that_come_at_once_all_that_get_in_have_one_secret() {
    for _ in 0..8 {
        let world = World::new();
        let secrets = ["one", "two", "three", "two", "one"];
        let stores = secrets.iter().enumerate();
        let stores: Vec<Store> = stores
            .map(|(number, secret)| Store::start(&world, &number.to_string(), secret))
            .collect();
        let settled = |count: usize| {
            let missing = stores.iter().map(|it| it.context.health.missing());
            let out = missing.filter(|it| {
                it.get("affinity.secret")
                    .is_some_and(|why| why.contains("differs"))
            });
            0 < count && out.count() + count == stores.len()
        };
        world.until(KIND, |live| settled(live.len())).await;
        let live = world.fleet.live(KIND);
        let inside: BTreeSet<&str> = live
            .iter()
            .map(|it| secrets[it.id.as_str().parse::<usize>().unwrap()])
            .collect();
        assert_eq!(inside.len(), 1, "{live:?}");
        for store in stores {
            store.stop().await;
        }
    }
}
