//! What came back.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::Conclusion;
use crate::answer::Answer;
use crate::latency::Latencies;

/// What one lane, or all, have seen.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    answers: BTreeMap<Answer, u64>,
    /// Requests without an answer, by what went wrong.
    errors: BTreeMap<String, u64>,
    latencies: Latencies,
}

impl Tally {
    /// A request was answered, so long after it was due.
    pub(crate) fn answered(&mut self, answer: Answer, latency: Duration) {
        self.latencies.add(latency);
        *self.answers.entry(answer).or_default() += 1;
    }

    /// A request was not answered.
    pub(crate) fn failed(&mut self, why: String) {
        *self.errors.entry(why).or_default() += 1;
    }

    /// Adds all of another's.
    pub(crate) fn merge(&mut self, other: Tally) {
        let Tally { answers, errors, latencies } = other;
        answers.into_iter().for_each(|(answer, count)| *self.answers.entry(answer).or_default() += count);
        errors.into_iter().for_each(|(error, count)| *self.errors.entry(error).or_default() += count);
        self.latencies.merge(latencies);
    }
}

/// A whole run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    /// Requests that were due and never sent.
    pub(crate) unsent: u64,
    pub(crate) elapsed: Duration,
    /// Somebody did not want to wait for its end: requests that were under way are not counted.
    pub(crate) ended_early: bool,
    /// The status that each answer should have.
    pub(crate) expected: StatusCode,
}

impl Outcome {
    /// Whether every request that was due was answered with the status that was expected.
    pub(crate) fn conclusion(&self) -> Conclusion {
        if self.answered() > 0 && self.unexpected() + self.failed() + self.unsent == 0 {
            Conclusion::AsExpected
        } else {
            Conclusion::NotAsExpected
        }
    }

    fn answered(&self) -> u64 {
        self.tally.answers.values().sum()
    }

    fn unexpected(&self) -> u64 {
        let others = self.tally.answers.iter().filter(|(answer, _)| answer.status != self.expected);
        others.map(|(_, count)| count).sum()
    }

    fn failed(&self) -> u64 {
        self.tally.errors.values().sum()
    }

    fn per_second(&self) -> f64 {
        self.answered() as f64 / self.elapsed.as_secs_f64()
    }

    /// The same for a program.
    pub(crate) fn as_json(&self) -> Value {
        let answers = self.tally.answers.iter().map(|(answer, count)| (answer.to_string(), json!(count)));
        json!({
            "as_expected": self.conclusion() == Conclusion::AsExpected,
            "ended_early": self.ended_early,
            "seconds": self.elapsed.as_secs_f64(),
            "requests_per_second": self.per_second(),
            "answers": answers.collect::<serde_json::Map<_, _>>(),
            "unexpected": self.unexpected(),
            "errors": self.tally.errors,
            "unsent": self.unsent,
            "latency": self.tally.latencies.percentiles().map(|percentiles| percentiles.as_json()),
        })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        writeln!(f, "answers    {} in {seconds:.2} s, {:.0} a second", self.answered(), self.per_second())?;
        for (answer, count) in &self.tally.answers {
            let mark = if answer.status == self.expected { "" } else { "  UNEXPECTED" };
            writeln!(f, "  {count:>10}  {answer}{mark}")?;
        }
        for (error, count) in &self.tally.errors {
            writeln!(f, "  {count:>10}  NO ANSWER: {error}")?;
        }
        if self.unsent > 0 {
            writeln!(
                f,
                "  {:>10}  NOT SENT: all connections were busy; what these would have taken is not below",
                self.unsent
            )?;
        }
        if self.ended_early {
            writeln!(f, "ended early, after {seconds:.1} s: what was under way is not counted")?;
        }
        match self.tally.latencies.percentiles() {
            Some(percentiles) => writeln!(f, "latency    {percentiles}"),
            None => writeln!(f, "latency    nothing was answered"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, reason: &str) -> Answer {
        let reason = (!reason.is_empty()).then(|| reason.to_owned());
        Answer { status: StatusCode::from_u16(status).unwrap(), reason }
    }

    fn outcome(tally: Tally) -> Outcome {
        Outcome { tally, unsent: 0, elapsed: Duration::from_secs(2), ended_early: false, expected: StatusCode::OK }
    }

    fn of(answers: &[(u16, &str)]) -> Tally {
        let mut tally = Tally::default();
        for (status, reason) in answers {
            tally.answered(answer(*status, reason), Duration::from_millis(1));
        }
        tally
    }

    #[test]
    fn only_the_status_asked_for_is_as_expected() {
        assert_eq!(outcome(of(&[(200, ""), (200, "")])).conclusion(), Conclusion::AsExpected);
        for other in [(204, ""), (412, "stale-tenure"), (503, "unverifiable"), (502, "")] {
            let outcome = outcome(of(&[(200, ""), other]));
            assert_eq!(outcome.unexpected(), 1);
            assert_eq!(outcome.conclusion(), Conclusion::NotAsExpected, "{other:?}");
        }
    }

    #[test]
    fn a_load_of_stale_requests_expects_their_refusal() {
        let mut outcome = outcome(of(&[(412, "stale-tenure")]));
        outcome.expected = StatusCode::PRECONDITION_FAILED;
        assert_eq!(outcome.conclusion(), Conclusion::AsExpected);
    }

    #[test]
    fn requests_without_an_answer_are_not_as_expected() {
        let mut tally = of(&[(200, "")]);
        tally.failed("the connection broke".to_owned());
        assert_eq!(outcome(tally).conclusion(), Conclusion::NotAsExpected);
        let unsent = Outcome { unsent: 1, ..outcome(of(&[(200, "")])) };
        assert_eq!(unsent.conclusion(), Conclusion::NotAsExpected);
        assert_eq!(outcome(Tally::default()).conclusion(), Conclusion::NotAsExpected);
    }

    #[test]
    fn lanes_are_added_up() {
        let mut all = of(&[(200, ""), (412, "stale-tenure")]);
        all.merge(of(&[(200, ""), (412, "not-owner")]));
        let outcome = outcome(all);
        assert_eq!(outcome.answered(), 4);
        assert_eq!(outcome.per_second(), 2.0);
        let answers = &outcome.as_json()["answers"];
        assert_eq!(
            (&answers["200"], &answers["412 stale-tenure"], &answers["412 not-owner"]),
            (&json!(2), &json!(1), &json!(1))
        );
    }
}
