//! Promises of ephemeral logs: fewer, because loss is allowed.

use bus::{Bus, Record, Start};
use bytes::Bytes;

use crate::steps::{append, bytes_of, open, records, take};
use crate::{NEWS, OTHER_NEWS};

/// Every reader that keeps up gets each record appended while it reads, in order.
pub async fn who_reads_an_ephemeral_log_gets_what_is_appended_meanwhile(bus: &dyn Bus) {
    let mut one = open(bus, &NEWS, Start::Earliest).await;
    let mut two = open(bus, &NEWS, Start::Earliest).await;
    append(bus, &NEWS, records(&["a", "b"])).await;
    append(bus, &NEWS, records(&["c"])).await;

    for reader in [&mut one, &mut two] {
        let read = take(reader, 3).await;
        assert_eq!(bytes_of(&read), ["a", "b", "c"]);
        assert!(read.windows(2).all(|it| it[0].offset < it[1].offset));
    }
}

/// There is no past on an ephemeral log, whatever the read asks for.
pub async fn a_read_of_an_ephemeral_log_begins_with_what_comes_later(bus: &dyn Bus) {
    let past = append(bus, &NEWS, records(&["past"])).await;
    let mut earliest = open(bus, &NEWS, Start::Earliest).await;
    let mut after = open(bus, &NEWS, Start::After(past)).await;
    append(bus, &NEWS, records(&["new"])).await;

    assert_eq!(bytes_of(&take(&mut earliest, 1).await), ["new"]);
    assert_eq!(bytes_of(&take(&mut after, 1).await), ["new"]);
}

/// A partition shows only what was appended to it.
pub async fn ephemeral_partitions_do_not_mix(bus: &dyn Bus) {
    let mut mine = open(bus, &NEWS, Start::Earliest).await;
    append(bus, &OTHER_NEWS, records(&["theirs"])).await;
    append(bus, &NEWS, records(&["mine"])).await;

    assert_eq!(bytes_of(&take(&mut mine, 1).await), ["mine"]);
}

/// Writers never wait for a slow reader; it finds the newest records, in order, and goes on.
pub async fn a_slow_reader_of_an_ephemeral_log_loses_the_oldest_and_keeps_the_order(bus: &dyn Bus) {
    const RECORDS: u32 = 4096;
    let mut slow = open(bus, &NEWS, Start::Earliest).await;
    for n in 0..RECORDS {
        let mut record = vec![0; 4096];
        record[..4].copy_from_slice(&n.to_be_bytes());
        append(bus, &NEWS, vec![Record(Bytes::from(record))]).await;
    }

    let mut newest = None;
    while newest != Some(RECORDS - 1) {
        let read = take(&mut slow, 1).await;
        let number = read[0].record.0.first_chunk().expect("four bytes");
        let number = u32::from_be_bytes(*number);
        assert!(newest.is_none_or(|it| it < number));
        newest = Some(number);
    }
    append(bus, &NEWS, records(&["next"])).await;
    assert_eq!(bytes_of(&take(&mut slow, 1).await), ["next"]);
}
