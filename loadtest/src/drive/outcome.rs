//! What a run found.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::mover::Moved;
use super::plan::Plan;
use super::recorder::{Durations, Recorder, Slot, Window};
use super::threads::Sent;
use super::verdict::{Finding, Standing};
use crate::Conclusion;
use crate::answer::Answer;
use crate::worker::Breaches;

/// A thread that has a CPU for more of the time than this sends later than it should.
const BUSY_MAX: f64 = 0.9;
/// How late the generator may be with one of a hundred requests before it says so.
const LAG_MAX: Duration = Duration::from_millis(5);

/// All that a run found.
pub(crate) struct Outcome {
    plan: Plan,
    window: Window,
    recorder: Recorder,
    unsent: u64,
    unanswered: u64,
    /// Of the thread that had most.
    busy: f64,
    moved: Vec<Moved>,
    /// How long it took if it was ended before its time.
    ended_early: Option<Duration>,
    broke_off: Option<String>,
    breaches: Option<Breaches>,
}

/// How long handoffs took: a name for programs and what it is.
type Spans = [(&'static str, Durations); 3];

impl Outcome {
    /// Of what all threads have sent, and of the locks that moved.
    pub(crate) fn of(
        plan: &Plan,
        window: Window,
        sent: Vec<Sent>,
        (moved, own): (Vec<Moved>, Option<Recorder>),
        ended_early: Option<Duration>,
        broke_off: Option<String>,
    ) -> Outcome {
        let mut outcome = Outcome {
            plan: plan.clone(),
            window,
            recorder: own.unwrap_or_else(|| Recorder::new(window)),
            unsent: 0,
            unanswered: 0,
            busy: 0.0,
            moved,
            ended_early,
            broke_off,
            breaches: None,
        };
        for Sent { recorder, unsent, unanswered, busy } in sent {
            outcome.recorder.merge(recorder);
            outcome.unsent += unsent;
            outcome.unanswered += unanswered;
            outcome.busy = outcome.busy.max(busy);
        }
        outcome
    }

    /// What the worker saw of the order, if it was played here.
    pub(crate) fn worker_saw(&mut self, breaches: Option<Breaches>) {
        self.breaches = breaches;
    }

    /// Whether everybody was answered as they should be.
    pub(crate) fn conclusion(&self) -> Conclusion {
        let wrong = self.false_refusals() + self.false_admissions() + self.recorder.unexpected;
        let missing = self.failed() + self.unanswered + self.unsent;
        let in_order = self.breaches.is_none_or(|breaches| breaches.is_none());
        if wrong + missing == 0 && in_order && self.broke_off.is_none() && self.answered() > 0 {
            Conclusion::AsExpected
        } else {
            Conclusion::NotAsExpected
        }
    }

    /// All answers since the start, the warm-up's included.
    pub(crate) fn answered(&self) -> u64 {
        self.recorder.answers.values().sum()
    }

    /// All that was neither served nor refused as it should be.
    pub(crate) fn wrong(&self) -> u64 {
        let verdicts = self.false_refusals() + self.false_admissions() + self.recorder.unexpected;
        verdicts + self.failed() + self.unanswered
    }

    /// Requests a second that were answered as they should be, within the window.
    pub(crate) fn per_second(&self) -> f64 {
        let right: u64 = self.slots().iter().map(|slot| slot.served + slot.refused).sum();
        right as f64 / self.measured().as_secs_f64().max(f64::EPSILON)
    }

    /// The slots of time, and how long each is.
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.recorder.slots
    }

    /// How long a slot of time is.
    pub(crate) fn slot_length(&self) -> Duration {
        self.window.slot()
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
        let finding = |standing, answer| Finding::of(standing, answer, self.plan.refusal);
        self.recorder
            .answers
            .iter()
            .map(move |((standing, answer), count)| (*standing, answer, *count, finding(*standing, answer)))
    }

    /// What was sent, in words.
    pub(crate) fn description(&self) -> String {
        self.plan.describe()
    }

    /// Figures that are to be nothing, with what they are; the first two first.
    pub(crate) fn to_be_none(&self) -> Vec<(&'static str, u64)> {
        let mut figures = vec![
            ("false refusals", self.false_refusals()),
            ("false admissions", self.false_admissions()),
            ("unexpected answers", self.recorder.unexpected),
            ("no answer", self.failed() + self.unanswered),
            ("not sent", self.unsent),
        ];
        if let Some(breaches) = self.breaches {
            let Breaches { went_down, after_successor, overlapped, shared_revision } = breaches;
            figures.push(("out of order at the worker", went_down.max(after_successor) + overlapped + shared_revision));
        }
        figures
    }

    /// What lessens the worth of the figures, in words.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.is_saturated() {
            warnings.push(format!(
                "the generator was the limit (busy {:.2}, lag p99 {}): use more --threads, a faster machine or less load",
                self.busy,
                milliseconds(self.recorder.lag.at(0.99))
            ));
        }
        if self.unsent > 0 {
            warnings.push(format!(
                "{} requests were due and not sent, all connections being busy: what these would have taken is in no percentile",
                self.unsent
            ));
        }
        warnings.extend(self.broke_off.clone());
        warnings.extend(self.ended_early.map(|after| format!("ended early, after {:.1} s", after.as_secs_f64())));
        warnings
    }

    /// Whether the generator, and not the proxy, was what figures are of.
    fn is_saturated(&self) -> bool {
        self.busy > BUSY_MAX || self.recorder.lag.at(0.99).is_some_and(|lag| lag > LAG_MAX)
    }

    fn false_refusals(&self) -> u64 {
        self.recorder.false_refusals
    }

    fn false_admissions(&self) -> u64 {
        self.recorder.false_admissions
    }

    fn failed(&self) -> u64 {
        self.recorder.errors.values().sum()
    }

    /// How much of the window there was.
    fn measured(&self) -> Duration {
        let length = self.window.length;
        self.ended_early.map_or(length, |after| after.saturating_sub(self.plan.warm_up).min(length))
    }

    fn spans(&self) -> Spans {
        let of = |part: fn(&Moved) -> Duration| {
            let mut durations = Durations::default();
            self.moved.iter().for_each(|moved| durations.add(part(moved)));
            durations
        };
        [
            ("release_to_answer", of(|moved| moved.answered)),
            ("release_to_told", of(|moved| moved.told)),
            ("told_to_held", of(|moved| moved.held)),
        ]
    }

    /// The same for a program.
    pub(crate) fn as_json(&self) -> Value {
        let answers = self.answers().map(|(standing, answer, count, finding)| {
            json!({ "from": standing.name(), "answer": answer.to_string(), "count": count, "finding": format!("{finding:?}") })
        });
        let mut handoffs = json!({ "count": self.moved.len() });
        for (name, durations) in self.spans() {
            handoffs[name] = percentiles(&durations);
        }
        let slot = self.slot_length().as_secs_f64();
        let over_time = self.slots().iter().enumerate().map(|(number, slot_of)| {
            let Slot { served, refused, wrong, latencies } = slot_of;
            json!({
                "at_seconds": number as f64 * slot, "served": served, "refused": refused, "wrong": wrong,
                "latency": percentiles(latencies),
            })
        });
        json!({
            "as_expected": self.conclusion() == Conclusion::AsExpected,
            "what": self.description(),
            "seconds": self.measured().as_secs_f64(),
            "requests_per_second": self.per_second(),
            "answered": self.answered(),
            "answers": answers.collect::<Vec<_>>(),
            "errors": self.recorder.errors,
            "unanswered": self.unanswered,
            "unsent": self.unsent,
            "false_refusals": self.false_refusals(),
            "false_admissions": self.false_admissions(),
            "unexpected": self.recorder.unexpected,
            "latency": percentiles(&self.recorder.served),
            "latency_of_refusals": percentiles(&self.recorder.refused),
            "handoffs": handoffs,
            "worker": self.breaches.map(|breaches| breaches.as_json()),
            "generator": { "busy": self.busy, "lag": percentiles(&self.recorder.lag), "was_the_limit": self.is_saturated() },
            "over_time": { "slot_seconds": slot, "slots": over_time.collect::<Vec<_>>() },
            "warnings": self.warnings(),
        })
    }
}

/// The parts that are told of many durations.
pub(crate) const PARTS: [(&str, &str, f64); 5] = [
    ("p50", "p50_seconds", 0.5),
    ("p90", "p90_seconds", 0.9),
    ("p99", "p99_seconds", 0.99),
    ("p99.9", "p999_seconds", 0.999),
    ("max", "max_seconds", 1.0),
];

fn percentiles(durations: &Durations) -> Value {
    if durations.count() == 0 {
        return Value::Null;
    }
    let mut json =
        json!({ "count": durations.count(), "mean_seconds": durations.mean().map(|mean| mean.as_secs_f64()) });
    for (_, name, part) in PARTS {
        json[name] = json!(durations.at(part).map(|duration| duration.as_secs_f64()));
    }
    json
}

/// A duration for people.
pub(crate) fn milliseconds(duration: Option<Duration>) -> String {
    duration.map_or("-".to_owned(), |duration| format!("{:.3} ms", duration.as_secs_f64() * 1000.0))
}

/// The percentiles for people, in one line.
pub(crate) fn in_a_line(durations: &Durations) -> String {
    let parts = PARTS.map(|(name, _, part)| format!("{name} {}", milliseconds(durations.at(part))));
    parts.join("  ")
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.description())?;
        writeln!(f, "throughput  {:.0} a second, {} answered in all", self.per_second(), self.answered())?;
        for (standing, answer, count, finding) in self.answers() {
            let mark = match finding {
                Finding::Served | Finding::Refused => "",
                Finding::FalseRefusal => "  FALSE REFUSAL",
                Finding::FalseAdmission => "  FALSE ADMISSION",
                Finding::Unexpected => "  UNEXPECTED",
            };
            writeln!(f, "  {count:>10}  {:<10}  {answer}{mark}", standing.name())?;
        }
        for (error, count) in &self.recorder.errors {
            writeln!(f, "  {count:>10}  NO ANSWER: {error}")?;
        }
        if self.unanswered > 0 {
            writeln!(f, "  {:>10}  NO ANSWER in time", self.unanswered)?;
        }
        let since = if self.plan.rate.is_some() { ", since a request was due" } else { "" };
        writeln!(f, "latency     {}{since}", in_a_line(&self.recorder.served))?;
        if self.recorder.refused.count() > 0 {
            writeln!(f, "refusals    {}", in_a_line(&self.recorder.refused))?;
        }
        if !self.moved.is_empty() {
            writeln!(f, "handoffs    {}", self.moved.len())?;
            for (name, durations) in self.spans() {
                writeln!(f, "  {:<18}  {}", name.replace('_', " "), in_a_line(&durations))?;
            }
        }
        if let Some(breaches) = self.breaches {
            let mark = if breaches.is_none() { "revisions never went down" } else { "OUT OF ORDER" };
            let Breaches { went_down, after_successor, overlapped, shared_revision } = breaches;
            writeln!(
                f,
                "worker      {mark}: {went_down} went down, {after_successor} after a successor, {overlapped} overlapped, \
                 {shared_revision} under another owner's revision"
            )?;
        }
        writeln!(
            f,
            "generator   busy {:.2} of a CPU, lag p99 {}",
            self.busy,
            milliseconds(self.recorder.lag.at(0.99))
        )?;
        let figures = self.to_be_none().into_iter().map(|(name, count)| format!("{count} {name}"));
        writeln!(f, "verdict     {}", figures.collect::<Vec<_>>().join(", "))?;
        self.warnings().iter().try_for_each(|warning| writeln!(f, "WARNING     {warning}"))
    }
}
