//! A part of a base, by columns: what the blocks of a chain have in common is said once.

use std::sync::Arc;

use bytes::Bytes;
use domain::{BlockHash, EngineHash, Namespace};
use prefix_index::{Copies, HeldBlock};

use super::stored::{self, EngineNames};
use crate::DecodeError;
use crate::convert::{Wire, invalid};
use crate::index_store::Chunk;

/// What a run of blocks with `held` at `place` begins with.
fn run_of(held: &HeldBlock, place: u32) -> stored::Run {
    let names = match &held.engine_hash {
        EngineHash::Int(_) => EngineNames::Ints,
        EngineHash::Bytes(_) => EngineNames::Digests,
    };
    stored::Run {
        blocks: 1,
        behind: held.parent.map_or(0, |parent| place.saturating_sub(parent)),
        namespace: held.namespace,
        group: held.group,
        engine_names: names.into(),
        gpu: held.copies.gpu,
        host: held.copies.host,
        disk: held.copies.disk,
    }
}

impl Wire for Chunk {
    const WHAT: &'static str = "chunk";
    type Message = stored::Chunk;

    fn to_wire(&self) -> stored::Chunk {
        let mut chunk = stored::Chunk {
            first: self.first,
            namespaces: self.namespaces.iter().map(Wire::to_wire).collect(),
            block_hashes: self.blocks.iter().map(|it| it.block_hash.get()).collect(),
            ..stored::Chunk::default()
        };
        for (held, place) in self.blocks.iter().zip(self.first..) {
            match &held.engine_hash {
                EngineHash::Int(int) => chunk.engine_ints.push(*int),
                EngineHash::Bytes(digest) => {
                    chunk.engine_digests.push(Bytes::copy_from_slice(digest));
                }
            }
            let own = run_of(held, place);
            match chunk.runs.last_mut() {
                Some(run) if own == continued(run) => run.blocks += 1,
                _ => chunk.runs.push(own),
            }
        }
        chunk
    }

    fn from_wire(message: stored::Chunk) -> Result<Self, DecodeError> {
        let namespaces = message.namespaces.into_iter().map(Namespace::from_wire);
        let mut chunk = Self {
            first: message.first,
            namespaces: namespaces.collect::<Result<_, _>>()?,
            blocks: Vec::with_capacity(message.block_hashes.len()),
        };
        let mut hashes = message.block_hashes.into_iter();
        let mut ints = message.engine_ints.into_iter();
        let mut digests = message.engine_digests.into_iter();
        let mut place = chunk.first;
        let short = |field| move || invalid::<Self>(field, "has too few");
        for run in &message.runs {
            let unknown = || invalid::<Self>("engine_names", "is unknown");
            let names = EngineNames::try_from(run.engine_names).map_err(|_| unknown())?;
            let before_all = || invalid::<Self>("behind", "is before the first block");
            let mut parent = match run.behind {
                0 => None,
                behind => Some(place.checked_sub(behind).ok_or_else(before_all)?),
            };
            for _ in 0..run.blocks {
                let block_hash = hashes.next().ok_or_else(short("block_hashes"))?;
                let engine_hash = match names {
                    EngineNames::Ints => {
                        EngineHash::Int(ints.next().ok_or_else(short("engine_ints"))?)
                    }
                    EngineNames::Digests => {
                        let digest = digests.next().ok_or_else(short("engine_digests"))?;
                        EngineHash::Bytes(Arc::from(&digest[..]))
                    }
                    EngineNames::Unspecified => return Err(unknown()),
                };
                chunk.blocks.push(HeldBlock {
                    namespace: run.namespace,
                    parent: parent.replace(place),
                    block_hash: BlockHash::new(block_hash),
                    group: run.group,
                    engine_hash,
                    copies: Copies {
                        gpu: run.gpu,
                        host: run.host,
                        disk: run.disk,
                    },
                });
                let too_many = || invalid::<Self>("first", "is too high");
                place = place.checked_add(1).ok_or_else(too_many)?;
            }
        }
        if hashes.next().is_some() || ints.next().is_some() || digests.next().is_some() {
            return Err(invalid::<Self>("runs", "leave hashes over"));
        }
        Ok(chunk)
    }
}

/// What the next block must be like to be of `run`.
fn continued(run: &stored::Run) -> stored::Run {
    stored::Run {
        blocks: 1,
        behind: 1,
        ..*run
    }
}
