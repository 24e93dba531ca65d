//! Every topic and table, in one place.

use std::time::Duration;

use bus::{Layout, LogKind, Partition, Table, TableKind, TableSpec, TopicSpec};
use domain::{DecisionId, DpRank, WorkerId};
use xxhash_rust::xxh3::xxh3_64;

const PARTITIONS: u32 = 16;
const HOUR: Duration = Duration::from_secs(3600);

/// KV-cache events; key `worker/dp_rank`, payload [`domain::KvBatch`].
pub const KV_EVENTS: TopicSpec = TopicSpec {
    name: "kv-events",
    partitions: PARTITIONS,
    kind: LogKind::Durable {
        retention: HOUR.saturating_mul(2),
    },
};
/// Engines' gauges; key worker, payload [`crate::LoadReport`].
pub const LOAD: TopicSpec = TopicSpec {
    name: "load",
    partitions: PARTITIONS,
    kind: LogKind::Ephemeral,
};
/// Prefill work just sent; key router instance, payload [`crate::ReservationBatch`].
pub const RESERVATIONS: TopicSpec = TopicSpec {
    name: "reservations",
    partitions: PARTITIONS,
    kind: LogKind::Ephemeral,
};
/// What routers decided; key the conversation's hash, payload [`crate::DecisionRecord`].
pub const DECISIONS: TopicSpec = TopicSpec {
    name: "decisions",
    partitions: PARTITIONS,
    kind: LogKind::Durable {
        retention: HOUR.saturating_mul(24),
    },
};
/// What came of it; key as of the decision, payload [`crate::OutcomeRecord`].
pub const OUTCOMES: TopicSpec = TopicSpec {
    name: "outcomes",
    partitions: PARTITIONS,
    kind: LogKind::Durable {
        retention: HOUR.saturating_mul(24),
    },
};

/// Incarnations of workers; key worker, payload [`domain::Incarnation`].
pub const INCARNATIONS: TableSpec = TableSpec {
    table: Table("incarnations"),
    kind: TableKind::Cas,
};
/// Registrations; key worker or instance, payload [`crate::FleetEntry`].
pub const FLEET: TableSpec = TableSpec {
    table: Table("fleet"),
    kind: TableKind::Own,
};
/// Bindings; key the keyed hash of the conversation, payload [`affinity::Binding`].
pub const BINDINGS: TableSpec = TableSpec {
    table: Table("bindings"),
    kind: TableKind::Cas,
};

/// Workers and ranks that operators drain, until they undo it, whoever restarts meanwhile; key worker or
/// `worker/dp_rank`, payload [`domain::Drain`]. A table of its own: the entries of `fleet` are leases, each of the
/// process that it describes, and no process should have to remember what an operator wants of it.
pub const DRAINS: TableSpec = TableSpec {
    table: Table("drains"),
    kind: TableKind::Own,
};

/// What a bus must have before a service starts.
pub const LAYOUT: Layout = Layout {
    topics: &[KV_EVENTS, LOAD, RESERVATIONS, DECISIONS, OUTCOMES],
    tables: &[INCARNATIONS, FLEET, BINDINGS, DRAINS],
};

/// The partition that carries the events of one rank.
pub fn kv_events_of(worker: &WorkerId, dp_rank: DpRank) -> Partition {
    KV_EVENTS.partition_of(&format!("{worker}/{dp_rank}"))
}

/// The partition of `topic` that carries one conversation's decisions or outcomes. The key is 16 hexadecimal digits of the
/// conversation's hash, so that its id is not where anybody may read it; of a request without a conversation they are of
/// its decision's.
pub fn of_conversation(topic: &TopicSpec, conversation: Option<u64>, id: DecisionId) -> Partition {
    let without = || xxh3_64(&id.get().to_be_bytes());
    topic.partition_of(&format!("{:016x}", conversation.unwrap_or_else(without)))
}
