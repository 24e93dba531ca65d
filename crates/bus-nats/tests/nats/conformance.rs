//! The bus over NATS keeps the promises of [`bus::Bus`], with each server that there is to test with.

use std::ops::Deref;
use std::path::PathBuf;

use bus_nats::{NatsBus, Settings};

use crate::server::{Server, programs};

struct Held {
    bus: NatsBus,
    server: Server,
}

impl Deref for Held {
    type Target = NatsBus;

    fn deref(&self) -> &NatsBus {
        &self.bus
    }
}

async fn connect(server: Server) -> Held {
    let settings = Settings {
        servers: vec![server.address()],
        ..Settings::default()
    };
    let bus = NatsBus::connect(settings, &bus_conformance::LAYOUT).await;
    Held {
        bus: bus.unwrap(),
        server,
    }
}

async fn open(program: PathBuf) -> Held {
    connect(Server::start(&program).await).await
}

/// Another process, so to speak, over the same server.
async fn reconnect(held: Held) -> Held {
    held.bus.close().await;
    connect(held.server).await
}

/// The same server begun again after it was killed, and another process.
async fn restart(held: Held) -> Held {
    let mut server = held.server;
    held.bus.close().await;
    server.restart().await;
    connect(server).await
}

mod first_server {
    use super::{open, programs, reconnect};

    bus_conformance::suite!(real_time, open(programs().swap_remove(0)));
    bus_conformance::durable_suite!(open(programs().swap_remove(0)), reconnect);
}

mod first_server_killed {
    use super::{open, programs, restart};

    bus_conformance::durable_suite!(open(programs().swap_remove(0)), restart);
}

mod last_server {
    use super::{open, programs, reconnect};

    bus_conformance::suite!(real_time, open(programs().pop().unwrap()));
    bus_conformance::durable_suite!(open(programs().pop().unwrap()), reconnect);
}

mod last_server_killed {
    use super::{open, programs, restart};

    bus_conformance::durable_suite!(open(programs().pop().unwrap()), restart);
}
