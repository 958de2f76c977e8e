//! What a run found.

mod generator;
mod told;

use std::time::Duration;

pub(crate) use self::told::{PARTS, milliseconds};

use self::generator::Generator;

use super::mover::{Moved, Moves};
use super::plan::Plan;
use super::recorder::{Durations, Recorder, Slot, Window};
use super::threads::Sent;
use super::verdict::{Expected, Fault, Finding, Standing};
use crate::Conclusion;
use crate::answer::Answer;
use crate::worker::{AtWorker, Breaches};

/// All that a run found.
pub(crate) struct Outcome {
    plan: Plan,
    window: Window,
    recorder: Recorder,
    unsent: u64,
    generator: Generator,
    moved: Vec<Moved>,
    /// Handoffs whose successor's first request was not served.
    unserved: usize,
    /// How long it took if it was ended before its time.
    ended_early: Option<Duration>,
    broke_off: Option<String>,
    /// What the worker saw, if it was played here.
    at_worker: Option<AtWorker>,
}

impl Outcome {
    /// Of what all threads have sent, and of the locks that moved.
    pub(crate) fn of(
        plan: &Plan,
        window: Window,
        sent: Vec<Sent>,
        moves: Option<Moves>,
        ended_early: Option<Duration>,
        broke_off: Option<String>,
    ) -> Outcome {
        let none = || Moves { moved: Vec::new(), unserved: 0, recorder: Recorder::new(window) };
        let Moves { moved, unserved, recorder } = moves.unwrap_or_else(none);
        let mut outcome = Outcome {
            plan: plan.clone(),
            window,
            recorder,
            unsent: 0,
            generator: Generator::default(),
            moved,
            unserved,
            ended_early,
            broke_off,
            at_worker: None,
        };
        let mut threads = Vec::new();
        for Sent { recorder, unsent, cpu, ended: _ } in sent {
            outcome.recorder.merge(recorder);
            outcome.unsent += unsent;
            threads.push(cpu);
        }
        let Recorder { lag, queued, .. } = &outcome.recorder;
        outcome.generator = Generator::new(&threads, lag.clone(), queued.clone());
        outcome
    }

    /// All is over, and this is what the worker saw, if it was played here.
    pub(crate) fn worker_saw(&mut self, at_worker: Option<AtWorker>) {
        self.at_worker = at_worker;
    }

    /// Whether everybody was answered as they should be.
    pub(crate) fn conclusion(&self) -> Conclusion {
        let is_faulty = self.to_be_none().iter().any(|(_, count, fault)| *count > 0 && *fault != Fault::PutOff);
        if is_faulty || self.broke_off.is_some() || self.answered() == 0 || self.moved_none() {
            Conclusion::NotAsExpected
        } else if self.put_off() > 0 {
            Conclusion::PutOff
        } else {
            Conclusion::AsExpected
        }
    }

    /// All answers since the start, the warm-up's included.
    pub(crate) fn answered(&self) -> u64 {
        self.recorder.answers.values().sum()
    }

    /// All that was neither served nor refused as it should be.
    pub(crate) fn wrong(&self) -> u64 {
        let verdicts = self.false_refusals() + self.false_admissions() + self.recorder.unexpected;
        verdicts + self.put_off() + self.failed() + self.recorder.unanswered
    }

    /// Requests a second that were answered as they should be, within the window.
    pub(crate) fn per_second(&self) -> f64 {
        let right: u64 = self.slots().iter().map(|slot| slot.served + slot.refused).sum();
        right as f64 / self.measured().as_secs_f64().max(f64::EPSILON)
    }

    /// The slots of time that there were: of a run that was ended early, not those that were still to come.
    pub(crate) fn slots(&self) -> &[Slot] {
        let slots = &self.recorder.slots;
        &slots[..self.window.slots_within(self.measured()).min(slots.len())]
    }

    /// Those of which a rate can be told: the last one may be so short that it has one request too many or none, and what is left
    /// out with it is less than a slot. Unless it is the only one.
    pub(crate) fn slots_with_rates(&self) -> &[Slot] {
        let slots = self.slots();
        let is_cut = slots.len() > 1 && self.slot_length(slots.len() - 1) < self.window.slot();
        &slots[..slots.len() - usize::from(is_cut)]
    }

    /// When the slot of that number began, from the beginning of the window.
    pub(crate) fn slot_begin(&self, number: usize) -> Duration {
        self.window.slot().saturating_mul(u32::try_from(number).unwrap_or(u32::MAX))
    }

    /// How long it was.
    pub(crate) fn slot_length(&self, number: usize) -> Duration {
        self.measured().saturating_sub(self.slot_begin(number)).min(self.window.slot())
    }

    /// Latencies of what was served.
    pub(crate) fn served(&self) -> &Durations {
        &self.recorder.served
    }

    /// Latencies of what was refused as it should be.
    pub(crate) fn refused(&self) -> &Durations {
        &self.recorder.refused
    }

    /// The locks that moved.
    pub(crate) fn moved(&self) -> &[Moved] {
        &self.moved
    }

    /// Each kind of answer, how often it came, and whether it was right.
    pub(crate) fn answers(&self) -> impl Iterator<Item = (Standing, &Answer, u64, Finding)> {
        let finding = |standing, answer| Finding::of(standing, answer, self.plan.expected);
        self.recorder
            .answers
            .iter()
            .map(move |((standing, answer), count)| (*standing, answer, *count, finding(*standing, answer)))
    }

    /// Requests without an answer: why, and how many.
    pub(crate) fn missing(&self) -> impl Iterator<Item = (&str, u64)> {
        let in_time = Some(("not in time", self.recorder.unanswered)).filter(|(_, count)| *count > 0);
        self.recorder.errors.iter().map(|(error, count)| (error.as_str(), *count)).chain(in_time)
    }

    /// What was sent, in words.
    pub(crate) fn description(&self) -> String {
        self.plan.describe()
    }

    /// Figures that are to be nothing, with what they are; those that say whether the fence holds come first.
    pub(crate) fn to_be_none(&self) -> Vec<(&'static str, u64, Fault)> {
        let mut figures = match self.plan.expected {
            Expected::Fenced(_) => vec![
                ("false refusals", self.false_refusals(), Fault::Wrong),
                ("false admissions", self.false_admissions(), Fault::Wrong),
                ("put off", self.put_off(), Fault::PutOff),
            ],
            Expected::Status(_) => Vec::new(),
        };
        figures.extend([
            ("unexpected answers", self.recorder.unexpected, Fault::Wrong),
            ("no answer", self.failed() + self.recorder.unanswered, Fault::Missing),
            ("not sent", self.unsent, Fault::Missing),
        ]);
        if let Some(AtWorker { begun: _, breaches }) = self.at_worker {
            let Breaches { went_down, after_successor, overlapped, shared_revision } = breaches;
            let count = went_down.max(after_successor) + overlapped + shared_revision;
            figures.push(("out of order at the worker", count, Fault::Wrong));
            figures.push(("refused, and at the worker", self.uninvited(), Fault::Wrong));
            figures.push(("served elsewhere", self.elsewhere(), Fault::Missing));
        }
        figures
    }

    /// What lessens the worth of the figures, in words.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = self.generator.warnings();
        if self.put_off() > 0 {
            let reasons = self.recorder.put_off.iter().map(|(why, count)| format!("{count} {why}"));
            warnings.push(format!(
                "{} requests were put off with 503 ({}): no verdict on them was wrong, and they are in no percentile",
                self.put_off(),
                reasons.collect::<Vec<_>>().join(", ")
            ));
        }
        if self.unsent > 0 {
            warnings.push(format!(
                "{} requests were due and not sent, all connections being busy: what these would have taken is in no percentile",
                self.unsent
            ));
        }
        if self.recorder.unanswered > 0 {
            warnings.push(format!(
                "{} requests had no answer when it was not waited for any more: the percentiles have what had passed by then",
                self.recorder.unanswered
            ));
        }
        if self.failed() > 0 {
            warnings.push(format!("{} requests failed: these are in no percentile", self.failed()));
        }
        if self.unserved > 0 {
            warnings.push(format!(
                "{} more locks changed hands, and the first request of their successor was not served: these are in no percentile",
                self.unserved
            ));
        }
        if self.elsewhere() > 0 {
            warnings.push(format!(
                "{} requests were served, and not by the worker here: is --worker-listen the proxy's upstream?",
                self.elsewhere()
            ));
        }
        if self.moved_none() {
            warnings.push("no lock changed hands".to_owned());
        }
        warnings.extend(self.broke_off.clone());
        warnings.extend(self.ended_early.map(|after| format!("ended early, after {:.1} s", after.as_secs_f64())));
        warnings
    }

    fn false_refusals(&self) -> u64 {
        self.recorder.false_refusals
    }

    fn false_admissions(&self) -> u64 {
        self.recorder.false_admissions
    }

    fn put_off(&self) -> u64 {
        self.recorder.put_off.values().sum()
    }

    fn failed(&self) -> u64 {
        self.recorder.errors.values().sum()
    }

    /// Requests that were served, but not by the worker here.
    fn elsewhere(&self) -> u64 {
        let served = self.count(|answer| answer.is_success());
        self.at_worker.map_or(0, |worker| served.saturating_sub(worker.begun))
    }

    /// Requests at the worker that the proxy says it did not let through.
    fn uninvited(&self) -> u64 {
        // A fence that gives no reasons refuses by its status. What has no answer may have been there, the mover's last request included.
        let is_refusal = |answer: &Answer| self.plan.expected == Expected::Fenced(answer.status);
        let passed = self.count(|answer| answer.may_have_passed() && !is_refusal(answer));
        let unanswered = self.failed() + self.recorder.unanswered + u64::from(self.broke_off.is_some());
        self.at_worker.map_or(0, |worker| worker.begun.saturating_sub(passed + unanswered))
    }

    fn count(&self, which: impl Fn(&Answer) -> bool) -> u64 {
        self.recorder.answers.iter().filter(|((_, answer), _)| which(answer)).map(|(_, count)| count).sum()
    }

    /// Whether locks were to move and none did, though there was time for it.
    fn moved_none(&self) -> bool {
        self.plan.handoff_every.is_some() && self.moved.len() + self.unserved == 0 && self.ended_early.is_none()
    }

    /// How much of the window there was.
    pub(crate) fn measured(&self) -> Duration {
        let length = self.window.length;
        self.ended_early.map_or(length, |after| after.saturating_sub(self.plan.warm_up).min(length))
    }
}

#[cfg(test)]
#[path = "outcome_tests.rs"]
mod tests;
