//! The flags of one service in a process of its own.

use std::net::SocketAddr;

use clap::{Args, ValueEnum};
use contracts::rpc::Shard;
use domain::{InstanceId, ServiceKind};

use super::SettingsArgs;
use super::values::address;
use crate::failure::Failure;
use crate::settings::Own;

#[derive(Args)]
#[command(after_help = "\
It finds the others over the bus (--bus-url nats://host:port), so all are given the same one.
Settings come from the file, over them RANKWAY_* variables (RANKWAY_BUS__USER is bus.user), over
them these flags. `rankway config show` prints the outcome.")]
pub(crate) struct ServiceArgs {
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
    /// Name of this process among all, which no other may have [default: one made at random]
    #[arg(long, value_name = "NAME", env = "RANKWAY_INSTANCE")]
    instance: Option<InstanceId>,
    /// Address on which other services call this one; not a loopback one only with grpc.tls or
    /// grpc.insecure [default: 127.0.0.1:0, a free port]
    #[arg(long, value_name = "ADDRESS", env = "RANKWAY_GRPC_LISTEN", value_parser = address)]
    grpc_listen: Option<SocketAddr>,
}

#[derive(Args)]
pub(crate) struct IndexerArgs {
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
    /// Which share of the log it follows, such as 0/2 and 1/2 of two [default: 0/1, all of it]
    #[arg(long, value_name = "INDEX/COUNT", env = "RANKWAY_SHARD")]
    shard: Option<Shard>,
}

/// A command that serves.
#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum Serving {
    #[default]
    Up,
    Ingest,
    Indexer,
    Affinity,
    Adapter,
    Router,
}

impl Serving {
    /// The service that it is alone; none where it is all of them.
    pub(crate) const fn alone(self) -> Option<ServiceKind> {
        match self {
            Self::Up => None,
            Self::Ingest => Some(ServiceKind::EventIngest),
            Self::Indexer => Some(ServiceKind::Indexer),
            Self::Affinity => Some(ServiceKind::AffinityStore),
            Self::Adapter => Some(ServiceKind::WorkerAdapter),
            Self::Router => Some(ServiceKind::Router),
        }
    }
}

impl ServiceArgs {
    /// Refuses an address for calls that a service does not take.
    pub(crate) fn takes_no_calls(&self) -> Result<(), Failure> {
        match self.grpc_listen {
            None => Ok(()),
            Some(_) => Err(Failure::wrong_use(
                "a router calls the others and is not called: leave --grpc-listen out; clients reach it at --listen",
            )),
        }
    }

    /// What is said of the process itself.
    pub(crate) fn own(&self) -> Own {
        Own {
            instance: self.instance.clone(),
            grpc_listen: self.grpc_listen,
            shard: None,
        }
    }
}

impl IndexerArgs {
    /// The same of an indexer.
    pub(crate) fn own(&self) -> Own {
        Own {
            shard: self.shard,
            ..self.service.own()
        }
    }
}
