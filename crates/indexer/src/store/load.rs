//! Reading a store back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use contracts::Encoding;
use contracts::index_store::{Base, Commit, Fence, Frame, LogCursors, Segment, StoredRank};
use prefix_index::{PrefixIndex, RankSnapshot};

use super::files::{self, Records, damaged};
use super::ledger::Ledger;
use super::{BASES, COMMIT, FENCES, RankNumber, Store, StoreError, base};

/// What a store held, besides what went into the index.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) cursors: LogCursors,
    pub(crate) ranks: BTreeMap<RankNumber, StoredRank>,
    /// The lowest number not yet given.
    pub(crate) next_number: u64,
}

/// A store while it is read.
struct Reading<'a> {
    folder: &'a Path,
    commit: Commit,
    gone: BTreeSet<u64>,
    bases: BTreeMap<RankNumber, Base>,
    ledger: Ledger,
    index: &'a mut PrefixIndex,
    ranks: BTreeMap<RankNumber, StoredRank>,
}

/// Puts everything stored in `folder` into `index`, which is empty, and removes what an interrupted save left
/// over.
pub(super) fn load(
    folder: &Path,
    catalog: sled::Db,
    index: &mut PrefixIndex,
) -> Result<(Store, Loaded), StoreError> {
    let commit = catalog.get(COMMIT)?;
    let commit = commit.ok_or_else(|| StoreError::Damaged("its commit is missing".into()))?;
    let commit = Commit::from_bytes(&commit)?;
    let mut reading = Reading {
        folder,
        gone: commit.gone.iter().copied().collect(),
        bases: BTreeMap::new(),
        ledger: Ledger::new(commit.first_part, commit.first_frame),
        index,
        ranks: BTreeMap::new(),
        commit,
    };
    reading.bases(&catalog)?;
    let journal = reading.journal()?;
    reading.claims()?;
    reading.remove_left_over()?;
    let Reading {
        commit,
        bases,
        mut ledger,
        index,
        ranks,
        ..
    } = reading;
    for entry in catalog.scan_prefix([FENCES]) {
        let Fence { worker, epoch } = Fence::from_bytes(&entry?.1)?;
        index.fence(&worker, epoch);
    }
    for (number, base) in &bases {
        ledger.based(*number, base);
    }
    let given = ranks.keys().map(|it| it.0).chain(commit.gone).max();
    let loaded = Loaded {
        cursors: commit.cursors.clone(),
        ranks,
        next_number: given.map_or(0, |it| it + 1),
    };
    let store = Store {
        folder: folder.to_owned(),
        catalog,
        journal,
        ledger,
        cursors: commit.cursors,
        complete: true,
    };
    Ok((store, loaded))
}

impl Reading<'_> {
    fn bases(&mut self, catalog: &sled::Db) -> Result<(), StoreError> {
        for entry in catalog.scan_prefix([BASES]) {
            let (key, value) = entry?;
            let number = key.get(1..).and_then(|it| it.try_into().ok());
            let odd = || StoreError::Damaged(format!("odd key {key:?}"));
            let number = RankNumber(u64::from_be_bytes(number.ok_or_else(odd)?));
            let base = Base::from_bytes(&value)?;
            base::read(self.folder, number, &base, self.index)?;
            self.ranks.insert(number, base.rank.clone());
            self.bases.insert(number, base);
        }
        if self.bases.len() as u64 != self.commit.bases {
            let why = format!(
                "{} of {} bases are there",
                self.bases.len(),
                self.commit.bases
            );
            return Err(StoreError::Damaged(why));
        }
        Ok(())
    }

    /// Applies all frames. Answers the last part, to be appended to.
    fn journal(&mut self) -> Result<File, StoreError> {
        let mut last = files::journal(self.folder, self.commit.first_part);
        for part in self.commit.first_part..=self.commit.last_part {
            if part != self.commit.first_part {
                self.ledger.roll();
            }
            last = files::journal(self.folder, part);
            let bytes = (part == self.commit.last_part).then_some(self.commit.bytes);
            let mut records = Records::open(&last, bytes)?;
            let mut before = 0;
            while let Some(record) = records.next()? {
                let frame = Frame::from_bytes(&record)?;
                if frame.number != self.ledger.next_frame() {
                    return Err(damaged(&last, "has its frames in disorder"));
                }
                let ranks = frame.segments.iter().map(|it| RankNumber(it.number));
                self.ledger.appended(records.at() - before, ranks);
                before = records.at();
                for segment in frame.segments {
                    self.apply(frame.number, segment)?;
                }
            }
        }
        if self.ledger.next_frame() != self.commit.next_frame {
            return Err(damaged(&last, "ends too early"));
        }
        for number in &self.gone {
            self.ledger.gone(RankNumber(*number));
        }
        let journal = OpenOptions::new().append(true).open(&last);
        let journal = journal.map_err(StoreError::io("open", &last))?;
        let cut = journal.set_len(self.commit.bytes);
        cut.map_err(StoreError::io("cut", &last))?;
        Ok(journal)
    }

    fn apply(&mut self, frame: u64, segment: Segment) -> Result<(), StoreError> {
        let Segment { number, rank, ops } = segment;
        let in_base = self.bases.get(&RankNumber(number));
        let in_base = in_base.is_some_and(|it| frame < it.first_frame);
        if in_base || self.gone.contains(&number) {
            return Ok(());
        }
        for op in &ops {
            let applied = self.index.apply(&rank.target, op);
            applied.map_err(|why| StoreError::Damaged(why.to_string()))?;
        }
        self.ranks.insert(RankNumber(number), rank);
        Ok(())
    }

    /// Gives each rank the claims that it had.
    fn claims(&mut self) -> Result<(), StoreError> {
        for rank in self.ranks.values() {
            let claims = RankSnapshot {
                claims: rank.claims,
                namespaces: Vec::new(),
                blocks: Vec::new(),
            };
            let restored = self.index.restore(&rank.target, &claims);
            restored.map_err(|why| StoreError::Damaged(why.to_string()))?;
        }
        Ok(())
    }

    fn remove_left_over(&self) -> Result<(), StoreError> {
        let parts = self.commit.first_part..=self.commit.last_part;
        let parts = parts.map(|it| files::journal(self.folder, it));
        let bases = self.bases.iter();
        let bases = bases.map(|(number, it)| files::base(self.folder, number.0, it.generation));
        let known: BTreeSet<PathBuf> = parts.chain(bases).collect();
        for file in files::all(self.folder)? {
            if !known.contains(&file) {
                fs::remove_file(&file).map_err(StoreError::io("remove", &file))?;
            }
        }
        Ok(())
    }
}
