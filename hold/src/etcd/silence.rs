//! For how long etcd has not answered.

use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::Etcd;
use crate::error::StoreError;

/// A time in which no call was answered.
#[derive(Debug, Clone)]
pub(super) struct Silence {
    /// When the first of them was made.
    since: Instant,
    /// What was wrong with the last of them.
    why: StoreError,
}

impl Etcd {
    /// Returns once no call has been answered for so long, with what was wrong with the last one. As long as there is nothing to
    /// ask etcd, it is not silent.
    ///
    /// # Cancel safety
    /// May be given up and called again.
    pub async fn silent_for(&self, how_long: Duration) -> StoreError {
        let mut silences = self.0.silence.subscribe();
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

    /// Returns once a call has been answered since those that were not; at once if there are none.
    ///
    /// # Cancel safety
    /// May be given up and called again.
    pub async fn answers(&self) {
        // The channel's other end is our own.
        let _ = self.0.silence.subscribe().wait_for(Option::is_none).await;
    }

    /// It has answered, whatever it said.
    pub(super) fn note_answer(&self) {
        self.0.silence.send_if_modified(|silence| silence.take().is_some());
    }

    /// It has not answered an attempt that began then.
    pub(super) fn note_silence(&self, began: Instant, why: &StoreError) {
        self.0.silence.send_modify(|silence| {
            let since = silence.as_ref().map_or(began, |silence| silence.since);
            *silence = Some(Silence { since, why: why.clone() });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_silence_begins_with_the_first_call_without_an_answer_and_ends_with_an_answer() {
        let etcd = Etcd::at(["http://127.0.0.1:1"]).unwrap();
        let hour = Duration::from_secs(3600);
        let silent = async |how_long| tokio::time::timeout(Duration::from_millis(20), etcd.silent_for(how_long)).await;
        assert!(silent(Duration::ZERO).await.is_err(), "nothing was asked");
        let why = |what: &str| StoreError::Unavailable(what.to_owned());
        etcd.note_silence(Instant::now() - hour, &why("first"));
        etcd.note_silence(Instant::now(), &why("last"));
        assert_eq!(etcd.silent_for(hour).await, why("last"));
        assert!(silent(2 * hour).await.is_err());
        let answers = async || tokio::time::timeout(Duration::from_millis(20), etcd.answers()).await;
        assert!(answers().await.is_err());
        etcd.note_answer();
        assert!(silent(Duration::ZERO).await.is_err());
        assert!(answers().await.is_ok());
    }
}
