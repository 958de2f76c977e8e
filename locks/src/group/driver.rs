//! Keeps this process in its group: joins, and joins anew whenever the membership has ended.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::sleep;

use super::member::{End, Member};
use super::membership::{Membership, Request};
use crate::cache::Work;
use crate::store::LockStore;

/// Takes part in the group, for ever.
pub(crate) async fn take_part<S: LockStore>(
    work: Rc<Work<S>>,
    membership: Arc<Membership>,
    mut requests: mpsc::UnboundedReceiver<Request>,
) {
    let mut backoff = work.backoff();
    loop {
        let member =
            Member::new(Rc::clone(&work), Arc::clone(&membership), membership.new_member());
        let end = member.take_part(&mut requests).await;
        membership.set_sent(None);
        match end {
            End::Left(done) => {
                if let Some(done) = done {
                    let _ = done.send(()); // Who asked may be gone.
                }
                return std::future::pending().await;
            }
            End::Lost(why) => tracing::error!(
                group = membership.options().name,
                "this process is a member of its group no longer: {why}; requests are refused until it has joined anew"
            ),
        }
        sleep(backoff.delay()).await;
    }
}
