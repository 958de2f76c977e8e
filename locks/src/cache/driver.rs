//! What does the work of a source: one future, on whichever thread runs it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Mutex;

use super::common::{Command, Inbox};
use super::reading::Pace;
use super::shared::Shared;
use super::work::Work;
use super::{freshness, members, reading, watching};
use crate::group::take_part;
use crate::store::LockStore;

/// How many requests for locks are under way at a time. Each reads all locks that wait by then.
const READERS: usize = 16;

/// How many requests are under way for locks that have no record, as far as is known, and how long
/// each takes at least if one has none. A flood of made-up names costs the store a hundred requests
/// a second.
const READERS_OF_UNKNOWN: usize = 10;
const UNKNOWN_APART: Duration = Duration::from_millis(100);

/// How far apart the reads of locks are at least whose news are getting old, so that one read has
/// many of them. A full one is followed by the next at once.
const REFRESHES_APART: Duration = Duration::from_millis(10);

/// Does the work of a source for as long as it is polled; ends when the source is stopped. Dropping
/// it ends all of it.
pub type Driver = LocalBoxFuture<'static, ()>;

pub(crate) async fn drive<S: LockStore>(shared: Arc<Shared>, store: S, inbox: Inbox) {
    let work = Rc::new(Work::new(shared, store));
    work.tell_inherited_distrust();
    let Inbox { mut commands, reads, refreshes, reads_of_unknown, group_requests } = inbox;
    let [reads, refreshes, reads_of_unknown] =
        [reads, refreshes, reads_of_unknown].map(|locks| Rc::new(Mutex::new(locks)));
    let mut tasks: FuturesUnordered<LocalBoxFuture<'static, ()>> = FuturesUnordered::new();
    tasks.push(Box::pin(members::keep_asking(Rc::clone(&work))));
    tasks.push(Box::pin(freshness::keep_fresh(Rc::clone(&work))));
    tasks.push(Box::pin(watching::watch(Rc::clone(&work))));
    if let (Some(group), Some(requests)) = (work.common().group.clone(), group_requests) {
        tasks.push(Box::pin(take_part(Rc::clone(&work), group, requests)));
    }
    for _ in 0..READERS {
        tasks.push(Box::pin(reading::serve(Rc::clone(&work), Rc::clone(&reads), Pace::AtOnce)));
    }
    let apart = Pace::UnlessFull(REFRESHES_APART);
    tasks.push(Box::pin(reading::serve(Rc::clone(&work), refreshes, apart)));
    for _ in 0..READERS_OF_UNKNOWN {
        tasks.push(Box::pin(reading::serve(
            Rc::clone(&work),
            Rc::clone(&reads_of_unknown),
            Pace::UnlessAllExist(UNKNOWN_APART),
        )));
    }
    loop {
        // Commands cannot hold up the tasks for long: there are few of them.
        let command = tokio::select! {
            biased;
            command = commands.recv() => command,
            Some(()) = tasks.next() => continue,
        };
        match command {
            Some(Command::Walk(lock, sent, walk)) => {
                tasks.push(Box::pin(reading::go_back(Rc::clone(&work), lock, sent, *walk)));
            }
            Some(Command::Answer(answer)) => {
                let _ = answer.send(()); // Who asked may be gone.
            }
            Some(Command::Accept(answer)) => {
                let _ = answer.send(work.accept_regression()); // Who asked may be gone.
            }
            Some(Command::Stop) | None => return,
        }
    }
}
