//! Replay streams: both reply shapes, their ends, and the frames around them.

use std::collections::BTreeMap;

use domain::EventSeq;
use engine_wire::{
    FrameError, Replay, decode_frames, decode_replay, decode_replay_request, live_frames,
    replay_end_frames, replay_frames, replay_request_frames,
};

use crate::corpus::{files, json, replies, unhex_all};

#[test]
fn a_replay_repeats_live_batches_in_order_and_then_ends() {
    let mut streams = 0;
    for file in files() {
        let document = &file.documents[0];
        let replies = replies(document);
        if replies.is_empty() {
            continue;
        }
        streams += 1;
        let live = live_payloads(&file.path);
        let (end, batches) = replies.split_last().unwrap();
        assert_eq!(decode_replay(end), Ok(Replay::End), "{}", file.path);
        for (index, reply) in batches.iter().enumerate() {
            let expected = document["reply_seqs"][index].as_u64().unwrap();
            let Replay::Batch { seq, payload } = decode_replay(reply).unwrap() else {
                panic!("{}: an end before the end", file.path);
            };
            assert_eq!(seq, EventSeq::new(expected), "{}", file.path);
            if let Some(live) = live.get(&expected) {
                assert_eq!(payload, live, "{}", file.path);
            }
        }
    }
    assert_eq!(streams, 15);
}

/// Payloads of the live messages captured from the same publisher, by sequence number.
fn live_payloads(replay: &str) -> BTreeMap<u64, Vec<u8>> {
    let publisher = replay.split("_replay").next().unwrap();
    files()
        .into_iter()
        .filter(|file| file.path.starts_with(publisher) && !file.path.contains("replay"))
        .map(|file| {
            let frames = unhex_all(&file.documents[0]["frames_hex"]);
            let message = decode_frames(&frames).unwrap();
            (message.seq.get(), message.payload.to_vec())
        })
        .collect()
}

#[test]
fn a_replay_may_begin_later_than_asked() {
    let file = json("vllm/0.33.0/dp0_replay.json");

    let asked = decode_replay_request(&unhex_all(&file["request_frames_hex"])).unwrap();
    let first = decode_replay(&replies(&file)[0]).map(|reply| match reply {
        Replay::Batch { seq, .. } => Some(seq),
        Replay::End => None,
    });

    assert_eq!(asked, EventSeq::new(3));
    assert_eq!(first, Ok(Some(EventSeq::new(4))));
}

#[test]
fn a_replay_beyond_the_newest_batch_is_an_end_at_once() {
    for version in ["0.23.0", "0.33.0"] {
        let file = json(&format!("vllm/{version}/dp0_replay_past_end.json"));
        let ends: Vec<_> = replies(&file)
            .iter()
            .map(|it| decode_replay(it) == Ok(Replay::End))
            .collect();
        assert_eq!(ends, [true], "{version}");
    }
    let tensorrt = json("trtllm/streaming_wire.json");
    let end = unhex_all(&tensorrt["replay"]["end_marker_frames_hex"]);
    assert_eq!(decode_replay(&end), Ok(Replay::End));
}

#[test]
fn our_frames_are_those_of_vllm() {
    let file = json("vllm/0.33.0/dp0_replay.json");
    let seq = EventSeq::new(4);
    let captured = &replies(&file)[0];
    let payload = captured[3].clone();

    assert_eq!(
        replay_frames("kv-events", seq, payload.clone()).to_vec(),
        *captured
    );
    assert_eq!(
        replay_end_frames().to_vec(),
        *replies(&file).last().unwrap()
    );
    assert_eq!(
        replay_request_frames(EventSeq::new(3)).to_vec(),
        unhex_all(&file["request_frames_hex"])
    );
    let live = live_frames("kv-events", seq, payload);
    assert_eq!(live.to_vec(), captured[1..]);
}

#[test]
fn wrong_frames_are_told_apart() {
    let seq: &[u8] = &[0; 8];
    let end: &[u8] = &[0xff; 8];
    let cases: [(&[&[u8]], &str); 9] = [
        (&[], "no_frames"),
        (&[b"payload"], "one_frame"),
        (&[seq, b"payload"], "two_frames"),
        (&[b"", b"topic", seq, b"payload"], "too_many_frames"),
        (&[b"topic", &[0; 7], b"payload"], "sequence_length"),
        (&[b"topic", &[0; 9], b"payload"], "sequence_length"),
        (&[b"topic", b"", b"payload"], "sequence_length"),
        (&[b"topic", end, b"payload"], "end_marker"),
        (&[b"topic", seq, b""], "empty_payload"),
    ];
    for (frames, label) in cases {
        assert_eq!(
            decode_frames(frames).map_err(FrameError::label),
            Err(label),
            "{frames:?}"
        );
    }
    let cases: [(&[&[u8]], &str); 6] = [
        (&[], "no_frames"),
        (&[b""], "one_frame"),
        (&[b"", seq], "two_frames"),
        (&[b"topic", seq, b"payload"], "no_delimiter"),
        (&[b"", end, b"payload"], "end_marker"),
        (&[b"", b"topic", &[0; 7], b"payload"], "sequence_length"),
    ];
    for (frames, label) in cases {
        assert_eq!(
            decode_replay(frames).map_err(FrameError::label),
            Err(label),
            "{frames:?}"
        );
    }
    let five: [&[u8]; 5] = [b"", b"", b"topic", seq, b"payload"];
    assert_eq!(
        decode_replay(&five),
        Err(FrameError::TooManyFrames { frames: 5 })
    );
    assert_eq!(
        decode_replay_request(&[&b"x"[..], seq]),
        Err(FrameError::NoDelimiter)
    );
}
