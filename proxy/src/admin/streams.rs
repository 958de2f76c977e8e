//! Server-sent events (WHATWG HTML, 9.2): what happens from now on, for as long as the client listens.
//!
//! A stream keeps no queue of its own. It looks at what was collected whenever there is news and its client has taken what
//! there was; a client that is too slow misses what was dropped meanwhile, and is told how much.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fencepost_policy::LockKey;
use futures_util::stream::{Stream, unfold};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::Admin;
use super::answers::{AdminAnswer, streamed, text};
use super::observed::{row_context, whole_timeline};
use crate::in_force::InForce;
use crate::observe::{Filter, Observations};

/// How many clients may listen at a time.
const STREAMS_MAX: usize = 32;

/// A client that hears nothing for so long is told that nothing happens.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// How many decisions are written at once.
const BATCH_MAX: usize = 500;

/// Sent first: there is a connection, and when it breaks, come back after a second, to go on from that event.
fn welcome(from: Option<String>) -> String {
    let id = from.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("{id}retry: 1000\n\n")
}

impl Admin {
    /// Answers with a stream, unless too many listen already.
    pub(super) fn stream(&self, events: impl Stream<Item = Bytes> + 'static) -> AdminAnswer {
        let Some(place) = StreamPlace::take(&self.streams) else {
            return text(StatusCode::SERVICE_UNAVAILABLE, format!("{STREAMS_MAX} clients listen already\n"));
        };
        let events = unfold((Box::pin(events), place), |(mut events, place)| async move {
            let piece = futures_util::StreamExt::next(&mut events).await?;
            Some((piece, (events, place)))
        });
        streamed("text/event-stream", events)
    }
}

/// One of those that listen, for as long as this lives.
struct StreamPlace(Arc<AtomicUsize>);

impl StreamPlace {
    fn take(taken: &Arc<AtomicUsize>) -> Option<StreamPlace> {
        let place = StreamPlace(Arc::clone(taken));
        (taken.fetch_add(1, Ordering::Relaxed) < STREAMS_MAX).then_some(place)
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Each decision that passes the filter: those from now on, those since a time, or those after the last that was got before.
pub(super) fn follow_decisions(
    observations: Arc<Observations>,
    filter: Filter,
    last_event: Option<&str>,
) -> impl Stream<Item = Bytes> + use<> {
    let after = match last_event.map(|id| observations.number_of(id)) {
        // Of another process: whatever is kept came later.
        Some(number) => number.unwrap_or(0),
        None if filter.asks_for_the_past() => 0,
        None => observations.look(|book| book.decisions.last()),
    };
    let is_first_look = last_event.is_none();
    // Who gets none before the connection breaks has missed what passed meanwhile, and what comes then.
    let welcome = welcome(Some(observations.event_id(after)));
    follow(observations, welcome, (after, is_first_look), move |observations, (after, is_first_look)| {
        let found = observations.look(|book| book.decisions.after(*after, &filter, BATCH_MAX));
        *after = found.after;
        let mut text = String::new();
        // Who has asked for the past gets what there is of it, and has missed nothing.
        if found.missed > 0 && !std::mem::take(is_first_look) {
            event(&mut text, "lost", None, &json!({ "lost": found.missed }));
        }
        *is_first_look = false;
        for (number, decision) in found.decisions {
            event(&mut text, "decision", Some(observations.event_id(number)), &decision.to_json());
        }
        text
    })
}

/// The whole timeline, then each row that changes. Holds on to no configuration, so that none outlives its time for that.
pub(super) fn follow_timeline(observations: Arc<Observations>, in_force: InForce) -> impl Stream<Item = Bytes> {
    follow(observations, welcome(None), None, move |observations, seen: &mut Option<u64>| {
        let fence = in_force.now();
        let mut text = String::new();
        let present = observations.look(|book| book.timeline.version());
        let Some(seen) = seen.replace(present) else {
            event(&mut text, "timeline", None, &whole_timeline(observations, &fence));
            return text;
        };
        if seen == present {
            return text;
        }
        let context = |source: &str, lock: &LockKey| row_context(&fence, source, lock);
        let (rows, outages) =
            observations.look(|book| (book.timeline.rows_after(seen, context), book.timeline.outages_after(seen)));
        rows.iter().for_each(|row| event(&mut text, "lock", None, row));
        outages.iter().for_each(|outages| event(&mut text, "outages", None, outages));
        text
    })
}

/// That welcome, what `news` has to say now, and again whenever something has been collected.
fn follow<S: 'static>(
    observations: Arc<Observations>,
    welcome: String,
    state: S,
    news: impl Fn(&Observations, &mut S) -> String + 'static,
) -> impl Stream<Item = Bytes> {
    let changed = observations.follow();
    let first = Following { observations, changed, state, news, welcome: Some(welcome) };
    unfold(first, |mut following| async move {
        let text = following.next().await?;
        Some((Bytes::from(text), following))
    })
}

struct Following<S, N> {
    observations: Arc<Observations>,
    changed: watch::Receiver<()>,
    state: S,
    news: N,
    /// Until it has been sent.
    welcome: Option<String>,
}

impl<S, N: Fn(&Observations, &mut S) -> String> Following<S, N> {
    async fn next(&mut self) -> Option<String> {
        if let Some(welcome) = self.welcome.take() {
            return Some(welcome);
        }
        loop {
            let text = (self.news)(&self.observations, &mut self.state);
            if !text.is_empty() {
                return Some(text);
            }
            tokio::select! {
                changed = self.changed.changed() => changed.ok()?,
                () = tokio::time::sleep(SILENCE_MAX) => return Some(": nothing has happened\n\n".to_owned()),
            }
        }
    }
}

/// Writes one event. JSON on one line has no line break that would end it early.
fn event(text: &mut String, name: &str, id: Option<String>, data: &Value) {
    if let Some(id) = id {
        let _ = writeln!(text, "id: {id}");
    }
    let _ = write!(text, "event: {name}\ndata: {data}\n\n");
}
