//! Promises of durable logs.

use bus::{Bus, BusError, Delivered, MAX_RECORD_BYTES, Offset, Partition, Record, Start};
use bytes::Bytes;
use futures::future::join_all;

use crate::steps::{append, bytes_of, open, read, records, soon, take};
use crate::{LOG, OTHER_LOG};

/// Records of one partition come back in the order of their appends.
pub async fn records_come_back_in_order(bus: &dyn Bus) {
    append(bus, &LOG, records(&["a", "b"])).await;
    append(bus, &LOG, records(&["c"])).await;

    let read = read(bus, &LOG, Start::Earliest, 3).await;
    assert_eq!(bytes_of(&read), ["a", "b", "c"]);
}

/// A reader that applied a record and restarts after it misses none and repeats none.
pub async fn a_read_resumes_after_an_offset(bus: &dyn Bus) {
    append(bus, &LOG, records(&["a", "b", "c", "d"])).await;
    let first = read(bus, &LOG, Start::Earliest, 2).await;

    let rest = read(bus, &LOG, Start::After(first[1].offset), 2).await;
    assert_eq!(bytes_of(&rest), ["c", "d"]);
}

/// Reading after the newest record waits for what comes.
pub async fn a_read_after_the_newest_offset_yields_only_what_comes_later(bus: &dyn Bus) {
    let newest = append(bus, &LOG, records(&["old"])).await;
    let mut reader = open(bus, &LOG, Start::After(newest)).await;
    append(bus, &LOG, records(&["new"])).await;

    assert_eq!(bytes_of(&take(&mut reader, 1).await), ["new"]);
}

/// One read yields what was there and goes on with what is appended later.
pub async fn a_read_follows_the_tail(bus: &dyn Bus) {
    append(bus, &LOG, records(&["a"])).await;
    let mut reader = open(bus, &LOG, Start::Earliest).await;
    assert_eq!(bytes_of(&take(&mut reader, 1).await), ["a"]);

    for text in ["b", "c", "d"] {
        append(bus, &LOG, records(&[text])).await;
        assert_eq!(bytes_of(&take(&mut reader, 1).await), [text]);
    }
}

/// The offset of an append is where a reader of its last record stands.
pub async fn an_append_resolves_with_the_offset_of_its_last_record(bus: &dyn Bus) {
    let first = append(bus, &LOG, records(&["a", "b"])).await;
    let second = append(bus, &LOG, records(&["c"])).await;

    let read = read(bus, &LOG, Start::Earliest, 3).await;
    assert_eq!((read[1].offset, read[2].offset), (first, second));
}

/// Later records have higher offsets, and none has offset 0.
pub async fn offsets_grow(bus: &dyn Bus) {
    for _ in 0..10 {
        append(bus, &LOG, records(&["a", "b", "c"])).await;
    }

    let read = read(bus, &LOG, Start::Earliest, 30).await;
    assert!(Offset(0) < read[0].offset);
    assert!(read.windows(2).all(|it| it[0].offset < it[1].offset));
}

/// A partition shows only what was appended to it.
pub async fn partitions_do_not_mix(bus: &dyn Bus) {
    append(bus, &LOG, records(&["mine"])).await;
    append(bus, &OTHER_LOG, records(&["theirs"])).await;
    append(bus, &LOG, records(&["mine too"])).await;

    let mine = read(bus, &LOG, Start::Earliest, 2).await;
    let theirs = read(bus, &OTHER_LOG, Start::Earliest, 1).await;
    assert_eq!(bytes_of(&mine), ["mine", "mine too"]);
    assert_eq!(bytes_of(&theirs), ["theirs"]);
}

/// With many writers at once every record arrives once, and each writer's in its order.
pub async fn batches_of_concurrent_writers_keep_their_order(bus: &dyn Bus) {
    const WRITERS: usize = 8;
    const BATCHES: usize = 10;
    const BATCH: usize = 5;
    let numbered = |writer: usize, n: usize| Record(Bytes::from(format!("{writer} {n}")));
    let write = async |writer| {
        for batch in 0..BATCHES {
            let numbers = batch * BATCH..(batch + 1) * BATCH;
            let batch = numbers.map(|n| numbered(writer, n)).collect();
            append(bus, &LOG, batch).await;
        }
    };
    join_all((0..WRITERS).map(write)).await;

    let all = read(bus, &LOG, Start::Earliest, WRITERS * BATCHES * BATCH).await;
    for writer in 0..WRITERS {
        let prefix = format!("{writer} ");
        let of_writer = all
            .iter()
            .filter(|it| it.record.0.starts_with(prefix.as_bytes()));
        let expected = (0..BATCHES * BATCH).map(|n| numbered(writer, n));
        assert!(of_writer.map(|it| it.record.clone()).eq(expected));
    }
}

/// Readers that start at different times agree on every record and its offset.
pub async fn all_readers_see_the_same_records(bus: &dyn Bus) {
    let mut early = open(bus, &LOG, Start::Earliest).await;
    append(bus, &LOG, records(&["a", "b"])).await;
    let mut middle = open(bus, &LOG, Start::Earliest).await;
    append(bus, &LOG, records(&["c"])).await;
    let mut late = open(bus, &LOG, Start::Earliest).await;

    let seen: Vec<Delivered> = take(&mut early, 3).await;
    assert_eq!(bytes_of(&seen), ["a", "b", "c"]);
    assert_eq!(take(&mut middle, 3).await, seen);
    assert_eq!(take(&mut late, 3).await, seen);
}

/// A record is kept as often as it is appended, however alike.
pub async fn equal_records_are_all_kept(bus: &dyn Bus) {
    append(bus, &LOG, records(&["same", "same"])).await;
    append(bus, &LOG, records(&["same"])).await;

    let read = read(bus, &LOG, Start::Earliest, 3).await;
    assert_eq!(bytes_of(&read), ["same", "same", "same"]);
    assert!(read.windows(2).all(|it| it[0].offset < it[1].offset));
}

/// A batch of more records, or of more bytes, than a bus takes at once is appended whole and in order.
pub async fn big_batches_keep_their_order(bus: &dyn Bus) {
    const MANY: u32 = 3000;
    let numbered = |size: usize| {
        move |n: u32| {
            let mut record = vec![0; size];
            record[..4].copy_from_slice(&n.to_be_bytes());
            Record(Bytes::from(record))
        }
    };
    let many: Vec<Record> = (0..MANY).map(numbered(8)).collect();
    let large: Vec<Record> = (0..40).map(numbered(256 * 1024)).collect();
    append(bus, &LOG, many.clone()).await;
    let newest = append(bus, &LOG, large.clone()).await;

    let read = read(bus, &LOG, Start::Earliest, many.len() + large.len()).await;
    assert_eq!(read.last().map(|it| it.offset), Some(newest));
    let read = read.into_iter().map(|it| it.record);
    assert!(read.eq(many.into_iter().chain(large)));
}

/// A reader that does not look while much is appended finds all of it.
pub async fn a_slow_reader_of_a_durable_log_misses_none(bus: &dyn Bus) {
    const ROUNDS: usize = 20;
    append(bus, &LOG, records(&["first"])).await;
    let mut slow = open(bus, &LOG, Start::Earliest).await;
    assert_eq!(bytes_of(&take(&mut slow, 1).await), ["first"]);
    let batch: Vec<Record> = (0..100_u8)
        .map(|n| Record(Bytes::from(vec![n; 2048])))
        .collect();
    for _ in 0..ROUNDS {
        append(bus, &LOG, batch.clone()).await;
    }

    let read = take(&mut slow, ROUNDS * batch.len()).await;
    assert!(read.windows(2).all(|it| it[0].offset < it[1].offset));
    let read: Vec<Record> = read.into_iter().map(|it| it.record).collect();
    assert!(read.chunks(batch.len()).all(|it| it == batch));
}

/// Neither a record of 256 KiB nor one of no bytes is cut, split or skipped.
pub async fn big_and_empty_records_come_back_whole(bus: &dyn Bus) {
    let big = |seed: usize| -> Record {
        let bytes = (0..256 * 1024).map(|at: usize| (at.wrapping_mul(31) >> 3) ^ seed);
        Record(bytes.map(|it| it.to_le_bytes()[0]).collect())
    };
    let batch = vec![
        big(1),
        Record(Bytes::new()),
        big(2),
        Record(Bytes::from_static(b"\0")),
    ];
    for _ in 0..4 {
        append(bus, &LOG, batch.clone()).await;
    }

    let read = read(bus, &LOG, Start::Earliest, 16).await;
    let read: Vec<Record> = read.into_iter().map(|it| it.record).collect();
    assert!(read.chunks(4).all(|it| it == batch));
}

/// No bus takes what another could not carry.
pub async fn a_record_over_the_limit_is_refused_and_appends_nothing(bus: &dyn Bus) {
    let size = MAX_RECORD_BYTES + 1;
    let mut batch = records(&["before"]);
    batch.push(Record(vec![0; size].into()));
    let refused = soon(bus.append(&LOG, batch)).await;

    assert!(matches!(refused, Err(BusError::TooLarge { bytes }) if bytes == size));
    let largest = vec![Record(vec![7; MAX_RECORD_BYTES].into())];
    append(bus, &LOG, largest.clone()).await;
    let read = read(bus, &LOG, Start::Earliest, 1).await;
    assert_eq!(read[0].record, largest[0]);
}

/// A batch of nothing changes nothing and says where the log ends.
pub async fn an_empty_batch_appends_nothing(bus: &dyn Bus) {
    assert_eq!(append(bus, &LOG, Vec::new()).await, Offset(0));
    let newest = append(bus, &LOG, records(&["a"])).await;
    assert_eq!(append(bus, &LOG, Vec::new()).await, newest);

    append(bus, &LOG, records(&["b"])).await;
    let read = read(bus, &LOG, Start::Earliest, 2).await;
    assert_eq!(bytes_of(&read), ["a", "b"]);
}

/// The tail of an empty log has no record; later it is the offset of the latest append.
pub async fn the_tail_names_the_newest_record_and_keeps_its_generation(bus: &dyn Bus) {
    let empty = soon(bus.tail(&LOG)).await.expect("tail");
    assert_eq!(empty.last, None);

    for text in ["a", "b"] {
        let newest = append(bus, &LOG, records(&[text])).await;
        let tail = soon(bus.tail(&LOG)).await.expect("tail");
        assert_eq!(tail.last, Some(newest));
        assert_eq!(tail.generation, empty.generation);
    }
}

/// What the layout does not name does not exist.
pub async fn an_unknown_topic_or_partition_is_an_error(bus: &dyn Bus) {
    let no_topic = Partition {
        topic: "conformance-nowhere",
        index: 0,
    };
    let no_partition = Partition { index: 2, ..LOG };
    for at in [no_topic, no_partition] {
        let appended = soon(bus.append(&at, records(&["a"]))).await;
        let read = soon(bus.read(&at, Start::Earliest)).await;
        let tail = soon(bus.tail(&at)).await;
        assert!(matches!(appended, Err(BusError::Unknown { .. })), "{at:?}");
        assert!(matches!(read, Err(BusError::Unknown { .. })), "{at:?}");
        assert!(matches!(tail, Err(BusError::Unknown { .. })), "{at:?}");
    }
}
