//! Whether answers are right, one by one and all together.

use std::collections::BTreeMap;
use std::fmt;

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::Conclusion;
use crate::client::Answer;
use crate::worker::{AtWorker, Breaches};

/// The sender's relation to the lock while a request was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// It held the lock the whole time.
    Holder,
    /// It held the lock when it sent the request, and began to release it before the answer.
    Leaving,
    /// A successor had been served before it sent the request.
    Superseded,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// Served, as it should or may be.
    Served,
    /// Refused, as it should or may be.
    Refused,
    FalseRefusal,
    /// The sender is to come again: 503. Nobody was judged wrongly.
    PutOff,
    FalseAdmission,
    /// Neither served nor refused as a fence does it.
    Unexpected,
}

impl Finding {
    pub(crate) fn is_right(self) -> bool {
        matches!(self, Finding::Served | Finding::Refused)
    }

    /// Judges an answer of a fence that refuses superseded requests with this status.
    pub(crate) fn of(standing: Standing, answer: &Answer, refusal: StatusCode) -> Finding {
        let (is_served, has_status) = (answer.is_success(), answer.status == refusal);
        let is_refused = has_status || answer.reason.is_some();
        let is_put_off = answer.is_put_off() && !has_status;
        match standing {
            Standing::Holder | Standing::Leaving if is_served => Finding::Served,
            Standing::Superseded if is_served => Finding::FalseAdmission,
            // Without a reason no connection to the worker was free, or the worker answered so.
            Standing::Holder if is_put_off => Finding::PutOff,
            Standing::Holder if is_refused => Finding::FalseRefusal,
            Standing::Leaving if is_refused => Finding::Refused,
            Standing::Leaving if is_put_off => Finding::PutOff,
            Standing::Superseded if has_status => Finding::Refused,
            // Without a reason the worker may have answered, which this must never reach.
            Standing::Superseded if is_put_off && answer.reason.is_some() => Finding::PutOff,
            Standing::Holder | Standing::Leaving | Standing::Superseded => Finding::Unexpected,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Tally {
    refusal: StatusCode,
    answers: BTreeMap<(Standing, Answer), u64>,
}

impl Tally {
    pub(crate) fn new(refusal: StatusCode) -> Tally {
        Tally { refusal, answers: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, standing: Standing, answer: Answer) -> Finding {
        let finding = Finding::of(standing, &answer, self.refusal);
        *self.answers.entry((standing, answer)).or_default() += 1;
        finding
    }

    fn all(&self) -> impl Iterator<Item = (Standing, &Answer, u64, Finding)> {
        self.answers.iter().map(|((standing, answer), count)| {
            (*standing, answer, *count, Finding::of(*standing, answer, self.refusal))
        })
    }

    pub(crate) fn sum(&self, which: impl Fn(Standing, &Answer, Finding) -> bool) -> u64 {
        let which = |all: &(Standing, &Answer, u64, Finding)| which(all.0, all.1, all.3);
        self.all().filter(which).map(|(_, _, count, _)| count).sum()
    }

    pub(crate) fn answered(&self) -> u64 {
        self.answers.values().sum()
    }

    pub(crate) fn count(&self, wanted: Finding) -> u64 {
        self.sum(|_, _, finding| finding == wanted)
    }

    /// Without any superseded request, nobody knows whether they are refused.
    fn superseded(&self) -> u64 {
        self.sum(|standing, _, _| standing == Standing::Superseded)
    }

    /// Requests that were served, but not by this worker.
    pub(crate) fn elsewhere(&self, worker: AtWorker) -> u64 {
        self.sum(|_, answer, _| answer.is_success()).saturating_sub(worker.begun)
    }

    /// Requests at the worker that were answered as refused. One without an answer may have passed.
    fn uninvited(&self, worker: AtWorker, missing: u64) -> u64 {
        let may_have_passed = self.sum(|_, answer, finding| {
            answer.may_have_passed()
                && (finding == Finding::Served || answer.status != self.refusal)
        });
        worker.begun.saturating_sub(may_have_passed + missing)
    }

    /// Counts that should be 0, of a run in which so many requests have no answer.
    fn figures(&self, missing: u64, worker: Option<AtWorker>) -> Vec<(u64, &'static str)> {
        let mut figures = vec![
            (self.count(Finding::FalseRefusal), "false refusals"),
            (self.count(Finding::FalseAdmission), "false admissions"),
            (self.count(Finding::Unexpected), "unexpected answers"),
            (missing, "no answer"),
        ];
        if let Some(worker) = worker {
            let Breaches { went_down, after_successor, overlapped, shared_revision } =
                worker.breaches;
            let breaches = went_down.max(after_successor) + overlapped + shared_revision;
            figures.push((breaches, "out of order at the worker"));
            figures.push((self.uninvited(worker, missing), "refused, and at the worker"));
            figures.push((self.elsewhere(worker), "served elsewhere"));
        }
        figures
    }

    /// The figures in one line.
    pub(crate) fn verdict(&self, missing: u64, worker: Option<AtWorker>) -> String {
        let tried = if self.superseded() > 0 { "" } else { ", nothing superseded tried" };
        let figures = self.figures(missing, worker).into_iter();
        let figures: Vec<_> = figures.map(|(count, name)| format!("{count} {name}")).collect();
        format!("{}{tried}", figures.join(", "))
    }

    pub(crate) fn conclusion(&self, missing: u64, worker: Option<AtWorker>) -> Conclusion {
        if self.figures(missing, worker).iter().any(|(count, _)| *count > 0) {
            Conclusion::NotAsExpected
        } else if self.count(Finding::PutOff) > 0 {
            Conclusion::PutOff
        } else {
            Conclusion::AsExpected
        }
    }

    /// The counts, for a report to add to.
    pub(crate) fn as_json(&self, missing: u64, worker: Option<AtWorker>) -> Value {
        let mut put_off = json!({});
        let answers = self.all().map(|(standing, answer, count, finding)| {
            let (answer_text, finding_text) = (answer.to_string(), format!("{finding:?}"));
            if finding == Finding::PutOff {
                let reason = answer.reason.as_deref().unwrap_or("no reason");
                put_off[reason] = json!(put_off[reason].as_u64().unwrap_or(0) + count);
            }
            json!({
                "from": standing.to_string(), "answer": answer_text,
                "count": count, "finding": finding_text,
            })
        });
        let answers: Vec<Value> = answers.collect();
        let mut json = json!({
            "answered": self.answered(),
            "answers": answers,
            "false_refusals": self.count(Finding::FalseRefusal),
            "false_admissions": self.count(Finding::FalseAdmission),
            "superseded_and_answered": self.superseded(),
            "put_off": self.count(Finding::PutOff),
            "put_off_by_reason": put_off,
            "unexpected": self.count(Finding::Unexpected),
            "worker": null,
        });
        if let Some(worker) = worker {
            json["worker"] = json!({
                "requests": worker.begun,
                "done_elsewhere": self.elsewhere(worker),
                "reached_though_refused": self.uninvited(worker, missing),
                "breaches": worker.breaches,
            });
        }
        json
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.all().try_for_each(|(standing, answer, count, finding)| {
            let mark = match finding {
                Finding::Served | Finding::Refused => "",
                Finding::FalseRefusal => "  FALSE REFUSAL",
                Finding::FalseAdmission => "  FALSE ADMISSION",
                Finding::PutOff => "  PUT OFF",
                Finding::Unexpected => "  UNEXPECTED",
            };
            writeln!(f, "  {count:>10}  {standing:<10}  {answer}{mark}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(standing: Standing, status: u16, reason: &str, expected: Finding) {
        let reason = (!reason.is_empty()).then(|| reason.to_owned());
        let answer = Answer { status: StatusCode::from_u16(status).unwrap(), reason };
        let finding = Finding::of(standing, &answer, StatusCode::PRECONDITION_FAILED);
        assert_eq!(finding, expected, "{standing:?} {answer}");
    }

    #[test]
    fn holder_must_be_served() {
        check(Standing::Holder, 200, "", Finding::Served);
        check(Standing::Holder, 204, "", Finding::Served);
        check(Standing::Holder, 412, "stale-tenure", Finding::FalseRefusal);
        check(Standing::Holder, 403, "identity-mismatch", Finding::FalseRefusal);
        check(Standing::Holder, 412, "", Finding::FalseRefusal);
        check(Standing::Holder, 502, "", Finding::Unexpected);
    }

    #[test]
    fn superseded_request_must_be_refused() {
        check(Standing::Superseded, 412, "stale-tenure", Finding::Refused);
        check(Standing::Superseded, 200, "", Finding::FalseAdmission);
        // In shadow mode a reason stands beside the served response.
        check(Standing::Superseded, 200, "stale-tenure", Finding::FalseAdmission);
        check(Standing::Superseded, 500, "", Finding::Unexpected);
    }

    #[test]
    fn leaving_holder_may_be_either() {
        check(Standing::Leaving, 200, "", Finding::Served);
        check(Standing::Leaving, 412, "stale-tenure", Finding::Refused);
        check(Standing::Leaving, 503, "handoff-timeout", Finding::Refused);
        // A worker that answers 503 to everybody made a run with handoffs end with 1, not 2.
        check(Standing::Leaving, 503, "", Finding::PutOff);
        check(Standing::Leaving, 502, "", Finding::Unexpected);
    }

    #[test]
    fn status_503_puts_off_and_is_no_verdict() {
        for reason in
            ["unverifiable", "store-regressed", "handoff-timeout", "out-of-group", "draining"]
        {
            check(Standing::Holder, 503, reason, Finding::PutOff);
            check(Standing::Superseded, 503, reason, Finding::PutOff);
        }
        check(Standing::Holder, 503, "", Finding::PutOff);
        check(Standing::Superseded, 503, "", Finding::Unexpected);
    }

    #[test]
    fn refusal_with_503_is_no_put_off() {
        let refusal = StatusCode::SERVICE_UNAVAILABLE;
        let answer = Answer { status: refusal, reason: None };
        let of = |standing| Finding::of(standing, &answer, refusal);
        let expected = (Finding::FalseRefusal, Finding::Refused);
        assert_eq!((of(Standing::Holder), of(Standing::Superseded)), expected);
    }

    fn tally(answers: &[(Standing, u16, &str, u64)]) -> Tally {
        let mut tally = Tally::new(StatusCode::PRECONDITION_FAILED);
        for (standing, status, reason, count) in answers {
            let reason = (!reason.is_empty()).then(|| (*reason).to_owned());
            let answer = Answer { status: StatusCode::from_u16(*status).unwrap(), reason };
            for _ in 0..*count {
                tally.add(*standing, answer.clone());
            }
        }
        tally
    }

    const SERVED: (Standing, u16, &str, u64) = (Standing::Holder, 200, "", 2);
    const REFUSED: (Standing, u16, &str, u64) = (Standing::Superseded, 412, "stale-tenure", 1);

    #[test]
    fn one_wrong_answer_is_not_as_expected() {
        let conclude = |more| tally(&[SERVED, REFUSED, more]).conclusion(0, None);
        assert_eq!(tally(&[SERVED, REFUSED]).conclusion(0, None), Conclusion::AsExpected);
        assert_eq!(tally(&[SERVED]).conclusion(1, None), Conclusion::NotAsExpected);
        for wrong in [
            (Standing::Holder, 412, "no-owner", 1),
            (Standing::Superseded, 200, "", 1),
            (Standing::Holder, 502, "", 1),
        ] {
            assert_eq!(conclude(wrong), Conclusion::NotAsExpected, "{wrong:?}");
        }
        let put_off = tally(&[SERVED, (Standing::Holder, 503, "unverifiable", 2)]);
        assert_eq!(put_off.conclusion(0, None), Conclusion::PutOff);
        let reasons = &put_off.as_json(0, None)["put_off_by_reason"];
        assert_eq!(*reasons, json!({ "unverifiable": 2 }));
    }

    #[test]
    fn worker_that_disagrees_is_wrong() {
        let check = |begun, overlapped, missing, expected: [u64; 2]| {
            let breaches = Breaches { overlapped, ..Breaches::default() };
            let (tally, worker) = (tally(&[SERVED, REFUSED]), AtWorker { begun, breaches });
            let found = [tally.elsewhere(worker), tally.uninvited(worker, missing)];
            assert_eq!(found, expected, "{worker:?}");
            let is_right = tally.conclusion(missing, Some(worker)) == Conclusion::AsExpected;
            assert_eq!(is_right, expected == [0, 0] && overlapped + missing == 0);
        };
        check(2, 0, 0, [0, 0]);
        check(1, 0, 0, [1, 0]);
        check(3, 0, 0, [0, 1]);
        check(3, 0, 1, [0, 0]);
        check(2, 1, 0, [0, 0]);
    }
}
