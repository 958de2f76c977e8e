//! What does the work of a source: one future, on whichever thread runs it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::common::Command;
use super::shared::Shared;
use super::work::Work;
use super::{freshness, members, reading, watching};
use crate::store::LockStore;

/// How many requests look at a time for locks that have no record, as far as we know. Apart from the reads of others, so that a flood of
/// made-up keys holds up no lock in use.
const LOOKS_AT_A_TIME: usize = 16;

/// Does the work of a source for as long as it is polled; ends when the source is stopped. Dropping it ends all of it.
#[must_use = "a source does nothing unless its driver is polled"]
pub struct Driver(LocalBoxFuture<'static, ()>);

impl Driver {
    pub(crate) fn new<S: LockStore>(
        shared: Arc<Shared>,
        store: S,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Driver {
        let work = Rc::new(Work::new(shared, store));
        Driver(Box::pin(run(work, commands)))
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driver")
    }
}

async fn run<S: LockStore>(work: Rc<Work<S>>, mut commands: mpsc::UnboundedReceiver<Command>) {
    work.tell_inherited_distrust();
    let mut tasks: FuturesUnordered<LocalBoxFuture<'static, ()>> = FuturesUnordered::new();
    tasks.push(Box::pin(members::keep_asking(Rc::clone(&work))));
    tasks.push(Box::pin(freshness::of_static_locks(Rc::clone(&work))));
    tasks.push(Box::pin(watching::watch(Rc::clone(&work))));
    tasks.extend(
        (0..LOOKS_AT_A_TIME).map(|_| Box::pin(reading::look_for_unknown(Rc::clone(&work))) as LocalBoxFuture<_>),
    );
    loop {
        // Commands can't hold up the tasks for long: a lock asks again only once its task has run. The tasks could hold up commands: as
        // many as are ready may use up what tokio grants to one turn.
        let command = tokio::select! {
            biased;
            command = commands.recv() => command,
            Some(()) = tasks.next() => continue,
        };
        match command {
            Some(Command::Read(lock)) if lock.is_unknown() => reading::look_for(&work, lock),
            Some(Command::Read(lock)) => tasks.push(Box::pin(reading::serve(Rc::clone(&work), lock))),
            Some(Command::ReadOn(lock)) => tasks.push(Box::pin(reading::serve_on(Rc::clone(&work), lock))),
            Some(Command::Begin(scope)) => {
                tasks.push(Box::pin(freshness::of_scope(Rc::clone(&work), Arc::downgrade(&scope))))
            }
            Some(Command::Answer(answer)) => {
                let _ = answer.send(()); // Who asked may be gone.
            }
            Some(Command::AskMembers) => work.members_due.notify_one(),
            Some(Command::Accept(answer)) => {
                let _ = answer.send(work.accept_regression()); // Who asked may be gone.
            }
            Some(Command::Stop) | None => return,
        }
    }
}
