//! How ours stands to the others, and to what was set as its goals.

use serde::Serialize;

use super::compared::{Compared, Row};
use super::plan::OURS_ALONE;

/// A time to first token within this factor of the best is as good as it.
const AS_GOOD: f64 = 1.03;
/// And beyond this one it is too bad anywhere.
const TOO_BAD: f64 = 1.10;
/// Cells that need not be as good as the best.
const ALLOWED: usize = 2;
/// A share of the ceiling this far below the best is as good.
const HIT: f64 = 0.005;
/// Policies whose median is at most this factor of ours are those that our share of the ceiling is compared with.
const ALIKE: f64 = 1.10;
/// The most that the busiest rank may compute over the mean of all, and wait over the mean of its worker.
const WORK: f64 = 1.05;
const SKEW: f64 = 1.3;
/// How much longer 16 routers may make the mean wait than one, at a load a second old.
const HERDING: f64 = 1.15;
/// The share of a gap that has to be found where its cause is.
const TOLD: f64 = 0.8;

/// The least share of the ceiling that ours has to reach, and whether at even work.
const REACHED: [(&str, f64, bool); 3] = [
    ("W3-conversation", 0.97, true),
    (OURS_ALONE, 0.95, false),
    ("W3-agentic", 0.92, true),
];

/// All that is judged.
#[derive(Serialize)]
pub(super) struct Verdict {
    /// Whether every goal that was looked at is reached; true where none was.
    pub(super) ok: bool,
    pub(super) cells: Vec<Cell>,
    pub(super) cells_within_3_percent: usize,
    pub(super) worst_cell: Option<Cell>,
    pub(super) hits: Vec<Hit>,
    pub(super) goals: Vec<Goal>,
    /// The mean TTFT of 16 routers over that of one, of each other policy.
    pub(super) herds: Vec<Herd>,
}

/// What many routers cost another policy than ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Herd {
    pub(super) policy: String,
    pub(super) over_one: f64,
}

/// Ours against the best, in one quantile of one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Cell {
    pub(super) workload: String,
    pub(super) quantile: &'static str,
    pub(super) ours_ms: f64,
    pub(super) best_ms: f64,
    pub(super) best_policy: String,
    pub(super) over_best: f64,
}

/// Ours against the best of those that answer about as fast.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Hit {
    pub(super) workload: String,
    pub(super) ours: f64,
    pub(super) best: f64,
    pub(super) best_policy: String,
}

/// Something that was to be reached.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Goal {
    pub(super) goal: String,
    pub(super) ok: bool,
    pub(super) value: Option<f64>,
    pub(super) limit: f64,
}

impl Goal {
    fn at_most(goal: String, value: Option<f64>, limit: f64) -> Self {
        let ok = value.is_some_and(|it| it <= limit);
        Self {
            goal,
            ok,
            value,
            limit,
        }
    }

    fn at_least(goal: String, value: Option<f64>, limit: f64) -> Self {
        let ok = value.is_some_and(|it| limit <= it);
        Self {
            goal,
            ok,
            value,
            limit,
        }
    }
}

impl Verdict {
    /// Judges all that ran; `whole` where it was all of what the first goals are about.
    pub(super) fn of(compared: &[Compared], whole: bool) -> Self {
        let rivals = || compared.iter().filter(|it| it.policies.len() > 1);
        let cells: Vec<Cell> = rivals().flat_map(Cell::of).collect();
        let hits: Vec<Hit> = rivals().filter_map(Hit::of).collect();
        let as_good = cells.iter().filter(|it| it.over_best <= AS_GOOD).count();
        let worst = cells
            .iter()
            .max_by(|one, other| one.over_best.total_cmp(&other.over_best));
        let worst = worst.cloned();
        let mut goals = Vec::new();
        if whole {
            let missed = cells.len() - as_good;
            let goal = "TTFT cells not within 3 % of the best".to_owned();
            goals.push(Goal::at_most(goal, Some(missed as f64), ALLOWED as f64));
            let goal = "worst TTFT cell over the best".to_owned();
            goals.push(Goal::at_most(
                goal,
                worst.as_ref().map(|it| it.over_best),
                TOO_BAD,
            ));
            goals.extend(hits.iter().map(|it| {
                let goal = format!(
                    "{}: share of the ceiling below the best as fast",
                    it.workload
                );
                Goal::at_most(goal, Some(it.best - it.ours), HIT)
            }));
        }
        goals.extend(compared.iter().flat_map(reached));
        goals.extend(lock_step(compared, whole));
        goals.extend(herding(compared));
        goals.extend(compared.iter().filter_map(told_apart));
        Self {
            ok: goals.iter().all(|it| it.ok),
            cells_within_3_percent: as_good,
            worst_cell: worst,
            cells,
            hits,
            goals,
            herds: herds(compared),
        }
    }

    /// What it comes to, a line each.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(worst) = &self.worst_cell {
            lines.push(format!(
                "kv: {} of {} TTFT cells (median and p99 of each workload) within 3 % of the best;",
                self.cells_within_3_percent,
                self.cells.len()
            ));
            lines.push(format!(
                "  worst: {} {}, {:.2}x that of {}",
                worst.workload, worst.quantile, worst.over_best, worst.best_policy
            ));
        }
        lines.extend(self.goals.iter().map(|it| {
            let mark = if it.ok { "reached" } else { "missed " };
            let value = it.value.map_or("-".to_owned(), |it| format!("{it:.3}"));
            format!("{mark} {}: {value} (goal {})", it.goal, it.limit)
        }));
        let herds = self.herds.iter();
        let herds: Vec<String> = herds
            .map(|it| format!("{} {:.2}", it.policy, it.over_one))
            .collect();
        if !herds.is_empty() {
            lines.push(format!("  beside it: {}", herds.join(", ")));
        }
        lines
    }
}

impl Cell {
    fn of(compared: &Compared) -> Vec<Self> {
        let p50 = Self::at(compared, "p50", |it| it.figures.ttft_ms.p50);
        let p99 = Self::at(compared, "p99", |it| it.figures.ttft_ms.p99);
        p50.into_iter().chain(p99).collect()
    }

    fn at(
        compared: &Compared,
        quantile: &'static str,
        of: fn(&Row) -> Option<f64>,
    ) -> Option<Self> {
        let ours_ms = of(compared.ours()?)?;
        let rows = compared.policies.iter();
        let values = rows.filter_map(|it| Some((of(it)?, it)));
        let (best_ms, best) = values.min_by(|one, other| one.0.total_cmp(&other.0))?;
        Some(Self {
            workload: compared.workload.clone(),
            quantile,
            ours_ms,
            best_ms,
            best_policy: best.figures.policy.to_string(),
            over_best: ours_ms / best_ms,
        })
    }
}

impl Hit {
    fn of(compared: &Compared) -> Option<Self> {
        let ours = compared.ours()?;
        let limit = ours.figures.ttft_ms.p50? * ALIKE;
        let rows = compared.policies.iter();
        let alike = rows.filter(|it| it.figures.ttft_ms.p50.is_some_and(|it| it <= limit));
        let values = alike.filter_map(|it| Some((it.hit()?, it)));
        let (best, row) = values.max_by(|one, other| one.0.total_cmp(&other.0))?;
        Some(Self {
            workload: compared.workload.clone(),
            ours: ours.hit()?,
            best,
            best_policy: row.figures.policy.to_string(),
        })
    }
}

/// What ours has to reach of the ceiling, at even work where that is asked for.
fn reached(compared: &Compared) -> Vec<Goal> {
    let name = &compared.workload;
    let goal = REACHED.iter().find(|it| it.0 == name);
    let (Some((_, share, even)), Some(ours)) = (goal, compared.ours()) else {
        return Vec::new();
    };
    let hit = Goal::at_least(format!("{name}: share of the ceiling"), ours.hit(), *share);
    let work = ours.figures.work_max_over_mean;
    let work = even.then(|| Goal::at_most(format!("{name}: work, max over mean"), work, WORK));
    std::iter::once(hit).chain(work).collect()
}

/// Ranks that wait for each other: how evenly requests lie on them, and what a step takes. The whole of what is judged
/// has a step that others were measured by: without one that goal is missed.
fn lock_step(compared: &[Compared], whole: bool) -> Vec<Goal> {
    let Some(rollouts) = compared.iter().find(|it| it.workload == "W7") else {
        return Vec::new();
    };
    let Some(ours) = rollouts.ours() else {
        return Vec::new();
    };
    let skew = "W7: requests of a worker's busiest rank over its mean".to_owned();
    let skew = Goal::at_most(skew, ours.queue_skew, SKEW);
    let others = rollouts.policies.iter();
    let others = others.filter(|it| it.figures.policy.is_baseline());
    let best = others.filter_map(|it| it.step_s).reduce(f64::min);
    let over = best.and_then(|best| Some(ours.step_s? / best));
    let step = (whole || over.is_some()).then(|| {
        let goal = "W7: a step's time over the best peer's".to_owned();
        Goal::at_most(goal, over, AS_GOOD)
    });
    std::iter::once(skew).chain(step).collect()
}

/// What many routers cost with a load of a second ago.
fn herding(compared: &[Compared]) -> Option<Goal> {
    let [many, one] = herd(compared)?;
    let over = many.ours()?.ttft_mean_ms? / one.ours()?.ttft_mean_ms?;
    let goal = "herding: mean TTFT of 16 routers over that of one, at 1 s".to_owned();
    Some(Goal::at_most(goal, Some(over), HERDING))
}

/// The same of the others.
fn herds(compared: &[Compared]) -> Vec<Herd> {
    let Some([many, one]) = herd(compared) else {
        return Vec::new();
    };
    let others = many.policies.iter();
    let others = others.filter(|it| it.figures.policy.is_baseline());
    let each = others.filter_map(|row| {
        let policy = row.figures.policy;
        let alone = one.policies.iter().find(|it| it.figures.policy == policy)?;
        Some(Herd {
            policy: policy.to_string(),
            over_one: row.ttft_mean_ms? / alone.ttft_mean_ms?,
        })
    });
    each.collect()
}

/// 16 routers and one, where both ran.
fn herd(compared: &[Compared]) -> Option<[&Compared; 2]> {
    let of = |routers: u32| {
        let mut cases = compared
            .iter()
            .filter(|it| it.workload.starts_with("herding"));
        cases.find(|it| it.routers == routers && it.load_age_s == 1.0)
    };
    Some([of(16)?, of(1)?])
}

/// Whether a gap is found where its cause was put.
fn told_apart(compared: &Compared) -> Option<Goal> {
    let gap = compared.policies.first()?.gap;
    let (part, share) = match compared.workload.as_str() {
        "capacity" => ("memory", gap.memory),
        "scattered" => ("router", gap.router),
        "lossy" => ("index", gap.index),
        _ => return None,
    };
    let goal = format!(
        "{}: share of the gap that is the {part}'s",
        compared.workload
    );
    Some(Goal::at_least(goal, share, TOLD))
}
