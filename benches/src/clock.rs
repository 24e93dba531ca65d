//! What is measured with: the CPU time of a thread, a cheap counter of wall time, and the memory of the process.

use std::time::{Duration, Instant};

use anyhow::Context as _;

/// CPU time the calling thread has used.
pub fn thread_cpu() -> Duration {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time all threads of this process have used.
pub fn process_cpu() -> Duration {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

#[expect(
    unsafe_code,
    reason = "no safe binding of these clocks without one more crate"
)]
fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec of our own, and nothing else is touched.
    let answer = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(answer, 0, "every Linux has this clock");
    Duration::new(
        u64::try_from(time.tv_sec).expect("CPU time is positive"),
        u32::try_from(time.tv_nsec).expect("less than a second"),
    )
}

/// Runs `work` and answers the CPU time it took on this thread.
pub fn cpu_of(work: impl FnOnce()) -> Duration {
    let start = thread_cpu();
    work();
    thread_cpu().saturating_sub(start)
}

/// A clock whose reading costs about ten nanoseconds: the time stamp counter where there is one.
#[derive(Clone, Copy, Debug)]
pub struct Ticks {
    ns_per_tick: f64,
}

impl Ticks {
    /// Finds out how long a tick is, in 20 ms.
    pub fn calibrate() -> Self {
        let (start, first) = (Instant::now(), now());
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let ticks = now().saturating_sub(first).max(1);
        Self {
            ns_per_tick: start.elapsed().as_nanos() as f64 / ticks as f64,
        }
    }

    /// Nanoseconds of wall time that `work` takes.
    pub fn time(self, work: impl FnOnce()) -> f64 {
        let start = now();
        work();
        now().saturating_sub(start) as f64 * self.ns_per_tick
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "reading the counter is an intrinsic")]
fn now() -> u64 {
    // SAFETY: it only reads a register that every x86-64 has.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn now() -> u64 {
    use std::sync::OnceLock;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Resident memory of this process in bytes, after the allocator has given back what it can.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "glibc offers no other way to give memory back")]
pub fn resident() -> anyhow::Result<u64> {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
    let status = std::fs::read_to_string("/proc/self/status").context("read the memory in use")?;
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"));
    let kib = line.and_then(|it| it.trim().strip_suffix(" kB"));
    let kib: u64 = kib.context("find VmRSS")?.trim().parse()?;
    Ok(kib * 1024)
}

/// Elsewhere nobody tells.
#[cfg(not(target_os = "linux"))]
pub fn resident() -> anyhow::Result<u64> {
    anyhow::bail!("resident memory is only read on Linux")
}

/// The middle of `values`; of an even number, the lower one.
pub fn median(mut values: Vec<f64>) -> f64 {
    percentile(&mut values, 50)
}

/// The smallest of `values` that at least `percent` of them do not exceed. Sorts them.
pub fn percentile(values: &mut [f64], percent: usize) -> f64 {
    assert!(!values.is_empty(), "nothing was measured");
    values.sort_by(f64::total_cmp);
    let rank = (values.len() * percent).div_ceil(100).max(1);
    values[rank - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_seen() {
        let mut values: Vec<f64> = (1..=200).rev().map(f64::from).collect();

        assert_eq!(percentile(&mut values, 50), 100.0);
        assert_eq!(percentile(&mut values, 99), 198.0);
        assert_eq!(percentile(&mut values, 100), 200.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn work_costs_cpu_time_and_waiting_does_not() {
        let worked = cpu_of(|| {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(30) {}
        });
        let waited = cpu_of(|| std::thread::sleep(Duration::from_millis(30)));

        assert!(Duration::ZERO < worked);
        assert!(waited < Duration::from_millis(30));
    }
}
