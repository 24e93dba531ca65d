//! What one rank announces through a drain, in the words of a rank that publishes.
//!
//! A TensorRT-LLM announces each block once for every attention window and layer group, announces blocks that are not
//! full, and does not say from which tier a block went. Readers of the log want none of this.

use std::collections::{BTreeMap, HashMap};

use domain::{EngineHash, Tier};
use engine_wire::trtllm::Item;
use engine_wire::{Event, Medium, Moved, Removed, Stored};

/// Blocks below the GPU's memory whose tier is remembered: the host memory of the largest servers holds some hundred
/// thousand. Of those beyond it a removal is said of every tier.
const MAX_LOWER: usize = 1 << 20;

/// One rank's announcements.
#[derive(Debug)]
pub(crate) struct Announcements {
    /// Tokens of a full block.
    block_size: u32,
    /// The window and layer group whose blocks stand for a whole prefix: of those seen the largest window's, and of its
    /// groups the first.
    chosen: Option<(Option<u64>, Option<u32>)>,
    /// Where blocks lie that are not in the GPU's memory.
    lower: HashMap<EngineHash, Tier>,
    /// Whether all blocks below the GPU's memory are in `lower`.
    complete: bool,
}

/// What one item means.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Told {
    pub(crate) events: Vec<Event>,
    /// Events left out, by reason: one of a fixed few names.
    pub(crate) left_out: BTreeMap<&'static str, u64>,
}

impl Announcements {
    /// Those of a rank of which nothing has been heard.
    pub(crate) fn new(block_size: u32) -> Self {
        Self {
            block_size,
            chosen: None,
            lower: HashMap::new(),
            complete: false,
        }
    }

    /// What `item`, the next of the rank's, means to readers of the log.
    pub(crate) fn tell(&mut self, item: Item) -> Told {
        let mut told = Told::default();
        let of = (item.window_size, item.layer_group);
        let (window, group) = *self.chosen.get_or_insert(of);
        if window < of.0 {
            // What was taken for whole prefixes were parts of them.
            self.chosen = Some(of);
            self.lower.clear();
            told.events.push(Event::Cleared);
        } else if of != (window, group) {
            let reason = match of.0 == window {
                true => "other_group",
                false => "other_window",
            };
            told.left_out.insert(reason, item.events.len() as u64);
            return told;
        }
        for event in item.events {
            self.take(event, &mut told);
        }
        told
    }

    fn take(&mut self, event: Event, told: &mut Told) {
        match event {
            Event::Stored(stored) if stored.block_size < self.block_size => {
                *told.left_out.entry("partial_block").or_default() += 1;
            }
            Event::Stored(stored) => {
                self.stored(&stored);
                told.events.push(Event::Stored(stored));
            }
            Event::Moved(moved) => {
                self.moved(&moved);
                told.events.push(Event::Moved(moved));
            }
            Event::Gone { block_hashes } => {
                let removed = self.gone(block_hashes).into_iter();
                told.events.extend(removed.map(Event::Removed));
            }
            Event::Created { .. } => {
                self.lower.clear();
                self.complete = true;
                told.events.push(event);
            }
            other => told.events.push(other),
        }
    }

    fn stored(&mut self, stored: &Stored) {
        if let Medium::Tier(tier) = stored.medium {
            for hash in &stored.block_hashes {
                self.lies(hash, tier);
            }
        }
    }

    fn moved(&mut self, moved: &Moved) {
        if let Medium::Tier(tier) = moved.to {
            self.lies(&moved.block_hash, tier);
        }
    }

    fn lies(&mut self, hash: &EngineHash, tier: Tier) {
        if tier == Tier::Gpu {
            self.lower.remove(hash);
        } else if self.lower.len() < MAX_LOWER {
            self.lower.insert(hash.clone(), tier);
        } else {
            self.complete = false;
        }
    }

    /// One removal for each tier that blocks may have left.
    fn gone(&mut self, block_hashes: Vec<EngineHash>) -> Vec<Removed> {
        let mut left: BTreeMap<Tier, Vec<EngineHash>> = BTreeMap::new();
        for hash in block_hashes {
            let tiers: &[Tier] = match self.lower.remove(&hash) {
                Some(Tier::Host) => &[Tier::Host],
                Some(Tier::Disk) => &[Tier::Disk],
                None if !self.complete => &[Tier::Gpu, Tier::Host, Tier::Disk],
                Some(Tier::Gpu) | None => &[Tier::Gpu],
            };
            for tier in tiers {
                left.entry(*tier).or_default().push(hash.clone());
            }
        }
        let removed = |(tier, block_hashes)| Removed {
            block_hashes,
            medium: Medium::Tier(tier),
            group: None,
        };
        left.into_iter().map(removed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Tier; 3] = [Tier::Gpu, Tier::Host, Tier::Disk];

    fn hash(number: u64) -> EngineHash {
        EngineHash::Int(number)
    }

    fn item(window: u64, group: Option<u32>, event: Event) -> Item {
        Item {
            event_id: Some(0),
            dp_rank: None,
            window_size: Some(window),
            layer_group: group,
            events: vec![event],
        }
    }

    fn store(number: u64, tokens: u32, tier: Tier) -> Event {
        Event::Stored(Stored {
            block_hashes: vec![hash(number)],
            parent: None,
            token_ids: (0..tokens).collect(),
            opaque_tokens: 0,
            block_size: tokens,
            medium: Medium::Tier(tier),
            group: None,
            spec_kind: None,
            lora: None,
            salt: None,
            session: None,
        })
    }

    fn gone(number: u64) -> Event {
        Event::Gone {
            block_hashes: vec![hash(number)],
        }
    }

    fn created() -> Event {
        Event::Created {
            blocks_per_level: vec![8, 2],
        }
    }

    fn moved(number: u64, from: Tier, to: Tier) -> Event {
        Event::Moved(Moved {
            block_hash: hash(number),
            from: Medium::Tier(from),
            to: Medium::Tier(to),
        })
    }

    /// The tiers that `number` is said to have left.
    fn tiers(announcements: &mut Announcements, number: u64) -> Vec<Tier> {
        let told = announcements.tell(item(8, None, gone(number)));
        let tier = |event: &Event| match event {
            Event::Removed(removed) if removed.block_hashes == [hash(number)] => {
                removed.medium.tier().unwrap()
            }
            other => panic!("{other:?}"),
        };
        told.events.iter().map(tier).collect()
    }

    #[test]
    fn a_block_leaves_the_tier_where_it_lies() {
        let mut announcements = Announcements::new(4);
        announcements.tell(item(8, None, created()));
        announcements.tell(item(8, None, store(1, 4, Tier::Gpu)));
        announcements.tell(item(8, None, store(2, 4, Tier::Host)));
        announcements.tell(item(8, None, store(3, 4, Tier::Gpu)));
        announcements.tell(item(8, None, moved(3, Tier::Gpu, Tier::Disk)));
        announcements.tell(item(8, None, store(4, 4, Tier::Host)));
        announcements.tell(item(8, None, moved(4, Tier::Host, Tier::Gpu)));
        let left = [1, 2, 3, 4].map(|number| tiers(&mut announcements, number));
        let lain = [Tier::Gpu, Tier::Host, Tier::Disk, Tier::Gpu].map(|tier| vec![tier]);
        assert_eq!(left, lain);
    }

    #[test]
    fn a_block_that_was_there_before_leaves_every_tier() {
        let mut announcements = Announcements::new(4);
        assert_eq!(tiers(&mut announcements, 1), ALL);
        announcements.tell(item(8, None, store(2, 4, Tier::Host)));
        assert_eq!(tiers(&mut announcements, 2), [Tier::Host]);
        // From the beginning of a cache everything is known.
        announcements.tell(item(8, None, created()));
        assert_eq!(tiers(&mut announcements, 1), [Tier::Gpu]);
    }

    #[test]
    fn only_the_largest_window_and_its_first_group_are_told() {
        let mut announcements = Announcements::new(4);
        let check = |told: Told, events: Vec<Event>, left_out: Option<&'static str>| {
            let left_out = left_out.map(|reason| (reason, 1)).into_iter().collect();
            assert_eq!(told, Told { events, left_out });
        };
        let stored = || store(1, 4, Tier::Gpu);
        check(
            announcements.tell(item(8, Some(1), stored())),
            vec![stored()],
            None,
        );
        let other = announcements.tell(item(8, Some(2), stored()));
        check(other, Vec::new(), Some("other_group"));
        let larger = announcements.tell(item(16, Some(3), stored()));
        check(larger, vec![Event::Cleared, stored()], None);
        let smaller = announcements.tell(item(8, Some(1), stored()));
        check(smaller, Vec::new(), Some("other_window"));
        check(
            announcements.tell(item(16, Some(3), created())),
            vec![created()],
            None,
        );
    }

    #[test]
    fn blocks_that_are_not_full_are_left_out() {
        let mut announcements = Announcements::new(4);
        let told = announcements.tell(item(8, None, store(1, 3, Tier::Gpu)));
        assert_eq!((told.events.len(), told.left_out["partial_block"]), (0, 1));
    }
}
