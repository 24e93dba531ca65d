//! ZMQ message framing of KV events: live messages, replay requests and replay answers.

use domain::EventSeq;

/// The sequence number that marks the end of a replay: -1 as eight bytes.
const END_MARKER: u64 = u64::MAX;

/// One live message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// What it was published under; may be empty, need not be text.
    pub topic: &'a [u8],
    /// The publisher's number for it.
    pub seq: EventSeq,
    /// The batch, for [`crate::decode_batch`].
    pub payload: &'a [u8],
}

/// One answer of a replay socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay<'a> {
    /// A batch the publisher still had.
    Batch {
        /// The publisher's number for it.
        seq: EventSeq,
        /// The batch, for [`crate::decode_batch`].
        payload: &'a [u8],
    },
    /// There are no more.
    End,
}

/// Why a message's frames are not what a publisher sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A message without frames.
    #[error("the message has no frames")]
    NoFrames,
    /// One frame: a publisher that sends neither topic nor sequence number.
    #[error("the message has one frame: no topic and no sequence number")]
    OneFrame,
    /// Two frames: a live message without its topic, or an answer without its delimiter.
    #[error("the message has two frames where at least three are due")]
    TwoFrames,
    /// More frames than any publisher sends.
    #[error("the message has {frames} frames")]
    TooManyFrames {
        /// How many.
        frames: usize,
    },
    /// A replay answer whose first frame is not the empty delimiter.
    #[error("the replay answer does not begin with an empty frame")]
    NoDelimiter,
    /// A sequence number of another length than eight bytes.
    #[error("the sequence number has {bytes} bytes, not 8")]
    SequenceLength {
        /// Its length.
        bytes: usize,
    },
    /// The end marker's sequence number where a batch is due.
    #[error("the end marker of a replay came with a batch or among live messages")]
    EndMarker,
    /// A live message without a batch.
    #[error("the payload is empty")]
    EmptyPayload,
}

impl FrameError {
    /// A name for metrics, one of a fixed few.
    pub const fn label(self) -> &'static str {
        match self {
            Self::NoFrames => "no_frames",
            Self::OneFrame => "one_frame",
            Self::TwoFrames => "two_frames",
            Self::TooManyFrames { .. } => "too_many_frames",
            Self::NoDelimiter => "no_delimiter",
            Self::SequenceLength { .. } => "sequence_length",
            Self::EndMarker => "end_marker",
            Self::EmptyPayload => "empty_payload",
        }
    }
}

/// Reads a live message: topic, sequence number, payload.
pub fn decode_frames<F: AsRef<[u8]>>(frames: &[F]) -> Result<Message<'_>, FrameError> {
    let [topic, seq, payload] = frames else {
        return Err(wrong_count(frames.len()));
    };
    let seq = sequence(seq.as_ref())?;
    if seq == END_MARKER {
        return Err(FrameError::EndMarker);
    }
    if payload.as_ref().is_empty() {
        return Err(FrameError::EmptyPayload);
    }
    Ok(Message {
        topic: topic.as_ref(),
        seq: EventSeq::new(seq),
        payload: payload.as_ref(),
    })
}

/// Reads one answer of a replay socket as a DEALER sees it: an empty delimiter, the topic where the engine
/// is new enough (vLLM 0.26, SGLang 0.5.22), sequence number, payload. An empty payload is the end.
pub fn decode_replay<F: AsRef<[u8]>>(frames: &[F]) -> Result<Replay<'_>, FrameError> {
    let (delimiter, seq, payload) = match frames {
        [delimiter, seq, payload] | [delimiter, _, seq, payload] => (delimiter, seq, payload),
        _ => return Err(wrong_count(frames.len())),
    };
    if !delimiter.as_ref().is_empty() {
        return Err(FrameError::NoDelimiter);
    }
    let seq = sequence(seq.as_ref())?;
    match (payload.as_ref(), seq) {
        ([], _) => Ok(Replay::End),
        (_, END_MARKER) => Err(FrameError::EndMarker),
        (payload, seq) => Ok(Replay::Batch {
            seq: EventSeq::new(seq),
            payload,
        }),
    }
}

/// Reads a replay request as a ROUTER sees it behind the identity frame: an empty delimiter and the first
/// sequence number wanted.
pub fn decode_replay_request<F: AsRef<[u8]>>(frames: &[F]) -> Result<EventSeq, FrameError> {
    match frames {
        [] => Err(FrameError::NoFrames),
        [_] => Err(FrameError::OneFrame),
        [delimiter, _] if !delimiter.as_ref().is_empty() => Err(FrameError::NoDelimiter),
        [_, seq] => sequence(seq.as_ref()).map(EventSeq::new),
        more => Err(FrameError::TooManyFrames { frames: more.len() }),
    }
}

/// The frames of a live message.
pub fn live_frames(topic: &str, seq: EventSeq, payload: Vec<u8>) -> [Vec<u8>; 3] {
    [topic.as_bytes().to_vec(), sequence_frame(seq), payload]
}

/// The frames by which a DEALER asks for everything from `first` on.
pub fn replay_request_frames(first: EventSeq) -> [Vec<u8>; 2] {
    [Vec::new(), sequence_frame(first)]
}

/// The frames of one replayed batch behind the identity frame, with the topic (vLLM from 0.26 on).
pub fn replay_frames(topic: &str, seq: EventSeq, payload: Vec<u8>) -> [Vec<u8>; 4] {
    let [topic, seq, payload] = live_frames(topic, seq, payload);
    [Vec::new(), topic, seq, payload]
}

/// The frames that end a replay behind the identity frame.
pub fn replay_end_frames() -> [Vec<u8>; 4] {
    replay_frames("", EventSeq::new(END_MARKER), Vec::new())
}

fn wrong_count(frames: usize) -> FrameError {
    match frames {
        0 => FrameError::NoFrames,
        1 => FrameError::OneFrame,
        2 => FrameError::TwoFrames,
        frames => FrameError::TooManyFrames { frames },
    }
}

fn sequence(frame: &[u8]) -> Result<u64, FrameError> {
    frame
        .try_into()
        .map(u64::from_be_bytes)
        .map_err(|_| FrameError::SequenceLength { bytes: frame.len() })
}

fn sequence_frame(seq: EventSeq) -> Vec<u8> {
    seq.get().to_be_bytes().to_vec()
}
