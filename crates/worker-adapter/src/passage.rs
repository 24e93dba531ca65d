//! An answer on its way from the engine to the client, read while it passes for what it cost and where it ran.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use domain::Usage;
use engine_wire::UsageReader;
use engine_wire::sglang::{MetaInfo, parse_meta_info};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::sse::{Frames, Verdict, data_of};

/// The longest JSON answer that is read; of a longer one, what it says stays unknown, and in it.
const JSON_LIMIT: usize = 1 << 20;
/// The longest piece of a body that is passed on.
const CHUNK_LIMIT: usize = 64 << 10;

/// What an answer says of its making because its request asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    Nothing,
    /// The client asked.
    ToClient,
    /// Only we asked: it is taken out.
    ToUs,
}

/// What an answer said of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) usage: Option<Usage>,
    pub(crate) making: Option<MetaInfo>,
}

/// Reads one answer.
#[derive(Debug)]
pub(crate) struct Passage {
    reader: Reader,
    usage: UsageReader,
    reported: Reported,
    /// Frames or bodies that were too long to be read.
    pub(crate) unread: u64,
}

#[derive(Debug)]
enum Reader {
    /// Nothing in it can be read.
    Opaque,
    /// A copy of what has passed.
    Json(BytesMut),
    /// What waits until it is whole, because some of it is taken out.
    Held(BytesMut),
    Events(Frames),
}

impl Passage {
    /// A passage for an answer with this head; with `usage_injected` the frame that carries only usage is
    /// taken out.
    pub(crate) fn new(
        status: u16,
        headers: &HeaderMap,
        usage_injected: bool,
        reported: Reported,
    ) -> Self {
        let media = headers.get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
        let media = media.and_then(|it| it.split(';').next()).map(str::trim);
        let readable = (200..300).contains(&status) && !headers.contains_key(CONTENT_ENCODING);
        let reader = match media.filter(|_| readable) {
            Some("application/json") if reported == Reported::ToUs => Reader::Held(BytesMut::new()),
            Some("application/json") => Reader::Json(BytesMut::new()),
            Some("text/event-stream") if usage_injected => Reader::Events(Frames::withholding()),
            Some("text/event-stream") => Reader::Events(Frames::passing()),
            _ => Reader::Opaque,
        };
        Self {
            reader,
            usage: UsageReader::default(),
            reported,
            unread: 0,
        }
    }

    /// Takes what arrived and puts what may pass into `out`, in pieces of at most 64 KiB.
    pub(crate) fn push(&mut self, chunk: Bytes, out: &mut VecDeque<Bytes>) {
        let mut passing = VecDeque::new();
        match &mut self.reader {
            Reader::Opaque => passing.push_back(chunk),
            Reader::Json(body) => {
                if JSON_LIMIT < body.len() + chunk.len() {
                    self.reader = Reader::Opaque;
                    self.unread += 1;
                } else {
                    body.extend_from_slice(&chunk);
                }
                passing.push_back(chunk);
            }
            Reader::Held(body) => {
                let whole = body.len() + chunk.len();
                body.extend_from_slice(&chunk);
                if JSON_LIMIT < whole {
                    passing.push_back(body.split().freeze());
                    self.reader = Reader::Opaque;
                    self.unread += 1;
                }
            }
            Reader::Events(frames) => {
                let usage = &mut self.usage;
                frames.push(chunk, &mut passing, &mut |frame| read_frame(frame, usage));
            }
        }
        cut(passing, out);
    }

    /// The body is complete: passes what was held back, and says what the answer said.
    pub(crate) fn finish(&mut self, out: &mut VecDeque<Bytes>) -> Said {
        let mut passing = VecDeque::new();
        let mut making = None;
        match &mut self.reader {
            Reader::Opaque => {}
            Reader::Json(body) => {
                self.usage.read(body);
                if self.reported == Reported::ToClient {
                    making = parse_meta_info(body).map(|(said, _)| said);
                }
            }
            Reader::Held(body) => {
                let body = body.split().freeze();
                self.usage.read(&body);
                let mut passed = 0;
                if let Some((said, cuts)) = parse_meta_info(&body) {
                    making = Some(said);
                    for cut in cuts {
                        passing.push_back(body.slice(passed..cut.start));
                        passed = cut.end;
                    }
                }
                passing.push_back(body.slice(passed..));
            }
            Reader::Events(frames) => {
                let usage = &mut self.usage;
                frames.finish(&mut passing, &mut |frame| read_frame(frame, usage));
                self.unread += frames.unread;
            }
        }
        cut(passing, out);
        let usage = self.usage.usage().map(|usage| Usage {
            cached: usage.cached.or(making.and_then(|it| it.cached_tokens())),
            ..usage
        });
        Said { usage, making }
    }
}

/// A frame of a stream, as far as it shows whether it carries anything but usage.
#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(borrow)]
    choices: Option<&'a RawValue>,
}

fn read_frame(frame: &[u8], usage: &mut UsageReader) -> Verdict {
    let data = data_of(frame);
    if !usage.read(&data) {
        return Verdict::Keep;
    }
    let choices = serde_json::from_slice::<Frame<'_>>(&data).ok();
    let choices = choices.and_then(|it| it.choices).map(RawValue::get);
    let only_usage = choices.is_some_and(|it| {
        let inside = it.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        inside.is_some_and(|it| it.trim().is_empty())
    });
    match only_usage {
        true => Verdict::Drop,
        false => Verdict::Keep,
    }
}

fn cut(passing: VecDeque<Bytes>, out: &mut VecDeque<Bytes>) {
    for mut piece in passing {
        while CHUNK_LIMIT < piece.len() {
            out.push_back(piece.split_to(CHUNK_LIMIT));
        }
        if !piece.is_empty() {
            out.push_back(piece);
        }
    }
}
