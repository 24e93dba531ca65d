//! What a workload runs on, in words.

use affinity::Mode;
use fleet_sim::Setting;

/// A line for the fleet, and one for each thing that goes wrong; at most 78 columns wide.
pub(super) fn words(setting: &Setting) -> Vec<String> {
    let fleet = &setting.fleet;
    let rate = 1e-3 / fleet.step.per_prefill_token.as_secs_f64();
    let mut lines = vec![format!(
        "{}, {} blocks each, {rate:.1}k tokens/s; {}",
        match fleet.ranks {
            1 => count(fleet.workers, "rank"),
            ranks => format!(
                "{} of {}",
                count(fleet.workers, "worker"),
                count(ranks, "rank")
            ),
        },
        fleet.kv_blocks,
        count(setting.routers, "router"),
    )];
    let mut say = |line: String| lines.push(line);
    if setting.affinity != Mode::default() {
        let mode = match setting.affinity {
            Mode::Off => "off",
            Mode::Soft => "soft",
            Mode::Hard => "hard",
        };
        say(format!("bindings: {mode}"));
    }
    let events = &setting.events;
    if *events != fleet_sim::EventFaults::default() {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        say(format!(
            "events: {} lost{}, {} late, {} twice, {} ms after the pass",
            percent(events.loss),
            if events.repaired_after.is_some() {
                " and fetched again"
            } else {
                " for good"
            },
            percent(events.reorder),
            percent(events.duplicate),
            events.delay.as_millis(),
        ));
    }
    if let Some(it) = setting.restarts {
        say(format!(
            "a worker restarts every {} s and is away for {} s",
            it.every.as_secs(),
            it.down.as_secs()
        ));
    }
    if let Some(it) = setting.drain {
        say(format!(
            "worker {} is drained at {} s",
            it.worker + 1,
            it.at.as_secs()
        ));
    }
    if let Some(it) = setting.join {
        say(format!("one more worker joins at {} s", it.as_secs()));
    }
    if let Some(it) = setting.partition {
        say(format!(
            "{} cut off from the store every {} s for {} s",
            count(it.routers, "router"),
            it.every.as_secs(),
            it.lasts.as_secs()
        ));
    }
    lines
}

fn count(number: u32, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

#[cfg(test)]
mod tests {
    use fleet_sim::{CATALOGUE, named};

    use super::words;

    #[test]
    fn what_is_set_is_said() {
        let said = |name| words(&(named(name).expect("it is there").setting)());

        assert_eq!(
            said("lossy"),
            [
                "2 workers of 4 ranks, 2500 blocks each, 36.0k tokens/s; 1 router",
                "bindings: off",
                "events: 80 % lost for good, 0 % late, 0 % twice, 0 ms after the pass",
            ]
        );
        assert_eq!(
            said("W3-conversation"),
            ["8 ranks, 6854 blocks each, 4.4k tokens/s; 1 router"]
        );
        assert_eq!(said("W8").len(), 4);
        for line in CATALOGUE.iter().flat_map(|it| words(&(it.setting)())) {
            assert!(line.len() <= 78, "{line}");
        }
    }
}
