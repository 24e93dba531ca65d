//! Events of engines whose pages are smaller than blocks.

use std::borrow::Cow;
use std::sync::Arc;

use domain::{BlockSize, EngineHash, EventSeq, KvOp};
use engine_wire::{EventBatch, Moved, NotIndexable, Removed, Stored};

use super::{Translated, Translator, lora_of, tier};
use crate::pages::{Chain, Extra, Geometry, Kept, PageName, Pages};

impl Translator {
    /// From now on pages of `page_size` are gathered, if blocks are made of them. `kept` is what is known of the
    /// pages after the message `upto`.
    pub(crate) fn gathering(
        mut self,
        page_size: BlockSize,
        kept: Option<(EventSeq, Kept)>,
    ) -> Self {
        let Some(geometry) = Geometry::of(page_size, self.block_size) else {
            return self;
        };
        let model = self.model.clone();
        self.pages = Some(match kept {
            Some((upto, kept)) => {
                self.upto = Some((upto, upto));
                Pages::restore(model, self.block_size, kept)
            }
            None => Pages::new(model, geometry, self.block_size),
        });
        self
    }

    /// Another translator of the same rank that has learnt nothing yet.
    pub(crate) fn afresh(&self) -> Self {
        let fresh = Self::new(
            self.model.clone(),
            self.block_size,
            self.session_secret.clone(),
        );
        let page_size = self.pages.as_ref().map(Pages::page_size);
        match page_size.and_then(|it| BlockSize::new(it).ok()) {
            Some(page_size) => fresh.gathering(page_size, None),
            None => fresh,
        }
    }

    /// Whether it gathers pages.
    pub(crate) fn gathers(&self) -> bool {
        self.pages.is_some()
    }

    /// Translates a batch that was published before, only to learn from it.
    pub(crate) fn recall(&mut self, seq: EventSeq, batch: &EventBatch) {
        let Translated { .. } = self.translate(seq, batch);
    }

    /// Takes the place of `before`, which stands for the same messages but knows less. Returns what readers have
    /// to be told, which is nothing if both have said the same.
    pub(crate) fn succeed(&mut self, before: &Self) -> Vec<KvOp> {
        let said = |it: &Self| it.pages.as_ref().map(Pages::said);
        if said(self) == said(before) {
            return Vec::new();
        }
        self.tell_all()
    }

    /// What a message stands for that was translated before: all that is there now with the first of a row of them,
    /// nothing with those that follow. The pages are those of the newest message; what lies between is not
    /// known any more. None of a message that is new.
    pub(super) fn told_again(&mut self, seq: EventSeq) -> Option<Vec<KvOp>> {
        self.pages.as_ref()?;
        let (newest, last) = self.upto.unwrap_or((seq, seq));
        let is_new = self.upto.is_none() || newest < seq;
        self.upto = Some((newest.max(seq), seq));
        if is_new {
            return None;
        }
        let goes_on = last < newest && seq == last.next();
        Some(if goes_on { Vec::new() } else { self.tell_all() })
    }

    fn tell_all(&mut self) -> Vec<KvOp> {
        let group = self.group.unwrap_or(0);
        let pages = self.pages.as_mut();
        pages.map(|it| it.tell_all(group)).unwrap_or_default()
    }

    pub(super) fn gather(&mut self, stored: &Stored) -> Result<Vec<KvOp>, &'static str> {
        let tier = tier(&stored.medium)?;
        let page_size = self.pages.as_ref().map_or(0, Pages::page_size);
        if 0 < stored.block_size && stored.block_size < page_size {
            return Err("short_page");
        }
        let stored = without_short_tail(stored);
        let full = stored.full_blocks().map_err(|why| why.label())?;
        if stored.block_size != page_size {
            return Err("block_size");
        }
        let group = self.stored_group(&stored)?;
        let hashes = stored.block_hashes.iter().take(full.len());
        let names: Vec<PageName> = hashes.map(page_name).collect::<Result<_, _>>()?;
        let extra = Extra {
            lora: lora_of(&stored),
            salt: stored.salt.clone().filter(|it| !it.is_empty()),
        };
        let is_plain = extra.lora.is_none() && extra.salt.is_none();
        let chain = Chain {
            parent: stored.parent.as_ref().map(page_name).transpose()?,
            tokens: &stored.token_ids[..names.len() * page_size as usize],
            names: &names,
            tier,
            extra: (!is_plain).then(|| Arc::new(extra)),
            session: self.session_tag(&stored),
        };
        let pages = self.pages.as_mut();
        Ok(pages.map(|it| it.store(group, &chain)).unwrap_or_default())
    }

    pub(super) fn remove_pages(&mut self, removed: &Removed) -> Result<Vec<KvOp>, &'static str> {
        let group = self.indexed_group(removed.group)?;
        let tier = tier(&removed.medium)?;
        // A name of another form was never stored.
        let names = removed.block_hashes.iter().flat_map(page_name);
        let names: Vec<PageName> = names.collect();
        let pages = self.pages.as_mut();
        Ok(pages
            .map(|it| it.remove(group, &names, tier))
            .unwrap_or_default())
    }

    pub(super) fn move_page(&mut self, moved: &Moved) -> Result<Vec<KvOp>, &'static str> {
        let (from, to) = (tier(&moved.from)?, tier(&moved.to)?);
        let name = page_name(&moved.block_hash)?;
        let pages = self.pages.as_mut();
        Ok(pages
            .map(|it| it.shift(0, name, from, to))
            .unwrap_or_default())
    }
}

/// Engines that cache in small pages call them by integers.
fn page_name(hash: &EngineHash) -> Result<PageName, &'static str> {
    match hash {
        EngineHash::Int(name) => Ok(*name),
        EngineHash::Bytes(_) => Err("page_name"),
    }
}

/// A store without its last page, if that one is not full: nothing can hang on it.
fn without_short_tail(stored: &Stored) -> Cow<'_, Stored> {
    let Err(NotIndexable::FewerTokens { tokens, capacity }) = stored.full_blocks().map(|_| ())
    else {
        return Cow::Borrowed(stored);
    };
    let page_size = stored.block_size as usize;
    if page_size <= capacity - tokens || stored.opaque_tokens != 0 {
        return Cow::Borrowed(stored);
    }
    let mut whole = stored.clone();
    whole.block_hashes.pop();
    let full = whole.block_hashes.len() * page_size;
    whole.token_ids.truncate(full);
    Cow::Owned(whole)
}
