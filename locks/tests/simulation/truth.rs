//! Who truly held each lock, and when: what a fake store knows, and a proxy can't.

use std::collections::BTreeMap;

use fencepost_policy::Layout;
use tokio::time::Instant;

/// A point in the run: the step tells apart what happens at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Point {
    pub(crate) at: Instant,
    pub(crate) step: u64,
}

/// What a request presents for one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) lock: usize,
    pub(crate) owner: String,
    pub(crate) revision: u64,
}

/// A tenure as it truly was.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    /// Under which names: more than one only after a `Proclaim`, the last one is the present.
    pub(crate) owners: Vec<String>,
    pub(crate) first: u64,
    last: u64,
    /// The highest that `last` has been: a backup may have taken it back.
    highest: u64,
    /// Since when it has its present name.
    named: Point,
    until: Option<Point>,
}

/// A write, as the truth needs it.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) key: String,
    /// `None` if it was deleted.
    pub(crate) value: Option<String>,
}

#[derive(Debug, Clone)]
enum Record {
    Key(Option<(String, u64, u64)>),
    /// Values, by the revision of their key's creation and by the key.
    Queue(BTreeMap<(u64, String), String>),
}

#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) key: &'static str,
    pub(crate) layout: Layout,
    record: Record,
    pub(crate) spans: Vec<Span>,
}

/// The value that says that a `key` lock is free.
pub(crate) const FREE: &str = "-";

#[derive(Debug)]
pub(crate) struct Truth {
    pub(crate) locks: Vec<Lock>,
    /// The records as of each revision, for a backup to be restored from.
    past: BTreeMap<u64, Vec<Record>>,
}

impl Truth {
    pub(crate) fn new(locks: &[(&'static str, Layout)]) -> Truth {
        let record = |layout| match layout {
            Layout::Key => Record::Key(None),
            Layout::Election | Layout::Mutex => Record::Queue(BTreeMap::new()),
        };
        let lock = |&(key, layout): &(&'static str, Layout)| Lock {
            key,
            layout,
            record: record(layout),
            spans: vec![],
        };
        let locks: Vec<Lock> = locks.iter().map(lock).collect();
        let records = locks.iter().map(|lock| lock.record.clone()).collect();
        Truth { locks, past: BTreeMap::from([(1, records)]) }
    }

    /// Takes note of what was written at a revision. Says which locks changed.
    pub(crate) fn wrote(&mut self, revision: u64, writes: &[Written], now: Point) -> Vec<usize> {
        for Lock { key, record, .. } in &mut self.locks {
            for write in writes.iter().filter(|write| write.key.starts_with(*key)) {
                record.apply(write, revision);
            }
        }
        self.past.insert(revision, self.locks.iter().map(|lock| lock.record.clone()).collect());
        (0..self.locks.len()).filter(|lock| self.locks[*lock].settle(now)).collect()
    }

    /// Everything is again as it was at a revision.
    pub(crate) fn rewound(&mut self, to: u64, now: Point) -> Vec<usize> {
        self.past.split_off(&(to + 1));
        let records = self.past.last_entry().expect("every revision has its records").get().clone();
        for (lock, record) in self.locks.iter_mut().zip(records) {
            lock.record = record;
        }
        (0..self.locks.len()).filter(|lock| self.locks[*lock].settle(now)).collect()
    }
}

impl Record {
    fn apply(&mut self, write: &Written, revision: u64) {
        match self {
            Record::Key(holder) => {
                *holder = match (&write.value, holder.take()) {
                    (Some(value), _) if value == FREE => None,
                    (Some(value), Some((owner, first, _))) if *value == owner => {
                        Some((owner, first, revision))
                    }
                    (Some(value), _) => Some((value.clone(), revision, revision)),
                    (None, _) => None,
                };
            }
            Record::Queue(queue) => {
                let known = queue.keys().find(|(_, key)| *key == write.key).cloned();
                match (known, &write.value) {
                    (Some(known), Some(value)) => {
                        queue.insert(known, value.clone());
                    }
                    (None, Some(value)) => {
                        queue.insert((revision, write.key.clone()), value.clone());
                    }
                    (Some(known), None) => {
                        queue.remove(&known);
                    }
                    (None, None) => {}
                }
            }
        }
    }
}

impl Lock {
    fn holder(&self) -> Option<(String, u64, u64)> {
        match &self.record {
            Record::Key(holder) => holder.clone(),
            // Of those that one transaction has created none waits for the others: then nobody is
            // the holder.
            Record::Queue(queue) => {
                let mut first = queue.iter().take_while(|((created, _), _)| {
                    Some(*created) == queue.keys().next().map(|(first, _)| *first)
                });
                let ((created, key), value) = first.next()?;
                let owner = if self.layout == Layout::Mutex { key } else { value };
                first.next().is_none().then(|| (owner.clone(), *created, *created))
            }
        }
    }

    /// The keys in the queue, and the revisions at which they joined.
    pub(crate) fn queue(&self) -> Vec<(u64, String, String)> {
        match &self.record {
            Record::Key(_) => vec![],
            Record::Queue(queue) => queue
                .iter()
                .map(|((created, key), value)| (*created, key.clone(), value.clone()))
                .collect(),
        }
    }

    pub(crate) fn present(&self) -> Option<&Span> {
        self.spans.last().filter(|span| span.until.is_none())
    }

    /// The token of the present holder.
    pub(crate) fn token(&self, lock: usize) -> Option<Token> {
        let (owner, _, revision) = self.holder()?;
        Some(Token { lock, owner, revision })
    }

    /// Brings the spans up to date with the record. Says whether the holder has another token now.
    fn settle(&mut self, now: Point) -> bool {
        let holder = self.holder();
        let open = self.spans.last_mut().filter(|span| span.until.is_none());
        match (holder, open) {
            (None, None) => false,
            (None, Some(span)) => {
                span.until = Some(now);
                false
            }
            (Some((owner, first, last)), Some(span))
                if span.first == first && (span.is(&owner) || self.layout == Layout::Election) =>
            {
                let changed = span.last != last || !span.is(&owner);
                span.last = last;
                span.highest = span.highest.max(last);
                if !span.is(&owner) {
                    span.owners.push(owner);
                    span.named = now;
                }
                changed
            }
            (Some((owner, first, last)), open) => {
                if let Some(span) = open {
                    span.until = Some(now);
                }
                self.spans.push(Span {
                    owners: vec![owner],
                    first,
                    last,
                    highest: last,
                    named: now,
                    until: None,
                });
                true
            }
        }
    }

    /// Which of the tenures that there ever were a token names, by their place in time; the last of
    /// them, should there be more.
    pub(crate) fn named_by(&self, token: &Token) -> Option<usize> {
        self.spans.iter().rposition(|span| {
            span.owners.contains(&token.owner)
                && span.has(token.revision, span.highest, self.layout)
        })
    }

    /// Whether the present holder has that token, and had it at `since` already.
    pub(crate) fn is_true_since(&self, token: &Token, since: Point) -> bool {
        self.present().is_some_and(|span| {
            span.named < since
                && span.is(&token.owner)
                && span.has(token.revision, span.last, self.layout)
        })
    }
}

impl Span {
    fn is(&self, owner: &str) -> bool {
        self.owners.last().is_some_and(|name| name == owner)
    }

    fn has(&self, revision: u64, last: u64, layout: Layout) -> bool {
        match layout {
            Layout::Key => (self.first..=last).contains(&revision),
            Layout::Election => revision == self.first,
            Layout::Mutex => revision >= self.first,
        }
    }

    /// Whether it held the lock at some moment since then.
    pub(crate) fn held_since(&self, since: Instant) -> bool {
        self.until.is_none_or(|until| until.at >= since)
    }
}
