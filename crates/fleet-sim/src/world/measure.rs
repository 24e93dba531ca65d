//! What is measured, and how it is added up.

use std::time::Duration;

use accounting::{Totals, Waterfall};
use domain::{DpRank, Timestamp, Tokens};

use super::bindings::Bindings;
use super::engines::Engines;
use super::sessions::Sessions;
use crate::{Report, Setting, TargetReport, Workload};

pub(super) struct Measure {
    from: Timestamp,
    workers: Vec<Queues>,
    /// The most that waits at any rank, and since when it is added up.
    as_of: Timestamp,
    at_most_of_all: f64,
    totals: Totals,
    ttft: Vec<Duration>,
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) broken: u64,
    pub(super) retries: u64,
    pub(super) kept: u64,
    generated: Tokens,
    took: Timestamp,
}

/// The ranks of one worker.
struct Queues {
    ranks: Vec<Queue>,
    as_of: Timestamp,
    /// Of the rank that has most at the moment.
    most_pending: Level,
    most_present: Level,
}

#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    requests: u64,
    computed: Tokens,
    /// Tokens that wait.
    pending: Level,
    /// Requests that wait or run.
    present: Level,
}

/// How much there is of something, and the same added up over time.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    now: u64,
    sum: f64,
}

impl Level {
    fn last(&mut self, seconds: f64) {
        self.sum += self.now as f64 * seconds;
    }
}

impl Measure {
    pub(super) fn new(setting: &Setting) -> Self {
        let from = Timestamp::ZERO + setting.warm_up;
        Self {
            from,
            workers: Vec::new(),
            as_of: from,
            at_most_of_all: 0.0,
            totals: Totals::default(),
            ttft: Vec::new(),
            requests: 0,
            errors: 0,
            broken: 0,
            retries: 0,
            kept: 0,
            generated: Tokens::ZERO,
            took: Timestamp::ZERO,
        }
    }

    /// One more worker.
    pub(super) fn add_worker(&mut self, ranks: u32) {
        self.workers.push(Queues {
            ranks: vec![Queue::default(); ranks as usize],
            as_of: self.as_of,
            most_pending: Level::default(),
            most_present: Level::default(),
        });
    }

    /// Whether a request that is sent now counts.
    pub(super) fn counts(&self, now: Timestamp) -> bool {
        self.from <= now
    }

    /// A request was sent, of which so much is expected to be computed.
    pub(super) fn sent(&mut self, at: (usize, DpRank), uncached: Tokens, now: Timestamp) {
        if self.counts(now) {
            self.rank(at).requests += 1;
        }
        self.change(at, now, |queue| {
            queue.pending.now += uncached.get();
            queue.present.now += 1;
        });
    }

    /// It waits no more.
    pub(super) fn begun(&mut self, at: (usize, DpRank), uncached: Tokens, now: Timestamp) {
        self.change(at, now, |queue| {
            queue.pending.now = queue.pending.now.saturating_sub(uncached.get());
        });
    }

    /// It is no longer there.
    pub(super) fn left(&mut self, at: (usize, DpRank), now: Timestamp) {
        self.change(at, now, |queue| {
            queue.present.now = queue.present.now.saturating_sub(1);
        });
    }

    /// A request was served to its end.
    pub(super) fn served(
        &mut self,
        at: (usize, DpRank),
        ttft: Duration,
        usage: &domain::Usage,
        row: Option<&Waterfall>,
    ) {
        self.requests += 1;
        self.ttft.push(ttft);
        self.generated += usage.completion;
        let cached = usage.cached.unwrap_or_default();
        self.rank(at).computed += usage.prompt.saturating_sub(cached);
        if let Some(row) = row {
            self.totals.add(row);
        }
    }

    /// A request has ended, counted or not.
    pub(super) fn ended(&mut self, now: Timestamp) {
        self.took = now;
    }

    /// The run is over.
    pub(super) fn close(&mut self, now: Timestamp) {
        self.look(now);
        self.workers.iter_mut().for_each(|it| it.look(now));
    }

    fn rank(&mut self, (worker, dp_rank): (usize, DpRank)) -> &mut Queue {
        &mut self.workers[worker].ranks[dp_rank.get() as usize]
    }

    fn change(&mut self, at: (usize, DpRank), now: Timestamp, change: impl Fn(&mut Queue)) {
        self.look(now);
        self.workers[at.0].look(now);
        change(self.rank(at));
        let queues = &mut self.workers[at.0];
        let most = |of: fn(&Queue) -> u64| queues.ranks.iter().map(of).max().unwrap_or(0);
        queues.most_pending.now = most(|it| it.pending.now);
        queues.most_present.now = most(|it| it.present.now);
    }

    /// Adds up what has waited at the busiest rank until now.
    fn look(&mut self, now: Timestamp) {
        let most = self.workers.iter().map(|it| it.most_pending.now);
        let most = most.max().unwrap_or(0);
        self.at_most_of_all += most as f64 * now.since(self.as_of).as_secs_f64();
        self.as_of = self.as_of.max(now);
    }

    pub(super) fn into_report(
        mut self,
        (workload, setting): (&Workload, &Setting),
        (engines, bindings, sessions): (&Engines, &Bindings, &Sessions<'_>),
    ) -> Report {
        self.ttft.sort_unstable();
        let passes = engines.passes();
        let mut targets = Vec::new();
        for (worker, queues) in self.workers.iter().enumerate() {
            for (rank, queue) in (0..).map(DpRank::new).zip(&queues.ranks) {
                targets.push(TargetReport {
                    target: domain::Target {
                        epoch: domain::Epoch::FIRST,
                        ..engines.target(worker, rank)
                    },
                    requests: queue.requests,
                    computed: queue.computed,
                    pending: queue.pending.sum,
                    present: queue.present.sum,
                });
            }
        }
        targets.sort_by(|one, other| one.target.cmp(&other.target));
        Report {
            workload: workload.name.clone(),
            policy: setting.policy,
            requests: self.requests,
            errors: self.errors,
            broken: self.broken,
            retries: self.retries,
            totals: self.totals,
            ttft: self.ttft,
            targets,
            pending_at_most: self.workers.iter().map(|it| it.most_pending.sum).sum(),
            pending_at_most_of_all: self.at_most_of_all,
            present_at_most: self.workers.iter().map(|it| it.most_present.sum).sum(),
            busy: engines.busy(self.took),
            took: self.took.since(Timestamp::ZERO),
            generated: self.generated,
            step: sessions.mean_step(),
            idle_passes: passes.idle,
            passes: passes.all,
            bindings: bindings.counts,
            kept: self.kept,
        }
    }
}

impl Queues {
    /// Adds up what has waited until now.
    fn look(&mut self, now: Timestamp) {
        let seconds = now.since(self.as_of).as_secs_f64();
        if seconds > 0.0 {
            for queue in &mut self.ranks {
                queue.pending.last(seconds);
                queue.present.last(seconds);
            }
            self.most_pending.last(seconds);
            self.most_present.last(seconds);
        }
        self.as_of = self.as_of.max(now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use domain::{DpRank, Timestamp, Tokens};

    use super::Measure;
    use crate::{Random, Setting};

    const WORKERS: usize = 3;
    const RANKS: usize = 2;

    /// Compared with a look at everything in every millisecond.
    #[test]
    fn what_waits_is_added_up_over_time_as_if_it_were_looked_at_all_the_time() {
        let setting = Setting {
            warm_up: Duration::from_millis(500),
            ..Setting::default()
        };
        let mut measure = Measure::new(&setting);
        (0..WORKERS).for_each(|_| measure.add_worker(RANKS as u32));
        let mut random = Random::new(5);
        let mut waiting = [[0_u64; RANKS]; WORKERS];
        let (mut sums, mut of_workers, mut of_all) = ([[0; RANKS]; WORKERS], 0, 0);
        for millis in 0..4_000 {
            let now = Timestamp::from_micros(millis * 1_000);
            if random.chance(0.05) {
                let mut below = |count: usize| (random.unit() * count as f64) as usize;
                let (worker, rank) = (below(WORKERS), below(RANKS));
                let at = (worker, DpRank::new(rank as u32));
                let tokens = below(1_000) as u64;
                if waiting[worker][rank] > 1_500 {
                    measure.begun(at, Tokens::new(tokens), now);
                    waiting[worker][rank] -= tokens;
                } else {
                    measure.sent(at, Tokens::new(tokens), now);
                    waiting[worker][rank] += tokens;
                }
            }
            if 500 <= millis {
                for (sums, ranks) in sums.iter_mut().zip(&waiting) {
                    sums.iter_mut().zip(ranks).for_each(|(sum, it)| *sum += it);
                }
                let most = |ranks: &[u64; RANKS]| ranks.iter().copied().max().unwrap();
                of_workers += waiting.iter().map(most).sum::<u64>();
                of_all += waiting.iter().map(most).max().unwrap();
            }
        }

        measure.close(Timestamp::from_micros(4_000_000));
        let close =
            |seconds: f64, millis: u64| (seconds - millis as f64 / 1e3).abs() < 1e-6 * seconds;
        for (queues, sums) in measure.workers.iter().zip(sums) {
            for (queue, sum) in queues.ranks.iter().zip(sums) {
                assert!(close(queue.pending.sum, sum));
            }
        }
        let at_most: f64 = measure.workers.iter().map(|it| it.most_pending.sum).sum();
        assert!(close(at_most, of_workers), "{at_most} {of_workers}");
        assert!(close(measure.at_most_of_all, of_all));
    }

    #[test]
    fn requests_are_there_from_when_they_are_sent_until_they_leave() {
        let mut measure = Measure::new(&Setting::default());
        (0..2).for_each(|_| measure.add_worker(2));
        let at = |worker, rank| (worker, DpRank::new(rank));
        let second = |it: u64| Timestamp::from_micros(it * 1_000_000);
        let tokens = Tokens::new(100);

        // One for four seconds and one for two, beside one for two.
        measure.sent(at(0, 0), tokens, second(0));
        measure.sent(at(0, 0), tokens, second(1));
        measure.begun(at(0, 0), tokens, second(2));
        measure.sent(at(0, 1), tokens, second(2));
        measure.left(at(0, 0), second(3));
        // Two all the time, and one all the time.
        measure.sent(at(1, 0), tokens, second(0));
        measure.sent(at(1, 0), tokens, second(0));
        measure.sent(at(1, 1), tokens, second(0));
        measure.close(second(4));

        let ranks = measure.workers.iter().flat_map(|it| &it.ranks);
        let present: Vec<f64> = ranks.map(|it| it.present.sum).collect();
        assert_eq!(present, [6.0, 2.0, 8.0, 4.0]);
        let most = measure.workers.iter().map(|it| it.most_present.sum);
        // 1, 2, 2, 1 in the four seconds of the first worker; 2 in each of the other's.
        assert_eq!(most.collect::<Vec<_>>(), [6.0, 8.0]);
    }
}
