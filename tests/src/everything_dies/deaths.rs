//! Who dies when: everything once, in an order that a seed gives.

use std::time::Duration;

use fleet_sim::Random;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::Options;
use super::timeline::Event;
use crate::apart::{Apart, Service};

/// The shares of the time in which everything dies: before it conversations begin, after it the last one comes back.
const FIRST: f64 = 0.08;
const LAST: f64 = 0.88;
/// How long the dead stay away, in seconds.
const AWAY: (f64, f64) = (1.0, 3.0);
/// How often it is looked whether the others of its kind are back, before one dies.
const POLL: Duration = Duration::from_millis(50);

/// The deaths of all, in their order.
pub(super) struct Deaths {
    deaths: Vec<Death>,
    /// Whether they are none, but a while in which nothing is done.
    freeze: bool,
}

struct Death {
    /// Its place among the services.
    number: usize,
    /// Since the beginning.
    at: Duration,
    away: Duration,
}

impl Deaths {
    pub(super) fn draw(options: &Options, apart: &Apart) -> Self {
        let mut random = Random::new(options.seed);
        let mut order: Vec<usize> = (0..apart.services.len()).collect();
        for left in (1..order.len()).rev() {
            // Fisher and Yates.
            let other = random.next_u64() % (left as u64 + 1);
            order.swap(left, other as usize);
        }
        let each = (LAST - FIRST) / order.len() as f64;
        let deaths = order.into_iter().enumerate().map(|(turn, number)| {
            let share = FIRST + each * (turn as f64 + random.unit());
            let (least, most) = AWAY;
            Death {
                number,
                at: options.duration().mul_f64(share),
                away: Duration::from_secs_f64(least + (most - least) * random.unit()),
            }
        });
        Self {
            deaths: deaths.collect(),
            freeze: options.freeze,
        }
    }

    /// Lets them happen. One whose kind has not come back from its own death yet is waited for: two of one kind at a
    /// time are more than a deployment of two survives.
    pub(super) async fn run(
        self,
        services: &mut [Service],
        began: Instant,
        events: mpsc::UnboundedSender<(Instant, Event)>,
    ) -> anyhow::Result<()> {
        let tell = |event| {
            // The observer outlives everybody's death.
            let _ = events.send((Instant::now(), event));
        };
        for death in self.deaths {
            sleep_until(began + death.at).await;
            let kind = services[death.number].kind;
            for other in services.iter().filter(|it| it.kind == kind) {
                while !other.is_ready().await {
                    sleep(POLL).await;
                }
            }
            let service = &mut services[death.number];
            let name = service.name().to_owned();
            match self.freeze {
                true => {
                    service.daemon.freeze().await?;
                    tell(Event::Frozen(name.clone()));
                    sleep(death.away).await;
                    service.daemon.resume().await?;
                }
                false => {
                    service.daemon.kill().await?;
                    tell(Event::Killed(name.clone()));
                    sleep(death.away).await;
                    service.daemon.start()?;
                }
            }
            tell(Event::Back(name));
        }
        Ok(())
    }
}
