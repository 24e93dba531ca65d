//! The calls of `index.proto`.

use std::num::NonZeroU32;
use std::time::Duration;

use domain::{
    Depths, DpRank, Epoch, Namespace, OverlapGroup, SequenceHash, Target, TargetState, WorkerId,
};
use prefix_index::{Claims, RankSnapshot};

use super::{Wire, invalid, read_enum, required, wire};
use crate::DecodeError;
use crate::index_store::{Chunk, Fence, LogCursors, StoredRank};
use crate::rpc::{
    DumpItem, DumpedRank, LocateRequest, OverlapAnswer, OverlapRequest, PrefixHashes, TargetDigest,
    Unknown,
};

/// As far as 584 years go.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn numbers(hashes: &[SequenceHash]) -> Vec<u64> {
    hashes.iter().map(|it| it.get()).collect()
}

fn hashes(numbers: Vec<u64>) -> Vec<SequenceHash> {
    numbers.into_iter().map(SequenceHash::new).collect()
}

impl Wire for PrefixHashes {
    const WHAT: &'static str = "prefix hashes";
    type Message = wire::PrefixHashes;

    fn to_wire(&self) -> wire::PrefixHashes {
        use wire::prefix_hashes::Form;
        let form = match self {
            Self::Dense(all) => Form::Dense(wire::DenseHashes {
                hashes: numbers(all),
            }),
            Self::Sparse {
                every,
                blocks,
                hashes,
            } => Form::Sparse(wire::SparseHashes {
                every: every.get(),
                blocks: *blocks,
                hashes: numbers(hashes),
            }),
            Self::Window {
                after,
                last,
                hashes,
            } => Form::Window(wire::HashWindow {
                after: after.get(),
                last: last.get(),
                hashes: numbers(hashes),
            }),
        };
        wire::PrefixHashes { form: Some(form) }
    }

    fn from_wire(message: wire::PrefixHashes) -> Result<Self, DecodeError> {
        use wire::prefix_hashes::Form;
        let above_0 = |name, it| NonZeroU32::new(it).ok_or_else(|| invalid::<Self>(name, "is 0"));
        Ok(match required::<Self, _>("form", message.form)? {
            Form::Dense(it) => Self::Dense(hashes(it.hashes)),
            Form::Sparse(it) => Self::Sparse {
                every: above_0("every", it.every)?,
                blocks: it.blocks,
                hashes: hashes(it.hashes),
            },
            Form::Window(it) => Self::Window {
                after: above_0("after", it.after)?,
                last: SequenceHash::new(it.last),
                hashes: hashes(it.hashes),
            },
        })
    }
}

impl Wire for OverlapRequest {
    const WHAT: &'static str = "overlap request";
    type Message = wire::OverlapRequest;

    fn to_wire(&self) -> wire::OverlapRequest {
        wire::OverlapRequest {
            namespace: Some(self.namespace.to_wire()),
            hashes: Some(self.hashes.to_wire()),
            record: self.record,
        }
    }

    fn from_wire(message: wire::OverlapRequest) -> Result<Self, DecodeError> {
        let namespace = required::<Self, _>("namespace", message.namespace)?;
        let hashes = required::<Self, _>("hashes", message.hashes)?;
        Ok(Self {
            namespace: Namespace::from_wire(namespace)?,
            hashes: PrefixHashes::from_wire(hashes)?,
            record: message.record,
        })
    }
}

impl Wire for OverlapAnswer {
    const WHAT: &'static str = "overlap answer";
    type Message = wire::OverlapAnswer;

    fn to_wire(&self) -> wire::OverlapAnswer {
        let not_ready = |(target, state): &(Target, TargetState)| wire::NotReady {
            target: Some(target.to_wire()),
            state: wire::TargetState::from(*state).into(),
        };
        wire::OverlapAnswer {
            groups: self.groups.iter().map(Wire::to_wire).collect(),
            ceiling: self.ceiling,
            stored: self.stored,
            not_ready: self.not_ready.iter().map(not_ready).collect(),
            unknown: self.unknown.partitions().collect(),
            index_age_nanos: nanos(self.index_age),
        }
    }

    fn from_wire(message: wire::OverlapAnswer) -> Result<Self, DecodeError> {
        let groups = message.groups.into_iter().map(OverlapGroup::from_wire);
        let not_ready = |it: wire::NotReady| {
            let target = Target::from_wire(required::<Self, _>("target", it.target)?)?;
            let state = read_enum::<Self, wire::TargetState, _>("state", it.state)?;
            Ok((target, state))
        };
        let not_ready = message.not_ready.into_iter().map(not_ready);
        let unknown = Unknown::of(message.unknown).map_err(|partition| {
            invalid::<Self>("unknown", format!("names no partition: {partition}"))
        })?;
        Ok(Self {
            groups: groups.collect::<Result<_, _>>()?,
            ceiling: message.ceiling,
            stored: message.stored,
            not_ready: not_ready.collect::<Result<_, DecodeError>>()?,
            unknown,
            index_age: Duration::from_nanos(message.index_age_nanos),
        })
    }
}

impl Wire for OverlapGroup {
    const WHAT: &'static str = "overlap group";
    type Message = wire::OverlapGroup;

    fn to_wire(&self) -> wire::OverlapGroup {
        wire::OverlapGroup {
            targets: self.targets.iter().map(Wire::to_wire).collect(),
            gpu: self.depths.gpu,
            host: self.depths.host,
            disk: self.depths.disk,
        }
    }

    fn from_wire(message: wire::OverlapGroup) -> Result<Self, DecodeError> {
        let wire::OverlapGroup {
            targets,
            gpu,
            host,
            disk,
        } = message;
        if host < gpu || disk < host {
            let why = format!("is {gpu} in gpu, {host} to host and {disk} to disk memory");
            return Err(invalid::<Self>("depth", why));
        }
        let targets = targets.into_iter().map(Target::from_wire);
        Ok(Self {
            targets: targets.collect::<Result<_, _>>()?,
            depths: Depths { gpu, host, disk },
        })
    }
}

impl Wire for LocateRequest {
    const WHAT: &'static str = "locate request";
    type Message = wire::LocateRequest;

    fn to_wire(&self) -> wire::LocateRequest {
        wire::LocateRequest {
            namespace: Some(self.namespace.to_wire()),
            worker: self.worker.to_string(),
            epoch: self.epoch.get(),
            hashes: Some(self.hashes.to_wire()),
            wait_nanos: nanos(self.deadline),
        }
    }

    fn from_wire(message: wire::LocateRequest) -> Result<Self, DecodeError> {
        let namespace = required::<Self, _>("namespace", message.namespace)?;
        let worker = WorkerId::new(&message.worker);
        let hashes = required::<Self, _>("hashes", message.hashes)?;
        Ok(Self {
            namespace: Namespace::from_wire(namespace)?,
            worker: worker.map_err(|why| invalid::<Self>("worker", why))?,
            epoch: Epoch::new(message.epoch),
            hashes: PrefixHashes::from_wire(hashes)?,
            deadline: Duration::from_nanos(message.wait_nanos),
        })
    }
}

/// The ranks that hold a prefix.
impl Wire for Vec<DpRank> {
    const WHAT: &'static str = "located ranks";
    type Message = wire::LocateAnswer;

    fn to_wire(&self) -> wire::LocateAnswer {
        wire::LocateAnswer {
            dp_ranks: self.iter().map(|it| it.get()).collect(),
        }
    }

    fn from_wire(message: wire::LocateAnswer) -> Result<Self, DecodeError> {
        Ok(message.dp_ranks.into_iter().map(DpRank::new).collect())
    }
}

impl Wire for TargetDigest {
    const WHAT: &'static str = "target digest";
    type Message = wire::TargetDigest;

    fn to_wire(&self) -> wire::TargetDigest {
        wire::TargetDigest {
            target: Some(self.target.to_wire()),
            blocks: self.blocks,
            digest: self.digest,
            state: wire::TargetState::from(self.state).into(),
        }
    }

    fn from_wire(message: wire::TargetDigest) -> Result<Self, DecodeError> {
        Ok(Self {
            target: Target::from_wire(required::<Self, _>("target", message.target)?)?,
            blocks: message.blocks,
            digest: message.digest,
            state: read_enum::<Self, wire::TargetState, _>("state", message.state)?,
        })
    }
}

impl Wire for DumpItem {
    const WHAT: &'static str = "dump item";
    type Message = wire::DumpItem;

    fn to_wire(&self) -> wire::DumpItem {
        use wire::dump_item::{Begin, Blocks, End, Item};
        let item = match self {
            Self::Begin { cursors, fences } => Item::Begin(Begin {
                cursors: Some(cursors.to_wire()),
                fences: fences.iter().map(Wire::to_wire).collect(),
            }),
            Self::Rank(rank) => Item::Rank(stored(rank.clone()).to_wire()),
            Self::Blocks(snapshot) => Item::Blocks(Blocks {
                claims: Some(snapshot.claims.to_wire()),
                blocks: Some(chunk(snapshot).to_wire()),
            }),
            Self::End => Item::End(End {}),
        };
        wire::DumpItem { item: Some(item) }
    }

    fn from_wire(message: wire::DumpItem) -> Result<Self, DecodeError> {
        use wire::dump_item::Item;
        Ok(match required::<Self, _>("item", message.item)? {
            Item::Begin(it) => {
                let fences = it.fences.into_iter().map(Fence::from_wire);
                Self::Begin {
                    cursors: LogCursors::from_wire(required::<Self, _>("cursors", it.cursors)?)?,
                    fences: fences.collect::<Result<_, _>>()?,
                }
            }
            Item::Rank(it) => {
                let rank = StoredRank::from_wire(it)?;
                Self::Rank(DumpedRank {
                    target: rank.target,
                    cursor: rank.cursor,
                    awaiting: rank.awaiting,
                    claims: rank.claims,
                })
            }
            Item::Blocks(it) => {
                let chunk = Chunk::from_wire(required::<Self, _>("blocks", it.blocks)?)?;
                if chunk.first != 0 {
                    return Err(invalid::<Self>("blocks", "are not by themselves"));
                }
                Self::Blocks(RankSnapshot {
                    claims: Claims::from_wire(required::<Self, _>("claims", it.claims)?)?,
                    namespaces: chunk.namespaces,
                    blocks: chunk.blocks,
                })
            }
            Item::End(_) => Self::End,
        })
    }
}

fn stored(rank: DumpedRank) -> StoredRank {
    StoredRank {
        target: rank.target,
        cursor: rank.cursor,
        awaiting: rank.awaiting,
        claims: rank.claims,
    }
}

/// The blocks as a store keeps them.
fn chunk(snapshot: &RankSnapshot) -> Chunk {
    Chunk {
        first: 0,
        namespaces: snapshot.namespaces.clone(),
        blocks: snapshot.blocks.clone(),
    }
}
