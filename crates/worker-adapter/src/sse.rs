//! Server-sent events while they pass: frames are found over any split into chunks, and one of them can be
//! taken out without touching another byte.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// The longest frame that is looked into, and so the most that is ever held back. A usage frame has a few
/// hundred bytes; a longer frame is passed on unread.
const FRAME_LIMIT: usize = 64 << 10;
/// A frame's end can begin this many bytes before the end of what has arrived (`\n\r` of `\n\r\n`).
const END_OVERLAP: usize = 2;

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Keep,
    Drop,
}

/// Splits a byte stream into frames.
#[derive(Debug)]
pub(crate) struct Frames {
    /// Whether a frame waits until it is whole, so that it can be dropped.
    withhold: bool,
    /// The beginning of a frame whose end has not arrived.
    held: BytesMut,
    /// How much of `held` has been passed on already.
    passed: usize,
    /// How much of `held` holds no end of a frame.
    scanned: usize,
    /// The frame in `held` has lost its beginning, because it is longer than [`FRAME_LIMIT`].
    truncated: bool,
    /// Frames that were too long to look into.
    pub(crate) unread: u64,
}

impl Frames {
    /// Frames of which any may be dropped.
    pub(crate) fn withholding() -> Self {
        Self::new(true)
    }

    /// Frames that are only looked at: every byte passes when it arrives.
    pub(crate) fn passing() -> Self {
        Self::new(false)
    }

    fn new(withhold: bool) -> Self {
        Self {
            withhold,
            held: BytesMut::new(),
            passed: 0,
            scanned: 0,
            truncated: false,
            unread: 0,
        }
    }

    /// Takes what arrived, shows each completed frame to `judge`, and puts what may pass into `out`.
    pub(crate) fn push(
        &mut self,
        chunk: Bytes,
        out: &mut VecDeque<Bytes>,
        judge: &mut impl FnMut(&[u8]) -> Verdict,
    ) {
        let data = match self.held.is_empty() {
            true => chunk,
            false => {
                self.held.extend_from_slice(&chunk);
                self.held.split().freeze()
            }
        };
        let mut frame_start = 0;
        let mut scan_from = self.scanned;
        while let Some(end) = frame_end(&data, scan_from) {
            let verdict = match self.truncated {
                true => Verdict::Keep,
                false => judge(&data[frame_start..end]),
            };
            self.truncated = false;
            if self.withhold && verdict == Verdict::Drop {
                self.pass(&data, frame_start, out);
                self.passed = end;
            }
            frame_start = end;
            scan_from = end;
        }
        let passable = if self.withhold {
            frame_start
        } else {
            data.len()
        };
        self.pass(&data, passable, out);
        self.hold(data.slice(frame_start..), frame_start, out);
    }

    /// The stream has ended: a last frame may lack its blank line.
    pub(crate) fn finish(
        &mut self,
        out: &mut VecDeque<Bytes>,
        judge: &mut impl FnMut(&[u8]) -> Verdict,
    ) {
        let rest = self.held.split().freeze();
        let dropped = !rest.is_empty() && !self.truncated && judge(&rest) == Verdict::Drop;
        if !(self.withhold && dropped) {
            self.pass(&rest, rest.len(), out);
        }
    }

    /// Passes `data` on up to `end`, without what went before.
    fn pass(&mut self, data: &Bytes, end: usize, out: &mut VecDeque<Bytes>) {
        if self.passed < end {
            out.push_back(data.slice(self.passed..end));
            self.passed = end;
        }
    }

    /// Keeps the beginning of the next frame, which stood at `offset` of what `passed` counts.
    fn hold(&mut self, rest: Bytes, offset: usize, out: &mut VecDeque<Bytes>) {
        self.passed = self.passed.saturating_sub(offset);
        let kept = if FRAME_LIMIT < rest.len() {
            self.pass(&rest, rest.len(), out);
            if !self.truncated {
                self.truncated = true;
                self.unread += 1;
            }
            self.passed = END_OVERLAP;
            rest.slice(rest.len() - END_OVERLAP..)
        } else {
            rest
        };
        self.scanned = kept.len().saturating_sub(END_OVERLAP);
        self.held.extend_from_slice(&kept);
    }
}

/// Where the first frame that ends at or after `from` ends: behind a blank line.
fn frame_end(data: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += data[at..].iter().position(|byte| *byte == b'\n')?;
        match &data[at + 1..] {
            [b'\n', ..] => return Some(at + 2),
            [b'\r', b'\n', ..] => return Some(at + 3),
            _ => at += 1,
        }
    }
}

/// The data of a frame: its `data:` lines, joined by newlines as the standard says.
pub(crate) fn data_of(frame: &[u8]) -> Vec<u8> {
    let lines = frame.split(|byte| *byte == b'\n').filter_map(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let value = line.strip_prefix(b"data:")?;
        Some(value.strip_prefix(b" ").unwrap_or(value))
    });
    lines.collect::<Vec<_>>().join(&b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = concat!(
        "data: {\"n\":1}\n\n",
        ": a comment\r\n\r\n",
        "event: x\r\ndata: drop\r\n\r\n",
        "data: {\"n\":2}\n\n",
        "data: drop\n\n",
        "data: [DONE]\n\n",
    );
    const WITHOUT: &str = concat!(
        "data: {\"n\":1}\n\n",
        ": a comment\r\n\r\n",
        "data: {\"n\":2}\n\n",
        "data: [DONE]\n\n",
    );

    fn judge(frame: &[u8]) -> Verdict {
        match data_of(frame) == b"drop" {
            true => Verdict::Drop,
            false => Verdict::Keep,
        }
    }

    fn through(mut frames: Frames, stream: &[u8], split: usize) -> (Vec<u8>, u64) {
        let mut out = VecDeque::new();
        for chunk in stream.chunks(split) {
            frames.push(Bytes::copy_from_slice(chunk), &mut out, &mut judge);
        }
        frames.finish(&mut out, &mut judge);
        (out.into_iter().flatten().collect(), frames.unread)
    }

    #[test]
    fn under_any_split_the_dropped_frames_and_nothing_else_are_missing() {
        for split in 1..=STREAM.len() {
            let (kept, _) = through(Frames::withholding(), STREAM.as_bytes(), split);
            assert_eq!(
                String::from_utf8(kept).unwrap(),
                WITHOUT,
                "in chunks of {split}"
            );
        }
    }

    #[test]
    fn a_stream_that_is_only_looked_at_passes_byte_for_byte_at_once() {
        for split in 1..=STREAM.len() {
            let mut frames = Frames::passing();
            let mut arrived = 0;
            let mut out = VecDeque::new();
            for chunk in STREAM.as_bytes().chunks(split) {
                frames.push(Bytes::copy_from_slice(chunk), &mut out, &mut judge);
                arrived += chunk.len();
                assert_eq!(out.iter().map(Bytes::len).sum::<usize>(), arrived);
            }
            frames.finish(&mut out, &mut judge);
            let passed: Vec<u8> = out.into_iter().flatten().collect();
            assert_eq!(passed, STREAM.as_bytes());
        }
    }

    #[test]
    fn a_frame_beyond_the_limit_passes_unread_and_the_next_one_is_read_again() {
        let long = format!(
            "data: {}\n\ndata: drop\n\nlast",
            "x".repeat(3 * FRAME_LIMIT)
        );
        for split in [1, 1000, long.len()] {
            let (kept, unread) = through(Frames::withholding(), long.as_bytes(), split);
            assert_eq!(kept.len(), long.len() - "data: drop\n\n".len());
            assert!(kept.ends_with(b"x\n\nlast"));
            // In one piece the frame is whole when it arrives and needs no holding.
            assert_eq!(unread, u64::from(split != long.len()));
        }
    }

    #[test]
    fn a_last_frame_without_its_blank_line_is_judged_too() {
        let (kept, _) = through(Frames::withholding(), b"data: a\n\ndata: drop", 5);
        assert_eq!(kept, b"data: a\n\n");
    }
}
