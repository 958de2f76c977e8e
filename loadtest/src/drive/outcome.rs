//! What a run found.

mod generator;
mod told;

use std::time::Duration;

pub(crate) use self::told::{PARTS, milliseconds};

use self::generator::Generator;

use super::durations::Durations;
use super::mover::{Moved, Moves};
use super::plan::Plan;
use super::recorder::{Recorder, Slot, Window};
use super::threads::Sent;
use super::verdict::{Expected, Fault, Finding, Standing};
use crate::Conclusion;
use crate::answer::Answer;
use crate::worker::{AtWorker, Breaches};

/// A figure that is to be nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) count: u64,
    /// What it is if it is not nothing.
    pub(crate) fault: Fault,
    /// Whether it could have been anything else.
    pub(crate) was_tried: bool,
}

/// All that a run found.
pub(crate) struct Outcome {
    plan: Plan,
    window: Window,
    recorder: Recorder,
    generator: Generator,
    moves: Moves,
    /// How long it took if it was ended before its time.
    ended_early: Option<Duration>,
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
    ) -> Outcome {
        let moves = moves.unwrap_or_else(|| Moves::none(window));
        let mut recorder = moves.recorder.clone();
        let mut threads = Vec::new();
        for Sent { recorder: of_thread, cpu, ended: _ } in sent {
            recorder.merge(of_thread);
            threads.push(cpu);
        }
        let generator = Generator::new(&threads, recorder.lag.clone(), recorder.queued.clone());
        Outcome { plan: plan.clone(), window, recorder, generator, moves, ended_early, at_worker: None }
    }

    /// All is over, and this is what the worker saw, if it was played here.
    pub(crate) fn worker_saw(&mut self, at_worker: Option<AtWorker>) {
        self.at_worker = at_worker;
    }

    /// Whether whoever sent had too little time: then figures are of that.
    pub(crate) fn was_disturbed(&self) -> bool {
        self.generator.was_disturbed()
    }

    /// Whether everybody was answered as they should be.
    pub(crate) fn conclusion(&self) -> Conclusion {
        let is_faulty = self.to_be_none().iter().any(|figure| figure.count > 0 && figure.fault != Fault::PutOff);
        if is_faulty || self.answered() == 0 || self.moved_none() {
            Conclusion::NotAsExpected
        } else if self.put_off() > 0 || self.moves.not_made > 0 {
            Conclusion::PutOff
        } else {
            Conclusion::AsExpected
        }
    }

    /// All answers since the start, the warm-up's included.
    pub(crate) fn answered(&self) -> u64 {
        self.recorder.answers.values().sum()
    }

    /// All that were answered within the window.
    pub(crate) fn answered_within(&self) -> u64 {
        self.slots().iter().map(|slot| slot.served + slot.refused + slot.put_off + slot.wrong).sum()
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

    /// How long it took until requests were put off.
    pub(crate) fn until_put_off(&self) -> &Durations {
        &self.recorder.until_put_off
    }

    /// How long it took until requests failed.
    pub(crate) fn until_failed(&self) -> &Durations {
        &self.recorder.until_failed
    }

    /// The locks that moved within the window.
    pub(crate) fn moved(&self) -> impl Iterator<Item = &Moved> + Clone {
        self.moves.moved.iter().filter(|moved| moved.at.is_some())
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

    /// Figures that are to be nothing; those that say whether the fence holds come first.
    pub(crate) fn to_be_none(&self) -> Vec<Figure> {
        let figure = |name, count, fault| Figure { name, count, fault, was_tried: true };
        let mut figures = match self.plan.expected {
            Expected::Fenced(_) => vec![
                figure("false refusals", self.false_refusals(), Fault::Wrong),
                Figure {
                    was_tried: self.superseded() > 0,
                    ..figure("false admissions", self.false_admissions(), Fault::Wrong)
                },
                figure("put off", self.put_off(), Fault::PutOff),
            ],
            Expected::Status(_) => Vec::new(),
        };
        figures.extend([
            figure("unexpected answers", self.recorder.unexpected, Fault::Wrong),
            figure("no answer", self.failed() + self.recorder.unanswered, Fault::Missing),
            figure("not sent", self.recorder.unsent, Fault::Missing),
        ]);
        if let Some(AtWorker { begun: _, breaches }) = self.at_worker {
            let Breaches { went_down, after_successor, overlapped, shared_revision } = breaches;
            let count = went_down.max(after_successor) + overlapped + shared_revision;
            figures.push(figure("out of order at the worker", count, Fault::Wrong));
            figures.push(figure("refused, and at the worker", self.uninvited(), Fault::Wrong));
            figures.push(figure("served elsewhere", self.elsewhere(), Fault::Missing));
        }
        figures
    }

    /// What lessens the worth of the figures, in words.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let lanes_paused = self.failed() > 0;
        let mut warnings = self.generator.warnings(lanes_paused);
        if self.put_off() > 0 {
            let reasons = self.recorder.put_off.iter().map(|(why, count)| format!("{count} {why}"));
            warnings.push(format!(
                "{} requests were put off with 503 ({}): no verdict on them was wrong, and what they took is told apart",
                self.put_off(),
                reasons.collect::<Vec<_>>().join(", ")
            ));
        }
        if self.recorder.unsent > 0 {
            let paused = if lanes_paused { ", or in a pause after requests that had failed" } else { "" };
            warnings.push(format!(
                "{} requests were due and not sent, all connections being busy{paused}: the latencies have for how long they had been due",
                self.recorder.unsent
            ));
        }
        if self.recorder.unanswered > 0 {
            warnings.push(format!(
                "{} requests had no answer when it was not waited for any more: the latencies have what had passed by then",
                self.recorder.unanswered
            ));
        }
        if self.failed() > 0 {
            warnings.push(format!("{} requests failed: what they took is told apart", self.failed()));
        }
        warnings.extend(self.moves.warnings());
        if self.elsewhere() > 0 {
            warnings.push(format!(
                "{} requests were served, and not by the worker here: is --worker-listen the proxy's upstream?",
                self.elsewhere()
            ));
        }
        if self.is_of_no_lock() {
            warnings.push(
                "no holder was served, and all were told that nobody holds the lock: does the proxy have this --lock, --layout and --etcd?"
                    .to_owned(),
            );
        }
        if self.moved_none() {
            warnings.push("no lock changed hands".to_owned());
        }
        warnings.extend(self.ended_early.map(|after| format!("ended early, after {:.1} s", after.as_secs_f64())));
        warnings
    }

    /// Whether whoever holds the lock is taken for nobody: most likely another lock is looked at.
    fn is_of_no_lock(&self) -> bool {
        let mut refused = self.answers().filter(|(.., finding)| *finding == Finding::FalseRefusal).peekable();
        let is_served =
            self.answers().any(|(standing, .., finding)| standing == Standing::Holder && finding == Finding::Served);
        !is_served
            && refused.peek().is_some()
            && refused.all(|(_, answer, ..)| answer.reason.as_deref() == Some("no-owner"))
    }

    /// How many superseded requests were answered: without any, nobody knows whether they are refused.
    fn superseded(&self) -> u64 {
        let answers = self.recorder.answers.iter();
        answers.filter(|((standing, _), _)| *standing == Standing::Superseded).map(|(_, count)| count).sum()
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
        // A fence that gives no reasons refuses by its status. What has no answer may have been there.
        let is_refusal = |answer: &Answer| self.plan.expected == Expected::Fenced(answer.status);
        let passed = self.count(|answer| answer.may_have_passed() && !is_refusal(answer));
        let unanswered = self.failed() + self.recorder.unanswered;
        self.at_worker.map_or(0, |worker| worker.begun.saturating_sub(passed + unanswered))
    }

    fn count(&self, which: impl Fn(&Answer) -> bool) -> u64 {
        self.recorder.answers.iter().filter(|((_, answer), _)| which(answer)).map(|(_, count)| count).sum()
    }

    /// Whether locks were to move and none did, though there was time for it.
    fn moved_none(&self) -> bool {
        self.plan.handoff_every.is_some() && self.moves.moved.is_empty() && self.ended_early.is_none()
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
