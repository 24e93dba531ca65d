//! Files of frames: `preamble = magic[8] version[u32]`, `frame = mark[4] length[u32] crc32[u32] payload`, numbers
//! little-endian, the checksum over length and payload.
//!
//! The mark lets a reader find the next whole frame behind a broken one, and so tell a write that was cut short
//! (nothing follows) from damage (something does).

use std::fs::File;
use std::io::{self, Read};

use crate::format::VERSION;

const MAGIC: [u8; 8] = *b"rankway\0";
/// The bytes of a preamble.
pub(crate) const PREAMBLE: usize = MAGIC.len() + 4;
const MARK: [u8; 4] = [0xf7, b'R', b'W', 0x1e];
const FRAME_HEAD: usize = MARK.len() + 8;
/// The largest payload: the largest record with room for its offset and tags.
const MAX_PAYLOAD: usize = bus::MAX_RECORD_BYTES + 256;
/// How much is read from a file at once.
const CHUNK: usize = 256 * 1024;
/// How many false frames a search looks into before it gives up: records that imitate frames must not make a
/// start take for ever.
const FALSE_FRAMES: usize = 1024;

/// A preamble.
pub(crate) fn preamble() -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes
}

/// A preamble and a frame with `header`.
pub(crate) fn begin(header: &impl prost::Message) -> Vec<u8> {
    let mut bytes = preamble();
    encode(header, &mut bytes);
    bytes
}

/// Adds a frame with `message` to `into`.
pub(crate) fn encode(message: &impl prost::Message, into: &mut Vec<u8>) {
    let head = into.len();
    into.extend(MARK);
    into.extend([0; 8]);
    let payload = into.len();
    message
        .encode(into)
        .expect("a vector has room for any message");
    let length = u32::try_from(into.len() - payload).expect("messages are bounded before");
    let checksum = checksum(length, &into[payload..]);
    into[head + 4..head + 8].copy_from_slice(&length.to_le_bytes());
    into[head + 8..payload].copy_from_slice(&checksum.to_le_bytes());
}

fn checksum(length: u32, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length.to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

/// How a file begins.
pub(crate) enum Preamble {
    /// As this version writes it.
    Ours,
    /// As another version does.
    Version(u32),
    /// Not as any version does; perhaps it was cut short.
    Foreign,
}

/// What stands at a place in a file.
pub(crate) enum Found<'a> {
    /// A whole frame.
    Frame(&'a [u8]),
    /// The end, exactly after a frame.
    End,
    /// Something else.
    Broken,
}

/// What stands behind something broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// A whole frame; it is found next.
    Frame,
    /// No frame: the broken one was the last thing written.
    Nothing,
    /// Too much that looks like frames and is not.
    Unclear,
}

/// Reads a file from its beginning to a limit, frame by frame.
pub(crate) struct FrameReader<R = File> {
    file: R,
    /// Bytes read and not yet passed start at `at`.
    buffer: Vec<u8>,
    at: usize,
    /// The place in the file of the buffer's first byte.
    place: u64,
    limit: u64,
}

impl<R: Read> FrameReader<R> {
    /// Reads `file`, which stands at its beginning, up to `limit` bytes.
    pub(crate) fn new(file: R, limit: u64) -> Self {
        Self {
            file,
            buffer: Vec::new(),
            at: 0,
            place: 0,
            limit,
        }
    }

    /// The place of what is found next.
    pub(crate) fn place(&self) -> u64 {
        self.place + self.at as u64
    }

    /// Reads on up to `limit`, which has grown because the file has.
    pub(crate) fn extend(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// The limit.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Reads the preamble.
    pub(crate) fn preamble(&mut self) -> io::Result<Preamble> {
        let Some((magic, version)) = self.peek(PREAMBLE)?.split_at_checked(MAGIC.len()) else {
            return Ok(Preamble::Foreign);
        };
        let Ok(version) = version.try_into().map(u32::from_le_bytes) else {
            return Ok(Preamble::Foreign);
        };
        if magic != MAGIC {
            return Ok(Preamble::Foreign);
        }
        if version != VERSION {
            return Ok(Preamble::Version(version));
        }
        self.at += PREAMBLE;
        Ok(Preamble::Ours)
    }

    /// Takes the frame that comes next. A broken one stays where it is.
    pub(crate) fn next(&mut self) -> io::Result<Found<'_>> {
        let Some((length, expected)) = self.head()? else {
            let at_end = self.peek(1)?.is_empty();
            return Ok(if at_end { Found::End } else { Found::Broken });
        };
        let whole = FRAME_HEAD + length as usize;
        let frame = self.peek(whole)?;
        if frame.len() < whole || checksum(length, &frame[FRAME_HEAD..]) != expected {
            return Ok(Found::Broken);
        }
        let payload = self.at + FRAME_HEAD..self.at + whole;
        self.at += whole;
        Ok(Found::Frame(&self.buffer[payload]))
    }

    /// Passes what is broken, up to the next whole frame.
    pub(crate) fn pass_broken(&mut self) -> io::Result<Behind> {
        let mut false_frames = 0;
        if self.peek(1)?.is_empty() {
            return Ok(Behind::Nothing);
        }
        loop {
            self.at += 1;
            let bytes = self.peek(CHUNK)?;
            if bytes.len() < FRAME_HEAD {
                return Ok(Behind::Nothing);
            }
            let Some(skip) = bytes.windows(MARK.len()).position(|it| it == MARK) else {
                self.at += bytes.len() - MARK.len();
                continue;
            };
            self.at += skip;
            let start = self.place();
            if let Found::Frame(_) = self.next()? {
                // The frame stays in the buffer until more is asked for, but may have moved to its front.
                self.at = (start - self.place) as usize;
                return Ok(Behind::Frame);
            }
            false_frames += 1;
            if false_frames == FALSE_FRAMES {
                return Ok(Behind::Unclear);
            }
        }
    }

    /// The length and checksum of the frame that comes next, if it begins like one.
    fn head(&mut self) -> io::Result<Option<(u32, u32)>> {
        let head = self.peek(FRAME_HEAD)?;
        let fields = head.split_first_chunk::<4>().and_then(|(mark, rest)| {
            let (length, rest) = rest.split_first_chunk::<4>()?;
            let checksum = rest.first_chunk::<4>()?;
            (*mark == MARK).then_some((*length, *checksum))
        });
        let fields = fields
            .map(|(length, checksum)| (u32::from_le_bytes(length), u32::from_le_bytes(checksum)));
        Ok(fields.filter(|(length, _)| *length as usize <= MAX_PAYLOAD))
    }

    /// The next `count` bytes, fewer at the limit or the end of the file.
    fn peek(&mut self, count: usize) -> io::Result<&[u8]> {
        if self.buffer.len() < self.at + count {
            self.buffer.drain(..self.at);
            self.place += self.at as u64;
            self.at = 0;
        }
        while self.buffer.len() < count {
            let left = self.limit - (self.place + self.buffer.len() as u64);
            let wanted = left.min(CHUNK.max(count) as u64);
            let read = (&mut self.file)
                .take(wanted)
                .read_to_end(&mut self.buffer)?;
            if (read as u64) < wanted || wanted == left {
                break;
            }
        }
        let available = &self.buffer[self.at..];
        Ok(&available[..count.min(available.len())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::StoredRecord;
    use bytes::Bytes;
    use proptest::prelude::{any, prop, proptest};
    use proptest::{prop_assert, prop_assert_eq};
    use prost::Message;

    fn record(offset: u64, size: usize) -> StoredRecord {
        StoredRecord {
            offset,
            bytes: Bytes::from(vec![offset as u8; size]),
        }
    }

    /// Every whole frame of a file that is read past what is broken.
    fn frames(bytes: &[u8]) -> Vec<StoredRecord> {
        let mut reader = FrameReader::new(bytes, bytes.len() as u64);
        let mut frames = Vec::new();
        loop {
            match reader.next().unwrap() {
                Found::Frame(payload) => frames.extend(StoredRecord::decode(payload)),
                Found::End => return frames,
                Found::Broken => match reader.pass_broken().unwrap() {
                    Behind::Frame => {}
                    Behind::Nothing | Behind::Unclear => return frames,
                },
            }
        }
    }

    #[test]
    fn the_bytes_of_a_file_are_pinned() {
        let mut bytes = begin(&record(1, 1));
        encode(&record(2, 0), &mut bytes);
        let hex: String = bytes.iter().map(|it| format!("{it:02x}")).collect();
        let preamble = "72616e6b77617900".to_owned() + "01000000";
        let first = "f752571e".to_owned() + "05000000" + "8c0bec55" + "0801120101";
        let second = "f752571e".to_owned() + "02000000" + "8cebddda" + "0802";
        assert_eq!(hex, preamble + &first + &second);
    }

    #[test]
    fn records_that_imitate_frames_do_not_hold_up_a_search() {
        let mut like_frames = Vec::new();
        while like_frames.len() < 400_000 {
            like_frames.extend(MARK);
            like_frames.extend(400_000_u32.to_le_bytes());
        }
        let mut bytes = vec![0];
        for _ in 0..4 {
            bytes.extend(&like_frames);
        }
        let mut reader = FrameReader::new(&*bytes, bytes.len() as u64);

        assert!(matches!(reader.next(), Ok(Found::Broken)));
        assert_eq!(reader.pass_broken().unwrap(), Behind::Unclear);
    }

    proptest! {
        #[test]
        fn whatever_is_damaged_every_other_frame_is_found(
            sizes in prop::collection::vec(0..2000_usize, 1..20),
            big in any::<prop::sample::Index>(),
            place in any::<prop::sample::Index>(),
            bits in 1..=u8::MAX,
            cut in any::<bool>(),
        ) {
            let mut sizes = sizes;
            // One frame that reaches across what is read at once.
            *big.get_mut(&mut sizes) = CHUNK + 100;
            let records: Vec<StoredRecord> =
                sizes.iter().enumerate().map(|(n, size)| record(n as u64, *size)).collect();
            let mut bytes = Vec::new();
            let mut ends = Vec::new();
            for record in &records {
                encode(record, &mut bytes);
                ends.push(bytes.len());
            }
            prop_assert_eq!(&frames(&bytes), &records);

            let place = place.index(bytes.len());
            let hit = ends.iter().position(|end| place < *end).unwrap();
            let found = if cut {
                frames(&bytes[..place])
            } else {
                bytes[place] ^= bits;
                frames(&bytes)
            };
            let behind = if cut { &[] } else { &records[hit + 1..] };
            prop_assert!(found.iter().eq(records[..hit].iter().chain(behind)));
        }

        #[test]
        fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
            let mut reader = FrameReader::new(&*bytes, bytes.len() as u64);
            reader.preamble().unwrap();
            frames(&bytes);
        }
    }
}
