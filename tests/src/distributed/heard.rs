//! How soon all replicas know of a binding, and of a reservation, beside a bare round trip to the same server. Replicas
//! are connections of this process that watch as routers do.

use std::sync::Arc;
use std::time::Duration;

use affinity::Binding;
use anyhow::{Context as _, ensure};
use bus::{Bus, Change, Start};
use contracts::{Encoding as _, ReservationBatch, topics};
use domain::ReservationChange;
use futures::{StreamExt as _, TryStreamExt as _};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::Options;
use super::quantiles::p50_and_p99;
use crate::client::{Ask, Client};
use crate::report::progress;
use crate::steady::{Steady, Turn};
use crate::world::World;

/// How many watch.
const REPLICAS: usize = 3;
/// Conversations begun, one after another.
const CONVERSATIONS: u64 = 400;
/// Replicas that know nothing after so long have missed it.
const PATIENCE: Duration = Duration::from_secs(2);

/// How soon they knew.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Heard {
    pub(super) bindings: usize,
    /// From sending the first turn of a conversation until the last replica had its binding.
    pub(super) binding_ms_p50: f64,
    pub(super) binding_ms_p99: f64,
    /// From sending a request until the last replica had its reservation.
    pub(super) reservation_ms_p50: f64,
    pub(super) reservation_ms_p99: f64,
    /// Of a PING and its PONG.
    pub(super) bare_round_trip_ms_p50: f64,
    pub(super) bare_round_trip_ms_p99: f64,
    /// Of all processors, by whatever runs on the machine.
    pub(super) machine_cpu_share: f64,
    /// Requests that failed, and bindings or reservations of which a replica did not hear.
    #[serde(skip)]
    pub(super) failed: u64,
}

/// What a replica has heard.
#[derive(Debug)]
struct Word {
    replica: usize,
    at: Instant,
    of: Of,
}

#[derive(Debug)]
enum Of {
    /// The binding of the conversation.
    Binding(String),
    Reservation,
}

/// By replica, when it first heard of something.
type First = [Option<Instant>; REPLICAS];

/// Begins conversations one after another.
pub(super) async fn measure(world: &World, options: &Options) -> anyhow::Result<Heard> {
    progress(format_args!("how soon replicas know"));
    let apart = world.processes().context("services are not apart")?;
    let folder = tempfile::tempdir().context("make a temporary folder")?;
    let mut replicas = Vec::new();
    let mut watching = JoinSet::new();
    // One conversation is under way at a time.
    let (told, mut words) = mpsc::channel(1_024);
    for replica in 0..REPLICAS {
        let name = format!("replica-{replica}");
        let bus = apart.connect(folder.path(), &name).await?;
        watch(replica, &bus.bus(), &told, &mut watching).await?;
        replicas.push(bus);
    }
    let mut heard = Times::default();
    let mut bare = Bare::connect(apart.bus_url()).await?;
    let busy = Busy::now()?;
    let client = Client::of(world.routers());
    for number in 0..CONVERSATIONS {
        // So that what happens every so often does not do so in step with this.
        sleep(Duration::from_millis(5 + number * 7 % 23)).await;
        heard.bare.push(bare.round_trip().await?);
        while words.try_recv().is_ok() {}
        heard.converse(number, &client, &mut words, options).await;
    }
    let machine_cpu_share = Busy::now()?.since(&busy);
    watching.shutdown().await;
    for bus in replicas {
        bus.close().await;
    }
    let bindings = heard.bindings.len();
    let (binding_ms_p50, binding_ms_p99) = p50_and_p99(heard.bindings);
    let (reservation_ms_p50, reservation_ms_p99) = p50_and_p99(heard.reservations);
    let (bare_round_trip_ms_p50, bare_round_trip_ms_p99) = p50_and_p99(heard.bare);
    Ok(Heard {
        bindings,
        binding_ms_p50,
        binding_ms_p99,
        reservation_ms_p50,
        reservation_ms_p99,
        bare_round_trip_ms_p50,
        bare_round_trip_ms_p99,
        machine_cpu_share,
        failed: heard.failed,
    })
}

/// Has a replica tell of every binding and reservation.
async fn watch(
    replica: usize,
    bus: &Arc<dyn Bus>,
    told: &mpsc::Sender<Word>,
    watching: &mut JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let mut changes = bus.watch(&topics::BINDINGS.table).await?;
    let tell = told.clone();
    watching.spawn(async move {
        while let Some(change) = changes.try_next().await? {
            if let Change::Put(_, entry) = change {
                let binding = Binding::from_bytes(&entry.value)?;
                let name = binding.key.conversation.as_str().to_owned();
                tell.send(Word::of(replica, Of::Binding(name))).await?;
            }
        }
        Ok(())
    });
    let mut partitions = Vec::new();
    for partition in topics::RESERVATIONS.all_partitions() {
        let start = match bus.tail(&partition).await?.last {
            Some(last) => Start::After(last),
            None => Start::Earliest,
        };
        partitions.push(bus.read(&partition, start).await?);
    }
    let mut records = futures::stream::select_all(partitions);
    let tell = told.clone();
    watching.spawn(async move {
        while let Some(delivered) = records.next().await {
            let batch = ReservationBatch::from_bytes(&delivered?.record.0)?;
            let reserves = |it: &ReservationChange| matches!(it, ReservationChange::Reserve { .. });
            if batch.changes.iter().any(reserves) {
                tell.send(Word::of(replica, Of::Reservation)).await?;
            }
        }
        Ok(())
    });
    Ok(())
}

#[derive(Default)]
struct Times {
    bindings: Vec<Duration>,
    reservations: Vec<Duration>,
    bare: Vec<Duration>,
    failed: u64,
}

impl Times {
    /// The first turn of a conversation, until all replicas know of it.
    async fn converse(
        &mut self,
        number: u64,
        client: &Client,
        words: &mut mpsc::Receiver<Word>,
        options: &Options,
    ) {
        let steady = Steady {
            name: "heard".to_owned(),
            at_once: 1,
            turns: 1,
            grows: 256,
            osl: 2,
            pause: Duration::ZERO,
            seed: options.seed,
        };
        let Turn {
            conversation,
            request_id,
            body,
        } = steady.first_turn(number);
        let ask = Ask {
            path: "/v1/completions",
            conversation: Some(&conversation),
            request_id: &request_id,
            body,
        };
        let sent = Instant::now();
        let (answer, known) = tokio::join!(client.ask(ask), known(&conversation, words, sent));
        if let Err(error) = answer {
            tracing::error!(%error, "a request failed");
            self.failed += 1;
        }
        match known {
            Some((binding, reservation)) => {
                self.bindings.push(binding);
                self.reservations.push(reservation);
            }
            None => {
                tracing::error!(conversation, "a replica did not hear of it");
                self.failed += 1;
            }
        }
    }
}

/// How long it took until all replicas knew of the binding, and of a reservation.
async fn known(
    conversation: &str,
    words: &mut mpsc::Receiver<Word>,
    sent: Instant,
) -> Option<(Duration, Duration)> {
    let (mut binding, mut reservation) = (First::default(), First::default());
    loop {
        let word = timeout_at(sent + PATIENCE, words.recv()).await.ok()??;
        match word.of {
            Of::Binding(name) if name == conversation => {
                binding[word.replica].get_or_insert(word.at);
            }
            Of::Binding(_) => {}
            Of::Reservation => {
                reservation[word.replica].get_or_insert(word.at);
            }
        }
        let last = |it: &First| {
            it.iter()
                .copied()
                .collect::<Option<Vec<_>>>()?
                .into_iter()
                .max()
        };
        if let (Some(binding), Some(reservation)) = (last(&binding), last(&reservation)) {
            return Some((binding - sent, reservation - sent));
        }
    }
}

impl Word {
    fn of(replica: usize, of: Of) -> Self {
        let at = Instant::now();
        Self { replica, at, of }
    }
}

/// A connection to NATS that does nothing.
struct Bare(BufReader<TcpStream>);

impl Bare {
    async fn connect(url: &str) -> anyhow::Result<Self> {
        let address = url.strip_prefix("nats://").context("no address of NATS")?;
        let stream = TcpStream::connect(address)
            .await
            .context("connect to NATS")?;
        stream.set_nodelay(true)?;
        let mut bare = Self(BufReader::new(stream));
        ensure!(bare.line().await?.starts_with("INFO "), "this is no NATS");
        let connect = b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\n";
        bare.0.get_mut().write_all(connect).await?;
        Ok(bare)
    }

    async fn round_trip(&mut self) -> anyhow::Result<Duration> {
        let sent = Instant::now();
        self.0.get_mut().write_all(b"PING\r\n").await?;
        loop {
            match self.line().await?.trim_end() {
                "PONG" => return Ok(sent.elapsed()),
                // It asks the same now and then.
                "PING" => self.0.get_mut().write_all(b"PONG\r\n").await?,
                _ => {}
            }
        }
    }

    async fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        let read = self.0.read_line(&mut line).await?;
        ensure!(0 < read, "NATS has closed the connection");
        Ok(line)
    }
}

/// What the processors of the machine have done since it was started, in ticks.
struct Busy {
    busy: u64,
    all: u64,
}

impl Busy {
    fn now() -> anyhow::Result<Self> {
        let stat = std::fs::read_to_string("/proc/stat").context("read /proc/stat")?;
        Self::of(&stat).context("understand /proc/stat")
    }

    /// Of its first line: `cpu user nice system idle iowait irq softirq steal ...`.
    fn of(stat: &str) -> Option<Self> {
        let times = stat.lines().next()?.strip_prefix("cpu ")?;
        let times: Result<Vec<u64>, _> = times.split_whitespace().take(8).map(str::parse).collect();
        let times = times.ok().filter(|it| it.len() == 8)?;
        let all: u64 = times.iter().sum();
        let idle = times[3] + times[4];
        Some(Self {
            busy: all - idle,
            all,
        })
    }

    fn since(&self, before: &Self) -> f64 {
        let all = self.all - before.all;
        if all == 0 {
            return 0.0;
        }
        (self.busy - before.busy) as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::Busy;

    #[test]
    fn what_processors_do_is_read() {
        let before = Busy::of("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1\n").unwrap();
        let after = Busy::of("cpu  130 0 80 820 70 0 0 0 0 0\n").unwrap();
        assert!((after.since(&before) - 0.6).abs() < 1e-9);
        assert!(before.since(&before).abs() < 1e-9);
        assert!(Busy::of("cpu 1 2\n").is_none());
    }
}
