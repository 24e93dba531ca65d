//! How each service is composed: one function for all in one process and for each in its own.

use std::path::PathBuf;
use std::sync::Arc;

use affinity_store::AffinityStore;
use bus::Bus;
use contracts::rpc::{Affinity, Dispatch, Feed, Index, Shard};
use domain::InstanceId;
use event_ingest::EventIngest;
use indexer::Indexer;
use router_api::{RouterApi, SaltSecret};
use service_kit::Context;
use worker_adapter::WorkerAdapter;

/// What every service is given.
#[derive(Clone)]
pub struct Given {
    /// The folder in which each service has its own.
    pub data_dir: PathBuf,
    /// What is asynchronous goes over it.
    pub bus: Arc<dyn Bus>,
    /// Metrics, health and clock.
    pub context: Context,
}

/// Whom a router asks.
#[derive(Clone)]
pub struct Peers {
    /// What each rank holds.
    pub index: Arc<dyn Index>,
    /// Bindings.
    pub affinity: Arc<dyn Affinity>,
    /// The way to the engines.
    pub dispatch: Arc<dyn Dispatch>,
}

/// Turns engines' events into the log.
pub fn ingest(given: &Given) -> anyhow::Result<EventIngest> {
    let config = event_ingest::Config {
        data_dir: given.data_dir.join("ingest"),
        ..event_ingest::Config::default()
    };
    let Given { bus, context, .. } = given.clone();
    Ok(EventIngest::new(config, bus, context)?)
}

/// Keeps who holds which prefix, of what `shard` follows; asks `feed` for events once more.
pub fn indexer(given: &Given, shard: Shard, feed: Arc<dyn Feed>) -> anyhow::Result<Indexer> {
    let config = indexer::Config {
        data_dir: given.data_dir.join("index"),
        shard,
        ..indexer::Config::default()
    };
    let Given { bus, context, .. } = given.clone();
    Ok(Indexer::new(config, bus, feed, context)?)
}

/// Owns bindings. Their keys are hashed under `secret`, else under one that is made and kept in the folder.
pub fn affinity(given: &Given, secret: Option<String>) -> anyhow::Result<AffinityStore> {
    let config = affinity_store::Config {
        secret: secret.map(affinity_store::Secret::new),
        data_dir: given.data_dir.join("affinity"),
        ..affinity_store::Config::default()
    };
    let Given { bus, context, .. } = given.clone();
    Ok(AffinityStore::new(config, bus, context)?)
}

/// Speaks to engines.
pub fn adapter(given: &Given, config: worker_adapter::Config) -> anyhow::Result<WorkerAdapter> {
    let Given { bus, context, .. } = given.clone();
    Ok(WorkerAdapter::new(config, bus, context)?)
}

/// Decides, and serves clients. Salts of tenants are made under the secret of `config`, else under one that is made and
/// kept in the folder.
pub async fn router(
    given: &Given,
    mut config: router_api::Config,
    peers: Peers,
    instance: InstanceId,
) -> anyhow::Result<RouterApi> {
    let Given { bus, context, .. } = given.clone();
    let Peers {
        index,
        affinity,
        dispatch,
    } = peers;
    if !config.tenants.is_empty() && config.salt_secret.is_none() {
        let kept = service_kit::kept_secret(&given.data_dir.join("router"), "salt-key")?;
        config.salt_secret = Some(SaltSecret::new(kept));
    }
    let bound = RouterApi::bind(config, bus, index, affinity, dispatch, context, instance);
    Ok(bound.await?)
}
