//! `GET /slots` and `GET /metrics`: how loaded each slot is.

use std::collections::BTreeMap;

use domain::DpRank;
use serde::Deserialize;

use crate::gauges::{Gauges, MAX_RANKS, Series, count, name_of};

const DEFERRED: &str = "llamacpp:requests_deferred";

#[derive(Deserialize)]
struct Slot {
    id: u32,
    n_ctx: u32,
    is_processing: bool,
    /// Absent until the slot's first request.
    #[serde(default)]
    n_prompt_tokens: u32,
}

/// Reads the answer to `GET /slots`, a gauge of each slot. `deferred` requests wait for slots; which one each waits
/// for is not said, so they are counted evenly, the first slots one more.
pub fn parse_slots(
    body: &[u8],
    deferred: u32,
) -> Result<BTreeMap<DpRank, Gauges>, serde_json::Error> {
    let slots: Vec<Slot> = serde_json::from_slice(body)?;
    let slots = &slots[..slots.len().min(MAX_RANKS)];
    let all = u32::try_from(slots.len()).unwrap_or(u32::MAX).max(1);
    let gauges = slots.iter().zip(0..).map(|(slot, index)| {
        let used = f64::from(slot.n_prompt_tokens) / f64::from(slot.n_ctx.max(1));
        let gauges = Gauges {
            running: Some(u32::from(slot.is_processing)),
            waiting: Some(deferred / all + u32::from(index < deferred % all)),
            kv_used: Some(match slot.is_processing {
                true => used.min(1.0),
                false => 0.0,
            }),
            ..Gauges::default()
        };
        (DpRank::new(slot.id), gauges)
    });
    Ok(gauges.collect())
}

/// How many requests wait for a slot, as the Prometheus text of `GET /metrics` (with `--metrics`) says.
pub fn parse_deferred(text: &str) -> Option<u32> {
    let line = text
        .lines()
        .map(name_of)
        .find(|(name, _)| *name == DEFERRED);
    let series = Series::parse(line?.1)?;
    u32::try_from(count(series.value)?).ok()
}
