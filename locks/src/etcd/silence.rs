//! For how long etcd has not answered a client's calls. Does not make calls of its own.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::client::EtcdError;

/// The present silence, if there is one. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Silences(Arc<watch::Sender<Option<Silence>>>);

/// A time in which no call was answered.
#[derive(Debug, Clone)]
struct Silence {
    /// When the first of the calls was made.
    since: Instant,
    /// What was wrong with the last of them.
    why: EtcdError,
}

impl Silences {
    /// Returns once there has been a silence for so long, with what was wrong with the last call.
    pub(super) async fn last_for(&self, how_long: Duration) -> EtcdError {
        let mut silences = self.0.subscribe();
        loop {
            let silence = silences.borrow_and_update().clone();
            let lasts = async {
                match silence {
                    Some(Silence { since, why }) => {
                        sleep_until(since + how_long).await;
                        why
                    }
                    None => pending().await,
                }
            };
            tokio::select! {
                why = lasts => return why,
                // The channel's other end is our own.
                _ = silences.changed() => {}
            }
        }
    }

    /// Returns once there is no silence.
    pub(super) async fn end(&self) {
        // The channel's other end is our own.
        let _ = self.0.subscribe().wait_for(Option::is_none).await;
    }

    /// Notes that etcd has answered, whatever it said.
    pub(super) fn note_answer(&self) {
        self.0.send_if_modified(|silence| silence.take().is_some());
    }

    /// Notes that etcd has not answered an attempt that began then.
    pub(super) fn note_silence(&self, began: Instant, why: &EtcdError) {
        self.0.send_modify(|silence| {
            let since = silence.as_ref().map_or(began, |silence| silence.since);
            *silence = Some(Silence { since, why: why.clone() });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn silence_lasts_from_an_unanswered_call_to_an_answer() {
        let silences = Silences::default();
        let hour = Duration::from_secs(3600);
        let silent = async |how_long| {
            tokio::time::timeout(Duration::from_millis(20), silences.last_for(how_long)).await
        };
        assert!(silent(Duration::ZERO).await.is_err(), "nothing was asked");
        let why = |what: &str| EtcdError::Unavailable(what.to_owned());
        silences.note_silence(Instant::now() - hour, &why("first"));
        silences.note_silence(Instant::now(), &why("last"));
        assert_eq!(silences.last_for(hour).await, why("last"));
        assert!(silent(2 * hour).await.is_err());
        let ended = async || tokio::time::timeout(Duration::from_millis(20), silences.end()).await;
        assert!(ended().await.is_err());
        silences.note_answer();
        assert!(silent(Duration::ZERO).await.is_err());
        assert!(ended().await.is_ok());
    }
}
