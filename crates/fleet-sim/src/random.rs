//! Seeded draws: the same seed gives the same workload on every machine.

use std::f64::consts::TAU;

/// The 90th and the 99th percentile of the standard normal distribution.
const Z90: f64 = 1.281_551_565_544_6;
const Z99: f64 = 2.326_347_874_040_8;

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The draws of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A stream of draws of its own for each number. Nearby seeds will not do: one's draws are then the other's, a
    /// few places on.
    pub fn stream(seed: u64, number: u64) -> Self {
        let mut keyed =
            Self::new(seed ^ number.wrapping_add(1).wrapping_mul(0xd134_2543_de82_ef95));
        Self::new(keyed.next_u64())
    }

    /// Any 64 bits, each as likely as the others.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// At least 0 and below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Log-normal by its median and the ratio of its 90th percentile to that.
    pub fn log_normal(&mut self, median: f64, p90_over_median: f64) -> f64 {
        let normal = self.normal();
        median * (normal * p90_over_median.ln() / Z90).exp()
    }

    /// Normal with mean 0 and variance 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (TAU * self.unit()).cos()
    }

    /// Exponential with this mean: the gaps of a Poisson process.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

/// What is published of a distribution: three of its quantiles. Drawn log-normal up to the 90th percentile, and from
/// there on as another log-normal that has the 99th.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    /// The median.
    pub(crate) p50: f64,
    /// The 90th percentile.
    pub(crate) p90: f64,
    /// The 99th.
    pub(crate) p99: f64,
}

impl Spread {
    /// One value.
    pub(crate) fn draw(&self, random: &mut Random) -> f64 {
        let normal = random.normal();
        if normal <= Z90 {
            self.p50 * (self.p90 / self.p50).powf(normal / Z90)
        } else {
            self.p90 * (self.p99 / self.p90).powf((normal - Z90) / (Z99 - Z90))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Random, Spread};

    #[test]
    fn a_log_normal_has_its_median_and_its_ninetieth_percentile() {
        let mut random = Random::new(7);
        let mut drawn: Vec<f64> = (0..20_000).map(|_| random.log_normal(100.0, 4.0)).collect();
        drawn.sort_by(f64::total_cmp);

        assert!((drawn[10_000] / 100.0 - 1.0).abs() < 0.05);
        assert!((drawn[18_000] / 400.0 - 1.0).abs() < 0.07);
    }

    #[test]
    fn a_spread_has_its_three_quantiles() {
        let mut random = Random::new(7);
        let spread = Spread {
            p50: 2.0,
            p90: 24.0,
            p99: 684.0,
        };
        let mut drawn: Vec<f64> = (0..100_000).map(|_| spread.draw(&mut random)).collect();
        drawn.sort_by(f64::total_cmp);

        assert!((drawn[50_000] / 2.0 - 1.0).abs() < 0.05);
        assert!((drawn[90_000] / 24.0 - 1.0).abs() < 0.05);
        assert!((drawn[99_000] / 684.0 - 1.0).abs() < 0.15);
    }

    #[test]
    fn streams_have_no_draws_in_common() {
        let mut drawn = std::collections::HashSet::new();
        for number in 0..100 {
            let mut random = Random::stream(1, number);
            assert!((0..1_000).all(|_| drawn.insert(random.next_u64())));
        }
    }

    #[test]
    fn an_exponential_has_its_mean() {
        let mut random = Random::new(7);
        let sum: f64 = (0..20_000).map(|_| random.exponential(3.0)).sum();

        assert!((sum / 20_000.0 / 3.0 - 1.0).abs() < 0.03);
    }
}
