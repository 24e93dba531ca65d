//! The pages of each rank as the store of positions keeps them, in the same batch as the position they are of.
//!
//! A rank has one entry that says which generation of its pages counts, and one for each page. Clearing begins
//! another generation, so that it takes one write however many pages there are; what is left of the one before is
//! swept afterwards.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use domain::{BlockHash, Tier};

use crate::pages::{Changes, Extra, Geometry, Kept, PageName, Record, Tiers, Told};
use crate::positions::RankKey;

/// Every key of a page begins with it, and no position's does: those begin with a worker's name.
const PAGES: u8 = 0;
/// Then come the length and the name of the worker, the rank, and one of these.
const CURRENT: u8 = 0;
const PAGE: u8 = 1;
/// Pages removed by one write while sweeping.
const SWEPT_AT_ONCE: usize = 4_096;

/// A reader of kept pages.
#[derive(Clone, Debug)]
pub(crate) struct Shelf(sled::Db);

/// Which pages of a rank count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Current {
    generation: u32,
    geometry: Geometry,
}

/// The writer's side.
#[derive(Debug)]
pub(crate) struct ShelfWriter {
    shelf: Shelf,
    current: BTreeMap<RankKey, Option<Current>>,
    /// Whose older generations are to be swept.
    stale: Vec<RankKey>,
}

impl Shelf {
    pub(crate) fn new(db: sled::Db) -> Self {
        Self(db)
    }

    /// All that is kept of a rank; none if nothing was ever kept. Reads the store: not for a thread of the runtime.
    pub(crate) fn load(&self, rank: &RankKey) -> Result<Option<Kept>, sled::Error> {
        let Some(current) = self.current(rank)? else {
            return Ok(None);
        };
        let mut pages = HashMap::new();
        let prefix = generation_key(rank, current.generation);
        for entry in self.0.scan_prefix(&prefix) {
            let (key, value) = entry?;
            let name = key.get(prefix.len()..).and_then(|it| it.try_into().ok());
            match (name.map(PageName::from_be_bytes), read_record(&value)) {
                (Some(name), Some(record)) => {
                    pages.insert(name, record);
                }
                _ => tracing::error!(?key, "a kept page is unreadable and is left out"),
            }
        }
        Ok(Some(Kept {
            geometry: current.geometry,
            pages,
        }))
    }

    /// Removes all that is kept of a rank.
    pub(crate) fn forget(&self, rank: &RankKey) -> Result<(), sled::Error> {
        self.0.remove(current_key(rank))?;
        self.sweep(rank, None)
    }

    fn current(&self, rank: &RankKey) -> Result<Option<Current>, sled::Error> {
        let value = self.0.get(current_key(rank))?;
        Ok(value.and_then(|it| read_current(&it)))
    }

    /// Removes the pages of all generations but one.
    fn sweep(&self, rank: &RankKey, kept: Option<u32>) -> Result<(), sled::Error> {
        let all = rank_key(rank, PAGE);
        let kept = kept.map(|it| generation_key(rank, it));
        let is_stale = |key: &sled::IVec| kept.as_ref().is_none_or(|it| !key.starts_with(it));
        loop {
            let mut batch = sled::Batch::default();
            let mut swept = 0;
            for key in self.0.scan_prefix(&all).keys() {
                let key = key?;
                if is_stale(&key) {
                    batch.remove(key);
                    swept += 1;
                }
                if swept == SWEPT_AT_ONCE {
                    break;
                }
            }
            self.0.apply_batch(batch)?;
            if swept < SWEPT_AT_ONCE {
                return Ok(());
            }
        }
    }
}

impl ShelfWriter {
    pub(crate) fn new(shelf: Shelf) -> Self {
        Self {
            shelf,
            current: BTreeMap::new(),
            stale: Vec::new(),
        }
    }

    /// Adds a rank's changes to a batch.
    pub(crate) fn add(
        &mut self,
        batch: &mut sled::Batch,
        rank: &RankKey,
        changes: Changes,
    ) -> Result<(), sled::Error> {
        let known = match self.current.get(rank) {
            Some(known) => *known,
            None => self.shelf.current(rank)?,
        };
        let generation = match known {
            Some(known) if changes.cleared => {
                self.stale.push(rank.clone());
                known.generation.wrapping_add(1)
            }
            Some(known) => known.generation,
            None => 0,
        };
        let current = Current {
            generation,
            geometry: changes.geometry,
        };
        if known != Some(current) {
            batch.insert(current_key(rank), &write_current(current)[..]);
        }
        self.current.insert(rank.clone(), Some(current));
        let prefix = generation_key(rank, generation);
        for (name, record) in changes.pages {
            let key = [&prefix[..], &name.to_be_bytes()].concat();
            match record {
                Some(record) => batch.insert(key, write_record(&record)),
                None => batch.remove(key),
            }
        }
        Ok(())
    }

    /// Removes what does not count any more, once the batch is written.
    pub(crate) fn sweep(&mut self) -> Result<(), sled::Error> {
        for rank in std::mem::take(&mut self.stale) {
            let current = self.current.get(&rank).copied().flatten();
            self.shelf.sweep(&rank, current.map(|it| it.generation))?;
        }
        Ok(())
    }
}

fn rank_key((worker, rank): &RankKey, kind: u8) -> Vec<u8> {
    let worker = worker.as_str().as_bytes();
    // A worker's name has at most 128 bytes.
    let mut key = vec![PAGES, worker.len() as u8];
    key.extend(worker);
    key.extend(rank.get().to_be_bytes());
    key.push(kind);
    key
}

fn current_key(rank: &RankKey) -> Vec<u8> {
    rank_key(rank, CURRENT)
}

fn generation_key(rank: &RankKey, generation: u32) -> Vec<u8> {
    let mut key = rank_key(rank, PAGE);
    key.extend(generation.to_be_bytes());
    key
}

/// Generation, tokens a page and pages a block, big-endian.
fn write_current(current: Current) -> [u8; 10] {
    let mut value = [0; 10];
    value[..4].copy_from_slice(&current.generation.to_be_bytes());
    value[4..8].copy_from_slice(&current.geometry.page.to_be_bytes());
    value[8..].copy_from_slice(&current.geometry.pages.to_be_bytes());
    value
}

fn read_current(value: &[u8]) -> Option<Current> {
    let mut rest = value;
    let generation = u32::from_be_bytes(take(&mut rest)?);
    let geometry = Geometry {
        page: u32::from_be_bytes(take(&mut rest)?),
        pages: u16::from_be_bytes(take(&mut rest)?),
    };
    rest.is_empty().then_some(Current {
        generation,
        geometry,
    })
}

const HAS_PARENT: u8 = 1;
const HAS_CONTENT: u8 = 2;
const HAS_EXTRA: u8 = 4;

/// What there is, tiers, what was said; then those that are there of parent, content, adapter and salt.
fn write_record(record: &Record) -> Vec<u8> {
    let there = |is_there: bool, flag| if is_there { flag } else { 0 };
    let flags = there(record.parent.is_some(), HAS_PARENT)
        | there(record.content.is_some(), HAS_CONTENT)
        | there(record.extra.is_some(), HAS_EXTRA);
    let mut value = vec![flags, record.tiers.bits(), write_told(record.told)];
    if let Some(parent) = record.parent {
        value.extend(parent.to_be_bytes());
    }
    if let Some(content) = record.content {
        value.extend(content.get().to_be_bytes());
    }
    if let Some(extra) = &record.extra {
        for text in [&extra.lora, &extra.salt] {
            let text = text.as_deref().unwrap_or_default();
            value.extend((text.len() as u32).to_be_bytes());
            value.extend(text.as_bytes());
        }
    }
    value
}

fn read_record(value: &[u8]) -> Option<Record> {
    let mut rest = value;
    let [flags, tiers, told] = take(&mut rest)?;
    let mut number = |flag| match flags & flag {
        0 => Some(None),
        _ => take(&mut rest).map(|it| Some(u64::from_be_bytes(it))),
    };
    let parent = number(HAS_PARENT)?;
    let content = number(HAS_CONTENT)?.map(BlockHash::new);
    let mut text = || {
        let length = u32::from_be_bytes(take(&mut rest)?) as usize;
        let (text, after) = rest.split_at_checked(length)?;
        rest = after;
        let text: Arc<str> = str::from_utf8(text).ok()?.into();
        Some(Some(text).filter(|it| !it.is_empty()))
    };
    let extra = match flags & HAS_EXTRA {
        0 => None,
        _ => Some(Arc::new(Extra {
            lora: text()?,
            salt: text()?,
        })),
    };
    Some(Record {
        parent,
        tiers: Tiers::of_bits(tiers),
        told: read_told(told)?,
        content,
        extra,
    })
}

fn write_told(told: Told) -> u8 {
    match told {
        Told::Nothing => 0,
        Told::Said(tier) => 1 + tier as u8,
        Told::Withheld(tier) => 4 + tier as u8,
    }
}

fn read_told(told: u8) -> Option<Told> {
    let tier = |number| match number {
        0 => Tier::Gpu,
        1 => Tier::Host,
        _ => Tier::Disk,
    };
    match told {
        0 => Some(Told::Nothing),
        1..=3 => Some(Told::Said(tier(told - 1))),
        4..=6 => Some(Told::Withheld(tier(told - 4))),
        _ => None,
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use domain::DpRank;

    use super::*;

    const GEOMETRY: Geometry = Geometry { page: 1, pages: 16 };

    fn db() -> sled::Db {
        sled::Config::new().temporary(true).open().unwrap()
    }

    fn rank(number: u32) -> RankKey {
        ("10.0.0.1:8000".parse().unwrap(), DpRank::new(number))
    }

    fn record(parent: Option<PageName>, told: Told) -> Record {
        let mut tiers = Tiers::default();
        tiers.insert(Tier::Host);
        Record {
            parent,
            tiers,
            told,
            content: parent.map(BlockHash::new),
            extra: parent.is_none().then(|| {
                Arc::new(Extra {
                    lora: None,
                    salt: Some("tenant".into()),
                })
            }),
        }
    }

    fn write(writer: &mut ShelfWriter, rank: &RankKey, changes: Changes) {
        let mut batch = sled::Batch::default();
        writer.add(&mut batch, rank, changes).unwrap();
        writer.shelf.0.apply_batch(batch).unwrap();
        writer.sweep().unwrap();
    }

    fn changes(cleared: bool, pages: &[(PageName, Option<Record>)]) -> Changes {
        Changes {
            geometry: GEOMETRY,
            cleared,
            pages: pages.iter().cloned().collect(),
        }
    }

    #[test]
    fn what_was_written_last_of_each_page_is_read_again() {
        let shelf = Shelf::new(db());
        let mut writer = ShelfWriter::new(shelf.clone());
        let tolds = [
            Told::Nothing,
            Told::Said(Tier::Gpu),
            Told::Said(Tier::Disk),
            Told::Withheld(Tier::Host),
        ];
        let names = 0..tolds.len() as u64;
        let all: Vec<_> = names
            .zip(tolds)
            .map(|(name, told)| (name, Some(record(name.checked_sub(1), told))))
            .collect();
        write(&mut writer, &rank(0), changes(true, &all));
        write(&mut writer, &rank(1), changes(true, &all[..1]));
        write(&mut writer, &rank(0), changes(false, &[(3, None)]));
        let kept = shelf.load(&rank(0)).unwrap().unwrap();
        assert_eq!(kept.geometry, GEOMETRY);
        let expected: HashMap<_, _> = all[..3]
            .iter()
            .map(|(name, it)| (*name, it.clone().unwrap()))
            .collect();
        assert_eq!(kept.pages, expected);
        assert_eq!(shelf.load(&rank(1)).unwrap().unwrap().pages.len(), 1);
        assert!(shelf.load(&rank(2)).unwrap().is_none());
    }

    #[test]
    fn what_was_before_a_clear_is_gone_and_swept_and_other_ranks_stay() {
        let shelf = Shelf::new(db());
        let mut writer = ShelfWriter::new(shelf.clone());
        let many: Vec<_> = (0..SWEPT_AT_ONCE as u64 + 10)
            .map(|name| (name, Some(record(None, Told::Nothing))))
            .collect();
        write(&mut writer, &rank(0), changes(true, &many));
        write(&mut writer, &rank(1), changes(true, &many[..2]));
        write(&mut writer, &rank(0), changes(true, &many[..1]));
        let mut writer = ShelfWriter::new(shelf.clone());
        write(&mut writer, &rank(0), changes(false, &many[1..2]));
        assert_eq!(shelf.load(&rank(0)).unwrap().unwrap().pages.len(), 2);
        // Two pages and the current generation of each.
        assert_eq!(shelf.0.len(), 6);
        shelf.forget(&rank(0)).unwrap();
        assert_eq!(shelf.0.len(), 3);
    }

    #[test]
    fn damaged_values_are_no_pages() {
        let value = write_record(&record(None, Told::Nothing));
        assert!((0..value.len()).all(|length| read_record(&value[..length]).is_none()));
        assert_eq!(read_record(&[0, 0, 7]), None);
        assert_eq!(read_current(&[0; 9]), None);
    }
}
