//! The local bus keeps the promises of [`bus::Bus`].

use std::ops::Deref;

use bus_local::{Limits, LocalBus};
use tempfile::TempDir;

/// Files and memory so small that the suite runs across many of them.
const SMALL: Limits = Limits {
    segment_bytes: 512,
    topic_bytes: 64 * 1024 * 1024,
    ring_bytes: 256,
};

struct Held {
    bus: LocalBus,
    folder: TempDir,
    limits: Limits,
}

impl Deref for Held {
    type Target = LocalBus;

    fn deref(&self) -> &LocalBus {
        &self.bus
    }
}

async fn open(limits: Limits) -> Held {
    open_in(tempfile::tempdir().expect("a folder"), limits).await
}

async fn open_in(folder: TempDir, limits: Limits) -> Held {
    let bus = LocalBus::open_with(folder.path(), &bus_conformance::LAYOUT, limits);
    Held {
        bus: bus.await.expect("open the bus"),
        folder,
        limits,
    }
}

async fn reopen(held: Held) -> Held {
    held.bus.close().await;
    open_in(held.folder, held.limits).await
}

mod with_default_limits {
    use super::{Limits, open, reopen};

    bus_conformance::suite!(real_time, open(Limits::default()));
    bus_conformance::durable_suite!(open(Limits::default()), reopen);
}

mod with_small_files {
    use super::{SMALL, open, reopen};

    bus_conformance::suite!(real_time, open(SMALL));
    bus_conformance::durable_suite!(open(SMALL), reopen);
}
