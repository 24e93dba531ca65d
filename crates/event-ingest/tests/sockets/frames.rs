//! Messages that are not what a publisher of events sends, and replays that are not what one answers.

use domain::EventSeq;
use engine_wire::{live_frames, replay_end_frames};

use crate::engine::Rank;
use crate::fixture::{Ingest, Switched, batches, eventually, numbers, register};
use crate::{ALL, epoch_1, hear};

/// <https://github.com/ROCm/ATOM/pull/2203> (BC-49).
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_any_other_shape_are_counted_by_kind_and_the_stream_goes_on() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, ALL).await;
    register(&bus, 1, vec![rank.endpoint.clone()]).await;
    let ingest = Ingest::start(&bus, data.path());
    ingest.ready().await;
    hear(&ingest, &mut rank).await;
    let gaps = ingest.count("rankway_event_gaps_total", &[]);
    let topic = b"kv@m".to_vec();
    let [seq, payload] = [vec![0; 8], vec![1]];
    let end = replay_end_frames();
    let odd: [(&str, Vec<Vec<u8>>); 9] = [
        ("one_frame", vec![topic.clone()]),
        ("two_frames", vec![topic.clone(), seq.clone()]),
        (
            "too_many_frames",
            vec![topic.clone(), seq.clone(), payload.clone(), payload.clone()],
        ),
        (
            "sequence_length",
            vec![topic.clone(), vec![0; 7], payload.clone()],
        ),
        (
            "sequence_length",
            vec![topic.clone(), vec![0; 9], payload.clone()],
        ),
        (
            "end_marker",
            vec![topic.clone(), vec![0xff; 8], payload.clone()],
        ),
        // The end of a replay, as a live message.
        (
            "end_marker",
            vec![topic.clone(), end[2].clone(), end[3].clone()],
        ),
        (
            "empty_payload",
            vec![topic.clone(), seq.clone(), Vec::new()],
        ),
        (
            "reserved_byte",
            live_frames("kv@m", EventSeq::new(7), vec![0xc1]).into(),
        ),
    ];
    const TIMES: u64 = 20;
    for _ in 0..TIMES {
        for (_, frames) in &odd {
            rank.send(frames).await;
        }
    }
    rank.publish().await;

    let count = rank.published();
    let log = batches(&bus, 0, count as usize).await;
    assert_eq!(numbers(&log), epoch_1(0..count));
    for (kind, _) in &odd {
        let shapes = odd.iter().filter(|(it, _)| it == kind).count() as u64;
        assert_eq!(ingest.events(kind), TIMES * shapes, "{kind}");
    }
    assert_eq!(ingest.events("published"), count);
    // None of them was taken for a message of the stream, nor for the sign of a lost one.
    assert_eq!(ingest.count("rankway_event_gaps_total", &[]), gaps);
    assert_eq!(ingest.count("rankway_worker_restarts_total", &[]), 0);
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_without_an_end_is_given_up_and_the_stream_goes_on() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, ALL).await;
    rank.publish_unheard();
    rank.never_end_replays();
    register(&bus, 1, vec![rank.endpoint.clone()]).await;
    let ingest = Ingest::start_with(&bus, data.path(), |config| config.replay_timeout_ms = 20);
    let failed = || ingest.count("rankway_event_replays_total", &[("result", "failed")]);
    eventually(|| 4 <= failed()).await;

    let mut tries = 0;
    while ingest.events("published") < 2 {
        rank.publish().await;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        tries += 1;
        assert!(tries < 1_000, "nothing is published");
    }
    ingest.stop().await;
}
