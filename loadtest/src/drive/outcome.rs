//! What a run of `open` or `closed` found, for people and for programs.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::lane::Run;
use super::mover::Moves;
use super::plan::Plan;
use super::recorder::{Latencies, Recorder};
use super::verdict::Finding;
use crate::Conclusion;
use crate::durations::milliseconds;
use crate::machine::{CpuShare, CpuTime};
use crate::worker::AtWorker;

pub(crate) struct Outcome {
    plan: Plan,
    recorder: Recorder,
    generator: Generator,
    moves: Moves,
    /// The CPU time of the measured process at the window's beginning and end.
    cpu: Option<(CpuTime, CpuTime)>,
    /// How long the run took, if a signal ended it early.
    ended_early: Option<Duration>,
    at_worker: Option<AtWorker>,
}

impl Outcome {
    pub(crate) fn of(
        run: &Run,
        generator: Generator,
        moves: Moves,
        cpu: Option<(CpuTime, CpuTime)>,
        ended_early: Option<Duration>,
    ) -> Outcome {
        let (plan, recorder) = (Plan::clone(&run.plan), run.recorder.borrow().clone());
        Outcome { plan, recorder, generator, moves, cpu, ended_early, at_worker: None }
    }

    /// The run is over, and the worker that is played here saw this.
    pub(crate) fn worker_saw(&mut self, at_worker: Option<AtWorker>) {
        self.at_worker = at_worker;
    }

    /// Whether the generator, or its machine, had too little time for what was due.
    pub(crate) fn was_disturbed(&self) -> bool {
        self.generator.was_disturbed()
    }

    pub(crate) fn conclusion(&self) -> Conclusion {
        let Recorder { tally, unsent, .. } = &self.recorder;
        if *unsent > 0 || tally.answered() == 0 || self.moved_none() {
            return Conclusion::NotAsExpected;
        }
        let found = tally.conclusion(self.missing(), self.at_worker);
        let some_stayed = found == Conclusion::AsExpected && self.moves.failed > 0;
        if some_stayed { Conclusion::PutOff } else { found }
    }

    /// All requests that were neither served nor refused as they should be.
    pub(crate) fn wrong(&self) -> u64 {
        self.recorder.tally.sum(|_, _, finding| !finding.is_right()) + self.missing()
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.recorder.right_within as f64 / self.measured().as_secs_f64().max(f64::EPSILON)
    }

    pub(crate) fn latencies(&self) -> &Latencies {
        &self.recorder.latencies
    }

    /// CPU time of the measured process for each answer, in microseconds, and its share of a CPU.
    pub(crate) fn cpu(&self) -> Option<(f64, f64)> {
        let answered = self.recorder.answered_within;
        let (before, after) = self.cpu.as_ref().filter(|_| answered > 0)?;
        let micros = after.since(before).as_secs_f64() * 1e6;
        Some((micros / answered as f64, after.share_since(before).had))
    }

    fn failed(&self) -> u64 {
        self.recorder.errors.values().sum()
    }

    fn missing(&self) -> u64 {
        self.failed() + self.recorder.unanswered
    }

    /// Whether locks were to move and none did, though there was time for it.
    fn moved_none(&self) -> bool {
        let had_time = self.ended_early.is_none();
        self.plan.handoff_every.is_some() && had_time && !self.moves.moved_any
    }

    fn measured(&self) -> Duration {
        let early = self.ended_early.map(|after| after.saturating_sub(self.plan.warm_up));
        early.map_or(self.plan.duration, |early| early.min(self.plan.duration))
    }

    fn warnings(&self) -> Vec<String> {
        let Recorder { tally, unsent, unanswered, latencies, .. } = &self.recorder;
        let mut warnings = self.generator.warnings(latencies);
        let elsewhere = self.at_worker.map_or(0, |worker| tally.elsewhere(worker));
        for (count, what) in [
            (tally.count(Finding::PutOff), "were put off with 503: their times are told apart"),
            (*unsent, "were due and not sent: latencies count since they were due"),
            (*unanswered, "had no answer in time: latencies count what had passed"),
            (self.failed(), "failed: their times are told apart"),
            (elsewhere, "were served elsewhere: is --worker-listen the proxy's upstream?"),
        ] {
            if count > 0 {
                warnings.push(format!("{count} requests {what}"));
            }
        }
        warnings.extend(self.moves.warnings());
        if self.is_of_no_lock() {
            let hint = "does the proxy have this --lock, --layout and --etcd?";
            warnings.push(format!("every holder was refused with no-owner: {hint}"));
        }
        if self.moved_none() {
            warnings.push("no lock changed hands".to_owned());
        }
        let early = |after: Duration| format!("ended early, after {:.1} s", after.as_secs_f64());
        warnings.extend(self.ended_early.map(early));
        warnings
    }

    /// Whether the proxy most likely looks at another lock.
    fn is_of_no_lock(&self) -> bool {
        let Recorder { tally, .. } = &self.recorder;
        let no_owner = tally.sum(|_, answer, _| answer.reason.as_deref() == Some("no-owner"));
        no_owner > 0 && no_owner == tally.answered()
    }

    pub(crate) fn as_json(&self) -> Value {
        let Recorder { tally, errors, unanswered, unsent, latencies, .. } = &self.recorder;
        let mut json = tally.as_json(self.missing(), self.at_worker);
        let cpu =
            self.cpu().map(|(micros, busy)| json!({ "micros_per_request": micros, "busy": busy }));
        for (name, value) in [
            ("as_expected", json!(self.conclusion() == Conclusion::AsExpected)),
            ("ended_early", json!(self.ended_early.is_some())),
            ("what", json!(self.plan.to_string())),
            ("seconds", json!(self.measured().as_secs_f64())),
            ("requests_per_second", json!(self.per_second())),
            ("errors", json!(errors)),
            ("unanswered", json!(unanswered)),
            ("unsent", json!(unsent)),
            ("latency", latencies.served.as_json()),
            ("latency_of_refusals", latencies.refused.as_json()),
            ("latency_until_put_off", latencies.put_off.as_json()),
            ("latency_until_failed", latencies.failed.as_json()),
            ("handoffs", self.moves.as_json()),
            ("proxy_cpu", json!(cpu)),
            ("generator", self.generator.as_json(latencies)),
            ("warnings", json!(self.warnings())),
        ] {
            json[name] = value;
        }
        json
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recorder { tally, errors, unanswered, unsent, latencies, .. } = &self.recorder;
        let (per_second, answered) = (self.per_second(), tally.answered());
        writeln!(f, "{}", self.plan)?;
        writeln!(f, "throughput  {per_second:.0} a second, {answered} answered in all\n{tally}")?;
        for (error, count) in errors {
            writeln!(f, "  {count:>10}  NO ANSWER: {error}")?;
        }
        if *unanswered > 0 {
            writeln!(f, "  {unanswered:>10}  NO ANSWER in time")?;
        }
        let Latencies { served, refused, put_off, failed, .. } = latencies;
        let since = if self.plan.rate.is_some() { ", since a request was due" } else { "" };
        writeln!(f, "latency     {served}{since}")?;
        for (name, all) in [("refusals", refused), ("put off", put_off), ("failed", failed)] {
            if all.count() > 0 {
                writeln!(f, "{name:<10}  {all}")?;
            }
        }
        self.moves.fmt(f)?;
        if let Some((micros, busy)) = self.cpu() {
            writeln!(f, "proxy       {micros:.1} µs of CPU per answer, busy {busy:.2} of a CPU")?;
        }
        if let Some(worker) = self.at_worker {
            writeln!(f, "worker      {worker}")?;
        }
        writeln!(f, "generator   {}", self.generator)?;
        let (verdict, put_off) =
            (tally.verdict(self.missing(), self.at_worker), tally.count(Finding::PutOff));
        writeln!(f, "verdict     {verdict}, {put_off} put off, {unsent} not sent")?;
        self.warnings().iter().try_for_each(|warning| writeln!(f, "WARNING     {warning}"))
    }
}

/// A generator that has, or wants, a CPU for more of the time than this is late.
const BUSY_MAX: f64 = 0.9;
/// One of a hundred requests may be sent so late before a report tells it.
const LATE_MAX: Duration = Duration::from_millis(5);

pub(crate) struct Generator(pub(crate) CpuShare);

impl Generator {
    fn was_the_limit(&self) -> bool {
        self.0.had > BUSY_MAX
    }

    /// Whether it had too little time, because it was the limit or others had the CPU.
    pub(crate) fn was_disturbed(&self) -> bool {
        self.was_the_limit() || self.0.wanted() > BUSY_MAX
    }

    pub(crate) fn warnings(&self, latencies: &Latencies) -> Vec<String> {
        let Latencies { lag, queued, .. } = latencies;
        let (late, long) = (lag.at(0.99), queued.above(LATE_MAX));
        // A generator that is the limit keeps its connections busy itself.
        let is_queued = long * 100 > queued.count() + lag.count() && !self.was_the_limit();
        let all = [
            (
                self.was_the_limit(),
                format!("the generator was the limit ({self}): send less, or run several"),
            ),
            (
                !self.was_the_limit() && self.was_disturbed(),
                format!("the machine was shared ({self})"),
            ),
            (
                !self.was_disturbed() && late > Some(LATE_MAX),
                format!(
                    "the machine stood still: requests were sent late, p99 {}",
                    milliseconds(late)
                ),
            ),
            (
                is_queued,
                format!(
                    "{long} requests waited more than {LATE_MAX:?} for a connection, all being taken"
                ),
            ),
        ];
        all.into_iter().filter(|(applies, _)| *applies).map(|(_, warning)| warning).collect()
    }

    pub(crate) fn as_json(&self, latencies: &Latencies) -> Value {
        json!({
            "busy": self.0.had,
            "waited_for_cpu": self.0.waited,
            "lag": latencies.lag.as_json(),
            "waited_for_a_connection": latencies.queued.as_json(),
            "was_the_limit": self.was_the_limit(),
            "was_disturbed": self.was_disturbed(),
        })
    }
}

impl fmt::Display for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (busy, waited) = (self.0.had, self.0.waited);
        write!(f, "busy {busy:.2} of a CPU, waited {waited:.2} for one")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Answer, Protocol, Target};
    use crate::drive::mover::Mover;
    use crate::drive::recorder::Window;
    use crate::drive::tenures::Tenures;
    use crate::drive::verdict::{Standing, Tally};
    use crate::stop::Stop;
    use hyper::StatusCode;
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Instant;

    /// A run of a second with one served request, changed by `change`.
    fn outcome(busy: f64, change: impl FnOnce(&mut Recorder)) -> Outcome {
        let window = Window { begin: Instant::now(), length: Duration::from_secs(1) };
        let address = "http://127.0.0.1:1".parse().unwrap();
        let plan = Plan::get(Target::new(&address, Protocol::Http1, None).unwrap());
        let mut recorder = Recorder::new(window, plan.refusal);
        let ok = Answer { status: StatusCode::OK, reason: None };
        recorder.answered(window.begin, Standing::Holder, ok);
        change(&mut recorder);
        let run = Run {
            plan: Rc::new(plan),
            tenures: Rc::new(Tenures::new([])),
            recorder: Rc::new(RefCell::new(recorder)),
            begin: window.begin,
            stop: Stop::never(),
        };
        let generator = Generator(CpuShare { had: busy, waited: 0.0 });
        Outcome::of(&run, generator, Mover::new(&run).seen(), None, None)
    }

    #[test]
    fn busy_generator_changes_no_verdict() {
        for (busy, is_limit) in [(0.5, false), (0.95, true)] {
            let outcome = outcome(busy, |_| {});
            let text = outcome.to_string();
            assert_eq!(text.contains("the generator was the limit"), is_limit, "{text}");
            assert_eq!(outcome.conclusion(), Conclusion::AsExpected);
        }
    }

    #[test]
    fn missing_answers_are_not_as_expected() {
        let changes: [fn(&mut Recorder); 4] = [
            |recorder| recorder.unsent = 1,
            |recorder| recorder.unanswered = 1,
            |recorder| recorder.failed(Instant::now(), "gone".to_owned()),
            |recorder| recorder.tally = Tally::new(StatusCode::FORBIDDEN),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert_eq!(outcome(0.5, change).conclusion(), Conclusion::NotAsExpected, "{number}");
        }
    }

    #[test]
    fn unmoved_locks_are_not_as_expected() {
        let mut outcome = outcome(0.5, |_| {});
        outcome.plan.handoff_every = Some(Duration::from_millis(100));
        assert_eq!(outcome.conclusion(), Conclusion::NotAsExpected);
        assert!(outcome.to_string().contains("no lock changed hands"), "{outcome}");
        outcome.ended_early = Some(Duration::from_millis(50));
        assert_eq!(outcome.conclusion(), Conclusion::AsExpected, "there was no time for it");
    }

    /// A thread with these shares of a CPU sent 100 requests, so many of them 20 ms late: for want
    /// of a connection, or with one free.
    fn check((had, waited): (f64, f64), late: u32, is_queued: bool, expected: &[&str]) {
        let mut latencies = Latencies::default();
        let Latencies { lag, queued, .. } = &mut latencies;
        (late..100).for_each(|_| lag.add(Duration::from_micros(50)));
        let late_in = if is_queued { queued } else { lag };
        (0..late).for_each(|_| late_in.add(Duration::from_millis(20)));
        let generator = Generator(CpuShare { had, waited });
        let warnings = generator.warnings(&latencies);
        assert_eq!(warnings.len(), expected.len(), "{warnings:#?}");
        for (warning, expected) in warnings.iter().zip(expected) {
            assert!(warning.contains(expected), "{expected:?} is not in {warning:?}");
        }
    }

    #[test]
    fn late_requests_tell_their_cause() {
        check((0.95, 0.0), 0, false, &["the generator was the limit (busy 0.95"]);
        check((0.95, 0.0), 50, true, &["the generator was the limit"]);
        check((0.5, 0.45), 50, false, &["the machine was shared (busy 0.50 of a CPU, waited 0.45"]);
        check((0.3, 0.1), 50, false, &["sent late, p99 20.0"]);
        check((0.3, 0.1), 50, true, &["50 requests waited more than 5ms for a connection"]);
        check((0.5, 0.45), 50, true, &["the machine was shared", "for a connection"]);
        check((0.5, 0.1), 0, false, &[]);
        check((0.5, 0.1), 1, true, &[]);
        check((0.5, 0.1), 1, false, &[]);
    }
}
