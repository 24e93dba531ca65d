//! Registrations and incarnations of `fleet.proto`.

use std::collections::BTreeMap;

use domain::{
    BlockSize, ByEndpoint, Capability, Distrust, DpRank, Drain, Endpoint, EngineKind, Epoch,
    Fingerprint, FirstRank, HeaderSpace, Incarnation, InstanceId, KvEndpoints, MAX_RANKS,
    ModelName, RankControl, RankEndpoint, ServiceInstance, ServiceKind, TargetState, Timestamp,
    Worker, WorkerId,
};

use super::{Wire, invalid, read_enum, required, wire, wire_enum};
use crate::{DecodeError, FleetEntry};

wire_enum!(EngineKind, EngineKind, {
    Vllm => Vllm,
    Sglang => Sglang,
    TensorRtLlm => TensorrtLlm,
    LlamaCpp => LlamaCpp,
});
wire_enum!(Endpoint, Endpoint, {
    Chat => Chat,
    Completions => Completions,
    Responses => Responses,
    Messages => Messages,
    Embeddings => Embeddings,
});
wire_enum!(RankControl, RankControl, {
    Strict => Strict,
    FirstTurn => FirstTurn,
    None => None,
});
wire_enum!(FirstRank, FirstRank, {
    Unasked => Unasked,
    Unproven => Unproven,
    SaidKept => SaidKept,
    SaidLost => SaidLost,
    ProvedKept => ProvedKept,
    ProvedLost => ProvedLost,
    NoAnswer => NoAnswer,
    NoCachedTokens => NoCachedTokens,
    SharedCache => SharedCache,
});
wire_enum!(HeaderSpace, HeaderSpace, { None => None, Local => Local, Global => Global });
wire_enum!(TargetState, TargetState, {
    Warming => Warming,
    Ready => Ready,
    Suspect => Suspect,
    Partial => Partial,
    Draining => Draining,
    Leaving => Leaving,
    Gone => Gone,
});
wire_enum!(ServiceKind, ServiceKind, {
    EventIngest => EventIngest,
    Indexer => Indexer,
    AffinityStore => AffinityStore,
    Router => Router,
    WorkerAdapter => WorkerAdapter,
});

impl Wire for FleetEntry {
    const WHAT: &'static str = "fleet entry";
    type Message = wire::FleetEntry;

    fn to_wire(&self) -> wire::FleetEntry {
        use wire::fleet_entry::Entry;
        let entry = match self {
            Self::Worker(worker) => Entry::Worker(worker.to_wire()),
            Self::Service(service) => Entry::Service(service.to_wire()),
        };
        wire::FleetEntry { entry: Some(entry) }
    }

    fn from_wire(message: wire::FleetEntry) -> Result<Self, DecodeError> {
        use wire::fleet_entry::Entry;
        Ok(match required::<Self, _>("entry", message.entry)? {
            Entry::Worker(worker) => Self::Worker(Worker::from_wire(worker)?),
            Entry::Service(service) => Self::Service(ServiceInstance::from_wire(service)?),
        })
    }
}

impl Wire for Worker {
    const WHAT: &'static str = "worker";
    type Message = wire::Worker;

    fn to_wire(&self) -> wire::Worker {
        let (zmq, drained) = match &self.kv_endpoints {
            KvEndpoints::None => (Vec::new(), None),
            KvEndpoints::Zmq(ranks) => (ranks.iter().map(endpoint_to_wire).collect(), None),
            KvEndpoints::Drained(url) => (Vec::new(), Some(url.clone())),
        };
        wire::Worker {
            id: self.id.to_string(),
            epoch: self.epoch.get(),
            engine: wire::EngineKind::from(self.engine).into(),
            version: self.version.clone(),
            model: self.model.to_string(),
            start_rank: self.start_rank,
            dp_size: self.dp_size,
            block_size: self.block_size.get(),
            page_size: self.page_size.get(),
            kv_blocks: self.kv_blocks,
            capability: Some(capability_to_wire(self.capability)),
            state: wire::TargetState::from(self.state).into(),
            url: self.url.clone(),
            zmq,
            drained,
            lease_until: self.lease_until.as_micros(),
        }
    }

    fn from_wire(message: wire::Worker) -> Result<Self, DecodeError> {
        let id = WorkerId::new(&message.id);
        let model = ModelName::new(&message.model);
        let block_size = BlockSize::new(message.block_size);
        let page_size = BlockSize::new(message.page_size);
        let ranks: Vec<RankEndpoint> = message.zmq.into_iter().map(endpoint_from_wire).collect();
        let kv_endpoints = match message.drained {
            None if ranks.is_empty() => KvEndpoints::None,
            None => KvEndpoints::Zmq(ranks),
            Some(url) if ranks.is_empty() && !url.is_empty() => KvEndpoints::Drained(url),
            Some(_) => return Err(invalid::<Self>("drained", TwoSources)),
        };
        let capability = required::<Self, _>("capability", message.capability)?;
        if MAX_RANKS < message.dp_size || message.start_rank.checked_add(message.dp_size).is_none()
        {
            return Err(invalid::<Self>("dp_size", TooManyRanks));
        }
        Ok(Self {
            id: id.map_err(|why| invalid::<Self>("id", why))?,
            epoch: Epoch::new(message.epoch),
            engine: read_enum::<Self, wire::EngineKind, _>("engine", message.engine)?,
            version: message.version,
            model: model.map_err(|why| invalid::<Self>("model", why))?,
            start_rank: message.start_rank,
            dp_size: message.dp_size,
            block_size: block_size.map_err(|why| invalid::<Self>("block_size", why))?,
            page_size: page_size.map_err(|why| invalid::<Self>("page_size", why))?,
            kv_blocks: message.kv_blocks,
            capability: capability_from_wire(capability)?,
            state: read_enum::<Self, wire::TargetState, _>("state", message.state)?,
            url: message.url,
            kv_endpoints,
            lease_until: Timestamp::from_micros(message.lease_until),
        })
    }
}

/// Events that are both published and drained would be counted twice; a source without a place is none.
#[derive(Debug, thiserror::Error)]
#[error("is empty, or stands beside publishers")]
struct TwoSources;

/// Whoever reads a registration makes a place for each rank.
#[derive(Debug, thiserror::Error)]
#[error("is more than {MAX_RANKS}, or reaches beyond the last rank there is")]
struct TooManyRanks;

fn endpoint_to_wire(endpoint: &RankEndpoint) -> wire::RankEndpoint {
    wire::RankEndpoint {
        dp_rank: endpoint.dp_rank.get(),
        publish: endpoint.publish.clone(),
        replay: endpoint.replay.clone(),
        topic: endpoint.topic.clone(),
    }
}

fn endpoint_from_wire(message: wire::RankEndpoint) -> RankEndpoint {
    RankEndpoint {
        dp_rank: DpRank::new(message.dp_rank),
        publish: message.publish,
        replay: message.replay,
        topic: message.topic,
    }
}

fn capability_to_wire(capability: Capability) -> wire::Capability {
    let endpoints = Endpoint::ALL.map(|endpoint| wire::EndpointCapability {
        endpoint: wire::Endpoint::from(endpoint).into(),
        rank_control: wire::RankControl::from(*capability.rank_control.get(endpoint)).into(),
        rank_report: *capability.rank_report.get(endpoint),
    });
    wire::Capability {
        header_space: wire::HeaderSpace::from(capability.header_space).into(),
        owns_bindings: capability.owns_bindings,
        first_rank: wire::FirstRank::from(capability.first_rank).into(),
        endpoints: endpoints.into(),
    }
}

fn capability_from_wire(message: wire::Capability) -> Result<Capability, DecodeError> {
    let mut endpoints = BTreeMap::new();
    for it in message.endpoints {
        let endpoint = read_enum::<Worker, wire::Endpoint, Endpoint>("endpoint", it.endpoint)?;
        let control =
            read_enum::<Worker, wire::RankControl, RankControl>("rank_control", it.rank_control)?;
        endpoints.insert(endpoint, (control, it.rank_report));
    }
    // An endpoint that its adapter does not know takes no rank and reports none.
    let known = ByEndpoint::of(|endpoint| {
        let known = endpoints.get(&endpoint).copied();
        known.unwrap_or((RankControl::None, false))
    });
    let space = message.header_space;
    Ok(Capability {
        rank_control: ByEndpoint::of(|endpoint| known.get(endpoint).0),
        header_space: read_enum::<Worker, wire::HeaderSpace, _>("header_space", space)?,
        rank_report: ByEndpoint::of(|endpoint| known.get(endpoint).1),
        owns_bindings: message.owns_bindings,
        first_rank: match message.first_rank {
            // What an adapter says that does not ask.
            0 => FirstRank::Unasked,
            first_rank => read_enum::<Worker, wire::FirstRank, _>("first_rank", first_rank)?,
        },
    })
}

impl Wire for ServiceInstance {
    const WHAT: &'static str = "service";
    type Message = wire::Service;

    fn to_wire(&self) -> wire::Service {
        wire::Service {
            id: self.id.to_string(),
            kind: wire::ServiceKind::from(self.kind).into(),
            address: self.address.clone(),
            share: super::share::to_wire(&self.share),
            ready: self.ready,
            lease_until: self.lease_until.as_micros(),
            distrust: self.distrust.iter().map(distrust_to_wire).collect(),
            secret: self.secret.map(Fingerprint::get),
        }
    }

    fn from_wire(message: wire::Service) -> Result<Self, DecodeError> {
        let id = InstanceId::new(&message.id);
        let distrust = message.distrust.into_iter().map(distrust_from_wire);
        Ok(Self {
            id: id.map_err(|why| invalid::<Self>("id", why))?,
            kind: read_enum::<Self, wire::ServiceKind, _>("kind", message.kind)?,
            address: message.address,
            share: super::share::from_wire(message.share)?,
            ready: message.ready,
            lease_until: Timestamp::from_micros(message.lease_until),
            distrust: distrust.collect::<Result<_, _>>()?,
            secret: message.secret.map(Fingerprint::new),
        })
    }
}

fn distrust_to_wire(distrust: &Distrust) -> wire::Distrust {
    wire::Distrust {
        worker: distrust.worker.to_string(),
        epoch: distrust.epoch.get(),
        endpoint: wire::Endpoint::from(distrust.endpoint).into(),
    }
}

fn distrust_from_wire(message: wire::Distrust) -> Result<Distrust, DecodeError> {
    let worker = WorkerId::new(&message.worker);
    Ok(Distrust {
        worker: worker.map_err(|why| invalid::<ServiceInstance>("worker", why))?,
        epoch: Epoch::new(message.epoch),
        endpoint: read_enum::<ServiceInstance, wire::Endpoint, _>("endpoint", message.endpoint)?,
    })
}

impl Wire for Drain {
    const WHAT: &'static str = "drain";
    type Message = wire::Drain;

    fn to_wire(&self) -> wire::Drain {
        wire::Drain {
            worker: self.worker.to_string(),
            dp_rank: self.dp_rank.map(DpRank::get),
            actor: self.actor.to_string(),
            since: self.since.as_micros(),
            moves: self.moves,
        }
    }

    fn from_wire(message: wire::Drain) -> Result<Self, DecodeError> {
        let worker = WorkerId::new(&message.worker);
        let actor = InstanceId::new(&message.actor);
        Ok(Self {
            worker: worker.map_err(|why| invalid::<Self>("worker", why))?,
            dp_rank: message.dp_rank.map(DpRank::new),
            moves: message.moves,
            actor: actor.map_err(|why| invalid::<Self>("actor", why))?,
            since: Timestamp::from_micros(message.since),
        })
    }
}

impl Wire for Incarnation {
    const WHAT: &'static str = "incarnation";
    type Message = wire::Incarnation;

    fn to_wire(&self) -> wire::Incarnation {
        wire::Incarnation {
            epoch: self.epoch.get(),
            why: self.why.clone(),
            since: self.since.as_micros(),
        }
    }

    fn from_wire(message: wire::Incarnation) -> Result<Self, DecodeError> {
        Ok(Self {
            epoch: Epoch::new(message.epoch),
            why: message.why,
            since: Timestamp::from_micros(message.since),
        })
    }
}
