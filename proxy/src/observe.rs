//! What operators can look at: refusals, a sample of the admissions, who held which lock when, who
//! waited for whom.
//!
//! A worker thread only notes what happened, in a short list of its own
//! ([`Observations::note_decision`], [`Observations::note`]); nobody waits for anybody. Ten times a
//! second, or when somebody looks, the lists are collected into the [`Book`]: the last decisions
//! ([`ring`]), the [`shadow`] report and the [`timeline`]. Everything is bounded, and what found no
//! room is counted.

pub mod collector;
pub mod filter;
pub mod lately;
mod notes;
pub mod record;
pub mod ring;
pub mod shadow;
pub mod text;
pub mod timeline;

use std::mem;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;

use crate::decision::DecisionIds;

pub use filter::Filter;
pub use notes::Event;
pub use record::{Decision, Likeness, Outcome, RouteLabel, millis};
pub use timeline::{TenureNews, Wait};

use lately::Lately;
use notes::Notes;
use ring::Ring;
use shadow::ShadowReport;
use timeline::Timeline;

/// How often the threads' lists are collected while nobody asks.
pub const COLLECT_PERIOD: Duration = Duration::from_millis(100);

/// What the process remembers of the past, for its operators.
#[derive(Debug)]
pub struct Observations {
    notes: Box<[Mutex<Notes>]>,
    book: Mutex<Book>,
    lost: AtomicU64,
    changed: watch::Sender<()>,
    /// Tells the events of this process from those of others.
    process: u32,
}

/// All that was collected.
#[derive(Debug)]
pub struct Book {
    /// The last decisions.
    pub decisions: Ring,
    /// What the routes in shadow mode would have refused.
    pub shadow: ShadowReport,
    /// Who held which lock when.
    pub timeline: Timeline,
    /// How many requests were refused of late.
    pub lately: Lately,
    /// Until when decisions came faster than they are kept, if they ever did.
    pub not_all_until: Option<SystemTime>,
    /// When it was collected.
    collected: Instant,
}

impl Observations {
    /// Nothing has happened yet. `kept` is how many decisions are remembered.
    pub fn new(threads: NonZeroUsize, kept: usize) -> Observations {
        let book = Book {
            decisions: Ring::new(kept),
            shadow: ShadowReport::default(),
            timeline: Timeline::new(),
            lately: Lately::default(),
            not_all_until: None,
            collected: Instant::now(),
        };
        Observations {
            notes: (0..threads.get()).map(|_| Mutex::default()).collect(),
            book: Mutex::new(book),
            lost: AtomicU64::new(0),
            changed: watch::Sender::new(()),
            process: DecisionIds::process(),
        }
    }

    /// Notes a decision of the worker thread of that number: in a flood by counting it with one
    /// that is like it, if there is one and it may be, so that it is not even put down.
    pub fn note_decision(
        &self,
        thread: usize,
        like: Option<&Likeness<'_>>,
        decision: impl FnOnce() -> Box<Decision>,
    ) {
        lock(&self.notes[thread]).note_decision(like, decision);
    }

    /// Notes what else happened there, and says whether there was room, of which a flood of
    /// refusals takes none.
    pub fn note(&self, thread: usize, event: impl FnOnce() -> Event) -> bool {
        let has_room = lock(&self.notes[thread]).note(event);
        if !has_room {
            self.lose(1);
        }
        has_room
    }

    /// Notes the end of what was noted as begun on that thread, room or not: without, it would go
    /// on for ever. There are no more of them than beginnings, for which there has to be room.
    pub fn note_end(&self, thread: usize, end: Event) {
        lock(&self.notes[thread]).note_end(end);
    }

    /// Notes that so many events are lost that happened elsewhere.
    pub fn lose(&self, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
    }

    /// How many events are not kept, because they came faster than they are.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Collects what the threads have noted, and what happened elsewhere, in the order of time.
    /// Says whether there was anything.
    ///
    /// What one thread has noted stays in its order: the clock on the wall may be set back, and
    /// nothing ends before it has begun.
    pub fn collect(&self, elsewhere: Vec<Event>) -> bool {
        // Held throughout, so that nobody who asks sees half of it, or a later half first.
        let mut book = lock(&self.book);
        let now = Instant::now();
        let after = now - mem::replace(&mut book.collected, now);
        let mut dropped = 0;
        let mut events: Vec<_> = elsewhere.into_iter().map(|event| (event.at(), event)).collect();
        for notes in &self.notes {
            let mut latest = SystemTime::UNIX_EPOCH;
            let noted = lock(notes).take(after);
            dropped += noted.dropped;
            events.extend(noted.events.into_iter().map(|event| {
                latest = latest.max(event.at());
                (latest, event)
            }));
        }
        if events.is_empty() {
            return false;
        }
        events.sort_by_key(|(at, _)| *at);
        let mut not_kept = dropped;
        for (_, event) in events {
            if let Event::Decision { alike, .. } = &event {
                not_kept += u64::from(*alike);
            }
            book.take(event);
        }
        book.decisions.pass_over(dropped);
        if not_kept > 0 {
            book.not_all_until = Some(SystemTime::now());
        }
        self.lose(not_kept);
        drop(book);
        self.changed.send_replace(());
        true
    }

    /// Remembers up to that many decisions from now on.
    pub fn keep(&self, decisions: usize) {
        lock(&self.book).decisions.set_capacity(decisions);
    }

    /// Looks at what was collected.
    pub fn look<T>(&self, at: impl FnOnce(&mut Book) -> T) -> T {
        at(&mut lock(&self.book))
    }

    /// Follows what is collected, from now on.
    pub fn follow(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The id of the event that tells of the decision of that number.
    pub fn event_id(&self, number: u64) -> String {
        format!("{:08x}-{number}", self.process)
    }

    /// The number of the decision that the event of that id tells of, if it is of this process.
    pub fn number_of(&self, event_id: &str) -> Option<u64> {
        let (process, number) = event_id.split_once('-')?;
        (process == format!("{:08x}", self.process)).then(|| number.parse().ok())?
    }

    /// Tells all who follow to look again.
    pub fn tell(&self) {
        self.changed.send_replace(());
    }
}

impl Book {
    fn take(&mut self, event: Event) {
        match event {
            Event::Decision { decision, alike } => {
                let times = 1 + u64::from(alike);
                self.shadow.note(&decision, times);
                self.timeline.refused(&decision, times);
                self.decisions.push(u64::from(alike), decision);
            }
            Event::Tenure(news) => self.timeline.tenure(*news),
            Event::Wait(wait) => self.timeline.wait(*wait),
        }
    }
}

/// What is observed is for looking at only: a panic in the middle of noting it is no reason to
/// stop.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fencepost_policy::{Layout, LockKey, Rejection, Revision};
    use serde_json::{Value, json};

    use super::notes::NOTES_MAX;
    use super::shadow::Watched;
    use super::timeline::{RowContext, WaitStep};
    use super::*;

    fn wait(step: WaitStep, second: u64) -> Event {
        Event::Wait(Box::new(Wait {
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(second),
            source: "main".into(),
            lock: LockKey::new("/shards/2/lock").unwrap(),
            layout: Layout::Key,
            owner: "shard-2".into(),
            revision: Revision::new(20).unwrap(),
            step,
        }))
    }

    /// How many requests the only wait says still wait, and how it has ended.
    fn the_wait(observations: &Observations) -> (Value, Value) {
        observations.collect(Vec::new());
        let row = observations.look(|book| {
            let locks = book.timeline.changed_after(0);
            book.timeline.row_json(&locks[0], &RowContext::default())
        });
        let wait = &mut row.unwrap()["waits"][0];
        (wait["waiting"].take(), wait["outcome"].take())
    }

    #[test]
    fn what_threads_note_is_collected_in_the_order_of_time_and_never_beyond_its_bound() {
        let observations = Observations::new(NonZeroUsize::new(2).unwrap(), 10);
        let decision = |id: &str, second| {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            Box::new(Decision { at, ..Decision::for_tests(id) })
        };
        let note = |thread, decision: Box<Decision>| {
            observations.note_decision(thread, Some(&decision.likeness()), || decision.clone());
        };
        note(0, decision("late", 3));
        note(1, decision("early", 1));
        assert!(
            observations
                .collect(vec![Event::Decision { decision: decision("between", 2), alike: 0 }])
        );
        let ids = observations.look(|book| {
            let newest = book.decisions.newest(&Filter::default(), 10);
            newest.iter().map(|decision| decision.id.to_string()).collect::<Vec<_>>()
        });
        assert_eq!(ids, ["late", "between", "early"]);
        assert!(!observations.collect(Vec::new()));

        for _ in 0..NOTES_MAX + 5 {
            note(0, decision("flood", 4));
        }
        observations.collect(Vec::new());
        assert_eq!(observations.lost(), 5);
        let (kept, last) = observations.look(|book| (book.decisions.kept(), book.decisions.last()));
        assert_eq!((kept, last), (10, 3 + NOTES_MAX as u64 + 5));
    }

    #[test]
    fn of_a_flood_some_are_kept_and_each_is_counted() {
        let observations = Observations::new(NonZeroUsize::MIN, 10_000);
        let reason = Rejection::StaleTenure;
        let flood =
            Decision { outcome: Outcome::WouldBeRefused(reason), ..Decision::for_tests("flood") };
        let counted = |count: u32| {
            (0..count).for_each(|_| {
                observations.note_decision(0, Some(&flood.likeness()), || Box::new(flood.clone()))
            });
            observations.collect(Vec::new());
            let watched = [Watched { label: Arc::clone(&flood.route), admitted: 0 }];
            observations
                .look(|book| book.shadow.to_json(&watched, flood.at)["routes"][0]["refused"].take())
        };
        assert_eq!((counted(5_000), counted(5_000)), (json!(5_000), json!(10_000)));
        let not_all = || observations.look(|book| book.not_all_until.is_some());
        assert_eq!((observations.lost(), not_all()), (0, false));
        // Meanwhile there may be room for some thousands more.
        assert_eq!(counted(1_000_000), json!(1_010_000));
        assert_eq!(observations.look(|book| book.decisions.last()), 1_010_000);
        let (lost, kept) = (observations.lost(), observations.look(|book| book.decisions.kept()));
        assert!(lost > 900_000 && kept == 10_000 && not_all(), "{lost}, {kept}");
    }

    #[test]
    fn a_wait_begins_whatever_was_refused_and_ends_however_many_others_begin() {
        let observations = Observations::new(NonZeroUsize::MIN, 10);
        for _ in 0..NOTES_MAX + 1 {
            let flood = Decision::for_tests("flood");
            observations.note_decision(0, Some(&flood.likeness()), || Box::new(flood.clone()));
        }
        let begin = || observations.note(0, || wait(WaitStep::Began { drained: 1 }, 1));
        assert!((0..NOTES_MAX).all(|_| begin()) && !begin());
        assert_eq!(observations.lost(), 1);
        (0..NOTES_MAX).for_each(|_| observations.note_end(0, wait(WaitStep::Entered, 2)));
        assert_eq!(the_wait(&observations), (json!(0), json!("entered")));
    }

    #[test]
    fn a_wait_ends_after_it_has_begun_though_the_clock_was_set_back() {
        let observations = Observations::new(NonZeroUsize::MIN, 10);
        observations.note(0, || wait(WaitStep::Began { drained: 1 }, 5));
        observations.note_end(0, wait(WaitStep::Entered, 2));
        assert_eq!(the_wait(&observations), (json!(0), json!("entered")));
    }
}
