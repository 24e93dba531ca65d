//! Versions: how one writer changes what many readers look at without a lock.
//!
//! A version is odd while what it guards is being changed. A reader remembers an even version, reads, and
//! believes what it read only if the version is still the same. Everything read is an atomic, so a torn
//! read is a wrong number and nothing worse.

#[cfg(all(loom, test))]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Lets the writer go on.
pub(crate) fn relax() {
    #[cfg(all(loom, test))]
    loom::thread::yield_now();
    #[cfg(not(all(loom, test)))]
    std::hint::spin_loop();
}

/// The writer came in between: read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict;

/// Begins to read what `version` guards.
#[inline]
pub(crate) fn begin_read(version: &AtomicU64) -> Result<u64, Conflict> {
    let seen = version.load(Ordering::Acquire);
    if seen % 2 == 1 {
        return Err(Conflict);
    }
    Ok(seen)
}

/// Orders the reads before it ahead of the [`is_still`] after it.
#[inline]
pub(crate) fn end_read() {
    fence(Ordering::Acquire);
}

/// Whether nothing has been changed since [`begin_read`] answered `seen`. Call [`end_read`] first.
#[inline]
pub(crate) fn is_still(version: &AtomicU64, seen: u64) -> bool {
    version.load(Ordering::Relaxed) == seen
}

/// Begins to change what `version` guards.
#[inline]
pub(crate) fn begin_write(version: &AtomicU64) {
    let seen = version.load(Ordering::Relaxed);
    debug_assert!(seen.is_multiple_of(2), "changes are not nested");
    version.store(seen + 1, Ordering::Relaxed);
    // Whoever sees a change sees the odd version as well.
    fence(Ordering::Release);
}

/// Ends a change.
#[inline]
pub(crate) fn end_write(version: &AtomicU64) {
    let seen = version.load(Ordering::Relaxed);
    debug_assert!(seen % 2 == 1, "a change has begun");
    version.store(seen + 1, Ordering::Release);
}
