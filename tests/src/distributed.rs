//! Services that are processes of their own beside one process that is all of them: what a request costs, how fast events
//! reach the index, and how soon replicas know what one of them has done.

mod cost;
mod drained;
mod heard;
mod quantiles;

use clap::Args;
use engine_sim::Dialect;
use serde::Serialize;

use self::cost::{Cost, Costs};
use self::drained::Rate;
use self::heard::Heard;
use crate::apart::Shape;
use crate::report::Report;
use crate::world::{Form, Plan, Tables, World};

const NAME: &str = "distributed";
/// How many workers, and ranks of each.
const WORKERS: u32 = 2;
const RANKS: u32 = 4;
/// Within which all replicas are to know of a binding, and of a reservation, at the 99th percentile.
const GOAL_MS: f64 = 50.0;

/// What services apart cost over one process, and how soon their replicas know of each other.
#[derive(Args)]
pub(crate) struct Options {
    /// How often each form is measured, in turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// What the prompts are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The two forms, running beside each other, each before engines of its own.
struct Both<'a> {
    /// One process.
    together: &'a mut World,
    /// A process for each service, over NATS.
    apart: &'a mut World,
}

#[derive(Serialize)]
struct Figures {
    seed: u64,
    requests: u64,
    failed: u64,
    /// Over asking the engines.
    added_ms_p50_together: f64,
    added_ms_p50_apart: f64,
    added_p50_ratio: f64,
    added_ms_p99_together: f64,
    added_ms_p99_apart: f64,
    /// Processor time of a request beyond what the services take at rest.
    cpu_ms_together: f64,
    cpu_ms_apart: f64,
    cpu_ratio: f64,
    /// Blocks a second from the engines to the index, all applied.
    blocks_per_second_together: f64,
    blocks_per_second_apart: f64,
    blocks_ratio: f64,
    messages_per_second_together: f64,
    messages_per_second_apart: f64,
    #[serde(flatten)]
    heard: Heard,
}

/// Runs the scenario; the form has to be that of services apart.
pub(crate) async fn run(options: Options, form: Form) -> anyhow::Result<Report> {
    let together = match &form {
        Form::Together => Form::Together,
        Form::Apart(shape) => Form::Apart(Shape::one_process(shape.tools.clone())),
    };
    let apart = plan(&options, form, 2);
    let together = plan(&options, together, 1);
    let measured = apart.run(async |apart| {
        let inner = together.run(async |together| {
            let mut both = Both { together, apart };
            measure(&mut both, &options).await
        });
        inner.await
    });
    let (costs, rates, heard) = measured.await?;
    report(&options, costs, rates, heard)
}

fn plan(options: &Options, form: Form, routers: usize) -> Plan {
    Plan {
        workers: WORKERS,
        engine: engine_sim::Config {
            engine: Dialect::Vllm,
            dp_size: RANKS,
            // Nothing is evicted.
            kv_blocks: 100_000,
            // As good as nothing beside what is measured.
            step_base_ms: 1.0,
            prefill_tokens_per_second: 2_000_000.0,
            ..engine_sim::Config::default()
        },
        routers,
        router: router_api::Config::default(),
        tables: Tables::Shared,
        seed: options.seed,
        form,
    }
}

async fn measure(
    both: &mut Both<'_>,
    options: &Options,
) -> anyhow::Result<(Costs, [Rate; 2], Heard)> {
    // Nothing else runs yet, nor is there anything left to be indexed.
    let heard = heard::measure(both.apart, options).await?;
    let costs = cost::measure(both, options).await?;
    let rates = drained::measure(both, options).await?;
    Ok((costs, rates, heard))
}

fn report(
    options: &Options,
    costs: Costs,
    [together, apart]: [Rate; 2],
    heard: Heard,
) -> anyhow::Result<Report> {
    let ratio = |of: f64, to: f64| if to > 0.0 { of / to } else { 0.0 };
    let added = |cost: &Cost, of: fn(&Cost) -> f64| of(cost) - of(&costs.direct);
    let p50 = |cost: &Cost| added(cost, |it| it.ttft_ms_p50);
    let p99 = |cost: &Cost| added(cost, |it| it.ttft_ms_p99);
    let all = [&costs.direct, &costs.together, &costs.apart];
    let figures = Figures {
        seed: options.seed,
        requests: all.iter().map(|it| it.requests).sum::<u64>() + heard.bindings as u64,
        failed: all.iter().map(|it| it.failed).sum::<u64>() + heard.failed,
        added_ms_p50_together: p50(&costs.together),
        added_ms_p50_apart: p50(&costs.apart),
        added_p50_ratio: ratio(p50(&costs.apart), p50(&costs.together)),
        added_ms_p99_together: p99(&costs.together),
        added_ms_p99_apart: p99(&costs.apart),
        cpu_ms_together: costs.together.cpu_ms,
        cpu_ms_apart: costs.apart.cpu_ms,
        cpu_ratio: ratio(costs.apart.cpu_ms, costs.together.cpu_ms),
        blocks_per_second_together: together.blocks_per_second,
        blocks_per_second_apart: apart.blocks_per_second,
        blocks_ratio: ratio(apart.blocks_per_second, together.blocks_per_second),
        messages_per_second_together: together.messages_per_second,
        messages_per_second_apart: apart.messages_per_second,
        heard,
    };
    let heard = &figures.heard;
    let in_time = heard.binding_ms_p99 <= GOAL_MS && heard.reservation_ms_p99 <= GOAL_MS;
    let ok = in_time && figures.failed == 0 && 0 < heard.bindings;
    let said = format!(
        "replicas knew of a binding within {:.1} ms and of a reservation within {:.1} ms at the 99th percentile (goal \
         {GOAL_MS} ms), {} of {} requests failed; apart a request adds {:.1} times the latency and takes {:.1} times the \
         processor time of one process",
        heard.binding_ms_p99,
        heard.reservation_ms_p99,
        figures.failed,
        figures.requests,
        figures.added_p50_ratio,
        figures.cpu_ratio,
    );
    let rows = [costs.direct, costs.together, costs.apart];
    Ok(Report::new(NAME, ok, said, &figures)?.with_rows(rows)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(form: &'static str, ttft: f64, failed: u64) -> Cost {
        Cost {
            form,
            requests: 10,
            failed,
            ttft_ms_p50: ttft,
            ttft_ms_p99: 2.0 * ttft,
            cpu_ms: ttft,
            idle_cpu_share: 0.01,
        }
    }

    #[test]
    fn it_holds_where_replicas_know_in_time_and_nothing_failed() {
        let ok = |binding_ms_p99, reservation_ms_p99, failed| {
            let costs = Costs {
                direct: cost("direct", 1.0, 0),
                together: cost("one process", 2.0, failed),
                apart: cost("apart", 4.0, 0),
            };
            let rate = Rate {
                blocks_per_second: 5.0,
                messages_per_second: 1.0,
            };
            let heard = Heard {
                bindings: 10,
                binding_ms_p50: 1.0,
                binding_ms_p99,
                reservation_ms_p50: 1.0,
                reservation_ms_p99,
                bare_round_trip_ms_p50: 0.1,
                bare_round_trip_ms_p99: 0.2,
                machine_cpu_share: 0.3,
                failed: 0,
            };
            let options = Options { rounds: 1, seed: 1 };
            report(&options, costs, [rate, rate], heard).unwrap().ok()
        };
        assert!(ok(50.0, 50.0, 0));
        assert!(!ok(50.1, 1.0, 0));
        assert!(!ok(1.0, 50.1, 0));
        assert!(!ok(1.0, 1.0, 1));
    }
}
