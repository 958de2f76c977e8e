//! The connections of a pool that carry requests from the gate, where other processes share it.
//! It does not decide what they may write: each looks by itself before it writes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use fencepost_locks::Membership;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::wire::{Socket, WeakSocket};

/// Connections to one worker that write only while this process stands in its group.
pub(super) struct InGroup {
    membership: Arc<Membership>,
    upstream: Arc<str>,
    connections: Connections,
    _follower: AbortOnDropHandle<()>,
}

type Connections = Rc<RefCell<Vec<WeakSocket>>>;

impl InGroup {
    /// None yet. Within a `LocalSet`.
    pub(super) fn new(membership: Arc<Membership>, upstream: &str) -> InGroup {
        let (upstream, connections) = (Arc::<str>::from(upstream), Connections::default());
        let follower =
            follow(Arc::clone(&membership), Arc::clone(&upstream), Rc::clone(&connections));
        InGroup {
            membership,
            upstream,
            connections,
            _follower: AbortOnDropHandle::new(tokio::task::spawn_local(follower)),
        }
    }

    /// Adds a connection before its first request.
    pub(super) fn add(&self, socket: &Socket) {
        socket.write_while_standing(Arc::clone(&self.membership), Arc::clone(&self.upstream));
        let mut connections = self.connections.borrow_mut();
        if connections.len() == connections.capacity() {
            connections.retain(|connection| connection.upgrade().is_some());
        }
        connections.push(socket.downgrade());
    }

    /// Whether this process may let requests in.
    pub(super) fn stands(&self) -> bool {
        self.membership.stands()
    }
}

impl Drop for InGroup {
    /// Nobody resumes paused writes any more, and what is paused belongs to no request: those keep
    /// their pool.
    fn drop(&mut self) {
        if !self.stands() {
            self.connections
                .take()
                .iter()
                .filter_map(WeakSocket::upgrade)
                .for_each(|one| one.reset());
        }
    }
}

/// Has all connections follow the standing of this process whenever it changes.
async fn follow(membership: Arc<Membership>, upstream: Arc<str>, connections: Connections) {
    loop {
        let changed = membership.changed(); // Before the look, so that no change is missed.
        let mut resets = 0;
        connections.borrow_mut().retain(|connection| {
            let Some(socket) = connection.upgrade() else { return false };
            resets += usize::from(socket.follow_standing());
            true
        });
        if resets > 0 {
            let group = &membership.options().name;
            tracing::warn!(
                group,
                %upstream,
                connections = resets,
                "connections to the worker were reset, since this process has lost its standing in the group"
            );
        }
        match membership.changes_in() {
            Some(time) => _ = timeout(time, changed).await,
            None => changed.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fencepost_tests::{eventually, until};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio::task::LocalSet;

    use super::*;
    use crate::wire::Member;

    /// A member of a group, and a connection that depends on its standing.
    struct World {
        member: Member,
        socket: Socket,
        worker: UnixStream,
        in_group: Option<InGroup>,
    }

    impl World {
        /// Something has been written.
        async fn new() -> World {
            let member = Member::joined().await;
            let (ours, mut worker) = UnixStream::pair().unwrap();
            let mut socket = Socket::upstream(ours.into());
            let in_group = InGroup::new(Arc::clone(member.membership()), "worker");
            in_group.add(&socket);
            socket.write_all(b"before").await.unwrap();
            let mut read = [0; 6];
            worker.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, b"before");
            World { member, socket, worker, in_group: Some(in_group) }
        }

        /// Writes, and returns what comes to the worker then, up to the end.
        async fn write_late(mut self) -> Vec<u8> {
            self.socket.write_all(b"late").await.expect("only the reading side sees a loss");
            self.socket.shutdown().await.unwrap();
            let mut read = Vec::new();
            self.worker.read_to_end(&mut read).await.unwrap();
            read
        }
    }

    async fn run(test: impl Future<Output = ()>) {
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn paused_write_goes_on_once_the_process_stands_again() {
        run(async {
            let world = World::new().await;
            world.member.lapse();
            let (membership, socket) =
                (Arc::clone(world.member.membership()), world.socket.clone());
            let read = tokio::task::spawn_local(world.write_late());
            while !socket.is_write_blocked() {
                assert_eq!(socket.bytes_written(), 6);
                tokio::task::yield_now().await;
            }
            membership.set_clock_ahead(Duration::ZERO);
            assert_eq!(read.await.unwrap(), b"late");
        })
        .await;
    }

    #[tokio::test]
    async fn connection_is_reset_when_the_standing_is_lost() {
        run(async {
            let mut world = World::new().await;
            world.member.cut();
            let mut read = Vec::new();
            world.worker.read_to_end(&mut read).await.unwrap();
            assert!(read.is_empty() && world.socket.is_broken());
            assert!(world.write_late().await.is_empty());
        })
        .await;
    }

    /// The others no longer wait for what came in under the earlier membership.
    #[tokio::test]
    async fn member_that_joins_anew_writes_nothing_old() {
        run(async {
            let mut world = World::new().await;
            world.in_group = None; // Nothing resets it but its own look.
            let joined = world.member.membership().stands_since();
            let membership = Arc::clone(world.member.membership());
            let id = eventually("its name", async || membership.view().me).await;
            world.member.store.delete(format!("/g/{id}")).expect("its key");
            until("it has joined anew", async || {
                membership.stands_since().is_some_and(|since| Some(since) != joined)
            })
            .await;
            assert!(world.write_late().await.is_empty());
        })
        .await;
    }
}
