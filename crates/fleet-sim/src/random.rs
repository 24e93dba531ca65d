//! Seeded draws: the same seed gives the same workload on every machine.

use std::f64::consts::TAU;

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The draws of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
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
        /// The 90th percentile of the standard normal distribution.
        const Z90: f64 = 1.281_551_565_544_6;
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let normal = radius * (TAU * self.unit()).cos();
        median * (normal * p90_over_median.ln() / Z90).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_log_normal_has_its_median_and_its_ninetieth_percentile() {
        let mut random = Random::new(7);
        let mut drawn: Vec<f64> = (0..20_000).map(|_| random.log_normal(100.0, 4.0)).collect();
        drawn.sort_by(f64::total_cmp);

        assert!((drawn[10_000] / 100.0 - 1.0).abs() < 0.05);
        assert!((drawn[18_000] / 400.0 - 1.0).abs() < 0.07);
    }
}
