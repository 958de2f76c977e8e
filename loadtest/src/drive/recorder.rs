//! What is seen of answers: counts and latencies, of the whole and over time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::durations::Durations;
use super::verdict::{Finding, Standing};
use crate::answer::Answer;

/// Digits of what is only drawn.
const DIGITS_DRAWN: u8 = 2;
/// Into how many slots of time a run is divided, at most.
const SLOTS_MAX: u32 = 100;
/// How long a slot is, at least.
const SLOT_MIN: Duration = Duration::from_millis(50);

/// The time that is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) begin: Instant,
    pub(crate) length: Duration,
}

impl Window {
    /// How long a slot of it is.
    pub(crate) fn slot(&self) -> Duration {
        (self.length / SLOTS_MAX).max(SLOT_MIN)
    }

    /// How many slots so much of it has: the last one may not be whole.
    pub(crate) fn slots_within(&self, length: Duration) -> usize {
        usize::try_from(length.as_nanos().div_ceil(self.slot().as_nanos())).unwrap_or(usize::MAX)
    }

    /// The slot of a moment, if it lies within.
    fn slot_of(&self, moment: Instant) -> Option<usize> {
        let since = moment.checked_duration_since(self.begin)?;
        (since < self.length).then(|| (since.as_nanos() / self.slot().as_nanos()) as usize)
    }
}

/// What happened within one slot of time.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    /// Answered within it, as it should be.
    pub(crate) served: u64,
    /// Refused within it, as it should be.
    pub(crate) refused: u64,
    /// Told to come again within it.
    pub(crate) put_off: u64,
    /// Answered wrongly within it.
    pub(crate) wrong: u64,
    /// Failed within it, or due within it and not answered in time.
    pub(crate) unanswered: u64,
    /// Due within it and never sent.
    pub(crate) unsent: u64,
    /// Of requests that were due within it, and served, not sent or without an answer.
    pub(crate) latencies: Durations,
}

impl Default for Slot {
    fn default() -> Slot {
        let latencies = Durations::new(DIGITS_DRAWN);
        Slot { served: 0, refused: 0, put_off: 0, wrong: 0, unanswered: 0, unsent: 0, latencies }
    }
}

/// All that was seen.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    window: Window,
    /// All answers since the start, warm-up and what came late included.
    pub(crate) answers: BTreeMap<(Standing, Answer), u64>,
    /// Requests without an answer, by what went wrong.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Requests whose answer did not come in time.
    pub(crate) unanswered: u64,
    /// Requests that were due and never sent.
    pub(crate) unsent: u64,
    pub(crate) false_refusals: u64,
    pub(crate) false_admissions: u64,
    /// Requests that were told to come again, by why.
    pub(crate) put_off: BTreeMap<String, u64>,
    pub(crate) unexpected: u64,
    /// Of requests that were due within the window and served; of those that were not sent or had no answer, what had passed when that was not
    /// waited for any more.
    pub(crate) served: Durations,
    /// Of those refused, and in the same way of those without an answer that were to be.
    pub(crate) refused: Durations,
    /// Of those that were told to come again.
    pub(crate) until_put_off: Durations,
    /// Of those that failed.
    pub(crate) until_failed: Durations,
    /// How late requests were sent for which a connection was free.
    pub(crate) lag: Durations,
    /// How long other requests waited for a connection, all being taken.
    pub(crate) queued: Durations,
    pub(crate) slots: Vec<Slot>,
}

impl Recorder {
    /// Of nothing yet.
    pub(crate) fn new(window: Window) -> Recorder {
        Recorder {
            window,
            answers: BTreeMap::new(),
            errors: BTreeMap::new(),
            unanswered: 0,
            unsent: 0,
            false_refusals: 0,
            false_admissions: 0,
            put_off: BTreeMap::new(),
            unexpected: 0,
            served: Durations::default(),
            refused: Durations::default(),
            until_put_off: Durations::default(),
            until_failed: Durations::default(),
            lag: Durations::default(),
            queued: Durations::default(),
            slots: vec![Slot::default(); window.slots_within(window.length)],
        }
    }

    /// The time that is measured.
    pub(crate) fn window(&self) -> Window {
        self.window
    }

    /// A request that was due then has been answered now.
    pub(crate) fn answered(&mut self, due: Instant, standing: Standing, answer: Answer, finding: Finding) {
        let now = Instant::now();
        let latency = now - due;
        let due_in = self.window.slot_of(due);
        match finding {
            Finding::FalseRefusal => self.false_refusals += 1,
            Finding::FalseAdmission => self.false_admissions += 1,
            Finding::PutOff => {
                *self.put_off.entry(why_put_off(&answer)).or_default() += 1;
                due_in.iter().for_each(|_| self.until_put_off.add(latency));
            }
            Finding::Unexpected => self.unexpected += 1,
            Finding::Refused if due_in.is_some() => self.refused.add(latency),
            Finding::Served if due_in.is_some() => {
                self.served.add(latency);
                if let Some(slot) = due_in.and_then(|slot| self.slots.get_mut(slot)) {
                    slot.latencies.add(latency);
                }
            }
            Finding::Refused | Finding::Served => {}
        }
        if let Some(slot) = self.slot_at(now) {
            match finding {
                Finding::Served => slot.served += 1,
                Finding::Refused => slot.refused += 1,
                Finding::PutOff => slot.put_off += 1,
                Finding::FalseRefusal | Finding::FalseAdmission | Finding::Unexpected => slot.wrong += 1,
            }
        }
        *self.answers.entry((standing, answer)).or_default() += 1;
    }

    /// A request that was due then was not answered.
    pub(crate) fn failed(&mut self, due: Instant, why: String) {
        let now = Instant::now();
        if self.window.slot_of(due).is_some() {
            self.until_failed.add(now - due);
        }
        if let Some(slot) = self.slot_at(now) {
            slot.unanswered += 1;
        }
        *self.errors.entry(why).or_default() += 1;
    }

    /// The answer to a request that was due then is not waited for any longer.
    pub(crate) fn abandoned(&mut self, due: Instant, standing: Standing) {
        self.unanswered += 1;
        let now = Instant::now();
        match self.slot_at(due) {
            None => {}
            Some(slot) => {
                slot.unanswered += 1;
                match standing {
                    Standing::Superseded => self.refused.add(now - due),
                    Standing::Holder | Standing::Leaving => self.in_vain(due, now),
                }
            }
        }
    }

    /// A request that was due then had not been sent when the run was over.
    pub(crate) fn unsent(&mut self, due: Instant, over: Instant) {
        self.unsent += 1;
        if let Some(slot) = self.slot_at(due) {
            slot.unsent += 1;
            self.in_vain(due, over);
        }
    }

    /// It would have taken longer than that to be served: left out, it would make a server that hangs look fast.
    fn in_vain(&mut self, due: Instant, until: Instant) {
        let waited = until.saturating_duration_since(due);
        self.served.add(waited);
        if let Some(slot) = self.slot_at(due) {
            slot.latencies.add(waited);
        }
    }

    /// Adds all of another's of the same window.
    pub(crate) fn merge(&mut self, other: Recorder) {
        let Recorder {
            window: _,
            answers,
            errors,
            unanswered,
            unsent,
            false_refusals,
            false_admissions,
            put_off,
            unexpected,
            served,
            refused,
            until_put_off,
            until_failed,
            lag,
            queued,
            slots,
        } = other;
        self.unanswered += unanswered;
        self.unsent += unsent;
        answers.into_iter().for_each(|(answer, count)| *self.answers.entry(answer).or_default() += count);
        errors.into_iter().for_each(|(error, count)| *self.errors.entry(error).or_default() += count);
        put_off.into_iter().for_each(|(why, count)| *self.put_off.entry(why).or_default() += count);
        self.false_refusals += false_refusals;
        self.false_admissions += false_admissions;
        self.unexpected += unexpected;
        self.served.merge(&served);
        self.refused.merge(&refused);
        self.until_put_off.merge(&until_put_off);
        self.until_failed.merge(&until_failed);
        self.lag.merge(&lag);
        self.queued.merge(&queued);
        for (mine, theirs) in self.slots.iter_mut().zip(slots) {
            mine.served += theirs.served;
            mine.refused += theirs.refused;
            mine.put_off += theirs.put_off;
            mine.wrong += theirs.wrong;
            mine.unanswered += theirs.unanswered;
            mine.unsent += theirs.unsent;
            mine.latencies.merge(&theirs.latencies);
        }
    }

    fn slot_at(&mut self, moment: Instant) -> Option<&mut Slot> {
        let slot = self.window.slot_of(moment)?;
        self.slots.get_mut(slot)
    }
}

/// The reason of such an answer. It has none where the way to the worker was not free.
fn why_put_off(answer: &Answer) -> String {
    answer.reason.clone().unwrap_or_else(|| "no reason".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::StatusCode;

    fn of_a_second() -> Recorder {
        Recorder::new(Window { begin: Instant::now(), length: Duration::from_secs(1) })
    }

    fn ok() -> Answer {
        Answer { status: StatusCode::OK, reason: None }
    }

    #[test]
    fn a_latency_counts_in_the_slot_in_which_its_request_was_due() {
        let mut recorder = of_a_second();
        let due = recorder.window.begin;
        recorder.answered(due, Standing::Holder, ok(), Finding::Served);
        assert_eq!((recorder.served.count(), recorder.slots[0].latencies.count(), recorder.slots[0].served), (1, 1, 1));
        assert_eq!(recorder.slots.len(), 20, "slots of 50 ms");
    }

    #[test]
    fn what_was_due_before_the_window_counts_for_verdicts_only() {
        let begin = Instant::now() + Duration::from_secs(3600);
        let mut recorder = Recorder::new(Window { begin, length: Duration::from_secs(1) });
        recorder.answered(Instant::now(), Standing::Superseded, ok(), Finding::FalseAdmission);
        recorder.answered(Instant::now(), Standing::Holder, ok(), Finding::Served);
        assert_eq!((recorder.served.count(), recorder.false_admissions), (0, 1));
        assert_eq!(recorder.answers.values().sum::<u64>(), 2);
        assert!(recorder.slots.iter().all(|slot| slot.served == 0));
    }

    /// A server that hung until the end of the run looked as fast as it had been before.
    #[test]
    fn what_was_due_and_never_sent_counts_as_long_as_it_was_due() {
        let mut recorder = of_a_second();
        let begin = recorder.window.begin;
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        recorder.answered(at(0), Standing::Holder, ok(), Finding::Served);
        (500..1000).step_by(5).for_each(|due| recorder.unsent(at(due), at(2000)));
        recorder.unsent(begin - Duration::from_millis(1), at(2000));
        assert_eq!(
            (recorder.unsent, recorder.served.count()),
            (101, 101),
            "what was due in the warm-up is only counted"
        );
        let p90 = recorder.served.at(0.9).unwrap();
        assert!(p90 > Duration::from_millis(1400), "{p90:?}");
        let slots: Vec<u64> = recorder.slots.iter().map(|slot| slot.unsent).collect();
        assert_eq!(slots, [[0; 10], [10; 10]].concat());
    }

    #[test]
    fn threads_are_added_up() {
        let mut all = of_a_second();
        let mut other = Recorder::new(all.window);
        let due = all.window.begin;
        all.answered(due, Standing::Holder, ok(), Finding::Served);
        other.answered(due, Standing::Holder, ok(), Finding::FalseRefusal);
        other.failed(due, "gone".to_owned());
        let draining = Answer { status: StatusCode::SERVICE_UNAVAILABLE, reason: Some("draining".to_owned()) };
        other.answered(due, Standing::Holder, draining, Finding::PutOff);
        all.merge(other);
        assert_eq!((all.put_off["draining"], all.slots[0].put_off), (1, 1));
        assert_eq!((all.served.count(), all.false_refusals, all.errors["gone"]), (1, 1, 1));
        assert_eq!((all.slots[0].wrong, all.slots[0].unanswered), (1, 1));
        assert_eq!(all.answers[&(Standing::Holder, ok())], 2);
    }
}
