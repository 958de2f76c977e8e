//! How the members of the store are, for the eyes of an operator.

use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::work::Work;
use crate::store::LockStore;

/// How long it is from one question to the next while a member is not well.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How long it is at least, however often the store fails and answers again.
const APART: Duration = Duration::from_secs(1);

/// Asks how the members are when they may be other than before, and again and again while one is
/// not well.
pub(crate) async fn keep_asking<S: LockStore>(work: Rc<Work<S>>) {
    // Once for each endpoint and version.
    let mut warned = HashSet::new();
    loop {
        let asked = Instant::now();
        let members = work.store.members().await;
        let cautions = members.iter().filter_map(work.shared.options.caution.unwrap_or(|_| None));
        for caution in cautions {
            if warned.insert(caution.clone()) {
                tracing::warn!(source = %work.common().name, "{caution}");
            }
        }
        let all_well = members.iter().all(|member| member.version.is_ok());
        *work.shared.members() = members;
        sleep_until(asked + APART).await;
        tokio::select! {
            biased;
            () = work.common().members_due.notified() => {}
            () = sleep_until(asked + AGAIN_AFTER), if !all_well => {}
        }
    }
}
