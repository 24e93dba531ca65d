//! A fleet of services that can be killed.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, Expect, Key, MemoryBus};
use bytes::Bytes;
use contracts::grpc::Services;
use contracts::{Encoding, FleetEntry, topics};
use domain::{ServiceInstance, ServiceKind, Share};
use service_kit::{
    CancellationToken, Clock, Context, Fleet, GrpcListener, GrpcSettings, Health, Presence,
};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Nothing in these tests takes this long unless it never happens.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn context() -> Context {
    Context {
        registry: prometheus::Registry::new(),
        health: Health::default(),
        clock: Clock::system(),
    }
}

/// The bus, and what one process knows of the fleet by it.
pub(crate) struct World {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) fleet: Fleet,
    _following: JoinSet<()>,
}

impl World {
    pub(crate) fn new() -> Self {
        let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new(&topics::LAYOUT));
        let context = context();
        let fleet = Fleet::new(context.clock, None);
        let component = context.health.component("fleet");
        let mut following = JoinSet::new();
        following.spawn(fleet.clone().follow(bus.clone(), component));
        Self {
            bus,
            fleet,
            _following: following,
        }
    }

    /// Starts a service as a process of its own, and waits until it is known.
    pub(crate) async fn start(
        &self,
        (id, kind, share): (&str, ServiceKind, Share),
        services: Services,
    ) -> Process {
        let process = Process::start(self.bus.clone(), (id, kind, share), services);
        self.until(kind, |live| {
            live.iter().any(|it| it.id.as_str() == id && it.ready)
        })
        .await;
        process
    }

    /// Waits until the live services of a kind are as they should be.
    pub(crate) async fn until(
        &self,
        kind: ServiceKind,
        fits: impl Fn(&[Arc<ServiceInstance>]) -> bool,
    ) {
        let seen = async {
            while !fits(&self.fleet.live(kind)) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let seen = timeout(PATIENCE, seen).await;
        seen.unwrap_or_else(|_| panic!("the fleet is {:?}", self.fleet.live(kind)));
    }

    /// What stands in the table.
    pub(crate) async fn entry(&self, id: &str) -> Option<ServiceInstance> {
        let entry = self
            .bus
            .get(&topics::FLEET.table, &key(id))
            .await
            .unwrap()?;
        match FleetEntry::from_bytes(&entry.value).unwrap() {
            FleetEntry::Service(service) => Some(service),
            FleetEntry::Worker(_) => None,
        }
    }

    pub(crate) async fn put(&self, service: ServiceInstance) {
        let key = key(service.id.as_str());
        let entry = FleetEntry::Service(service).to_bytes();
        let table = &topics::FLEET.table;
        let put = self.bus.put(table, key, Some(entry), Expect::Any).await;
        put.unwrap();
    }
}

fn key(id: &str) -> Key {
    Key(Bytes::copy_from_slice(id.as_bytes()))
}

/// A service with its listener and its entry in the fleet. When dropped it is killed: its entry stays.
pub(crate) struct Process {
    address: SocketAddr,
    runtime: Option<Runtime>,
    pub(crate) context: Context,
    pub(crate) shutdown: CancellationToken,
}

impl Process {
    fn start(
        bus: Arc<dyn Bus>,
        (id, kind, share): (&str, ServiceKind, Share),
        services: Services,
    ) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.unwrap();
        // The test's own runtime is not to be blocked on another.
        let listener = std::thread::scope(|scope| {
            let bound = || runtime.block_on(GrpcListener::bind(&GrpcSettings::default()));
            scope.spawn(bound).join().unwrap().unwrap()
        });
        let (context, shutdown) = (context(), CancellationToken::new());
        let address = listener.address().to_owned();
        let presence = Presence {
            id: id.parse().unwrap(),
            kind,
            address: address.clone(),
            share,
            secret: None,
        };
        let (serving, ended) = (shutdown.clone(), CancellationToken::new());
        let withdrawn = ended.clone();
        let told = context.clone();
        drop(runtime.spawn(async move {
            presence.keep(bus, told, Vec::new, withdrawn).await;
        }));
        let served = context.clone();
        drop(runtime.spawn(async move {
            listener.serve(services, served, serving).await.unwrap();
            ended.cancel();
        }));
        Self {
            address: address.parse().unwrap(),
            runtime: Some(runtime),
            context,
            shutdown,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        // Until its listener is closed, the kernel goes on to accept.
        while TcpStream::connect(self.address).is_ok() {
            std::thread::yield_now();
        }
    }
}
