//! What a run found, told to programs and to people.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Figure, Outcome};
use crate::Conclusion;
use crate::drive::durations::Durations;
use crate::drive::mover::Moved;
use crate::drive::recorder::Slot;
use crate::drive::verdict::Finding;
use crate::worker::{AtWorker, Breaches};

/// How long handoffs took: a name for programs and what it is.
type Spans = [(&'static str, Durations); 3];

impl Outcome {
    /// The same for a program.
    pub(crate) fn as_json(&self) -> Value {
        let answers = self.answers().map(|(standing, answer, count, finding)| {
            json!({ "from": standing.name(), "answer": answer.to_string(), "count": count, "finding": format!("{finding:?}") })
        });
        let each = self.moved().map(|moved| {
            json!({
                "at_seconds": moved.at.map(|at| at.as_secs_f64()), "served": moved.was_served,
                "release_to_answer_seconds": moved.answered.as_secs_f64(),
            })
        });
        let mut handoffs = json!({
            "count": self.moved().count(), "unserved": self.moved().filter(|moved| !moved.was_served).count(),
            "not_made": self.moves.not_made, "each": each.collect::<Vec<_>>(),
        });
        for (name, durations) in self.spans() {
            handoffs[name] = percentiles(&durations);
        }
        let over_time = self.slots().iter().enumerate().map(|(number, slot_of)| {
            let Slot { served, refused, put_off, wrong, unanswered, unsent, latencies } = slot_of;
            json!({
                "at_seconds": self.slot_begin(number).as_secs_f64(), "seconds": self.slot_length(number).as_secs_f64(),
                "served": served, "refused": refused, "put_off": put_off, "wrong": wrong, "unanswered": unanswered,
                "unsent": unsent, "latency": percentiles(latencies),
            })
        });
        json!({
            "as_expected": self.conclusion() == Conclusion::AsExpected,
            "ended_early": self.ended_early.is_some(),
            "what": self.description(),
            "asked_for": self.plan.as_json(),
            "seconds": self.measured().as_secs_f64(),
            "requests_per_second": self.per_second(),
            "answered": self.answered(),
            "answers": answers.collect::<Vec<_>>(),
            "errors": self.recorder.errors,
            "unanswered": self.recorder.unanswered,
            "unsent": self.recorder.unsent,
            "false_refusals": self.false_refusals(),
            "false_admissions": self.false_admissions(),
            "superseded_and_answered": self.superseded(),
            "put_off": self.put_off(),
            "put_off_by_reason": self.recorder.put_off,
            "unexpected": self.recorder.unexpected,
            "latency": percentiles(&self.recorder.served),
            "latency_of_refusals": percentiles(&self.recorder.refused),
            "latency_until_put_off": percentiles(&self.recorder.until_put_off),
            "latency_until_failed": percentiles(&self.recorder.until_failed),
            "handoffs": handoffs,
            "worker": self.at_worker.map(|worker| self.worker_as_json(worker)),
            "generator": self.generator.as_json(),
            "over_time": { "slot_seconds": self.window.slot().as_secs_f64(), "slots": over_time.collect::<Vec<_>>() },
            "warnings": self.warnings(),
        })
    }

    fn worker_as_json(&self, AtWorker { begun, breaches }: AtWorker) -> Value {
        let mut json = breaches.as_json();
        json["requests"] = json!(begun);
        json["done_elsewhere"] = json!(self.elsewhere());
        json["reached_though_refused"] = json!(self.uninvited());
        json
    }

    fn spans(&self) -> Spans {
        let of = |part: fn(&Moved) -> Duration| {
            let mut durations = Durations::default();
            self.moved().for_each(|moved| durations.add(part(moved)));
            durations
        };
        [
            ("release_to_answer", of(|moved| moved.answered)),
            ("release_to_told", of(|moved| moved.told)),
            ("told_to_held", of(|moved| moved.held)),
        ]
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

/// The percentiles for a program.
pub(crate) fn percentiles(durations: &Durations) -> Value {
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

/// Of so many, one of a hundred can be told from the slowest.
const ENOUGH: u64 = 100;

/// The percentiles for people, in one line; of a few, those that differ.
pub(crate) fn in_a_line(durations: &Durations) -> String {
    if (1..ENOUGH).contains(&durations.count()) {
        let [least, middle, most] = [0.0, 0.5, 1.0].map(|part| milliseconds(durations.at(part)));
        return format!("of {}: min {least}  p50 {middle}  max {most}", durations.count());
    }
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
                Finding::PutOff => "  PUT OFF",
                Finding::Unexpected => "  UNEXPECTED",
            };
            writeln!(f, "  {count:>10}  {:<10}  {answer}{mark}", standing.name())?;
        }
        for (error, count) in &self.recorder.errors {
            writeln!(f, "  {count:>10}  NO ANSWER: {error}")?;
        }
        if self.recorder.unanswered > 0 {
            writeln!(f, "  {:>10}  NO ANSWER in time", self.recorder.unanswered)?;
        }
        let since = if self.plan.rate.is_some() { ", since a request was due" } else { "" };
        writeln!(f, "latency     {}{since}", in_a_line(&self.recorder.served))?;
        if self.recorder.refused.count() > 0 {
            writeln!(f, "refusals    {}", in_a_line(&self.recorder.refused))?;
        }
        for (name, durations) in [("put off", self.until_put_off()), ("no answer", self.until_failed())] {
            if durations.count() > 0 {
                writeln!(f, "{name:<10}  {}", in_a_line(durations))?;
            }
        }
        if self.moved().next().is_some() {
            writeln!(f, "handoffs    {}", self.moved().count())?;
            for (name, durations) in self.spans() {
                writeln!(f, "  {:<18}  {}", name.replace('_', " "), in_a_line(&durations))?;
            }
        }
        if let Some(AtWorker { begun, breaches }) = self.at_worker {
            let mark = if breaches.is_none() { "revisions never went down" } else { "OUT OF ORDER" };
            let Breaches { went_down, after_successor, overlapped, shared_revision } = breaches;
            writeln!(
                f,
                "worker      {begun} requests, {mark}: {went_down} went down, {after_successor} after a successor, {overlapped} overlapped, \
                 {shared_revision} under another owner's revision"
            )?;
        }
        writeln!(f, "generator   {}", self.generator.in_a_line())?;
        let figures = self.to_be_none().into_iter().map(|Figure { name, count, was_tried, .. }| match was_tried {
            true => format!("{count} {name}"),
            false => format!("{name} not tried (--stale, --handoff-every)"),
        });
        writeln!(f, "verdict     {}", figures.collect::<Vec<_>>().join(", "))?;
        self.warnings().iter().try_for_each(|warning| writeln!(f, "WARNING     {warning}"))
    }
}
