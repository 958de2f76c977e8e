//! What operators can look at: refusals, a sample of the admissions, tenures, and who waited for
//! whom.
//!
//! A worker thread only appends events to a list, and never waits for a reader. Ten times a second,
//! or when somebody looks, the lists move into the [`Book`]. Everything is bounded, and what finds
//! no room is counted.

pub mod collector;
pub mod filter;
pub mod lately;
pub mod record;
pub mod ring;
pub mod shadow;
pub mod text;
pub mod timeline;

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;

use crate::decision::DecisionIds;

pub use filter::Filter;
pub use record::{Decision, Outcome, RouteLabel, millis};
pub use timeline::{TenureNews, Wait};

use lately::Lately;
use ring::Ring;
use shadow::ShadowReport;
use timeline::Timeline;

/// How often the lists are collected while nobody asks.
pub const COLLECT_PERIOD: Duration = Duration::from_millis(100);

/// How many decisions may be noted between two collections. Further ones are lost, and counted.
const DECISIONS_MAX: usize = 16_384;

/// How many waits may begin or end between two collections. Further beginnings are lost, and
/// counted. Ends always have room: a wait without its end would go on for ever.
const WAITS_MAX: usize = 16_384;

/// What the process remembers of the past, for its operators.
#[derive(Debug)]
pub struct Observations {
    decisions: Mutex<Noted>,
    waits: Mutex<Vec<Wait>>,
    book: Mutex<Book>,
    lost: AtomicU64,
    changed: watch::Sender<()>,
    /// Tells the events of this process from those of others.
    process: u32,
}

/// The decisions since the last collection.
#[derive(Debug, Default)]
struct Noted {
    /// Boxed, because they move from list to list.
    #[expect(clippy::vec_box, reason = "as they are made, and as the ring keeps them")]
    decisions: Vec<Box<Decision>>,
    /// How many more found no room.
    dropped: u64,
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
}

impl Observations {
    /// Nothing has happened yet. `kept` is how many decisions are remembered.
    pub fn new(kept: usize) -> Observations {
        let book = Book {
            decisions: Ring::new(kept),
            shadow: ShadowReport::default(),
            timeline: Timeline::default(),
            lately: Lately::default(),
            not_all_until: None,
        };
        Observations {
            decisions: Mutex::default(),
            waits: Mutex::default(),
            book: Mutex::new(book),
            lost: AtomicU64::new(0),
            changed: watch::Sender::new(()),
            process: DecisionIds::process(),
        }
    }

    /// Notes a decision, if there is room.
    pub fn note_decision(&self, decision: Box<Decision>) {
        let mut noted = lock(&self.decisions);
        if noted.decisions.len() < DECISIONS_MAX {
            noted.decisions.push(decision);
        } else {
            noted.dropped += 1;
        }
    }

    /// Notes that a request begins to wait. Returns whether there was room: only then its end may be
    /// noted.
    pub fn note_wait(&self, wait: Wait) -> bool {
        let mut waits = lock(&self.waits);
        let has_room = waits.len() < WAITS_MAX;
        if has_room {
            waits.push(wait);
        } else {
            self.lose(1);
        }
        has_room
    }

    /// Notes the end of a wait whose beginning was noted.
    pub fn note_end(&self, end: Wait) {
        lock(&self.waits).push(end);
    }

    /// Notes that so many events are lost that happened elsewhere.
    pub fn lose(&self, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
    }

    /// How many events are not kept, because they came faster than they are.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Takes these changes of tenures, and what was noted, into the book. Returns whether there was
    /// anything.
    pub fn collect(&self, tenures: Vec<TenureNews>) -> bool {
        // Held throughout, so that nobody who asks sees half of it, or a later half first.
        let mut book = lock(&self.book);
        let Noted { decisions, dropped } = mem::take(&mut *lock(&self.decisions));
        let waits = mem::take(&mut *lock(&self.waits));
        if tenures.is_empty() && waits.is_empty() && decisions.is_empty() {
            return false;
        }
        // Tenures come first: refusals are counted on their bars.
        tenures.into_iter().for_each(|news| book.timeline.tenure(news));
        waits.into_iter().for_each(|wait| book.timeline.wait(wait));
        let now = Instant::now();
        for decision in decisions {
            book.lately.note(now, decision.outcome);
            book.shadow.note(&decision);
            book.timeline.refused(&decision);
            book.decisions.push(decision);
        }
        if dropped > 0 {
            book.decisions.pass_over(dropped);
            book.not_all_until = Some(SystemTime::now());
            self.lose(dropped);
        }
        drop(book);
        self.tell();
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

/// What is observed is for looking at only: a panic in the middle of noting it is no reason to
/// stop.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use fencepost_policy::{Layout, LockKey, Revision};
    use serde_json::json;

    use super::timeline::{RowContext, WaitStep};
    use super::*;

    fn wait(step: WaitStep) -> Wait {
        Wait {
            at: SystemTime::UNIX_EPOCH,
            source: "main".into(),
            lock: LockKey::new("/shards/2/lock").unwrap(),
            layout: Layout::Key,
            owner: "shard-2".into(),
            revision: Revision::new(20).unwrap(),
            step,
        }
    }

    #[test]
    fn of_a_flood_some_are_kept_and_the_others_counted() {
        let observations = Observations::new(10);
        let note = || observations.note_decision(Box::new(Decision::for_tests("d")));
        note();
        assert!(observations.collect(Vec::new()) && !observations.collect(Vec::new()));
        assert!(observations.look(|book| book.not_all_until.is_none()));
        (0..DECISIONS_MAX + 5).for_each(|_| note());
        observations.collect(Vec::new());
        let (kept, last) = observations.look(|book| (book.decisions.kept(), book.decisions.last()));
        assert_eq!((kept, last), (10, 1 + DECISIONS_MAX as u64 + 5));
        assert_eq!(observations.lost(), 5);
        assert!(observations.look(|book| book.not_all_until.is_some()));
    }

    #[test]
    fn a_wait_begins_whatever_was_refused_and_ends_however_many_others_begin() {
        let observations = Observations::new(10);
        let refusal = || Box::new(Decision::for_tests("flood"));
        (0..=DECISIONS_MAX).for_each(|_| observations.note_decision(refusal()));
        let begin = || observations.note_wait(wait(WaitStep::Began { drained: 1 }));
        assert!((0..WAITS_MAX).all(|_| begin()) && !begin());
        assert_eq!(observations.lost(), 1);
        (0..WAITS_MAX).for_each(|_| observations.note_end(wait(WaitStep::Entered)));
        observations.collect(Vec::new());
        let row = observations.look(|book| {
            let locks = book.timeline.changed_after(0);
            book.timeline.row_json(&locks[0], &RowContext::default()).unwrap()
        });
        let wait = &row["waits"][0];
        assert_eq!((&wait["waiting"], &wait["outcome"]), (&json!(0), &json!("entered")));
    }
}
