//! What outcomes teach about a worker's speed.

use std::time::Duration;

use domain::Tokens;

use crate::Config;

/// The weight of a new sample in an exponentially weighted mean.
const WEIGHT: f64 = 0.1;
/// The weight of a sample that says the worker is slower than thought. Whatever else a rank or its siblings
/// do meanwhile makes a sample look slow and nothing makes it look fast, so the estimate follows the fast
/// ones: with these weights about the ninth decile.
const SLOWER_WEIGHT: f64 = 0.01;
/// Shorter prefills are left out: fixed costs hide their speed.
const MIN_SAMPLE_TOKENS: u64 = 256;
/// Shorter answers are left out: their steps are too few to be a mean.
const MIN_SAMPLE_STEPS: u64 = 8;
/// Whatever an outcome says, a rank prefills at least this many tokens a second.
const SLOWEST_PREFILL: f64 = 10.0;
/// And at most this many.
const FASTEST_PREFILL: f64 = 10_000_000.0;
/// The longest decode step believed, in seconds.
const LONGEST_STEP: f64 = 10.0;

/// An exponentially weighted mean.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mean(f64);

impl Mean {
    pub(crate) const fn starting_at(value: f64) -> Self {
        Self(value)
    }

    pub(crate) const fn get(self) -> f64 {
        self.0
    }

    pub(crate) fn learn(&mut self, sample: f64) {
        self.learn_weighted(sample, WEIGHT);
    }

    fn learn_weighted(&mut self, sample: f64, weight: f64) {
        self.0 += weight * (sample - self.0);
    }
}

/// One worker's speed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    prefill_rate: Mean,
    decode_step: Mean,
}

impl Speed {
    /// Starts with what the settings say.
    pub(crate) fn new(config: &Config) -> Self {
        let rate = clamp(config.prefill_rate, SLOWEST_PREFILL, FASTEST_PREFILL);
        let step = config.decode_step.as_secs_f64().min(LONGEST_STEP);
        Self {
            prefill_rate: Mean::starting_at(rate),
            decode_step: Mean::starting_at(step),
        }
    }

    /// Tokens per second of one rank.
    pub(crate) const fn prefill_rate(&self) -> f64 {
        self.prefill_rate.get()
    }

    /// Seconds between two tokens of a sequence.
    pub(crate) const fn decode_step(&self) -> f64 {
        self.decode_step.get()
    }

    /// Learns from a prefill that had no queue before it.
    pub(crate) fn prefilled(&mut self, uncached: Tokens, ttft: Duration) {
        if uncached.get() < MIN_SAMPLE_TOKENS {
            return;
        }
        let sample = uncached.as_f64() / ttft.as_secs_f64();
        let sample = clamp(sample, SLOWEST_PREFILL, FASTEST_PREFILL);
        let slower = sample < self.prefill_rate.get();
        let weight = if slower { SLOWER_WEIGHT } else { WEIGHT };
        self.prefill_rate.learn_weighted(sample, weight);
    }

    /// Learns from an answer of `completion` tokens that took `decoding` from the first to the last.
    pub(crate) fn decoded(&mut self, completion: Tokens, decoding: Duration) {
        if completion.get() < MIN_SAMPLE_STEPS {
            return;
        }
        let step = decoding.as_secs_f64() / (completion.as_f64() - 1.0);
        let sample = step.min(LONGEST_STEP);
        let slower = sample > self.decode_step.get();
        let weight = if slower { SLOWER_WEIGHT } else { WEIGHT };
        self.decode_step.learn_weighted(sample, weight);
    }
}

/// Not-a-number becomes the low end.
fn clamp(value: f64, low: f64, high: f64) -> f64 {
    value.max(low).min(high)
}
