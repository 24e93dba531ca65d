//! The waterfall of one request, and of all.

use accounting::{Parts, Sums, Totals, Waterfall};
use domain::Tokens;
use serde::Serialize;

/// Where a request's cacheable tokens went.
#[derive(Serialize)]
pub(super) struct WaterfallView {
    levels: LevelsView,
    lost: PartsView,
}

#[derive(Serialize)]
struct LevelsView {
    isl: u64,
    ceiling: u64,
    stored: u64,
    best: u64,
    ready: u64,
    chosen: u64,
    realised: Option<u64>,
    sub_block: u64,
}

#[derive(Serialize)]
struct PartsView {
    cold: u64,
    in_flight: u64,
    unannounced: u64,
    capacity: u64,
    unavailable: u64,
    routing: u64,
    index_error: Option<i64>,
    /// Of all parts: `isl - realised`, or `isl - chosen` where `realised` is unknown.
    sum: i64,
}

/// The waterfall of all requests since the start.
#[derive(Serialize)]
pub(super) struct TotalsView {
    measured: SumsView,
    unmeasured: SumsView,
    rank_unknown: u64,
    realised_over_ceiling: Option<f64>,
    ceiling_over_isl: Option<f64>,
}

#[derive(Serialize)]
struct SumsView {
    requests: u64,
    #[serde(flatten)]
    waterfall: WaterfallView,
}

impl WaterfallView {
    /// One line: what was cached, and where the rest was lost.
    pub(super) fn describe(&self) -> String {
        let lost = &self.lost;
        let named = [
            ("cold", lost.cold),
            ("in flight", lost.in_flight),
            ("unannounced", lost.unannounced),
            ("capacity", lost.capacity),
            ("unavailable", lost.unavailable),
            ("routing", lost.routing),
        ];
        let parts = named.iter().filter(|it| it.1 > 0);
        let mut parts: Vec<String> = parts
            .map(|(name, tokens)| format!("{name} {tokens}"))
            .collect();
        if let Some(error) = lost.index_error.filter(|it| *it != 0) {
            parts.push(format!("index error {error}"));
        }
        let levels = &self.levels;
        let cached = levels.realised.unwrap_or(levels.chosen);
        format!(
            "of {} tokens {cached} were cached; not: {}",
            levels.isl,
            parts.join(", ")
        )
    }

    pub(super) fn of(waterfall: &Waterfall) -> Self {
        Self {
            levels: LevelsView {
                isl: waterfall.isl().get(),
                ceiling: waterfall.ceiling().get(),
                stored: waterfall.stored().get(),
                best: waterfall.best().get(),
                ready: waterfall.ready().get(),
                chosen: waterfall.chosen().get(),
                realised: waterfall.realised().map(Tokens::get),
                sub_block: waterfall.sub_block().get(),
            },
            lost: PartsView::of(&waterfall.parts()),
        }
    }
}

impl PartsView {
    fn of(parts: &Parts) -> Self {
        Self {
            cold: parts.cold.get(),
            in_flight: parts.in_flight.get(),
            unannounced: parts.unannounced.get(),
            capacity: parts.capacity.get(),
            unavailable: parts.unavailable.get(),
            routing: parts.routing.get(),
            index_error: parts.index_error,
            sum: parts.sum(),
        }
    }
}

impl TotalsView {
    pub(super) fn of(totals: &Totals) -> Self {
        Self {
            measured: SumsView::of(&totals.measured, true),
            unmeasured: SumsView::of(&totals.unmeasured, false),
            rank_unknown: totals.rank_unknown,
            realised_over_ceiling: totals.realised_over_ceiling(),
            ceiling_over_isl: totals.ceiling_over_isl(),
        }
    }
}

impl SumsView {
    fn of(sums: &Sums, measured: bool) -> Self {
        Self {
            requests: sums.requests,
            waterfall: WaterfallView {
                levels: LevelsView {
                    isl: sums.isl.get(),
                    ceiling: sums.ceiling.get(),
                    stored: sums.stored.get(),
                    best: sums.best.get(),
                    ready: sums.ready.get(),
                    chosen: sums.chosen.get(),
                    realised: measured.then_some(sums.realised.get()),
                    sub_block: sums.sub_block.get(),
                },
                lost: PartsView::of(&sums.parts),
            },
        }
    }
}
