//! Reading a store back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::path::PathBuf;

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

impl Store {
    /// Puts everything stored into `index`, which is empty, and removes what an interrupted save left over.
    pub(crate) fn load(&mut self, index: &mut PrefixIndex) -> Result<Loaded, StoreError> {
        let mut loaded = Loaded::default();
        if !self.complete {
            return Ok(loaded);
        }
        let commit = self.catalog.get(COMMIT)?;
        let commit = commit.ok_or_else(|| StoreError::Damaged("its commit is missing".into()))?;
        let commit = Commit::from_bytes(&commit)?;
        self.ledger = Ledger::new(commit.first_part, commit.first_frame);
        let bases = self.read_bases(&commit, index, &mut loaded)?;
        self.read_journal(&commit, index, &bases, &mut loaded)?;
        for (number, base) in &bases {
            if loaded.ranks.contains_key(number) {
                self.ledger.based(*number, base);
            }
        }
        for (number, rank) in &loaded.ranks {
            let claims = RankSnapshot {
                claims: rank.claims,
                namespaces: Vec::new(),
                blocks: Vec::new(),
            };
            let restored = index.restore(&rank.target, &claims);
            restored.map_err(|why| StoreError::Damaged(why.to_string()))?;
            loaded.next_number = loaded.next_number.max(number.0 + 1);
        }
        for entry in self.catalog.scan_prefix([FENCES]) {
            let Fence { worker, epoch } = Fence::from_bytes(&entry?.1)?;
            index.fence(&worker, epoch);
        }
        self.remove_left_over(&commit, &bases)?;
        self.cursors = commit.cursors.clone();
        loaded.cursors = commit.cursors;
        Ok(loaded)
    }

    fn read_bases(
        &self,
        commit: &Commit,
        index: &mut PrefixIndex,
        loaded: &mut Loaded,
    ) -> Result<BTreeMap<RankNumber, Base>, StoreError> {
        let mut bases = BTreeMap::new();
        for entry in self.catalog.scan_prefix([BASES]) {
            let (key, value) = entry?;
            let number = key.get(1..).and_then(|it| it.try_into().ok());
            let odd = || StoreError::Damaged(format!("odd key {key:?}"));
            let number = RankNumber(u64::from_be_bytes(number.ok_or_else(odd)?));
            let base = Base::from_bytes(&value)?;
            base::read(&self.folder, number, &base, index)?;
            loaded.ranks.insert(number, base.rank.clone());
            loaded.next_number = loaded.next_number.max(number.0 + 1);
            bases.insert(number, base);
        }
        if bases.len() as u64 != commit.bases {
            let why = format!("{} of {} bases are there", bases.len(), commit.bases);
            return Err(StoreError::Damaged(why));
        }
        Ok(bases)
    }

    /// Applies all frames, and goes on at their end.
    fn read_journal(
        &mut self,
        commit: &Commit,
        index: &mut PrefixIndex,
        bases: &BTreeMap<RankNumber, Base>,
        loaded: &mut Loaded,
    ) -> Result<(), StoreError> {
        let mut last = files::journal(&self.folder, commit.first_part);
        for part in commit.first_part..=commit.last_part {
            if part != commit.first_part {
                self.ledger.roll();
            }
            last = files::journal(&self.folder, part);
            let bytes = (part == commit.last_part).then_some(commit.bytes);
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
                apply(frame, index, bases, loaded)?;
            }
        }
        if self.ledger.next_frame() != commit.next_frame {
            return Err(damaged(&last, "ends too early"));
        }
        loaded.ranks.retain(|number, _| self.ledger.knows(*number) || bases.contains_key(number));
        let journal = OpenOptions::new().append(true).open(&last);
        self.journal = journal.map_err(StoreError::io("open", &last))?;
        let cut = self.journal.set_len(commit.bytes);
        cut.map_err(StoreError::io("cut", &last))
    }

    fn remove_left_over(
        &self,
        commit: &Commit,
        bases: &BTreeMap<RankNumber, Base>,
    ) -> Result<(), StoreError> {
        let parts = commit.first_part..=commit.last_part;
        let parts = parts.map(|it| files::journal(&self.folder, it));
        let bases = bases
            .iter()
            .map(|(number, base)| files::base(&self.folder, number.0, base.generation));
        let known: BTreeSet<PathBuf> = parts.chain(bases).collect();
        for file in files::all(&self.folder)? {
            if !known.contains(&file) {
                fs::remove_file(&file).map_err(StoreError::io("remove", &file))?;
            }
        }
        Ok(())
    }
}

fn apply(
    frame: Frame,
    index: &mut PrefixIndex,
    bases: &BTreeMap<RankNumber, Base>,
    loaded: &mut Loaded,
) -> Result<(), StoreError> {
    for Segment { number, rank, ops } in frame.segments {
        let number = RankNumber(number);
        loaded.next_number = loaded.next_number.max(number.0 + 1);
        let in_base = bases.get(&number).map_or(0, |it| it.first_frame);
        if frame.number < in_base {
            continue;
        }
        for op in &ops {
            let applied = index.apply(&rank.target, op);
            applied.map_err(|why| StoreError::Damaged(why.to_string()))?;
        }
        loaded.ranks.insert(number, rank);
    }
    for number in frame.gone {
        if let Some(rank) = loaded.ranks.remove(&RankNumber(number)) {
            index.forget(&rank.target);
        }
    }
    Ok(())
}
