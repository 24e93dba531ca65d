//! What a request costs: the time to its first byte, and processor time, asking engines, one process, and services apart
//! in turn.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use service_kit::CancellationToken;
use tokio::time::{Instant, sleep};

use super::quantiles::p50_and_p99;
use super::{Both, Options};
use crate::client::{Ask, Client};
use crate::report::progress;
use crate::steady::{Steady, Tally, Turn};
use crate::world::World;

/// For how long one is measured before the next is.
const SLICE: Duration = Duration::from_secs(3);
/// Left out after each, for what it still has to do.
const REST: Duration = Duration::from_millis(500);

/// What requests cost in one form.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cost {
    pub(super) form: &'static str,
    pub(super) requests: u64,
    pub(super) failed: u64,
    pub(super) ttft_ms_p50: f64,
    pub(super) ttft_ms_p99: f64,
    /// Processor time of a request, in milliseconds, beyond what the processes take at rest.
    pub(super) cpu_ms: f64,
    /// What they take at rest, of one processor.
    pub(super) idle_cpu_share: f64,
}

/// Those of all.
pub(super) struct Costs {
    /// Asking the engines themselves.
    pub(super) direct: Cost,
    pub(super) together: Cost,
    pub(super) apart: Cost,
}

/// What was measured of one form so far.
#[derive(Default)]
struct Measured {
    ttfts: Vec<Duration>,
    tally: Tally,
    cpu: Cpu,
    idle: Cpu,
}

/// Processor time over some time, both in seconds.
#[derive(Clone, Copy, Default)]
struct Cpu {
    used: f64,
    over: f64,
}

/// Measures each form for a while, and again, in turn.
pub(super) async fn measure(both: &Both<'_>, options: &Options) -> anyhow::Result<Costs> {
    let mut measured: [Measured; 3] = Default::default();
    for round in 1..=options.rounds {
        progress(format_args!(
            "cost of requests, round {round} of {}",
            options.rounds
        ));
        let [direct, together, apart] = &mut measured;
        let engines = both.together.engines().to_vec();
        direct.slice((round, 0), None, engines, options).await?;
        let routers = both.together.routers();
        together
            .slice((round, 1), Some(both.together), routers, options)
            .await?;
        let routers = both.apart.routers();
        apart
            .slice((round, 2), Some(both.apart), routers, options)
            .await?;
    }
    let [direct, together, apart] = measured;
    Ok(Costs {
        direct: direct.cost("engine"),
        together: together.cost("one process"),
        apart: apart.cost("apart"),
    })
}

impl Measured {
    /// Conversations at `asked` for a while. `world` has the processes that serve them.
    async fn slice(
        &mut self,
        (round, form): (u32, u64),
        world: Option<&World>,
        asked: Vec<SocketAddr>,
        options: &Options,
    ) -> anyhow::Result<()> {
        let steady = Steady {
            name: "cost".to_owned(),
            at_once: 8,
            turns: 4,
            grows: 256,
            osl: 4,
            pause: Duration::from_millis(150),
            // No prompt comes twice.
            seed: options.seed ^ (u64::from(round) << 32) ^ (form << 48),
        };
        let idle = Cpu::during(world, sleep(SLICE / 3)).await?.0;
        self.idle.add(idle);
        let client = Arc::new(Client::of(asked));
        let ttfts: Arc<Mutex<Vec<Duration>>> = Arc::default();
        let taken = ttfts.clone();
        let ask = move |turn: Turn| {
            let (client, taken) = (client.clone(), taken.clone());
            async move {
                // Names are those of one slice: no two have the same conversation.
                let conversation = format!("{}-{round}-{form}", turn.conversation);
                let ask = Ask {
                    path: "/v1/completions",
                    conversation: Some(&conversation),
                    request_id: &turn.request_id,
                    body: turn.body,
                };
                let answer = client.ask(ask).await?;
                taken
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(answer.ttft);
                Ok(())
            }
        };
        let end = CancellationToken::new();
        let ending = async {
            sleep(SLICE).await;
            end.cancel();
        };
        let running = async {
            let (tally, ()) = tokio::join!(steady.run(ask, end.clone()), ending);
            sleep(REST).await;
            tally
        };
        let (cpu, tally) = Cpu::during(world, running).await?;
        self.cpu.add(cpu);
        self.tally.add(tally?);
        let mut ttfts = ttfts.lock().unwrap_or_else(PoisonError::into_inner);
        self.ttfts.append(&mut ttfts);
        Ok(())
    }

    fn cost(self, form: &'static str) -> Cost {
        self.tally.log();
        let (ttft_ms_p50, ttft_ms_p99) = p50_and_p99(self.ttfts);
        let idle = self.idle.share();
        let beyond = (self.cpu.used - idle * self.cpu.over).max(0.0);
        Cost {
            form,
            requests: self.tally.requests,
            failed: self.tally.failed + self.tally.broken,
            ttft_ms_p50,
            ttft_ms_p99,
            cpu_ms: beyond * 1e3 / (self.tally.requests as f64).max(1.0),
            idle_cpu_share: idle,
        }
    }
}

impl Cpu {
    /// Of all processes of a world while something is done; none where there is no world.
    async fn during<T>(
        world: Option<&World>,
        done: impl Future<Output = T>,
    ) -> anyhow::Result<(Self, T)> {
        let (before, began) = (used(world)?, Instant::now());
        let done = done.await;
        let cpu = Self {
            used: used(world)? - before,
            over: began.elapsed().as_secs_f64(),
        };
        Ok((cpu, done))
    }

    fn add(&mut self, other: Self) {
        self.used += other.used;
        self.over += other.over;
    }

    fn share(self) -> f64 {
        if self.over > 0.0 {
            self.used / self.over
        } else {
            0.0
        }
    }
}

/// Processor time that all processes of a world have used since they were started, in seconds.
fn used(world: Option<&World>) -> anyhow::Result<f64> {
    let apart = world.and_then(World::processes);
    let services = apart.into_iter().flat_map(|it| &it.services);
    services.map(|it| it.daemon.cpu_seconds()).sum()
}
