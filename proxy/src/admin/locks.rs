//! What is known of each lock, and how each source is.

use std::iter::once;
use std::sync::{Arc, Weak};

use fencepost_locks::{LockDescription, LockSource, Member, StoreError, TrackedLock};
use fencepost_policy::Revision;
use http::StatusCode;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Admin;
use super::answers::{AdminAnswer, JSON, json_answer, streamed, text};
use super::group::add_group;
use super::pieces::{in_pieces, with_list};
use crate::layout_hint::LayoutHints;

impl Admin {
    /// Costs the same however many locks there are.
    pub(super) fn sources(&self) -> AdminAnswer {
        let now = Instant::now();
        let sources = self.generation.sources.iter().map(|source| source_json(source, now));
        json_answer(&json!({ "sources": sources.collect::<Vec<_>>() }))
    }

    pub(super) fn locks(&self) -> AdminAnswer {
        let hints = &self.generation.process.layout_hints;
        streamed(JSON, in_pieces(document(&self.generation.sources, hints)))
    }

    /// The locks of that key, one in each source that tracks it, even if only for requests under
    /// way. The key is percent-encoded or plain ([`spellings`]).
    ///
    /// # Errors
    /// The answer to the client, if the key is not UTF-8 or no source tracks it.
    pub(super) fn find(&self, key: &str) -> Result<Vec<Arc<TrackedLock>>, AdminAnswer> {
        let Ok(key) = percent_decode_str(key).decode_utf8() else {
            return Err(text(StatusCode::BAD_REQUEST, "the lock key is not UTF-8\n".to_owned()));
        };
        let sources = self.generation.process.sources.all();
        let find = |key: &String| -> Vec<_> {
            sources.iter().filter_map(|source| source.find(key)).collect()
        };
        let found = spellings(&key).iter().map(find).find(|found| !found.is_empty());
        found.ok_or_else(|| text(StatusCode::NOT_FOUND, format!("no lock {key:?} is tracked\n")))
    }

    pub(super) fn lock(&self, key: &str) -> AdminAnswer {
        let found = match self.find(key) {
            Ok(found) => found,
            Err(answer) => return answer,
        };
        let now = Instant::now();
        let described = found.iter().map(|lock| {
            let hint = self.generation.process.layout_hints.of(lock.source(), lock.key());
            let mut described = lock_json(&lock.describe(now), hint);
            described["source"] = json!(lock.source());
            let group = self.generation.group();
            group.into_iter().for_each(|group| add_group(&mut described, lock, group));
            described
        });
        match described.collect::<Vec<Value>>().as_slice() {
            [only] => json_answer(only),
            several => json_answer(&json!(several)),
        }
    }
}

/// What a key may mean, the likelier first: of `/locks//a/b` some clients make `/locks/a/b`, so
/// without a lock `a/b` this means `/a/b`.
pub(super) fn spellings(key: &str) -> [String; 2] {
    [key.to_owned(), format!("/{key}")]
}

/// The sources with all their locks, each lock on a line of its own.
///
/// The iterator makes each line when the reader asks for it, from the lock's state at that moment.
/// It leaves out locks that are no longer tracked by then. A slow reader keeps neither locks nor
/// sources alive.
fn document(
    sources: &[LockSource],
    hints: &Arc<LayoutHints>,
) -> impl Iterator<Item = String> + Send + use<> {
    let now = Instant::now();
    let sources: Vec<_> = sources
        .iter()
        .enumerate()
        .map(|(number, source)| {
            let locks: Vec<Weak<TrackedLock>> = source.locks().iter().map(Arc::downgrade).collect();
            let hints = Arc::clone(hints);
            let locks = locks.into_iter().filter_map(move |lock| {
                let lock = lock.upgrade()?;
                let hint = hints.of(lock.source(), lock.key());
                Some(lock_json(&lock.describe(Instant::now()), hint))
            });
            let separator = if number == 0 { "" } else { ",\n" };
            once(separator.to_owned()).chain(with_list(
                &source_json(source, now),
                "locks",
                ",\n",
                locks,
            ))
        })
        .collect();
    let end = once("]}\n".to_owned());
    once("{\"sources\":[".to_owned()).chain(sources.into_iter().flatten()).chain(end)
}

/// How a source is, and not which locks it has.
fn source_json(source: &LockSource, now: Instant) -> Value {
    let status = source.status(now);
    json!({
        "source": source.name(),
        "up": status.up,
        "age_seconds": status.age.map(|age| age.as_secs_f64()),
        "revision": status.revision.map(Revision::get),
        "distrusted_through": status.distrusted_through.map(Revision::get),
        "members": members_json(&status.members),
        "watch_restarts": status.watch_restarts,
        "last_error": status.last_error.as_deref().map(StoreError::to_string),
        "tracked_locks": status.static_locks + status.templated_locks,
    })
}

/// What is known of a lock; with what may be wrong with its layout.
pub(crate) fn lock_json(lock: &LockDescription, hint: Option<String>) -> Value {
    let LockDescription {
        key,
        layout: _,
        layout_name,
        holder,
        as_of,
        age,
        waiters,
        problem,
        gate,
        left_behind_for,
    } = lock;
    let at_worker = gate
        .at_worker
        .iter()
        .map(|there| json!({ "tenure": there.tenure.get(), "running": there.running, "orphans": there.orphans }));
    json!({
        "key": key.as_str(),
        "layout": layout_name,
        "owner": holder.as_ref().map(|(owner, ..)| owner.to_string()),
        "first": holder.as_ref().map(|(_, first, _)| first.get()),
        "last": holder.as_ref().map(|(.., last)| last.get()),
        "as_of": as_of.map(|revision| revision.get()),
        "age_seconds": age.map(|age| age.as_secs_f64()),
        "waiters": waiters.iter().map(|waiter| json!({
            "owner": waiter.owner.to_string(),
            "created": waiter.created.get(),
        })).collect::<Vec<_>>(),
        "problem": problem.as_deref(),
        "hint": hint,
        "gate": {
            "floor": gate.floor,
            "at_worker": at_worker.collect::<Vec<_>>(),
            "left_behind_seconds": left_behind_for.map(|left| left.as_secs_f64()),
        },
    })
}

fn members_json(members: &[Member]) -> Value {
    let member = |member: &Member| {
        json!({
            "endpoint": &*member.endpoint,
            "version": member.version.as_ref().ok().map(|version| version.to_string()),
            "error": member.version.as_ref().err().map(StoreError::to_string),
            "problems": member.problems.iter().map(|problem| json!({
                "problem": problem.name(),
                "text": problem.to_string(),
            })).collect::<Vec<_>>(),
        })
    };
    members.iter().map(member).collect()
}

#[cfg(test)]
mod tests {
    use fencepost_locks::{LockSpec, MemoryStore, RecordFormat, SourceOptions};
    use fencepost_policy::{Layout, LockKey};
    use futures_util::{FutureExt, StreamExt};

    use super::super::pieces::PIECE_BYTES;
    use super::*;

    fn source(name: &str) -> LockSource {
        LockSource::build(name, SourceOptions::default(), MemoryStore::new()).0
    }

    fn track(source: &LockSource, count: usize) -> Vec<Arc<TrackedLock>> {
        let spec = |number| LockSpec {
            key: LockKey::new(&format!("/\"locks\": []/{number:06}")).unwrap(),
            format: RecordFormat::plain(Layout::Key).into(),
        };
        (0..count).map(|number| source.track(spec(number)).unwrap()).collect()
    }

    /// Written in one.
    fn whole(sources: &[LockSource]) -> Value {
        let now = Instant::now();
        let told = sources.iter().map(|source| {
            let mut told = source_json(source, now);
            told["locks"] =
                source.locks().iter().map(|lock| lock_json(&lock.describe(now), None)).collect();
            told
        });
        json!({ "sources": told.collect::<Vec<_>>() })
    }

    #[test]
    fn the_document_of_all_locks_reads_as_if_it_were_written_in_one() {
        let sources = ["a", "\"locks\": []", "b"].map(source);
        for counts in [[0, 0, 0], [1, 0, 2], [0, 3, 0], [1, 1, 1]] {
            let _tracked: Vec<_> =
                sources.iter().zip(counts).map(|(source, count)| track(source, count)).collect();
            for sources in [&sources[..], &sources[..1], &[]] {
                let told: Value =
                    serde_json::from_str(&document(sources, &Arc::default()).collect::<String>())
                        .unwrap();
                assert_eq!(told, whole(sources), "{counts:?}");
            }
        }
    }

    /// Everybody else waited for that many to be written, and it took several hundred MiB.
    #[tokio::test(start_paused = true)]
    async fn twenty_thousand_locks_are_written_in_pieces_and_others_have_their_turn_between_them() {
        let source = source("main");
        let _tracked = track(&source, 20_000);
        let sources = [source];
        let mut pieces = Box::pin(in_pieces(document(&sources, &Arc::default())));
        let (mut written, mut turns) = (Vec::new(), 0);
        loop {
            assert!(pieces.next().now_or_never().is_none(), "others have no turn");
            turns += 1;
            let Some(piece) = pieces.next().await else { break };
            assert!(piece.len() < PIECE_BYTES + 4_096, "{} bytes", piece.len());
            written.extend_from_slice(&piece);
        }
        assert!(turns > 50, "{turns}");
        assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), whole(&sources));
    }

    #[test]
    fn whoever_reads_slowly_keeps_no_lock_and_no_source() {
        let source = source("main");
        let mut tracked = track(&source, 3);
        let handle = source.downgrade();
        let mut parts = document(&[source], &Arc::default());
        assert!(handle.upgrade().is_none());
        let begun: String = parts.by_ref().take(4).collect();
        drop(tracked.remove(1));
        let rest: String = parts.collect();
        assert!(begun.contains("000000") && rest.contains("000002"), "{begun}{rest}");
        assert!(!rest.contains("000001"), "it is tracked no more: {rest}");
    }
}
