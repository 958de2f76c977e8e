//! The timeline: whole, or whole and then each row that changes.
//!
//! The book is held for one row at a time, and what a row does not know by itself is looked up
//! before.

use std::iter::once;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fencepost_config::Lock;
use fencepost_policy::LockKey;
use futures_util::stream::Stream;
use http::HeaderMap;
use serde_json::Value;

use super::Admin;
use super::answers::{AdminAnswer, JSON, streamed};
use super::observed::wants_events;
use super::pieces::{NO_LOCKS, NO_LOCKS_ON_ONE_LINE, in_pieces, list, list_on_one_line};
use super::streams::{Follower, Parts, event, follow, welcome};
use crate::active_config::ActiveConfig;
use crate::generation::Generation;
use crate::observe::Observations;
use crate::observe::timeline::{LockId, RowContext};

/// How often a row that changes is told again: all of it, however much of it has changed.
const PACE: Duration = Duration::from_secs(1);

impl Admin {
    pub(super) fn timeline(&self, headers: &HeaderMap) -> AdminAnswer {
        let rows = Rows {
            observations: Arc::clone(self.observed()),
            context: context(self.in_force.clone()),
        };
        if wants_events(headers) {
            return self.stream(follow_timeline(rows));
        }
        streamed(JSON, in_pieces(rows.document()))
    }
}

/// Where rows come from. Whoever reads slowly holds on to no configuration, so that none outlives
/// its time for that.
#[derive(Clone)]
struct Rows<C> {
    observations: Arc<Observations>,
    context: C,
}

trait Context: Fn(&str, &LockKey) -> RowContext + Clone + 'static {}
impl<C: Fn(&str, &LockKey) -> RowContext + Clone + 'static> Context for C {}

impl<C: Context> Rows<C> {
    /// Of these locks, as they are when they are asked for.
    fn of(&self, locks: Vec<LockId>) -> impl Iterator<Item = Value> + use<C> {
        let Rows { observations, context } = self.clone();
        locks.into_iter().filter_map(move |id| {
            let context = context(&id.0, &id.1);
            observations.look(|book| book.timeline.row_json(&id, &context))
        })
    }

    /// All but the rows, and of which locks there are some.
    fn begin(&self) -> (Value, Vec<LockId>) {
        self.observations.look(|book| {
            (book.timeline.without_rows(SystemTime::now()), book.timeline.changed_after(0))
        })
    }

    /// All of it.
    fn document(&self) -> impl Iterator<Item = String> + use<C> {
        let (without_rows, locks) = self.begin();
        let none = locks.is_empty();
        around(&format!("{without_rows:#}\n"), NO_LOCKS, list(self.of(locks), none, "  "))
    }

    /// All of it as one event.
    fn whole(&self) -> impl Iterator<Item = String> + use<C> {
        let (without_rows, locks) = self.begin();
        let without_rows = event("timeline", None, &without_rows);
        around(&without_rows, NO_LOCKS_ON_ONE_LINE, list_on_one_line(self.of(locks)))
    }
}

/// A document with its list of locks in its place.
fn around<L: Iterator<Item = String>>(
    document: &str,
    no_locks: &str,
    list: L,
) -> impl Iterator<Item = String> + use<L> {
    let (before, behind) =
        document.split_once(no_locks).expect("a timeline without rows has an empty list of locks");
    once(before.to_owned()).chain(list).chain(once(behind.to_owned()))
}

fn follow_timeline(rows: Rows<impl Context>) -> impl Stream<Item = Bytes> {
    follow(Arc::clone(&rows.observations), welcome(None), Followed { rows, seen: None })
}

struct Followed<C> {
    rows: Rows<C>,
    /// The version of what was told; `None` before anything was.
    seen: Option<u64>,
}

impl<C: Context> Follower for Followed<C> {
    const PACE: Duration = PACE;

    fn news(&mut self, observations: &Arc<Observations>) -> Option<Parts> {
        let present = observations.look(|book| book.timeline.version());
        let Some(seen) = self.seen.replace(present) else {
            return Some(Box::new(self.rows.whole()));
        };
        let (locks, outages) = observations
            .look(|book| (book.timeline.changed_after(seen), book.timeline.outages_after(seen)));
        if locks.is_empty() && outages.is_none() {
            return None;
        }
        let outages = outages.map(|outages| event("outages", None, &outages));
        let rows = self.rows.of(locks).map(|row| event("lock", None, &row));
        Some(Box::new(outages.into_iter().chain(rows)))
    }
}

/// What a row does not know by itself, by the configuration in force.
fn context(in_force: ActiveConfig) -> impl Context {
    move |source: &str, lock: &LockKey| row_context(&in_force.now(), source, lock)
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
    use std::num::NonZeroUsize;

    use fencepost_locks::TenureChange;
    use fencepost_policy::{Layout, Owner, Revision, Tenure};
    use futures_util::{FutureExt, StreamExt};
    use serde_json::json;
    use tokio::time::{Instant, sleep, timeout};

    use super::super::pieces::PIECE_BYTES;
    use super::*;
    use crate::observe::{Event, TenureNews};

    fn rows() -> Rows<impl Context> {
        let context = |_: &str, lock: &LockKey| RowContext {
            routes: vec![lock.as_str().to_owned()],
            present: None,
        };
        Rows { observations: Arc::new(Observations::new(NonZeroUsize::MIN, 10)), context }
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
        observations.collect(vec![Event::Tenure(Box::new(TenureNews { at, source, change }))]);
    }

    /// Written in one, as it is at that time.
    fn whole(rows: &Rows<impl Context>, now_ms: &Value) -> Value {
        let (mut whole, locks) = rows.begin();
        whole["locks"] = rows.of(locks).collect();
        whole["now_ms"] = now_ms.clone();
        whole
    }

    #[test]
    fn the_document_and_the_event_read_as_if_they_were_written_in_one() {
        let rows = rows();
        for locks in 0..3 {
            (0..locks).for_each(|lock| change(&rows.observations, lock, 7));
            let document: String = rows.document().collect();
            let told: Value = serde_json::from_str(&document).unwrap();
            let expected = whole(&rows, &told["now_ms"]);
            assert_eq!(document, format!("{expected:#}\n"), "{locks} locks");
            let told: String = rows.whole().collect();
            let data =
                told.strip_prefix("event: timeline\ndata: ").unwrap().strip_suffix("\n\n").unwrap();
            let expected = whole(&rows, &serde_json::from_str::<Value>(data).unwrap()["now_ms"]);
            assert_eq!(data, expected.to_string(), "{locks} locks");
        }
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
        pieces_of(Box::new(rows.document())).await;
        let mut followed = Followed { rows: rows.clone(), seen: None };
        let observations = Arc::clone(&rows.observations);
        pieces_of(followed.news(&observations).unwrap()).await;
        assert!(followed.news(&observations).is_none());
        followed.seen = Some(0);
        pieces_of(followed.news(&observations).unwrap()).await;
    }

    /// All that is kept of a lock was sent ten times a second: a refusal of each of 300 locks in
    /// turn made 64 MB a second.
    #[tokio::test(start_paused = true)]
    async fn a_change_is_told_at_once_and_what_follows_it_once_a_second() {
        let rows = rows();
        let observations = Arc::clone(&rows.observations);
        let mut stream = Box::pin(follow_timeline(rows));
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
