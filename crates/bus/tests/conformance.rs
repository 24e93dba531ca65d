//! The in-memory bus keeps the promises of [`bus::Bus`].

bus_conformance::suite!(paused_time, async {
    Box::new(bus::MemoryBus::new(&bus_conformance::LAYOUT))
});
