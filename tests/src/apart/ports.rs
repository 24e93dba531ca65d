//! Ports that stay those of one world, also while nobody listens on them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::Context as _;

/// Below those that the system hands out by itself: to the other end of some connection, while a process that is
/// to come back is away.
const FIRST: u16 = 14_000;
/// Ports of one world.
const EACH: u16 = 100;
/// Worlds that may have ports at a time.
const WORLDS: u16 = 60;

/// Ports in a row. Its first is held to the end, and with it the others.
pub(super) struct Ports {
    _first: TcpListener,
    left: std::ops::Range<u16>,
}

impl Ports {
    /// Those of a world that nobody else has.
    pub(super) fn take() -> anyhow::Result<Self> {
        let mut all = (0..WORLDS).map(|it| FIRST + it * EACH);
        let taken = all.find_map(|port| Some((listen(port)?, port)));
        let (first, port) = taken.context("find ports that nobody has")?;
        Ok(Self {
            _first: first,
            left: port + 1..port + EACH,
        })
    }

    /// The next on which nobody listens.
    pub(super) fn next(&mut self) -> anyhow::Result<SocketAddr> {
        let free = self.left.find(|port| listen(*port).is_some());
        let port = free.context("no port is left")?;
        Ok((Ipv4Addr::LOCALHOST, port).into())
    }
}

fn listen(port: u16) -> Option<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()
}
