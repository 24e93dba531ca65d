//! A rank's base: all that it held at one moment, in a file of chunks.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use contracts::Encoding;
use contracts::index_store::{Base, Chunk, StoredRank};
use domain::Namespace;
use prefix_index::{HeldBlock, PrefixIndex, RankSnapshot};

use super::files::{self, Records, damaged};
use super::{RankNumber, StoreError};

/// Blocks in one chunk: 64 KiB, large enough that what is said once a chunk weighs nothing.
const CHUNK_BLOCKS: usize = 4096;

/// Writes what `rank` held after all frames before `first_frame`, and returns when the disk has it. It counts
/// once it is committed.
pub(crate) fn write(
    folder: &Path,
    number: RankNumber,
    mut base: Base,
    snapshot: &RankSnapshot,
) -> Result<Base, StoreError> {
    let path = files::base(folder, number.0, base.generation);
    let file = File::create(&path).map_err(StoreError::io("create", &path))?;
    let mut file = BufWriter::new(file);
    let mut first = 0;
    base.bytes = 0;
    for blocks in snapshot.blocks.chunks(CHUNK_BLOCKS) {
        let chunk = chunk(first, &snapshot.namespaces, blocks);
        let appended = files::append(&mut file, &chunk.to_bytes());
        base.bytes += appended.map_err(StoreError::io("append to", &path))?;
        first += blocks.len() as u32;
    }
    file.flush().map_err(StoreError::io("append to", &path))?;
    let synced = file.get_ref().sync_data();
    synced.map_err(StoreError::io("sync", &path))?;
    Ok(base)
}

/// `blocks`, with the namespaces that they need.
fn chunk(first: u32, namespaces: &[Namespace], blocks: &[HeldBlock]) -> Chunk {
    let mut chunk = Chunk {
        first,
        ..Chunk::default()
    };
    let mut places = HashMap::new();
    for held in blocks {
        let place = *places.entry(held.namespace).or_insert_with(|| {
            let name = &namespaces[held.namespace as usize];
            chunk.namespaces.push(name.clone());
            chunk.namespaces.len() as u32 - 1
        });
        chunk.blocks.push(HeldBlock {
            namespace: place,
            ..held.clone()
        });
    }
    chunk
}

/// Puts what a base holds into `index`.
pub(super) fn read(
    folder: &Path,
    number: RankNumber,
    base: &Base,
    index: &mut PrefixIndex,
) -> Result<(), StoreError> {
    let path = files::base(folder, number.0, base.generation);
    let StoredRank { target, claims, .. } = &base.rank;
    let mut snapshot = RankSnapshot {
        claims: *claims,
        namespaces: Vec::new(),
        blocks: Vec::new(),
    };
    let mut places: HashMap<Namespace, u32> = HashMap::new();
    let mut records = Records::open(&path, Some(base.bytes))?;
    while let Some(record) = records.next()? {
        let chunk = Chunk::from_bytes(&record)?;
        if chunk.first as usize != snapshot.blocks.len() {
            return Err(damaged(&path, "has its chunks in disorder"));
        }
        let place = |name: Namespace| {
            *places.entry(name).or_insert_with_key(|name| {
                snapshot.namespaces.push(name.clone());
                snapshot.namespaces.len() as u32 - 1
            })
        };
        let own: Vec<u32> = chunk.namespaces.into_iter().map(place).collect();
        for held in chunk.blocks {
            let namespace = own.get(held.namespace as usize);
            let unlisted = || damaged(&path, "has a block of no namespace");
            let namespace = *namespace.ok_or_else(unlisted)?;
            snapshot.blocks.push(HeldBlock { namespace, ..held });
        }
    }
    let restored = index.restore(target, &snapshot);
    restored.map_err(|why| StoreError::Damaged(why.to_string()))
}
