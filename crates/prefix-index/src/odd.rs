//! Blocks that a target does not hold once a tier, as group 0, under their usual name: one at a time.

use domain::Tier;

use crate::chain::Under;
use crate::naming::CANONICAL;
use crate::rank::{OddName, nth};
use crate::run::Tiers;
use crate::table::Place;
use crate::work::Work;

impl Work<'_> {
    /// Stores one block under one more name or once more, where the target had it in `had`.
    pub(crate) fn store_one(&mut self, at: Place, had: Tiers, name: u64, under: Under) {
        self.store_copies(at, had, (under.group, name), (under.tier, 1));
    }

    /// As [`Self::store_one`], `copies` times, at least once.
    pub(crate) fn store_copies(
        &mut self,
        at: Place,
        had: Tiers,
        (group, name): (u32, u64),
        (tier, copies): (Tier, u32),
    ) {
        let first = u64::from(!had.has(tier));
        self.applied.stored += first;
        self.applied.duplicates += u64::from(copies) - first;
        let old = self.resolve_other(at, group, name);
        let old_names = old.map(|old| (old, self.take_names(old, self.tiers_of(old))));
        let mut names = self.take_names(at, had);
        let known = names
            .iter()
            .position(|it| (it.group, it.name) == (group, name));
        let index = known.unwrap_or_else(|| {
            names.push(OddName {
                group,
                name,
                copies: [0; 3],
            });
            names.len() - 1
        });
        let count = &mut names[index].copies[nth(tier)];
        *count = count.saturating_add(copies);
        self.put_names(at, had, names);
        // Given up last, so that a namespace with this one block is not given up in between.
        if let Some((old, mut names)) = old_names {
            self.applied.renamed += 1;
            names.retain(|it| (it.group, it.name) != (group, name));
            self.put_names(old, self.tiers_of(old), names);
        }
    }

    /// Another block than the one at `at` that the target calls so.
    fn resolve_other(&self, at: Place, group: u32, name: u64) -> Option<Place> {
        self.resolve(group, name).filter(|old| *old != at)
    }

    /// Takes the names of a block that the target has in `had` out of those it keeps.
    fn take_names(&mut self, at: Place, had: Tiers) -> Vec<OddName> {
        if let Some(names) = self.rank.odd.take(at) {
            return names;
        }
        if had == Tiers::NONE {
            return Vec::new();
        }
        let domain = self.rank.domain.expect("chosen before its first block");
        let name = self.forest.usual_name(domain, at);
        vec![OddName::usual(
            name.expect("a block that is not odd has its usual name"),
            had,
        )]
    }

    /// Makes `names` all the names of a block that the target had in `had`.
    fn put_names(&mut self, at: Place, had: Tiers, names: Vec<OddName>) {
        let domain = self.rank.domain.expect("chosen before its first block");
        let tiers = names
            .iter()
            .fold(Tiers::NONE, |all, it| Tiers(all.0 | it.tiers().0));
        let offset = at.offset as usize;
        if tiers != Tiers::NONE && domain == CANONICAL && had == Tiers::NONE {
            self.forest.name_canonically(at.run, offset..offset + 1);
        }
        let is_usual = match names[..] {
            [it] if it == OddName::usual(it.name, tiers) => {
                if domain != CANONICAL && self.forest.usual_name(domain, at) != Some(it.name) {
                    self.forest.name_as(domain, at, &[it.name]);
                }
                self.forest.usual_name(domain, at) == Some(it.name)
            }
            _ => names.is_empty(),
        };
        if !is_usual {
            let fits = matches!(names[..], [it] if it == OddName::usual(it.name, tiers));
            self.rank.conflicts = self.rank.conflicts.saturating_add(fits.into());
            self.rank.odd.put(at, names);
        }
        if self.tiers_of(at) != tiers {
            self.cover(at.run, offset..offset + 1, tiers);
        } else if had == Tiers::NONE && tiers != Tiers::NONE {
            self.rank.blocks += 1;
        }
    }

    pub(crate) fn take_one(
        &mut self,
        at: Place,
        (group, name): (u32, u64),
        from: Tier,
        to: Option<Tier>,
    ) -> Option<()> {
        let had = self.tiers_of(at);
        let mut names = self.take_names(at, had);
        let found = names
            .iter()
            .position(|it| (it.group, it.name) == (group, name) && it.copies[nth(from)] != 0);
        if let Some(index) = found {
            let copies = &mut names[index].copies;
            copies[nth(from)] -= 1;
            if let Some(to) = to {
                copies[nth(to)] = copies[nth(to)].saturating_add(1);
            }
            if names[index].tiers() == Tiers::NONE {
                names.remove(index);
            }
        }
        self.put_names(at, had, names);
        found.map(|_| ())
    }
}
