//! What does the work of a source: one future, on whichever thread runs it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::Walk;
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Mutex;

use super::common::{Command, Inbox};
use super::reading::Pace;
use super::shared::Shared;
use super::tracked::TrackedLock;
use super::trust::Sent;
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

/// What is under way.
pub(super) type Tasks = FuturesUnordered<LocalBoxFuture<'static, ()>>;

pub(crate) async fn drive<S: LockStore>(shared: Arc<Shared>, store: S, mut inbox: Inbox) {
    let work = Rc::new(Work::new(shared, store));
    let tasks = Tasks::new();
    tasks.push(Box::pin(members::keep_asking(Rc::clone(&work))));
    let fresh = Rc::clone(&work);
    let read_all = async move || freshness::read(&fresh).await;
    tasks.push(Box::pin(freshness::keep_fresh(Rc::clone(&work), read_all)));
    tasks.push(Box::pin(watching::watch(Rc::clone(&work))));
    if let (Some(group), Some(requests)) =
        (work.common().group.clone(), inbox.group_requests.take())
    {
        tasks.push(Box::pin(take_part(Rc::clone(&work), group, requests)));
    }
    let reader = Rc::clone(&work);
    let read = async move |locks: &[_]| reading::read(&reader, locks).await;
    let walker = Rc::clone(&work);
    let go_back = move |lock, sent, walk| -> LocalBoxFuture<'static, ()> {
        Box::pin(reading::go_back(Rc::clone(&walker), lock, sent, walk))
    };
    run(&work, tasks, inbox, READERS, read, go_back).await;
}

/// Does these tasks, reads the locks that wait for it, up to so many requests at a time, and obeys.
pub(super) async fn run<S: 'static>(
    work: &Rc<Work<S>>,
    mut tasks: Tasks,
    inbox: Inbox,
    readers: usize,
    read: impl AsyncFn(&[Arc<TrackedLock>]) + 'static,
    go_back: impl Fn(Arc<TrackedLock>, Sent, Walk) -> LocalBoxFuture<'static, ()>,
) {
    work.tell_inherited_distrust();
    let Inbox { mut commands, reads, refreshes, reads_of_unknown, .. } = inbox;
    let [reads, refreshes, reads_of_unknown] =
        [reads, refreshes, reads_of_unknown].map(|locks| Rc::new(Mutex::new(locks)));
    let read = Rc::new(read);
    let serve = |locks: &reading::Waiting, pace: Pace| {
        let (work, locks, read) = (Rc::clone(work), Rc::clone(locks), Rc::clone(&read));
        tasks.push(Box::pin(reading::serve(work, locks, pace, read)));
    };
    for _ in 0..readers {
        serve(&reads, Pace::AtOnce);
    }
    serve(&refreshes, Pace::UnlessFull(REFRESHES_APART));
    for _ in 0..READERS_OF_UNKNOWN {
        serve(&reads_of_unknown, Pace::UnlessAllExist(UNKNOWN_APART));
    }
    loop {
        // Commands cannot hold up the tasks for long: there are few of them.
        let command = tokio::select! {
            biased;
            command = commands.recv() => command,
            Some(()) = tasks.next() => continue,
        };
        match command {
            Some(Command::Walk(lock, sent, walk)) => tasks.push(go_back(lock, sent, *walk)),
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
