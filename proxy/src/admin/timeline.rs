//! The timeline: whole, or whole and then each row that changes.
//!
//! The book is held for one row at a time, and what a row does not know by itself is looked up
//! before.

use std::iter::once;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fencepost_config::Lock;
use fencepost_policy::LockKey;
use http::HeaderMap;
use serde_json::Value;

use super::Admin;
use super::answers::{AdminAnswer, JSON, streamed};
use super::observed::wants_events;
use super::pieces::{in_pieces, with_list};
use super::streams::{NOTHING, News, Parts, event, follow, welcome};
use crate::generation::Generation;
use crate::observe::Observations;
use crate::observe::timeline::{LockId, RowContext};

/// How often a row that changes is told again: all of it, however much of it has changed.
const PACE: Duration = Duration::from_secs(1);

impl Admin {
    pub(super) fn timeline(&self, headers: &HeaderMap) -> AdminAnswer {
        let (observations, in_force) = (Arc::clone(self.observed()), self.in_force.clone());
        let context =
            move |source: &str, lock: &LockKey| row_context(&in_force.now(), source, lock);
        let rows = Rows { observations: Arc::clone(&observations), context: Arc::new(context) };
        if wants_events(headers) {
            return self.stream(follow(observations, PACE, welcome(None), rows.news()));
        }
        // A lock on each line.
        streamed(JSON, in_pieces(rows.whole(",\n").chain(once("\n".to_owned()))))
    }
}

/// Where rows come from. Holds no configuration, so that a slow reader keeps no old configuration
/// alive.
#[derive(Clone)]
struct Rows {
    observations: Arc<Observations>,
    context: Arc<Context>,
}

/// What a row does not know by itself, by its source and lock.
type Context = dyn Fn(&str, &LockKey) -> RowContext + Send + Sync;

impl Rows {
    /// Of these locks, as they are when they are asked for.
    fn of(&self, locks: Vec<LockId>) -> impl Iterator<Item = Value> + Send + use<> {
        let Rows { observations, context } = self.clone();
        locks.into_iter().filter_map(move |id| {
            let context = context(&id.0, &id.1);
            observations.look(|book| book.timeline.row_json(&id, &context))
        })
    }

    /// All of it.
    fn whole(&self, separator: &'static str) -> impl Iterator<Item = String> + Send + use<> {
        let (without_rows, locks) = self.observations.look(|book| {
            (book.timeline.without_rows(SystemTime::now()), book.timeline.changed_after(0))
        });
        with_list(&without_rows, "locks", separator, self.of(locks))
    }

    /// All of it, and then what changes.
    fn news(self) -> impl News {
        let mut seen = None;
        move |observations: &Observations, is_silent| {
            if is_silent {
                return Some(Box::new(once(NOTHING.to_owned())));
            }
            let present = observations.look(|book| book.timeline.version());
            let Some(seen) = seen.replace(present) else {
                let begin = once("event: timeline\ndata: ".to_owned());
                let end = once("\n\n".to_owned());
                return Some(Box::new(begin.chain(self.whole(",")).chain(end)) as Parts);
            };
            let (locks, outages) = observations.look(|book| {
                (book.timeline.changed_after(seen), book.timeline.outages_after(seen))
            });
            if locks.is_empty() && outages.is_none() {
                return None;
            }
            let outages = outages.map(|outages| event("outages", None, &outages));
            let rows = self.of(locks).map(|row| event("lock", None, &row));
            Some(Box::new(outages.into_iter().chain(rows)))
        }
    }
}

fn row_context(generation: &Generation, source: &str, lock: &LockKey) -> RowContext {
    let config = &generation.config;
    let guarded = config.routes.iter().filter(|route| {
        let guards = |guard: &Lock| {
            config.sources[guard.source].name == source && guard.key.matches_key(lock.as_str())
        };
        route.mode.lock().is_some_and(guards)
    });
    let source = generation.sources.iter().find(|known| known.name() == source);
    let present =
        source.and_then(|source| source.find(lock.as_str())?.view().snapshot()?.tenure().cloned());
    RowContext { routes: guarded.map(|route| route.name.clone()).collect(), present }
}

#[cfg(test)]
mod tests {
    use fencepost_locks::TenureChange;
    use fencepost_policy::{Layout, Owner, Revision, Tenure};
    use futures_util::{FutureExt, StreamExt};
    use serde_json::json;
    use tokio::time::{Instant, sleep, timeout};

    use super::super::pieces::PIECE_BYTES;
    use super::*;
    use crate::observe::TenureNews;

    fn rows() -> Rows {
        let context = |_: &str, lock: &LockKey| RowContext {
            routes: vec![lock.as_str().to_owned()],
            present: None,
        };
        Rows { observations: Arc::new(Observations::new(10)), context: Arc::new(context) }
    }

    /// A tenure of that lock begins, and the one before ends.
    fn change(observations: &Observations, lock: usize, revision: u64) {
        let revision = Revision::new(revision).unwrap();
        let change = TenureChange {
            at: Instant::now(),
            lock: LockKey::new(&format!("/\"locks\":[]/{lock:04}")).unwrap(),
            layout: Layout::Key,
            ended: None,
            began: Some(Tenure {
                owner: Owner::new(&b"shard-1"[..]),
                first: revision,
                last: revision,
            }),
            is_first_news: false,
        };
        let (at, source) = (SystemTime::UNIX_EPOCH, "\"locks\": []".into());
        observations.collect(vec![TenureNews { at, source, change }]);
    }

    #[test]
    fn the_document_and_the_event_have_all_rows() {
        let rows = rows();
        for locks in 0..3 {
            (0..locks).for_each(|lock| change(&rows.observations, lock, 7));
            let document: String = rows.whole(",\n").collect();
            let mut told: Value = serde_json::from_str(&document).unwrap();
            assert_eq!(told["locks"], rows.of(told_locks(&rows)).collect::<Value>());
            let event: String = rows.clone().news()(&rows.observations, false).unwrap().collect();
            let data = event.strip_prefix("event: timeline\ndata: ").unwrap();
            let data = data.strip_suffix("\n\n").filter(|data| !data.contains('\n')).unwrap();
            let event: Value = serde_json::from_str(data).unwrap();
            told["now_ms"] = event["now_ms"].clone();
            assert_eq!(told, event, "{locks} locks");
        }
    }

    fn told_locks(rows: &Rows) -> Vec<LockId> {
        rows.observations.look(|book| book.timeline.changed_after(0))
    }

    /// Everybody else waited for as long, and it took several hundred MiB.
    #[tokio::test]
    async fn a_long_timeline_is_made_in_pieces_and_others_have_their_turn_between_them() {
        let rows = rows();
        (1..=20).for_each(|revision| {
            (0..500).for_each(|lock| change(&rows.observations, lock, revision))
        });
        let pieces_of = async |parts: Parts| {
            let mut pieces = Box::pin(in_pieces(parts));
            let (mut count, mut bytes) = (0, 0);
            loop {
                assert!(pieces.next().now_or_never().is_none(), "others have no turn");
                let Some(piece) = pieces.next().await else { break };
                assert!(piece.len() < PIECE_BYTES + 8_192, "{} bytes", piece.len());
                count += 1;
                bytes += piece.len();
            }
            assert!(
                count > bytes / (PIECE_BYTES + 8_192) && bytes > 1_000_000,
                "{count} pieces, {bytes} bytes"
            );
        };
        pieces_of(Box::new(rows.whole(",\n"))).await;
        let observations = Arc::clone(&rows.observations);
        let mut news = rows.news();
        pieces_of(news(&observations, false).unwrap()).await;
        assert!(news(&observations, false).is_none());
        (0..500).for_each(|lock| change(&observations, lock, 21));
        pieces_of(news(&observations, false).unwrap()).await;
    }

    /// All that is kept of a lock was sent ten times a second: a refusal of each of 300 locks in
    /// turn made 64 MB a second.
    #[tokio::test(start_paused = true)]
    async fn a_change_is_told_at_once_and_what_follows_it_once_a_second() {
        let rows = rows();
        let observations = Arc::clone(&rows.observations);
        let mut stream =
            Box::pin(follow(Arc::clone(&observations), PACE, welcome(None), rows.news()));
        let mut next = async |most| timeout(most, stream.next()).await.ok().flatten();
        let soon = Duration::from_millis(1);
        assert_eq!(next(soon).await.unwrap(), welcome(None));
        assert!(next(soon).await.unwrap().starts_with(b"event: timeline\n"));
        assert!(next(2 * PACE).await.is_none());
        change(&observations, 1, 1);
        assert!(next(soon).await.is_some(), "at once");

        let changes = async {
            for revision in 2..102 {
                sleep(Duration::from_millis(100)).await;
                change(&observations, 1, revision);
            }
        };
        let told = async {
            let mut told = Vec::new();
            while let Some(piece) = next(PACE + soon).await {
                let piece = String::from_utf8(piece.to_vec()).unwrap();
                let row = piece.strip_prefix("event: lock\ndata: ").unwrap();
                told.push(serde_json::from_str::<Value>(row).unwrap());
            }
            told
        };
        let (told, ()) = tokio::join!(told, changes);
        assert!((10..=11).contains(&told.len()), "{} times in 10 s", told.len());
        let newest = told.last().unwrap()["tenures"].as_array().unwrap().last().unwrap();
        assert_eq!(newest["first"], json!(101), "the last change is told");
    }
}
