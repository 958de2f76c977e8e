//! A request for a read gets one that was sent after the request, and no two tasks read.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use tokio::time::Instant;

use crate::cache::common::{Command, Common, Inbox};
use crate::cache::tracked::TrackedLock;
use crate::cache::trust::Trust;
use crate::world::{block_on, common, interleavings_with_interruptions, revision, taken, track};

/// Asks, as a request does that has just arrived.
fn confirm(lock: &TrackedLock) {
    let arrived = Instant::now();
    block_on(lock.confirm(arrived, arrived + Duration::from_secs(3600))).unwrap();
    assert!(lock.view().dated() >= Some(arrived));
}

/// Reads the lock whenever that is asked for, as the driver does, until it is stopped.
fn serve(common: &Common, mut inbox: Inbox) {
    let Inbox { reads, commands, .. } = &mut inbox;
    let mut next = || {
        block_on(async {
            tokio::select! {
                biased;
                lock = reads.recv() => lock,
                _ = commands.recv() => None,
            }
        })
    };
    while let Some(lock) = next() {
        if !lock.slots().begin() {
            continue;
        }
        lock.read(&common.trust.sending(), revision(10), &[taken("a", 10)]);
        lock.slots().finish(Ok(()));
        if lock.slots().goes_on() {
            common.queue_read(lock);
        }
    }
}

/// Asks, while another thread serves.
fn beside_the_one_that_serves(asks: impl FnOnce(&Arc<TrackedLock>)) {
    let (common, inbox) = common(Trust::new(None));
    let lock = track(&common, None);
    let serving = {
        let common = Arc::clone(&common);
        thread::spawn(move || serve(&common, inbox))
    };
    asks(&lock);
    common.send(Command::Stop);
    serving.join().unwrap();
}

#[test]
fn asking_is_served_by_a_read_sent_since_though_another_runs() {
    interleavings_with_interruptions(4, || {
        beside_the_one_that_serves(|lock| {
            lock.want_read();
            confirm(lock);
        });
    });
}

#[test]
fn two_that_ask_are_served_and_one_task_reads() {
    interleavings_with_interruptions(2, || {
        beside_the_one_that_serves(|lock| {
            let other = {
                let lock = Arc::clone(lock);
                thread::spawn(move || confirm(&lock))
            };
            confirm(lock);
            other.join().unwrap();
        });
    });
}
