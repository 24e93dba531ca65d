//! Batches of events as vLLM 0.33 publishes them: an array of time, events and rank, each event a map.

use domain::{DpRank, EngineHash, Tier, Timestamp};
use rmp::Marker;
use rmp::encode;

use crate::{Lora, Medium, Removed, Stored};

/// What stands for content that tokens do not describe, in the extra keys.
const OPAQUE_IDENTIFIER: &str = "opaque";
/// What stands for such content among the tokens.
const OPAQUE_TOKEN: u32 = 0;

/// Collects the events of one scheduler step in order and encodes them as one batch.
///
/// Only what vLLM can announce can be added, so there is nothing to refuse.
#[derive(Debug, Default)]
pub struct BatchEncoder {
    count: usize,
    events: Writer,
}

impl BatchEncoder {
    /// A batch without events.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing was added: vLLM publishes no such batch.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds blocks that were filled. The salt is written where vLLM writes it, with a store that has no
    /// parent.
    pub fn stored(&mut self, stored: &Stored) {
        let mut fields = Fields::tagged("BlockStored");
        fields.add("block_hashes").hashes(&stored.block_hashes);
        match &stored.parent {
            Some(parent) => fields.add("parent_block_hash").hash(parent),
            None => fields.add("parent_block_hash").nil(),
        }
        fields.add("token_ids").tokens(stored);
        fields.add("block_size").unsigned(stored.block_size.into());
        match stored.lora {
            Some(Lora::Unnamed(id)) => fields.add("lora_id").signed(id),
            Some(Lora::Named(_)) | None => fields.add("lora_id").nil(),
        }
        fields.add("medium").text(medium(&stored.medium));
        match &stored.lora {
            Some(Lora::Named(name)) => fields.add("lora_name").text(name),
            Some(Lora::Unnamed(_)) | None => fields.add("lora_name").nil(),
        }
        if !stored.token_ids.is_empty() || stored.opaque_tokens > 0 {
            fields.add("extra_keys").extra_keys(stored);
        }
        if let Some(group) = stored.group {
            fields.add("group_idx").unsigned(group.into());
        }
        if let Some(kind) = &stored.spec_kind {
            fields.add("kv_cache_spec_kind").text(kind.name());
        }
        fields.add_locality(&stored.medium);
        if let Some(session) = &stored.session {
            fields.add("session_id").text(session);
        }
        // A kind with sixteen fields has this wide a header, whatever it leaves out.
        self.events.0.push(Marker::Map16.to_u8());
        self.events.0.extend(fields.count.to_be_bytes());
        self.push(&fields);
    }

    /// Adds one copy of each block that left a place.
    pub fn removed(&mut self, removed: &Removed) {
        let mut fields = Fields::tagged("BlockRemoved");
        fields.add("block_hashes").hashes(&removed.block_hashes);
        fields.add("medium").text(medium(&removed.medium));
        if let Some(group) = removed.group {
            fields.add("group_idx").unsigned(group.into());
        }
        fields.add_locality(&removed.medium);
        self.events.map(fields.count);
        self.push(&fields);
    }

    /// Adds that the rank holds nothing any more.
    pub fn cleared(&mut self) {
        let fields = Fields::tagged("AllBlocksCleared");
        self.events.map(fields.count);
        self.push(&fields);
    }

    /// The payload as `dp_rank` publishes it at `ts`.
    pub fn finish(self, ts: Timestamp, dp_rank: DpRank) -> Vec<u8> {
        let mut batch = Writer::default();
        batch.array(3);
        batch.float(ts.as_secs_f64());
        batch.array(self.count);
        batch.0.extend(self.events.0);
        batch.unsigned(dp_rank.get().into());
        batch.0
    }

    fn push(&mut self, fields: &Fields) {
        self.events.0.extend(&fields.bytes.0);
        self.count += 1;
    }
}

fn medium(medium: &Medium) -> &str {
    match medium {
        Medium::Tier(Tier::Gpu) | Medium::Remote => "GPU",
        Medium::Tier(Tier::Host) => "CPU",
        Medium::Tier(Tier::Disk) => "STORAGE",
        Medium::Unknown(name) => name,
    }
}

/// The fields of one event's map.
#[derive(Default)]
struct Fields {
    count: u16,
    bytes: Writer,
}

impl Fields {
    fn tagged(tag: &str) -> Self {
        let mut fields = Self::default();
        fields.add("type").text(tag);
        fields
    }

    fn add(&mut self, name: &str) -> &mut Writer {
        self.count += 1;
        self.bytes.text(name);
        &mut self.bytes
    }

    fn add_locality(&mut self, medium: &Medium) {
        if *medium == Medium::Remote {
            self.add("locality").text("REMOTE");
        }
    }
}

/// msgpack in its shortest forms.
#[derive(Debug, Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn nil(&mut self) {
        written(encode::write_nil(&mut self.0));
    }

    fn float(&mut self, value: f64) {
        written(encode::write_f64(&mut self.0, value));
    }

    fn unsigned(&mut self, value: u64) {
        written(encode::write_uint(&mut self.0, value));
    }

    fn signed(&mut self, value: i64) {
        written(encode::write_sint(&mut self.0, value));
    }

    fn text(&mut self, text: &str) {
        written(encode::write_str(&mut self.0, text));
    }

    fn array(&mut self, elements: usize) {
        let elements = u32::try_from(elements).expect("no cache has 2^32 blocks or tokens");
        written(encode::write_array_len(&mut self.0, elements));
    }

    fn map(&mut self, pairs: u16) {
        written(encode::write_map_len(&mut self.0, pairs.into()));
    }

    fn hash(&mut self, hash: &EngineHash) {
        match hash {
            EngineHash::Int(value) => self.unsigned(*value),
            EngineHash::Bytes(bytes) => written(encode::write_bin(&mut self.0, bytes)),
        }
    }

    fn hashes(&mut self, hashes: &[EngineHash]) {
        self.array(hashes.len());
        for hash in hashes {
            self.hash(hash);
        }
    }

    fn tokens(&mut self, stored: &Stored) {
        self.array(stored.token_ids.len() + stored.opaque_tokens);
        let opaque = std::iter::repeat_n(&OPAQUE_TOKEN, stored.opaque_tokens);
        for token in stored.token_ids.iter().chain(opaque) {
            self.unsigned((*token).into());
        }
    }

    /// For each block the adapter's name, then a mark where the content is opaque, then the salt where a
    /// sequence begins; nil where there is nothing to say.
    fn extra_keys(&mut self, stored: &Stored) {
        let lora = match &stored.lora {
            Some(Lora::Named(name)) => Some(name.as_ref()),
            Some(Lora::Unnamed(_)) | None => None,
        };
        let described = if stored.opaque_tokens == 0 {
            stored.block_hashes.len()
        } else {
            let blocks = stored
                .token_ids
                .len()
                .checked_div(stored.block_size as usize);
            blocks.unwrap_or(0)
        };
        self.array(stored.block_hashes.len());
        for block in 0..stored.block_hashes.len() {
            let begins = block == 0 && stored.parent.is_none();
            let salt = stored.salt.as_deref().filter(|_| begins);
            let opaque = block >= described;
            let keys =
                usize::from(lora.is_some()) + usize::from(opaque) + usize::from(salt.is_some());
            if keys == 0 {
                self.nil();
                continue;
            }
            self.array(keys);
            if let Some(lora) = lora {
                self.text(lora);
            }
            if opaque {
                self.array(2);
                self.text(OPAQUE_IDENTIFIER);
                self.unsigned(0);
            }
            if let Some(salt) = salt {
                self.text(salt);
            }
        }
    }
}

fn written<T, E: std::fmt::Debug>(result: Result<T, E>) {
    result.expect("a vector takes every write");
}
