//! What of a page outlives this process: where it hangs and lies, and what was said of its block, but no token.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use domain::{BlockHash, BlockSize, ModelName};

use super::tree::{Slot, Tiers, Told};
use super::{Extra, Geometry, PageName, Pages};

/// One page as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) parent: Option<PageName>,
    pub(crate) tiers: Tiers,
    pub(crate) told: Told,
    /// The content of the block that ends with it, once known.
    pub(crate) content: Option<BlockHash>,
    /// Of a root: what it says of its chain.
    pub(crate) extra: Option<Arc<Extra>>,
}

/// What has changed since it was last asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) geometry: Geometry,
    /// Whether all that was before is gone.
    pub(crate) cleared: bool,
    /// Each page that has changed; none where it is gone.
    pub(crate) pages: BTreeMap<PageName, Option<Record>>,
}

/// All that was kept of one rank.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) geometry: Geometry,
    pub(crate) pages: HashMap<PageName, Record>,
}

impl Changes {
    /// Adds what came later.
    pub(crate) fn merge(&mut self, later: Self) {
        if later.cleared {
            *self = later;
        } else {
            self.pages.extend(later.pages);
        }
    }
}

impl Pages {
    /// Takes up what was kept. A page that hangs on none that was kept is left out, with all that hangs on it.
    pub(crate) fn restore(model: ModelName, block_size: BlockSize, kept: Kept) -> Self {
        let mut pages = Self::new(model, kept.geometry, block_size);
        pages.cleared = false;
        let mut children: HashMap<Option<PageName>, Vec<PageName>> = HashMap::new();
        for (name, record) in &kept.pages {
            children.entry(record.parent).or_default().push(*name);
        }
        let mut todo: Vec<(Option<Slot>, PageName)> = Vec::new();
        let roots = children.remove(&None).unwrap_or_default();
        todo.extend(roots.into_iter().map(|root| (None, root)));
        while let Some((parent, name)) = todo.pop() {
            let record = &kept.pages[&name];
            let slot = pages.tree.add(name, parent, record.extra.clone());
            let page = pages.tree.page_mut(slot);
            page.tiers = record.tiers;
            page.told = record.told;
            pages.lost_content |= matches!(record.told, Told::Withheld(_));
            if let Some(content) = record.content {
                pages.tree.set_content(slot, content);
            }
            let hanging = children.remove(&Some(name)).unwrap_or_default();
            todo.extend(hanging.into_iter().map(|child| (Some(slot), child)));
        }
        pages
    }

    /// What has changed since the last time.
    pub(crate) fn changes(&mut self) -> Changes {
        let touched = std::mem::take(&mut self.touched);
        let record = |name: PageName| {
            let slot = self.tree.find(name)?;
            let page = self.tree.page(slot);
            let is_root = page.parent.is_none();
            Some(Record {
                parent: page.parent.map(|parent| self.tree.page(parent).name),
                tiers: page.tiers,
                told: page.told,
                content: self.tree.content(slot),
                extra: is_root.then(|| self.tree.extra(slot)).flatten(),
            })
        };
        Changes {
            geometry: self.geometry,
            cleared: std::mem::take(&mut self.cleared),
            pages: touched
                .into_iter()
                .map(|name| (name, record(name)))
                .collect(),
        }
    }
}
