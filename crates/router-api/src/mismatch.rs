//! Notices that the router hashes other tokens than its engines compute: then the index promises nothing
//! while the engines find most of each prompt in their caches.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use accounting::Waterfall;
use domain::{ModelName, Tokens};
use prometheus::IntGaugeVec;
use tracing::warn;

/// So many requests in a row are no accident.
const ROW: u32 = 20;

/// Watches each model's outcomes.
pub(crate) struct MismatchWatch {
    /// Requests in a row for which nothing was promised and most was found. Guards nothing else; as many
    /// entries as there are models.
    rows: Mutex<BTreeMap<ModelName, u32>>,
    alarms: IntGaugeVec,
}

impl MismatchWatch {
    /// A watch that shows what it finds as 1 in `alarms`, by model.
    pub(crate) fn new(alarms: IntGaugeVec) -> Self {
        Self {
            rows: Mutex::default(),
            alarms,
        }
    }

    /// Takes in an outcome. Those in which neither index nor engine found anything say nothing.
    pub(crate) fn see(&self, model: &ModelName, waterfall: &Waterfall) {
        let Some(realised) = waterfall.realised() else {
            return;
        };
        let promised = waterfall.chosen() > Tokens::ZERO;
        let mostly_found = waterfall.isl().get() / 2 < realised.get();
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let alarm = || self.alarms.with_label_values(&[model.as_str()]);
        match (promised, mostly_found) {
            (true, _) => {
                if rows.remove(model).is_some_and(|row| ROW <= row) {
                    alarm().set(0);
                }
            }
            (false, false) => {}
            (false, true) => {
                let row = rows.entry(model.clone()).or_default();
                *row += 1;
                if *row == ROW {
                    alarm().set(1);
                    warn!(%model, requests = ROW, "the engines cache what the index does not know: are \
                        their events published, and are these the tokens they compute?");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use accounting::{Carrier, Chosen, Observation};
    use domain::BlockSize;
    use prometheus::Opts;

    use super::*;

    fn outcome(chosen: u64, realised: u64) -> Waterfall {
        Waterfall::new(Observation {
            isl: Tokens::new(100),
            block_size: BlockSize::new(4).unwrap(),
            ceiling: Tokens::ZERO,
            stored: Tokens::ZERO,
            best: Tokens::ZERO,
            ready: Tokens::ZERO,
            chosen: Chosen::Held(Tokens::new(chosen)),
            realised: Some(Tokens::new(realised)),
            carrier: Carrier::FinishedOrUnknown,
        })
    }

    #[test]
    fn twenty_finds_without_a_promise_raise_the_alarm_and_a_promise_ends_it() {
        let alarms = IntGaugeVec::new(Opts::new("alarms", "by model"), &["model"]).unwrap();
        let watch = MismatchWatch::new(alarms.clone());
        let model = "m".parse().unwrap();
        let alarm = || alarms.with_label_values(&["m"]).get();
        for _ in 0..19 {
            watch.see(&model, &outcome(0, 80));
            watch.see(&model, &outcome(0, 0));
        }
        assert_eq!(alarm(), 0);
        watch.see(&model, &outcome(0, 80));
        assert_eq!(alarm(), 1);
        watch.see(&model, &outcome(40, 80));
        assert_eq!(alarm(), 0);
    }
}
