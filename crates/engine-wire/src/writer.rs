//! Writing batches of events: an array of time, events and rank, each event a map, in msgpack's shortest forms.

use domain::{DpRank, EngineHash, Timestamp};
use rmp::{Marker, encode};

/// The events of one batch.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    count: usize,
    events: Writer,
}

impl Batch {
    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn push(&mut self, event: &Fields) {
        self.events.map(event.count);
        self.push_body(event);
    }

    /// Adds an event whose kind has sixteen fields or more, which has a wide head whatever it leaves out.
    pub(crate) fn push_wide(&mut self, event: &Fields) {
        self.events.0.push(Marker::Map16.to_u8());
        self.events.0.extend(event.count.to_be_bytes());
        self.push_body(event);
    }

    fn push_body(&mut self, event: &Fields) {
        self.events.0.extend(&event.bytes.0);
        self.count += 1;
    }

    pub(crate) fn finish(self, ts: Timestamp, dp_rank: DpRank) -> Vec<u8> {
        let mut batch = Writer::default();
        batch.array(3);
        batch.float(ts.as_secs_f64());
        batch.array(self.count);
        batch.0.extend(self.events.0);
        batch.unsigned(dp_rank.get().into());
        batch.0
    }
}

/// The fields of one event's map.
#[derive(Default)]
pub(crate) struct Fields {
    count: u16,
    bytes: Writer,
}

impl Fields {
    pub(crate) fn tagged(tag: &str) -> Self {
        let mut fields = Self::default();
        fields.add("type").text(tag);
        fields
    }

    pub(crate) fn add(&mut self, name: &str) -> &mut Writer {
        self.count += 1;
        self.bytes.text(name);
        &mut self.bytes
    }
}

/// msgpack in its shortest forms.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn nil(&mut self) {
        written(encode::write_nil(&mut self.0));
    }

    fn float(&mut self, value: f64) {
        written(encode::write_f64(&mut self.0, value));
    }

    pub(crate) fn unsigned(&mut self, value: u64) {
        written(encode::write_uint(&mut self.0, value));
    }

    pub(crate) fn signed(&mut self, value: i64) {
        written(encode::write_sint(&mut self.0, value));
    }

    pub(crate) fn text(&mut self, text: &str) {
        written(encode::write_str(&mut self.0, text));
    }

    pub(crate) fn array(&mut self, elements: usize) {
        let elements = u32::try_from(elements).expect("no cache has 2^32 blocks or tokens");
        written(encode::write_array_len(&mut self.0, elements));
    }

    fn map(&mut self, pairs: u16) {
        written(encode::write_map_len(&mut self.0, pairs.into()));
    }

    pub(crate) fn hash(&mut self, hash: &EngineHash) {
        match hash {
            EngineHash::Int(value) => self.unsigned(*value),
            EngineHash::Bytes(bytes) => written(encode::write_bin(&mut self.0, bytes)),
        }
    }

    pub(crate) fn hashes(&mut self, hashes: &[EngineHash]) {
        self.array(hashes.len());
        for hash in hashes {
            self.hash(hash);
        }
    }
}

fn written<T, E: std::fmt::Debug>(result: Result<T, E>) {
    result.expect("a vector takes every write");
}
