//! What the router counts.

use std::time::Duration;

use accounting::{Parts, Waterfall};
use domain::{Tokens, Usage};
use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
};

/// The model of requests for a model that nobody serves: no label comes from a client.
pub(crate) const UNKNOWN_MODEL: &str = "unknown";

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    /// By model and HTTP status.
    pub(crate) requests: IntCounterVec,
    /// From the answers of index and affinity store to the decision.
    pub(crate) decision_seconds: Histogram,
    /// From the last byte of the request to its dispatch.
    pub(crate) added_latency_seconds: Histogram,
    /// This router's requests on their way, by worker and rank.
    pub(crate) inflight: IntGaugeVec,
    /// Decisions that had to do without something, by what.
    pub(crate) degraded: IntCounterVec,
    /// Requests sent to another target after a failure.
    pub(crate) retries: IntCounter,
    /// Requests that found no adapter of their worker.
    pub(crate) no_adapter: IntCounter,
    /// Conversations moved to another target.
    pub(crate) rebinds: IntCounter,
    pub(crate) excursions: IntCounter,
    /// Requests that chose their target and were not allowed to.
    pub(crate) refused_targets: IntCounter,
    /// Conversation ids that were none.
    pub(crate) skipped_ids: IntCounter,
    /// Requests whose client gave a salt, by tenant and whether it is its own or another tenant's.
    pub(crate) client_salts: IntCounterVec,
    /// Requests by what told their conversation.
    pub(crate) sources: IntCounterVec,
    /// From an operator's drain to this router's going by it.
    pub(crate) drain_followed_seconds: Histogram,
    /// What the affinity store was not told.
    pub(crate) untold: IntCounter,
    /// Records of other services that could not be read, by topic.
    pub(crate) unreadable: IntCounterVec,
    /// 1 where the router hashes other tokens than the engines compute, by model.
    pub(crate) token_mismatch: IntGaugeVec,
    /// Decisions and outcomes that were not recorded, by topic.
    pub(crate) records_dropped: IntCounterVec,
    /// Changes of reservations that peers were not told.
    pub(crate) unpublished: IntCounter,
    pub(crate) queue: QueueMetrics,
    pub(crate) ranks: RankMetrics,
    pub(crate) ends: EndMetrics,
}

/// What is counted of requests that wait for a target.
#[derive(Clone, Debug)]
pub(crate) struct QueueMetrics {
    /// Those that wait, by priority.
    pub(crate) waiting: IntGaugeVec,
    /// How long they waited, whatever came of it.
    pub(crate) seconds: Histogram,
    /// Those that were refused, by cause.
    pub(crate) refused: IntCounterVec,
    /// Priorities in Dynamo's words that were none.
    pub(crate) skipped: IntCounter,
}

impl QueueMetrics {
    fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let waiting = Opts::new(
            "rankway_queue_waiting",
            "Requests that wait for a target below its limit, by priority",
        );
        let refused = Opts::new(
            "rankway_queue_refused_total",
            "Requests that found every target past its limit and were refused, by cause",
        );
        let skipped = IntCounter::new(
            "rankway_priorities_skipped_total",
            "Priorities in Dynamo's words that were none",
        )?;
        Ok(Self {
            waiting: registered(registry, IntGaugeVec::new(waiting, &["priority"])?)?,
            seconds: seconds(
                registry,
                "rankway_queue_seconds",
                "Time that requests waited for a target below its limit",
            )?,
            refused: registered(registry, IntCounterVec::new(refused, &["cause"])?)?,
            skipped: registered(registry, skipped)?,
        })
    }
}

/// What is counted of ranks asked for and ranks that ran.
#[derive(Clone, Debug)]
pub(crate) struct RankMetrics {
    /// Turns that did not run as they were asked to, by worker, rank asked and cause.
    pub(crate) faults: IntCounterVec,
    /// 1 where ranks asked for are ignored, by worker and endpoint.
    pub(crate) untrusted: IntGaugeVec,
    /// Turns that were not watched because too many were.
    pub(crate) unwatched: IntCounter,
}

impl RankMetrics {
    fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let faults = Opts::new(
            "rankway_rank_faults_total",
            "Turns that did not run as they were asked to, by worker, rank asked and cause",
        );
        let untrusted = Opts::new(
            "rankway_rank_untrusted",
            "1 where the ranks asked for are ignored",
        );
        let unwatched = IntCounter::new(
            "rankway_rank_checks_skipped_total",
            "Turns that were not watched because too many were",
        )?;
        let faults = IntCounterVec::new(faults, &["worker", "dp_rank", "cause"])?;
        let untrusted = IntGaugeVec::new(untrusted, &["worker", "endpoint"])?;
        Ok(Self {
            faults: registered(registry, faults)?,
            untrusted: registered(registry, untrusted)?,
            unwatched: registered(registry, unwatched)?,
        })
    }
}

/// What is counted when a request has been served.
#[derive(Clone, Debug)]
pub(crate) struct EndMetrics {
    /// Levels of the waterfall, in tokens.
    tokens: IntCounterVec,
    /// Parts of the waterfall, in tokens.
    lost: IntCounterVec,
    /// Answers that told of more cached tokens than their prompts have.
    disbelieved: IntCounter,
    /// Decisions that others dispatched and whose outcome nobody told in time.
    pub(crate) expired: IntCounter,
    /// From dispatch to the first byte of a stream.
    ttft_seconds: Histogram,
}

impl EndMetrics {
    fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let tokens = Opts::new(
            "rankway_tokens_total",
            "Input tokens by level of the waterfall",
        );
        let lost = Opts::new(
            "rankway_lost_tokens_total",
            "Input tokens that were not taken from a cache, by cause",
        );
        let disbelieved = IntCounter::new(
            "rankway_cached_tokens_disbelieved_total",
            "Answers that told of more cached tokens than their prompts have",
        )?;
        let expired = IntCounter::new(
            "rankway_outcomes_expired_total",
            "Decisions that others dispatched and whose outcome nobody told in time",
        )?;
        Ok(Self {
            tokens: registered(registry, IntCounterVec::new(tokens, &["kind"])?)?,
            lost: registered(registry, IntCounterVec::new(lost, &["cause"])?)?,
            disbelieved: registered(registry, disbelieved)?,
            expired: registered(registry, expired)?,
            ttft_seconds: seconds(
                registry,
                "rankway_ttft_seconds",
                "Time from the dispatch of a streamed request to its first byte",
            )?,
        })
    }

    pub(crate) fn first_byte(&self, ttft: Duration) {
        self.ttft_seconds.observe(ttft.as_secs_f64());
    }

    /// What an engine tells of its tokens, without more cached ones than the prompt has: how many were cached is
    /// then unknown.
    pub(crate) fn believed(&self, told: Usage) -> Usage {
        let cached = told.cached.filter(|it| *it <= told.prompt);
        if cached != told.cached {
            self.disbelieved.inc();
        }
        Usage { cached, ..told }
    }

    /// Counts a row of the waterfall. Together the sums are those of the ledger: of what `index_error` has in tokens beyond
    /// the promise, which a counter cannot take off, `unpromised` is the sum.
    pub(crate) fn waterfall(&self, row: &Waterfall) {
        let parts = row.parts();
        let if_measured = |it: Tokens| row.realised().map_or(Tokens::ZERO, |_| it);
        let levels = [
            ("isl", row.isl()),
            ("ceiling", row.ceiling()),
            ("stored", row.stored()),
            ("best", row.best()),
            ("ready", row.ready()),
            ("chosen", row.chosen()),
            ("realised", row.realised().unwrap_or_default()),
            ("sub_block", row.sub_block()),
            ("unpromised", unpromised(&parts)),
            // What `realised` may be held against: where engines do not say it, it is not zero but unknown.
            ("measured_ceiling", if_measured(row.ceiling())),
            ("measured_isl", if_measured(row.isl())),
        ];
        for (kind, tokens) in levels {
            self.tokens.with_label_values(&[kind]).inc_by(tokens.get());
        }
        let error = parts.index_error.unwrap_or(0);
        let causes = [
            ("cold", parts.cold.get()),
            ("in_flight", parts.in_flight.get()),
            ("unannounced", parts.unannounced.get()),
            ("capacity", parts.capacity.get()),
            ("unavailable", parts.unavailable.get()),
            ("routing", parts.routing.get()),
            // What the engine had beyond the promise is no loss.
            ("index_error", u64::try_from(error).unwrap_or(0)),
        ];
        for (cause, tokens) in causes {
            self.lost.with_label_values(&[cause]).inc_by(tokens);
        }
    }
}

/// Tokens that an engine found beyond what the index promised.
fn unpromised(parts: &Parts) -> Tokens {
    let error = parts.index_error.unwrap_or(0);
    Tokens::new(u64::try_from(-error).unwrap_or(0))
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name, help, labels: &[&str]| {
            registered(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
        };
        let counter = |name, help| registered(registry, IntCounter::new(name, help)?);
        let seconds = |name, help| seconds(registry, name, help);
        let gauges = |name, help, labels: &[&str]| {
            registered(registry, IntGaugeVec::new(Opts::new(name, help), labels)?)
        };
        Ok(Self {
            requests: counters(
                "rankway_requests_total",
                "Requests by model and HTTP status",
                &["model", "status"],
            )?,
            decision_seconds: seconds("rankway_decision_seconds", "Time to decide on a target")?,
            added_latency_seconds: seconds(
                "rankway_added_latency_seconds",
                "Time from the last byte of a request to its dispatch",
            )?,
            inflight: gauges(
                "rankway_target_inflight",
                "Requests of this router on their way",
                &["worker", "dp_rank"],
            )?,
            degraded: counters(
                "rankway_degraded_decisions_total",
                "Decisions that had to do without something",
                &["missing"],
            )?,
            retries: counter("rankway_retries_total", "Requests tried again")?,
            no_adapter: no_adapter(registry)?,
            rebinds: counter("rankway_rebinds_total", "Conversations moved")?,
            excursions: counter("rankway_excursions_total", "Turns sent elsewhere for once")?,
            refused_targets: counter(
                "rankway_client_targets_removed_total",
                "Choices of a target that were removed",
            )?,
            skipped_ids: counter(
                "rankway_conversation_ids_skipped_total",
                "Conversation ids that were none",
            )?,
            client_salts: client_salts(registry)?,
            sources: sources(registry)?,
            drain_followed_seconds: drain_followed(registry)?,
            untold: counter(
                "rankway_affinity_untold_total",
                "Notes that the affinity store did not take",
            )?,
            unreadable: counters(
                "rankway_router_unreadable_total",
                "Records of other services that could not be read",
                &["topic"],
            )?,
            token_mismatch: gauges(
                "rankway_token_mismatch",
                "1 where engines cache what the index does not know",
                &["model"],
            )?,
            records_dropped: records_dropped(registry)?,
            unpublished: counter(
                "rankway_reservations_unpublished_total",
                "Reservations that peers were not told",
            )?,
            queue: QueueMetrics::new(registry)?,
            ranks: RankMetrics::new(registry)?,
            ends: EndMetrics::new(registry)?,
        })
    }
}

fn records_dropped(registry: &Registry) -> Result<IntCounterVec, prometheus::Error> {
    let opts = Opts::new(
        "rankway_records_dropped_total",
        "Decisions and outcomes that the bus did not take, by topic",
    );
    registered(registry, IntCounterVec::new(opts, &["topic"])?)
}

fn no_adapter(registry: &Registry) -> Result<IntCounter, prometheus::Error> {
    let help = "Requests that found no adapter of their worker";
    registered(registry, IntCounter::new("rankway_no_adapter_total", help)?)
}

fn sources(registry: &Registry) -> Result<IntCounterVec, prometheus::Error> {
    let opts = Opts::new(
        "rankway_conversation_source_total",
        "Requests by what told their conversation; those that nothing told are placed anew each time",
    );
    registered(registry, IntCounterVec::new(opts, &["source"])?)
}

fn client_salts(registry: &Registry) -> Result<IntCounterVec, prometheus::Error> {
    let opts = Opts::new(
        "rankway_client_salts_total",
        "Requests with a cache_salt, by tenant and whether it is its own or another tenant's",
    );
    registered(registry, IntCounterVec::new(opts, &["tenant", "kind"])?)
}

fn drain_followed(registry: &Registry) -> Result<Histogram, prometheus::Error> {
    let name = "rankway_drain_followed_seconds";
    let help = "Time from an operator's drain to this router's going by it";
    seconds(registry, name, help)
}

pub(crate) fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

fn seconds(registry: &Registry, name: &str, help: &str) -> Result<Histogram, prometheus::Error> {
    // 10 us to 84 s, in steps of 2.
    let buckets = prometheus::exponential_buckets(10e-6, 2.0, 24)?;
    let options = HistogramOpts::new(name, help).buckets(buckets);
    registered(registry, Histogram::with_opts(options)?)
}
