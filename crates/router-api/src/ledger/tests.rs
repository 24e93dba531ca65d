//! Whatever becomes of requests, all that is counted of them sums to the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{
    BlockHash, BlockSize, ByEndpoint, Capability, DecisionId, Depths, DpRank, Endpoint, EngineKind,
    Epoch, FirstRank, HeaderSpace, KvEndpoints, OverlapGroup, RankControl, TargetState, Timestamp,
    Tokens, Usage, Worker, sequence_hashes,
};
use prometheus::Registry;
use proptest::prelude::*;
use routing::{Config, Outcome, OverlapView, Request, Router, Status};

use super::{End, Ledger};
use crate::metrics::Metrics;

const BLOCKS: u32 = 40;

/// What becomes of one request: what the index says, where it fails before, and how it ends, perhaps told twice.
#[derive(Clone, Debug)]
struct Life {
    /// The index's answer: blocks held on a rank, stored, carried; none where it is silent.
    index: Option<(u32, [u32; 3])>,
    failures: u8,
    first_token: bool,
    status: Status,
    observed_rank: Option<u32>,
    usage: Option<(u64, Option<u64>)>,
    told: u8,
    minutes: u64,
}

prop_compose! {
    fn life()(
        index in prop::option::of((0..4_u32, [0..60_u32, 0..60, 0..60])),
        failures in 0..3_u8,
        first_token: bool,
        status in prop::sample::select(vec![
            Status::Served, Status::Failed, Status::Cancelled, Status::Unreachable, Status::Invalid,
        ]),
        observed_rank in prop::option::of(0..2_u32),
        usage in prop::option::of((0..2_000_u64, prop::option::of(0..2_000_u64))),
        told in 1..4_u8,
        minutes in 0..30_u64,
    ) -> Life {
        Life { index, failures, first_token, status, observed_rank, usage, told, minutes }
    }
}

fn worker(id: &str) -> Worker {
    let block_size = BlockSize::new(16).unwrap();
    Worker {
        id: id.parse().unwrap(),
        epoch: Epoch::FIRST,
        engine: EngineKind::Vllm,
        version: String::new(),
        model: "m".parse().unwrap(),
        start_rank: 0,
        dp_size: 2,
        block_size,
        page_size: block_size,
        kv_blocks: Some(1_000),
        capability: Capability {
            rank_control: ByEndpoint::of(|_| RankControl::Strict),
            header_space: HeaderSpace::Global,
            rank_report: ByEndpoint::of(|_| true),
            owns_bindings: false,
            first_rank: FirstRank::Unasked,
        },
        state: TargetState::Ready,
        url: String::new(),
        kv_endpoints: KvEndpoints::Drained("http://w".to_owned()),
        lease_until: Timestamp::from_micros(u64::MAX),
    }
}

/// A router's mind with what counts beside it.
struct World {
    router: Router,
    ledger: Ledger,
    registry: Registry,
    metrics: Metrics,
    rows: accounting::Totals,
    now: Timestamp,
    next: u128,
}

impl World {
    fn new() -> Self {
        let mut router = Router::new("r".parse().unwrap(), Config::default());
        for id in ["w1", "w2"] {
            router.set_worker(worker(id));
        }
        let registry = Registry::new();
        Self {
            router,
            ledger: Ledger::default(),
            metrics: Metrics::new(&registry).unwrap(),
            registry,
            rows: Default::default(),
            now: Timestamp::from_micros(1),
            next: 0,
        }
    }

    fn request(&mut self) -> Request {
        self.next += 1;
        let blocks: Vec<_> = (0..BLOCKS).map(|it| BlockHash::new(it.into())).collect();
        let size = BlockSize::new(16).unwrap();
        Request {
            id: DecisionId::new(self.next),
            model: "m".parse().unwrap(),
            endpoint: Endpoint::Chat,
            isl: size.tokens(BLOCKS) + Tokens::new(5),
            hashes: vec![(size, sequence_hashes(&blocks))],
            conversation: None,
            hint: None,
            lead: None,
            tried: Vec::new(),
            no_adapter: Vec::new(),
            pin: None,
        }
    }

    fn live(&mut self, life: &Life) {
        let view = life.index.map(|(rank, [held, stored, ceiling])| {
            let target = format!("w{}#1/{}", rank / 2 + 1, rank % 2);
            let depths = Depths {
                gpu: held,
                host: held,
                disk: held,
            };
            OverlapView {
                block_size: BlockSize::new(16).unwrap(),
                groups: vec![OverlapGroup {
                    targets: vec![target.parse().unwrap()],
                    depths,
                }],
                ceiling,
                stored,
                not_ready: Vec::new(),
                unknown: Default::default(),
                index_age: Duration::ZERO,
            }
        });
        let views = view.map(|it| vec![it]);
        let mut request = self.request();
        for attempt in 0..=life.failures {
            let decided = self
                .router
                .decide(&request, views.as_deref(), None, self.now, 7);
            let Ok(decision) = decided else { return };
            let is_last = attempt == life.failures;
            if is_last && life.first_token {
                self.router.first_token(request.id, self.now);
            }
            let outcome = Outcome {
                status: if is_last { life.status } else { Status::Failed },
                ttft: None,
                duration: None,
                observed_rank: life.observed_rank.filter(|_| is_last).map(DpRank::new),
                usage: life
                    .usage
                    .filter(|_| is_last)
                    .map(|(prompt, cached)| Usage {
                        prompt: Tokens::new(prompt),
                        completion: Tokens::new(1),
                        cached: cached.map(|it| Tokens::new(it.min(prompt))),
                    }),
            };
            for _ in 0..life.told {
                let waterfall = self.router.finish(request.id, &outcome, self.now);
                if let Some(row) = &waterfall {
                    self.rows.add(row);
                    self.metrics.ends.waterfall(row);
                }
                self.ledger.close(
                    &Arc::new(decision.clone()),
                    End { outcome, waterfall },
                    self.now,
                );
            }
            let again = self.request();
            request = Request {
                tried: request
                    .tried
                    .into_iter()
                    .chain(decision.target().cloned())
                    .collect(),
                ..again
            };
        }
        self.now += Duration::from_secs(60 * life.minutes);
    }

    fn counted(&self, name: &str) -> BTreeMap<String, i64> {
        let families = self.registry.gather();
        let family = families.iter().find(|it| it.name() == name);
        let metrics = family.into_iter().flat_map(|it| it.get_metric());
        let counted = metrics.map(|it| {
            let label = it.get_label()[0].value().to_owned();
            (label, it.get_counter().get_value() as i64)
        });
        counted.collect()
    }
}

proptest! {
    #[test]
    fn the_ledger_its_breakdowns_and_the_metrics_hold_the_same_sums(lives in prop::collection::vec(life(), 0..40)) {
        let mut world = World::new();
        lives.iter().for_each(|it| world.live(it));

        let sheet = world.ledger.sheet(None, world.now);
        prop_assert_eq!(sheet.total, world.rows);
        let (measured, unmeasured) = (sheet.total.measured, sheet.total.unmeasured);
        let lost = |it: Tokens| i64::try_from(it.get()).unwrap();
        prop_assert_eq!(measured.parts.sum(), lost(measured.isl) - lost(measured.realised));
        prop_assert_eq!(unmeasured.parts.sum(), lost(unmeasured.isl) - lost(unmeasured.chosen));
        for by in [&sheet.by_model, &sheet.by_worker, &sheet.by_reason] {
            let mut sum = accounting::Totals::default();
            by.values().for_each(|it| sum.merge(it));
            prop_assert_eq!(sum, sheet.total);
        }
        let last = world.ledger.sheet(Some(Duration::from_secs(3_600)), world.now).total;
        prop_assert!(last.all().isl <= sheet.total.all().isl);

        let all = sheet.total.all();
        let (tokens, causes) = (
            world.counted("rankway_tokens_total"),
            world.counted("rankway_lost_tokens_total"),
        );
        let of = |counts: &BTreeMap<String, i64>, name: &str| counts.get(name).copied().unwrap_or(0);
        for (name, sum) in [
            ("isl", all.isl), ("ceiling", all.ceiling), ("stored", all.stored), ("best", all.best),
            ("ready", all.ready), ("chosen", all.chosen), ("realised", all.realised),
            ("sub_block", all.sub_block), ("measured_isl", measured.isl),
            ("measured_ceiling", measured.ceiling),
        ] {
            prop_assert_eq!(of(&tokens, name), lost(sum), "{}", name);
        }
        for (name, sum) in [
            ("cold", all.parts.cold), ("in_flight", all.parts.in_flight),
            ("unannounced", all.parts.unannounced), ("capacity", all.parts.capacity),
            ("unavailable", all.parts.unavailable), ("routing", all.parts.routing),
        ] {
            prop_assert_eq!(of(&causes, name), lost(sum), "{}", name);
        }
        let error = of(&causes, "index_error") - of(&tokens, "unpromised");
        prop_assert_eq!(error, all.parts.index_error.unwrap_or(0));
    }
}
