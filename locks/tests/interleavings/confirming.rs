//! Whoever asks for a read gets one that was sent after it asked, and no two tasks read.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

use crate::cache::common::{Command, Common};
use crate::cache::tracked::TrackedLock;
use crate::cache::trust::Trust;
use crate::world::{block_on, common, interleavings_with_interruptions, revision, taken, track};

/// Asks, as a request does that has just arrived.
fn confirm(lock: &TrackedLock) {
    let arrived = Instant::now();
    block_on(lock.confirm(arrived, arrived + Duration::from_secs(3600))).unwrap();
    assert!(lock.view().dated() >= Some(arrived));
}

/// Serves the slots of whichever lock is asked for, as the driver does, until it is stopped.
fn serve(common: &Common, mut commands: UnboundedReceiver<Command>) {
    let mut command = block_on(commands.recv());
    while let Some(Command::Read(lock)) = command.take() {
        while lock.slots().begin() {
            lock.read(&common.trust.sending(), revision(10), &[taken("a", 10)]);
            command = command.or(commands.try_recv().ok());
            assert!(!matches!(command, Some(Command::Read(_))), "while a task reads, none is set on the slots");
            lock.slots().finish(Ok(()));
        }
        command = command.or_else(|| block_on(commands.recv()));
    }
}

/// Asks, while another thread serves.
fn beside_the_one_that_serves(asks: impl FnOnce(&Arc<TrackedLock>)) {
    let (common, commands) = common(Trust::new(None));
    let lock = track(&common, None);
    let serving = {
        let common = Arc::clone(&common);
        thread::spawn(move || serve(&common, commands))
    };
    asks(&lock);
    common.send(Command::Stop);
    serving.join().unwrap();
}

#[test]
fn whoever_asks_is_served_by_a_read_that_was_sent_after_it_asked_though_another_may_run() {
    interleavings_with_interruptions(4, || {
        beside_the_one_that_serves(|lock| {
            lock.want_read();
            confirm(lock);
        });
    });
}

#[test]
fn of_two_that_ask_both_are_served_and_one_task_reads() {
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
