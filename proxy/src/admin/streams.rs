//! Server-sent events (WHATWG HTML, 9.2): what happens from now on, for as long as the client
//! listens.
//!
//! A stream keeps no queue of its own. It looks at what was collected whenever there is news and
//! its client has taken what there was; a client that is too slow misses what was dropped
//! meanwhile, and is told how much.

use std::future::ready;
use std::iter::once;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt, unfold};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::Admin;
use super::answers::{AdminAnswer, streamed, text};
use super::pieces::in_pieces;
use crate::observe::{Filter, Observations};

/// How many clients may listen at a time.
pub(crate) const STREAMS_MAX: usize = 32;

/// A client that hears nothing for so long is told that nothing happens.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// How many decisions are written at once.
const BATCH_MAX: usize = 500;

/// A comment, which no client takes for news.
pub(super) const NOTHING: &str = ": nothing has happened\n\n";

/// What is told, in parts that are made as they are asked for.
pub(super) type Parts = Box<dyn Iterator<Item = String> + Send>;

/// Tells what there is to tell now, if anything is. Where `is_silent`, there has been nothing for
/// [`SILENCE_MAX`], and it has to say so.
pub(super) trait News: FnMut(&Observations, bool) -> Option<Parts> + Send + 'static {}
impl<N: FnMut(&Observations, bool) -> Option<Parts> + Send + 'static> News for N {}

/// Sent first: there is a connection, and when it breaks, come back after a second, to go on from
/// that event.
pub(super) fn welcome(from: Option<String>) -> String {
    let id = from.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("{id}retry: 1000\n\n")
}

/// One event. JSON on one line has no line break that would end it early.
pub(super) fn event(name: &str, id: Option<String>, data: &Value) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("{id}event: {name}\ndata: {data}\n\n")
}

impl Admin {
    /// Answers with a stream, unless too many listen already.
    pub(super) fn stream(&self, events: impl Stream<Item = Bytes> + Send + 'static) -> AdminAnswer {
        let Ok(place) = Arc::clone(&self.streams).try_acquire_owned() else {
            let full = format!("{STREAMS_MAX} clients listen already\n");
            return text(StatusCode::SERVICE_UNAVAILABLE, full);
        };
        streamed("text/event-stream", events.inspect(move |_| _ = &place))
    }
}

/// That welcome, what there is to tell now, and what there is whenever something has been
/// collected: `pace` after the last look at the soonest.
pub(super) fn follow(
    observations: Arc<Observations>,
    pace: Duration,
    welcome: String,
    news: impl News,
) -> impl Stream<Item = Bytes> {
    let changed = observations.follow();
    let following = (observations, changed, news, Instant::now());
    let told = unfold(following, move |(observations, mut changed, mut news, mut look_due)| {
        async move {
            // Whatever else happens: of much there is nothing to tell, and a client that is gone is
            // found out by what is written to it.
            let silent_until = Instant::now() + SILENCE_MAX;
            let parts = loop {
                if Instant::now() < look_due {
                    sleep_until(look_due).await;
                }
                look_due = Instant::now() + pace;
                if let Some(parts) = news(&observations, false) {
                    break parts;
                }
                tokio::select! {
                    changed = changed.changed() => changed.ok()?,
                    () = sleep_until(silent_until) => break news(&observations, true)?,
                }
            };
            Some((parts, (observations, changed, news, look_due)))
        }
    });
    let welcome: Parts = Box::new(once(welcome));
    stream::once(ready(welcome)).chain(told).flat_map(in_pieces)
}

/// Each decision that passes the filter: those from now on, those since a time, or those after the
/// last that was got before.
pub(super) fn follow_decisions(
    observations: Arc<Observations>,
    filter: Filter,
    last_event: Option<&str>,
) -> impl Stream<Item = Bytes> + use<> {
    let mut after = match last_event.map(|id| observations.number_of(id)) {
        // Of another process: whatever is kept came later.
        Some(number) => number.unwrap_or(0),
        None if filter.asks_for_the_past() => 0,
        None => observations.look(|book| book.decisions.last()),
    };
    // Who gets none before the connection breaks has missed what passed meanwhile, and what comes
    // then.
    let welcome = welcome(Some(observations.event_id(after)));
    let mut is_first_look = last_event.is_none();
    follow(observations, Duration::ZERO, welcome, move |observations, is_silent| {
        if is_silent {
            // With how far it has been looked, which a client keeps though nothing else is said
            // (WHATWG HTML, 9.2.6): who comes back has missed nothing that passed before and was not
            // asked for.
            let text = format!("id: {}\n{NOTHING}", observations.event_id(after));
            return Some(Box::new(once(text)));
        }
        let found = observations.look(|book| book.decisions.after(after, &filter, BATCH_MAX));
        after = found.after;
        let mut text = String::new();
        // Who has asked for the past gets what there is of it, and has missed nothing.
        if found.missed > 0 && !is_first_look {
            text += &event("lost", None, &json!({ "lost": found.missed }));
        }
        is_first_look = false;
        for (number, decision) in found.decisions {
            text += &event("decision", Some(observations.event_id(number)), &decision.to_json());
        }
        (!text.is_empty()).then(|| Box::new(once(text)) as Parts)
    })
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::time::SystemTime;

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::observe::Decision;
    use crate::observe::filter::Query;

    /// What the next piece says, while each second something happens that it has nothing to do
    /// with.
    async fn next(
        observations: &Observations,
        stream: &mut (impl Stream<Item = Bytes> + Unpin),
    ) -> Option<String> {
        let others = async {
            loop {
                observations.note_decision(Box::new(Decision::for_tests("another's")));
                observations.collect(Vec::new());
                sleep(Duration::from_secs(1)).await;
            }
        };
        let piece = tokio::select! {
            piece = timeout(SILENCE_MAX + Duration::from_millis(1), stream.next()) => piece.ok()?,
            () = others => unreachable!("they never end"),
        };
        String::from_utf8(piece?.to_vec()).ok()
    }

    fn decisions_of_nobody(
        observations: &Arc<Observations>,
        last_event: Option<&str>,
    ) -> Pin<Box<impl Stream<Item = Bytes> + use<>>> {
        let filter = Query::parse("owner=nobody", SystemTime::now()).unwrap().filter;
        Box::pin(follow_decisions(Arc::clone(observations), filter, last_event))
    }

    /// It said nothing for as long as there was anything at all, so that nobody learnt that its
    /// client was gone; and who came back with the last id was told that what others had sent was
    /// lost.
    #[tokio::test(start_paused = true)]
    async fn who_follows_what_never_comes_hears_so_whatever_else_happens_and_misses_none_of_it() {
        let observations = Arc::new(Observations::new(2));
        let mut stream = decisions_of_nobody(&observations, None);
        assert_eq!(stream.next().await.unwrap(), welcome(Some(observations.event_id(0))));
        let said = next(&observations, &mut stream).await.expect("it is not silent");
        let (id, rest) = said.split_once('\n').unwrap();
        assert_eq!(rest, NOTHING);
        let id = id.strip_prefix("id: ").unwrap();
        assert!(observations.number_of(id) > Some(10), "{id}");
        drop(stream);

        let mut again = decisions_of_nobody(&observations, Some(id));
        assert_eq!(again.next().await.unwrap(), welcome(Some(id.to_owned())));
        let said = next(&observations, &mut again).await.expect("it is not silent");
        assert!(said.ends_with(NOTHING), "{said}");
    }
}
