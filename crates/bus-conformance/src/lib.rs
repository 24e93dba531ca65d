//! What every [`bus::Bus`] must do. Each implementation runs all of it with [`suite!`], and with
//! [`durable_suite!`] where what it keeps can be opened again.

mod durable;
mod ephemeral_logs;
mod logs;
mod steps;
mod tables;
mod watches;

use std::time::Duration;

use bus::{Layout, LogKind, Partition, Table, TableKind, TableSpec, TopicSpec};

pub use durable::*;
pub use ephemeral_logs::*;
pub use logs::*;
pub use tables::*;
pub use watches::*;

/// What the bus under test must be opened with; it must be empty.
pub const LAYOUT: Layout = Layout {
    topics: &[
        TopicSpec {
            name: "conformance-log",
            partitions: 2,
            kind: LogKind::Durable {
                retention: Duration::from_secs(3600),
            },
        },
        TopicSpec {
            name: "conformance-news",
            partitions: 2,
            kind: LogKind::Ephemeral,
        },
    ],
    tables: &[
        TableSpec {
            table: CAS,
            kind: TableKind::Cas,
        },
        TableSpec {
            table: OTHER_CAS,
            kind: TableKind::Cas,
        },
        TableSpec {
            table: OWN,
            kind: TableKind::Own,
        },
    ],
};

const LOG: Partition = Partition {
    topic: "conformance-log",
    index: 0,
};
const OTHER_LOG: Partition = Partition { index: 1, ..LOG };
const NEWS: Partition = Partition {
    topic: "conformance-news",
    index: 0,
};
const OTHER_NEWS: Partition = Partition { index: 1, ..NEWS };
const CAS: Table = Table("conformance-cas");
const OTHER_CAS: Table = Table("conformance-other-cas");
const OWN: Table = Table("conformance-own");

/// Declares one test for each promise, on a fresh bus with [`LAYOUT`] that the future `$open` resolves to:
/// anything that dereferences to a [`bus::Bus`].
///
/// `paused_time` suits a bus that does no I/O; over real files and sockets paused time jumps ahead and every
/// timeout fires at once, so there an implementation says `real_time`.
#[macro_export]
macro_rules! suite {
    (paused_time, $open:expr) => { $crate::suite!(@all [tokio::test(start_paused = true)] $open); };
    (real_time, $open:expr) => { $crate::suite!(@all [tokio::test] $open); };
    (@all $test:tt $open:expr) => {
        $crate::suite!(@each $test $open;
            records_come_back_in_order
            a_read_resumes_after_an_offset
            a_read_after_the_newest_offset_yields_only_what_comes_later
            a_read_follows_the_tail
            an_append_resolves_with_the_offset_of_its_last_record
            offsets_grow
            partitions_do_not_mix
            batches_of_concurrent_writers_keep_their_order
            all_readers_see_the_same_records
            equal_records_are_all_kept
            big_batches_keep_their_order
            a_slow_reader_of_a_durable_log_misses_none
            big_and_empty_records_come_back_whole
            a_record_over_the_limit_is_refused_and_appends_nothing
            an_empty_batch_appends_nothing
            the_tail_names_the_newest_record_and_keeps_its_generation
            an_unknown_topic_or_partition_is_an_error

            who_reads_an_ephemeral_log_gets_what_is_appended_meanwhile
            a_read_of_an_ephemeral_log_begins_with_what_comes_later
            ephemeral_partitions_do_not_mix
            a_slow_reader_of_an_ephemeral_log_loses_the_oldest_and_keeps_the_order

            what_is_put_can_be_got_until_it_is_deleted
            any_bytes_make_a_key_and_a_value
            tables_do_not_mix
            a_table_of_own_keys_refuses_conditional_writes
            of_two_writers_expecting_the_same_revision_one_wins
            of_many_racing_writers_exactly_one_wins
            counting_writers_lose_no_step
            a_deleted_key_is_absent_and_can_be_created_again
            a_revision_is_expected_in_vain_once_it_is_replaced_or_deleted
            a_conflict_leaves_the_table_as_it_was
            revisions_of_a_key_grow_also_across_its_deletion
            a_value_over_the_limit_is_refused
            a_key_over_the_limit_is_refused
            an_unknown_table_is_an_error

            a_watch_has_no_gap_between_snapshot_and_changes
            the_watch_of_an_empty_table_is_caught_up_at_once
            a_watch_begun_amid_writes_misses_none
            a_slow_watcher_sees_the_latest_of_every_key
            a_watch_shows_all_of_many_keys
            all_watchers_see_every_change
        );
    };
    (@each $test:tt $open:expr; $($promise:ident)*) => {
        $( $crate::suite!(@one $test $open; $promise); )*
    };
    (@one [$($test:tt)*] $open:expr; $promise:ident) => {
        #[$($test)*]
        async fn $promise() {
            let bus = $open.await;
            $crate::$promise(&*bus).await;
        }
    };
}

/// Declares one test for each promise of what outlives a process, in real time.
///
/// `$open` is as in [`suite!`]; `$reopen` is an async function that takes what `$open` gave, closes it and
/// opens the same content again.
#[macro_export]
macro_rules! durable_suite {
    ($open:expr, $reopen:expr) => {
        $crate::durable_suite!(@each $open, $reopen;
            acknowledged_records_survive_a_reopen
            a_reader_goes_on_after_a_reopen_where_it_stopped
            an_empty_log_keeps_its_generation_across_a_reopen
            table_entries_survive_a_reopen_with_their_revisions
            a_deleted_key_stays_deleted_across_a_reopen
            revisions_grow_across_a_reopen
            a_watch_after_a_reopen_shows_the_whole_table
        );
    };
    (@each $open:expr, $reopen:expr; $($promise:ident)*) => {
        $( $crate::durable_suite!(@one $open, $reopen; $promise); )*
    };
    (@one $open:expr, $reopen:expr; $promise:ident) => {
        #[tokio::test]
        async fn $promise() {
            let bus = $open.await;
            $crate::$promise(bus, $reopen).await;
        }
    };
}
