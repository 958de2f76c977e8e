//! What a run of takeovers found.

mod told;

use std::collections::BTreeMap;
use std::time::Duration;

use super::handoffs::Handoffs;
use crate::Conclusion;
use crate::answer::Answer;
use crate::latency::Latencies;
use crate::lock::{Handoff, Layout};
use crate::token::Token;
use crate::worker::{AtWorker, Event};

/// What has been found so far.
#[derive(Debug)]
pub(crate) struct Report {
    layout: Layout,
    wanted: u64,
    /// What became of the first request of each tenure.
    first: BTreeMap<Answer, u64>,
    /// What became of the requests of tenures that had ended.
    late: BTreeMap<Answer, u64>,
    /// From acquire to the first admitted answer.
    latencies: Latencies,
    handoffs: Handoffs,
    worker: Option<AtWorker>,
    /// The first few things that went wrong, in words.
    findings: Vec<String>,
    broke_off: Option<String>,
}

/// How many findings are told in words.
const FINDINGS_MAX: usize = 10;

impl Report {
    /// Of nothing yet.
    pub(crate) fn new(layout: Layout, wanted: u64) -> Report {
        Report {
            layout,
            wanted,
            first: BTreeMap::new(),
            late: BTreeMap::new(),
            latencies: Latencies::default(),
            handoffs: Handoffs::default(),
            worker: None,
            findings: Vec::new(),
            broke_off: None,
        }
    }

    /// How many takeovers there should be.
    pub(crate) fn wanted(&self) -> u64 {
        self.wanted
    }

    /// How many takeovers there have been.
    pub(crate) fn done(&self) -> u64 {
        self.first.values().sum()
    }

    /// A new holder has sent its first request.
    pub(crate) fn first_request(&mut self, token: &Token, answer: Answer, latency: Duration) {
        if answer.is_success() {
            self.latencies.add(latency);
        } else {
            self.find(format!("the true holder {token} was answered {answer}"));
        }
        *self.first.entry(answer).or_default() += 1;
    }

    /// The tenure of that token, whose first request was done, began with a handoff.
    pub(crate) fn handed_over(&mut self, token: &Token, handoff: Handoff) {
        self.handoffs.add(token.revision(), handoff);
    }

    /// A former holder has sent a request, after the present one's was answered.
    pub(crate) fn late_request(&mut self, token: &Token, present: &Token, answer: Answer) {
        if answer.may_have_passed() {
            self.find(format!("{token} was answered {answer}, after {present} had been"));
        }
        *self.late.entry(answer).or_default() += 1;
    }

    /// The run ended before its time.
    pub(crate) fn broke_off(&mut self, why: String) {
        self.broke_off = Some(why);
    }

    /// All is over, and this is what the worker saw.
    pub(crate) fn worker_saw(&mut self, log: &[Event]) {
        self.worker = Some(AtWorker::of(log));
        self.handoffs.worker_saw(log);
        let (missing, uninvited) = (self.missing(), self.uninvited());
        if missing > 0 {
            self.find(format!("{missing} requests were done elsewhere: is --worker-listen fencepost's upstream?"));
        }
        if uninvited > 0 {
            self.find(format!("{uninvited} requests reached the worker although they were refused"));
        }
    }

    /// Whether all was found as it should be.
    pub(crate) fn conclusion(&self) -> Conclusion {
        let nothing_wrong = self.false_refusals() + self.failures() + self.false_admissions() == 0
            && self.missing() + self.uninvited() == 0
            && self.worker.as_ref().is_none_or(|worker| worker.breaches.is_none());
        if !nothing_wrong || self.broke_off.is_some() || self.done() != self.wanted {
            Conclusion::NotAsExpected
        } else if self.put_off() > 0 {
            Conclusion::PutOff
        } else {
            Conclusion::AsExpected
        }
    }

    /// First requests that were done.
    fn admitted(&self) -> u64 {
        count(&self.first, Answer::is_success)
    }

    /// First requests that the fence refused by a verdict, whatever it was.
    fn false_refusals(&self) -> u64 {
        count(&self.first, |answer| !answer.may_have_passed() && !answer.is_put_off())
    }

    /// First requests whose senders were told to come again: by the fence, or because the way to the worker was not free.
    fn put_off(&self) -> u64 {
        count(&self.first, Answer::is_put_off)
    }

    /// First requests that passed the fence and failed then, otherwise than by being put off.
    fn failures(&self) -> u64 {
        self.done() - self.admitted() - self.false_refusals() - self.put_off()
    }

    fn late_refusals(&self) -> u64 {
        count(&self.late, |answer| !answer.may_have_passed())
    }

    /// Late requests that passed the fence, whatever the worker said to them.
    fn false_admissions(&self) -> u64 {
        count(&self.late, Answer::may_have_passed)
    }

    /// Requests that were done, but not by the worker here.
    fn missing(&self) -> u64 {
        let done = self.admitted() + count(&self.late, Answer::is_success);
        self.worker.as_ref().map_or(0, |worker| done.saturating_sub(worker.begun))
    }

    /// Requests at the worker that the fence says it did not let through.
    fn uninvited(&self) -> u64 {
        let passed = count(&self.first, Answer::may_have_passed) + self.false_admissions();
        // What was under way when the run broke off has no answer, but may have reached the worker.
        let unanswered = if self.broke_off.is_some() { 1 } else { 0 };
        self.worker.as_ref().map_or(0, |worker| worker.begun.saturating_sub(passed + unanswered))
    }

    fn find(&mut self, finding: String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }
}

fn count(answers: &BTreeMap<Answer, u64>, which: impl Fn(&Answer) -> bool) -> u64 {
    answers.iter().filter(|(answer, _)| which(answer)).map(|(_, count)| count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Moment;
    use hyper::StatusCode;
    use std::time::Instant;

    const WANTED: u64 = 2;

    fn token(revision: i64) -> Token {
        Token::new("shard-1", revision).unwrap()
    }

    fn answer(status: u16, reason: &str) -> Answer {
        let reason = (!reason.is_empty()).then(|| reason.to_owned());
        Answer { status: StatusCode::from_u16(status).unwrap(), reason }
    }

    /// A run of two takeovers with these answers to the first requests and to the one late request.
    fn report(first: [Answer; 2], late: Answer) -> Report {
        let mut report = Report::new(Layout::Key, WANTED);
        let [one, two] = first;
        report.first_request(&token(10), one, Duration::from_millis(1));
        report.first_request(&token(20), two, Duration::from_millis(2));
        report.late_request(&token(10), &token(20), late);
        report
    }

    fn good() -> Report {
        report([answer(200, ""), answer(200, "")], answer(412, "stale-tenure"))
    }

    fn log(revisions: &[i64]) -> Vec<Event> {
        let event = |moment, revision| {
            let owner = format!("owner of {revision}");
            Event { moment, at: Instant::now(), owner, revision }
        };
        revisions.iter().flat_map(|&each| [event(Moment::Begins, each), event(Moment::Ends, each)]).collect()
    }

    #[test]
    fn all_holders_admitted_and_all_former_ones_refused_is_as_expected() {
        let mut report = good();
        report.worker_saw(&log(&[10, 20]));
        assert_eq!(report.conclusion(), Conclusion::AsExpected, "{report}");
        assert_eq!(report.as_json()["as_expected"], true);
        assert_eq!(report.as_json()["late_answers"]["412 stale-tenure"], 1);
    }

    #[test]
    fn a_refused_holder_is_a_false_refusal_whatever_the_reason() {
        for (status, reason) in [(412, "unknown-revision"), (403, "identity-mismatch")] {
            let report = report([answer(200, ""), answer(status, reason)], answer(412, "stale-tenure"));
            assert_eq!((report.false_refusals(), report.failures()), (1, 0));
            assert_eq!(report.conclusion(), Conclusion::NotAsExpected);
            assert!(report.to_string().contains("the true holder (shard-1, 20) was answered"), "{report}");
        }
    }

    #[test]
    fn a_holder_who_was_put_off_was_not_judged_wrongly() {
        for reason in ["unverifiable", "handoff-timeout"] {
            let mut report = report([answer(200, ""), answer(503, reason)], answer(412, "stale-tenure"));
            report.worker_saw(&log(&[10]));
            assert_eq!((report.put_off(), report.false_refusals(), report.failures()), (1, 0, 0));
            assert_eq!(report.conclusion(), Conclusion::PutOff, "{report}");
            assert_eq!(report.as_json()["put_off"], 1);
        }
    }

    /// As by `worker-overloaded`, or by the worker itself: the worker may have seen it or not.
    #[test]
    fn a_holder_who_was_put_off_without_a_reason_was_not_judged_wrongly_either() {
        for begun in [&[10][..], &[10, 20]] {
            let mut report = report([answer(200, ""), answer(503, "")], answer(412, "stale-tenure"));
            report.worker_saw(&log(begun));
            assert_eq!((report.put_off(), report.false_refusals(), report.failures()), (1, 0, 0));
            assert_eq!(report.conclusion(), Conclusion::PutOff, "{report}");
        }
    }

    #[test]
    fn a_holder_whose_request_failed_at_the_worker_is_no_false_refusal() {
        let report = report([answer(200, ""), answer(502, "")], answer(412, "stale-tenure"));
        assert_eq!((report.false_refusals(), report.failures()), (0, 1));
        assert_eq!(report.conclusion(), Conclusion::NotAsExpected);
    }

    #[test]
    fn a_late_request_that_passed_is_a_false_admission_whatever_the_worker_said() {
        for status in [200, 204, 404, 502] {
            let report = report([answer(200, ""), answer(200, "")], answer(status, ""));
            assert_eq!(report.false_admissions(), 1);
            assert_eq!(report.conclusion(), Conclusion::NotAsExpected);
        }
    }

    /// It was counted as refused: a fence that only looks on says why it would have refused it.
    #[test]
    fn a_late_request_that_was_done_is_a_false_admission_whatever_the_fence_says_of_it() {
        let mut report = report([answer(200, ""), answer(200, "")], answer(200, "stale-tenure"));
        report.worker_saw(&log(&[10, 20, 20]));
        assert_eq!((report.false_admissions(), report.late_refusals(), report.uninvited()), (1, 0, 0));
        assert_eq!(report.conclusion(), Conclusion::NotAsExpected);
        assert!(report.to_string().contains("(shard-1, 10) was answered 200 stale-tenure"), "{report}");
    }

    #[test]
    fn a_late_request_may_be_refused_for_any_reason() {
        for (status, reason) in [(412, "replayed-tenure"), (412, "not-owner"), (503, "unverifiable")] {
            let report = report([answer(200, ""), answer(200, "")], answer(status, reason));
            assert_eq!(report.conclusion(), Conclusion::AsExpected, "{status} {reason}");
        }
    }

    #[test]
    fn an_order_that_went_down_is_told() {
        let mut report = good();
        report.worker_saw(&log(&[20, 10]));
        assert_eq!(report.conclusion(), Conclusion::NotAsExpected);
        assert_eq!(report.as_json()["worker"]["breaches"]["after_successor"], 1);
        assert!(report.to_string().contains("OUT OF ORDER"), "{report}");
    }

    #[test]
    fn a_refused_request_at_the_worker_is_told() {
        let mut report = good();
        report.worker_saw(&log(&[10, 20, 20]));
        assert_eq!(report.uninvited(), 1);
        assert_eq!(report.conclusion(), Conclusion::NotAsExpected);
    }

    #[test]
    fn a_worker_that_is_not_the_one_behind_the_proxy_is_told() {
        let mut report = good();
        report.worker_saw(&[]);
        assert_eq!(report.missing(), 2);
        assert_eq!(report.conclusion(), Conclusion::NotAsExpected);
        assert!(report.to_string().contains("--worker-listen"), "{report}");
    }

    #[test]
    fn a_run_that_broke_off_is_not_as_expected() {
        let mut report = good();
        report.broke_off("etcd is gone".to_owned());
        assert_eq!(report.conclusion(), Conclusion::NotAsExpected);
        let mut short = Report::new(Layout::Key, WANTED);
        short.first_request(&token(10), answer(200, ""), Duration::ZERO);
        assert_eq!(short.conclusion(), Conclusion::NotAsExpected);
    }

    #[test]
    fn only_the_first_findings_are_told_and_all_are_counted() {
        let mut report = Report::new(Layout::Key, 100);
        for revision in 1..=100 {
            report.first_request(&token(revision), answer(412, "no-owner"), Duration::ZERO);
        }
        assert_eq!(report.false_refusals(), 100);
        assert_eq!(report.findings.len(), FINDINGS_MAX);
    }
}
