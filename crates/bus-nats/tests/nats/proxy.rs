//! Stands between a bus and its server, and breaks connections in the middle of whatever passes.

use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A proxy to one server.
pub(crate) struct Proxy {
    address: SocketAddr,
    cuts: watch::Sender<()>,
    _task: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = watch::Sender::new(());
        let mut task = JoinSet::new();
        task.spawn(serve(listener, port, cuts.subscribe()));
        Self {
            address,
            cuts,
            _task: task,
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Breaks every connection.
    pub(crate) fn cut(&self) {
        self.cuts.send_replace(());
    }
}

async fn serve(listener: TcpListener, port: u16, cuts: watch::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        let (mut inward, _) = listener.accept().await.unwrap();
        let mut cuts = cuts.clone();
        cuts.mark_unchanged();
        connections.spawn(async move {
            let Ok(mut outward) = TcpStream::connect(("127.0.0.1", port)).await else {
                return;
            };
            tokio::select! {
                _ = copy_bidirectional(&mut inward, &mut outward) => {}
                _ = cuts.changed() => {}
            }
        });
    }
}
