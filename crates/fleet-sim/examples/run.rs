//! Runs one workload in one setting and writes what came of it as one line of JSON.
//!
//! `cargo run --release -p fleet-sim --example run -- WORKLOAD [--policy P] [--workers N] ...`; each flag takes a value.
//! The workload is one of the catalogue, its trace file given by `--trace` where it is one of a file, or a trace file.
//! What no flag says is as the workload's own setting has it.

#![expect(clippy::print_stdout, reason = "its output is what it is for")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::str::FromStr;
use std::time::Duration;

use domain::BlockSize;
use fleet_sim::{
    Decode, DrainAt, EventFaults, Fleet, Named, Partition, Report, Restarts, Setting, Source,
    TRACE_BLOCK_TOKENS, Trace, Workload, named, run,
};
use serde_json::json;

/// What was given, each taken once.
struct Flags(BTreeMap<String, String>);

impl Flags {
    /// The value of a flag, else its default.
    fn take<T: FromStr>(&mut self, name: &str, default: T) -> Result<T, Box<dyn Error>>
    where
        T::Err: Error + 'static,
    {
        Ok(match self.0.remove(name) {
            Some(text) => text.parse().map_err(|why| format!("--{name}: {why}"))?,
            None => default,
        })
    }

    fn some<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, Box<dyn Error>>
    where
        T::Err: Error + 'static,
    {
        let text = self.0.remove(name);
        let parsed = text.map(|text| text.parse().map_err(|why| format!("--{name}: {why}")));
        Ok(parsed.transpose()?)
    }

    fn seconds(&mut self, name: &str, default: Duration) -> Result<Duration, Box<dyn Error>> {
        let seconds = self.take(name, default.as_secs_f64())?;
        Ok(Duration::try_from_secs_f64(seconds)?)
    }

    fn some_seconds(&mut self, name: &str) -> Result<Option<Duration>, Box<dyn Error>> {
        let seconds: Option<f64> = self.some(name)?;
        Ok(seconds.map(Duration::try_from_secs_f64).transpose()?)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let name = words.next().ok_or("name a workload")?;
    let mut given = BTreeMap::new();
    while let Some(word) = words.next() {
        let flag = word.strip_prefix("--").ok_or("each flag begins with --")?;
        let value = words
            .next()
            .ok_or_else(|| format!("--{flag} has no value"))?;
        given.insert(flag.to_owned(), value);
    }
    let mut flags = Flags(given);
    let known = named(&name);
    let usual = known.map_or_else(Setting::default, |it| (it.setting)());
    let workload = workload(&name, known, &mut flags)?;
    let setting = setting(usual, &mut flags)?;
    if let Some((flag, _)) = flags.0.first_key_value() {
        return Err(format!("there is no --{flag}").into());
    }
    let report = run(&workload, &setting, |_| {})?;
    println!("{}", line(&report, &setting));
    Ok(())
}

fn workload(
    name: &str,
    known: Option<&Named>,
    flags: &mut Flags,
) -> Result<Workload, Box<dyn Error>> {
    let seed = flags.take("workload-seed", 1)?;
    if let Some(Source::Drawn { requests, draw }) = known.map(|it| it.source) {
        return Ok(draw(flags.take("requests", requests)?, seed));
    }
    let path = flags.some::<String>("trace")?;
    let path = path.as_deref().unwrap_or(name);
    let block_size = BlockSize::new(flags.take("block-size", TRACE_BLOCK_TOKENS)?)?;
    let limit = flags.some("limit")?;
    let trace = Trace::read(BufReader::new(File::open(path)?), block_size, limit)?;
    let trace = match flags.take("spread", false)? {
        true => trace.spread(),
        false => trace,
    };
    Ok(match known {
        Some(known) => known.of_trace(&trace),
        None => Workload::of_trace(name, &trace, Decode::Here),
    })
}

/// A setting that differs from the usual one by what the flags say.
fn setting(usual: Setting, flags: &mut Flags) -> Result<Setting, Box<dyn Error>> {
    let restarts = match flags.some_seconds("restart-every")? {
        Some(every) => Some(Restarts {
            every,
            down: flags.seconds("down", Duration::from_secs(10))?,
            noticed_after: flags.seconds("noticed-after", Duration::from_secs(2))?,
        }),
        None => usual.restarts,
    };
    let drain = match flags.some_seconds("drain-at")? {
        Some(at) => Some(DrainAt {
            worker: flags.take("drain-worker", 0)?,
            at,
            moves: flags.take("drain-moves", false)?,
        }),
        None => usual.drain,
    };
    let partition = match flags.some_seconds("cut-every")? {
        Some(every) => Some(Partition {
            routers: flags.take("cut-routers", u32::MAX)?,
            every,
            lasts: flags.seconds("cut-lasts", Duration::from_secs(30))?,
        }),
        None => usual.partition,
    };
    Ok(Setting {
        fleet: fleet(usual.fleet, flags)?,
        routers: flags.take("routers", usual.routers)?,
        policy: flags.take("policy", usual.policy)?,
        affinity: flags.take("affinity", usual.affinity)?,
        lineage: flags.take("lineage", usual.lineage)?,
        index: flags.take("index", usual.index)?,
        gauges_every: flags.seconds("gauges-every", usual.gauges_every)?,
        tell_every: flags.some_seconds("tell-every")?.or(usual.tell_every),
        events: events(usual.events, flags)?,
        restarts,
        drain,
        join: flags.some_seconds("join-at")?.or(usual.join),
        partition,
        warm_up: flags.seconds("warm-up", usual.warm_up)?,
        until: flags.some_seconds("until")?.or(usual.until),
        seed: flags.take("seed", usual.seed)?,
        ..usual
    })
}

fn events(usual: EventFaults, flags: &mut Flags) -> Result<EventFaults, Box<dyn Error>> {
    Ok(EventFaults {
        delay: flags.seconds("delay", usual.delay)?,
        loss: flags.take("loss", usual.loss)?,
        duplicate: flags.take("duplicate", usual.duplicate)?,
        reorder: flags.take("reorder", usual.reorder)?,
        reorder_by: flags.seconds("reorder-by", usual.reorder_by)?,
        repaired_after: flags
            .some_seconds("repaired-after")?
            .or(usual.repaired_after),
    })
}

fn fleet(usual: Fleet, flags: &mut Flags) -> Result<Fleet, Box<dyn Error>> {
    let mut step = usual.step;
    step.base = flags.seconds("step-base", step.base)?;
    step.per_sequence = flags.seconds("step-per-sequence", step.per_sequence)?;
    if let Some(rate) = flags.some::<f64>("prefill-rate")? {
        step.per_prefill_token = Duration::try_from_secs_f64(1.0 / rate)?;
    }
    Ok(Fleet {
        workers: flags.take("workers", usual.workers)?,
        ranks: flags.take("ranks", usual.ranks)?,
        kv_blocks: flags.take("kv-blocks", usual.kv_blocks)?,
        pass_tokens: flags.take("pass-tokens", usual.pass_tokens)?,
        max_running: flags.take("max-running", usual.max_running)?,
        step,
    })
}

fn line(report: &Report, setting: &Setting) -> serde_json::Value {
    let quantile = |share| report.ttft_quantile(share).map(|it| it.as_secs_f64());
    let sums = report.totals.all();
    json!({
        "workload": report.workload,
        "policy": report.policy.to_string(),
        "seed": setting.seed,
        "routers": setting.routers,
        "requests": report.requests,
        "errors": report.errors,
        "broken": report.broken,
        "retries": report.retries,
        "realised_over_ceiling": report.totals.realised_over_ceiling(),
        "ceiling_over_isl": report.totals.ceiling_over_isl(),
        "ttft_s": {
            "mean": report.ttft_mean(),
            "p50": quantile(0.5),
            "p90": quantile(0.9),
            "p99": quantile(0.99),
        },
        "work_max_over_mean": report.work_max_over_mean(),
        "queue_skew": report.queue_skew(),
        "queue_max_over_mean_in_a_worker": report.queue_max_over_mean_in_a_worker(),
        "queue_max_over_mean": report.queue_max_over_mean(),
        "pending_skew": report.pending_skew(),
        "pending_skew_of_all": report.pending_skew_of_all(),
        "pending_max_over_mean_in_a_worker": report.pending_max_over_mean_in_a_worker(),
        "busy": report.busy,
        "idle_share": report.idle_share(),
        "decode_tokens_per_s": report.decode_throughput(),
        "step_s": report.step.map(|it| it.as_secs_f64()),
        "took_s": report.took.as_secs_f64(),
        "kept": report.kept,
        "bindings": {
            "created": report.bindings.created,
            "moved": report.bindings.moved,
            "excursions": report.bindings.excursions,
            "followed": report.bindings.followed,
            "unasked": report.bindings.unasked,
        },
        "tokens": {
            "isl": sums.isl.get(),
            "ceiling": sums.ceiling.get(),
            "stored": sums.stored.get(),
            "best": sums.best.get(),
            "ready": sums.ready.get(),
            "chosen": sums.chosen.get(),
            "realised": sums.realised.get(),
            "sub_block": sums.sub_block.get(),
            "cold": sums.parts.cold.get(),
            "in_flight": sums.parts.in_flight.get(),
            "unannounced": sums.parts.unannounced.get(),
            "capacity": sums.parts.capacity.get(),
            "unavailable": sums.parts.unavailable.get(),
            "routing": sums.parts.routing.get(),
            "index_error": sums.parts.index_error,
        },
    })
}
