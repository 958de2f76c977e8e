//! How the members of the store are, for the eyes of an operator.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::work::Work;
use crate::store::{LockStore, Member};

/// How long it is from one question to the next while a member is not well.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How long it is at least, however often the store fails and answers again.
const APART: Duration = Duration::from_secs(1);

/// Asks how the members are when they may be other than before, and again and again while one is not well.
pub(crate) async fn keep_asking<S: LockStore>(work: Rc<Work<S>>) {
    let mut warned = Warned::default();
    loop {
        let asked = Instant::now();
        let members = work.store.members().await;
        if let Some(caution) = work.shared.options.caution {
            for (endpoint, caution) in warned.of(&members, caution) {
                tracing::warn!(source = %work.common().name, %endpoint, "{caution}");
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

/// What was warned of, by endpoint: one entry for each there is.
#[derive(Debug, Default)]
struct Warned(Vec<(Arc<str>, String)>);

impl Warned {
    /// What has not been warned of yet. A member that is not well keeps what was said of it: it is most likely to come back the same.
    fn of(&mut self, members: &[Member], caution: impl Fn(&Member) -> Option<String>) -> Vec<(Arc<str>, String)> {
        self.0.retain(|(endpoint, _)| members.iter().any(|member| member.endpoint == *endpoint));
        let cautions = members.iter().filter_map(|member| Some((Arc::clone(&member.endpoint), caution(member)?)));
        let new: Vec<_> = cautions.filter(|caution| !self.0.contains(caution)).collect();
        self.0.retain(|(endpoint, _)| new.iter().all(|(other, _)| other != endpoint));
        self.0.extend_from_slice(&new);
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreError;

    fn check(warned: &mut Warned, members: &[(&str, Option<&str>)]) -> Vec<String> {
        let member = |&(endpoint, version): &(&str, Option<&str>)| Member {
            endpoint: endpoint.into(),
            version: version.map(Into::into).ok_or_else(|| StoreError::Unavailable("it is away".into())),
        };
        let members: Vec<Member> = members.iter().map(member).collect();
        let of_old = |member: &Member| {
            let version = member.version.as_ref().ok().filter(|version| version.starts_with("3.4"))?;
            Some(format!("{} runs {version}", member.endpoint))
        };
        warned.of(&members, of_old).into_iter().map(|(_, caution)| caution).collect()
    }

    #[test]
    fn a_member_is_warned_of_once_for_as_long_as_it_is_the_same() {
        let mut warned = Warned::default();
        assert_eq!(check(&mut warned, &[("a", Some("3.4.1")), ("b", Some("3.6.9"))]), ["a runs 3.4.1"]);
        assert!(check(&mut warned, &[("a", Some("3.4.1")), ("b", None)]).is_empty());
        assert!(check(&mut warned, &[("a", None), ("b", Some("3.6.9"))]).is_empty());
        assert!(check(&mut warned, &[("a", Some("3.4.1")), ("b", Some("3.6.9"))]).is_empty(), "it was away meanwhile");
        assert_eq!(check(&mut warned, &[("a", Some("3.4.2")), ("b", Some("3.4.1"))]), ["a runs 3.4.2", "b runs 3.4.1"]);
        assert!(check(&mut warned, &[("b", Some("3.4.1"))]).is_empty());
        assert_eq!(check(&mut warned, &[("a", Some("3.4.2")), ("b", Some("3.4.1"))]), ["a runs 3.4.2"], "it is new");
    }
}
