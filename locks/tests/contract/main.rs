//! What every store of locks must do: one suite, run against the store in memory and against real
//! etcd of both versions; and what only a cluster can be put through.

/// Makes a test of each rule for each version.
macro_rules! every_version {
    ($($rule:ident,)*) => {
        mod etcd_3_4 {
            $(
                #[tokio::test]
                async fn $rule() {
                    super::$rule(super::EtcdVersion::V3_4).await;
                }
            )*
        }

        mod etcd_3_5 {
            $(
                #[tokio::test]
                async fn $rule() {
                    super::$rule(super::EtcdVersion::V3_5).await;
                }
            )*
        }
    };
}

mod deadlines;
mod faults;
mod logins;
mod reads;
mod swaps;
mod watches;
mod which_cluster;
mod world;

use fencepost_tests::EtcdVersion;

use crate::world::{EtcdWorld, MemoryWorld};

/// Makes a test of each rule for each store.
macro_rules! every_store {
    ($($suite:ident: { $($rule:ident,)* })*) => {
        mod memory {
            $($(
                #[tokio::test]
                async fn $rule() {
                    crate::$suite::$rule(&crate::MemoryWorld::start()).await;
                }
            )*)*
        }

        mod etcd_3_4 {
            $($(
                #[tokio::test]
                async fn $rule() {
                    crate::$suite::$rule(&crate::EtcdWorld::start(crate::EtcdVersion::V3_4).await).await;
                }
            )*)*
        }

        mod etcd_3_5 {
            $($(
                #[tokio::test]
                async fn $rule() {
                    crate::$suite::$rule(&crate::EtcdWorld::start(crate::EtcdVersion::V3_5).await).await;
                }
            )*)*
        }
    };
}

/// Makes a test of each rule for etcd of both versions with TLS, and with logins that end all the
/// time.
macro_rules! secure_etcd {
    ($($suite:ident: { $($rule:ident,)* })*) => {
        mod secure_etcd_3_4 {
            $($(
                #[tokio::test]
                async fn $rule() {
                    crate::$suite::$rule(&crate::EtcdWorld::start_secure(crate::EtcdVersion::V3_4).await).await;
                }
            )*)*
        }

        mod secure_etcd_3_5 {
            $($(
                #[tokio::test]
                async fn $rule() {
                    crate::$suite::$rule(&crate::EtcdWorld::start_secure(crate::EtcdVersion::V3_5).await).await;
                }
            )*)*
        }
    };
}

// What takes several requests, or a stream.
secure_etcd! {
    reads: {
        ranges_beyond_a_request_are_from_the_same_revision,
        a_range_of_thousands_of_keys_is_read_whole,
        history_tells_what_a_key_was,
    }
    watches: {
        a_watch_from_the_past_begins_with_what_happened_since,
        compaction_ends_the_watch_of_that_range_only,
        a_watch_resumed_after_the_last_event_loses_nothing,
    }
    deadlines: {
        stopped_store_is_unavailable_in_time_and_comes_back,
        members_tell_their_version,
    }
}

every_store! {
    swaps: {
        a_swap_writes_only_what_is_as_expected,
        a_swap_tells_the_keys_of_its_own_revision,
        of_swaps_at_a_time_one_is_made,
    }
    reads: {
        a_read_shows_every_write_acknowledged_before_it,
        a_key_tells_when_it_was_created_and_written,
        a_read_of_nothing_is_refused,
        all_ranges_of_a_read_are_from_one_revision,
        ranges_beyond_a_request_are_from_the_same_revision,
        a_range_of_thousands_of_keys_is_read_whole,
        large_values_are_read_and_watched,
        a_prefix_has_the_keys_that_begin_with_it_and_no_others,
        keys_and_values_may_be_any_bytes,
        history_tells_what_a_key_was,
        compacted_history_is_told_as_such,
    }
    watches: {
        a_watch_from_the_past_begins_with_what_happened_since,
        a_watch_from_the_present_tells_what_happens_next,
        caught_up_is_told_once_behind_the_past,
        caught_up_watches_tell_events_at_once,
        a_watch_from_the_future_is_silent_until_then,
        each_range_is_told_its_own_events,
        a_transaction_is_told_at_once,
        a_deletion_is_told_with_its_revision,
        a_deletion_is_told_or_its_history_is_compacted,
        compaction_ends_the_watch_of_that_range_only,
        a_watch_resumed_after_the_last_event_loses_nothing,
        a_dropped_wait_loses_no_news,
        thousands_of_ranges_are_watched_over_one_stream,
        a_watch_of_nothing_is_refused,
    }
    deadlines: {
        stopped_store_is_unavailable_in_time_and_comes_back,
        members_tell_their_version,
    }
}
