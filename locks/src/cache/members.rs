//! How the members of the store are, for the eyes of an operator.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::work::Work;
use crate::member::Member;
use crate::store::LockStore;

/// How long it is from one question to the next while a member is not well.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How long it is while all are well. An alarm, or the end of a member that nobody uses, shows in
/// no read.
const AGAIN_AFTER_WELL: Duration = Duration::from_secs(30);

/// How long it is at least, however often the store fails and answers again.
const APART: Duration = Duration::from_secs(1);

/// Asks how the members are when they may be other than before, and again and again, sooner while
/// one does not answer. Logs a problem when it comes and when it is over.
pub(crate) async fn keep_asking<S: LockStore>(work: Rc<Work<S>>) {
    // Of which endpoint, and which.
    let mut known = HashSet::new();
    loop {
        let asked = Instant::now();
        let members = work.store.members().await;
        let source = &work.common().name;
        let mut present = HashSet::new();
        for Member { endpoint, problems, .. } in &members {
            for problem in problems {
                let is_known = known.contains(&(Arc::clone(endpoint), problem.name()));
                if present.insert((Arc::clone(endpoint), problem.name())) && !is_known {
                    tracing::warn!(%source, %endpoint, "{problem}");
                }
            }
        }
        for (endpoint, problem) in known.difference(&present) {
            tracing::info!(%source, %endpoint, problem, "a problem of the lock store is over");
        }
        known = present;
        let all_well = members.iter().all(|member| member.version.is_ok());
        let again_after = if all_well { AGAIN_AFTER_WELL } else { AGAIN_AFTER };
        *work.shared.members() = members;
        sleep_until(asked + APART).await;
        tokio::select! {
            biased;
            () = work.common().members_due.notified() => {}
            () = sleep_until(asked + again_after) => {}
        }
    }
}
