//! What a run of takeovers found: verdicts on answers, times of handoffs, the order at the worker.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::Conclusion;
use crate::client::{Answer, Token};
use crate::drive::verdict::{Finding, Standing, Tally};
use crate::durations::Durations;
use crate::lock::Handoff;
use crate::worker::{AtWorker, Order};

#[derive(Debug)]
pub(crate) struct Report {
    wanted: u64,
    done: u64,
    tally: Tally,
    /// From acquire to the first request's answer, if it was served.
    acquire_to_answer: Durations,
    /// Handoffs to successors that were served, by their revisions. Nothing was at the worker then.
    handoffs: BTreeMap<i64, Handoff>,
    /// The times of the handoffs that the worker saw: the whole first, then its parts.
    spans: [(&'static str, Durations); 4],
    worker: Option<AtWorker>,
    broke_off: Option<String>,
}

impl Report {
    pub(crate) fn new(wanted: u64) -> Report {
        let names = ["release_to_worker", "release_to_told", "told_to_held", "held_to_worker"];
        Report {
            wanted,
            done: 0,
            tally: Tally::new(StatusCode::PRECONDITION_FAILED),
            acquire_to_answer: Durations::default(),
            handoffs: BTreeMap::new(),
            spans: names.map(|name| (name, Durations::default())),
            worker: None,
            broke_off: None,
        }
    }

    pub(crate) fn wanted(&self) -> u64 {
        self.wanted
    }

    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    pub(crate) fn first_request(
        &mut self,
        token: &Token,
        answer: Answer,
        latency: Duration,
        handoff: Option<Handoff>,
    ) {
        self.done += 1;
        if self.tally.add(Standing::Holder, answer) == Finding::Served {
            self.acquire_to_answer.add(latency);
            self.handoffs.extend(handoff.map(|handoff| (token.revision(), handoff)));
        }
    }

    /// A former holder has sent a request, after the present one's was served.
    pub(crate) fn late_request(&mut self, answer: Answer) {
        self.tally.add(Standing::Superseded, answer);
    }

    pub(crate) fn broke_off(&mut self, why: String) {
        self.broke_off = Some(why);
    }

    /// The run is over, and the worker saw this.
    pub(crate) fn worker_saw(&mut self, order: &Order) {
        self.worker = Some(order.seen());
        for (revision, Handoff { released, told, held }) in &self.handoffs {
            let Some(first) = order.first_of(*revision) else { continue };
            let times = [first - *released, *told - *released, *held - *told, first - *held];
            self.spans.iter_mut().zip(times).for_each(|((_, span), time)| span.add(time));
        }
    }

    pub(crate) fn conclusion(&self) -> Conclusion {
        if self.done < self.wanted {
            return Conclusion::NotAsExpected;
        }
        self.tally.conclusion(self.missing(), self.worker)
    }

    /// The request under way when the run broke off may have reached the worker.
    fn missing(&self) -> u64 {
        u64::from(self.broke_off.is_some())
    }

    pub(crate) fn as_json(&self) -> Value {
        let mut json = self.tally.as_json(self.missing(), self.worker);
        let mut handoffs = json!({ "count": self.spans[0].1.count() });
        for (name, span) in &self.spans {
            handoffs[name] = span.as_json();
        }
        for (name, value) in [
            ("as_expected", json!(self.conclusion() == Conclusion::AsExpected)),
            ("takeovers", json!(self.done)),
            ("takeovers_wanted", json!(self.wanted)),
            ("acquire_to_answer", self.acquire_to_answer.as_json()),
            ("handoffs", handoffs),
            ("broke_off", json!(self.broke_off)),
        ] {
            json[name] = value;
        }
        json
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "takeovers          {} of {}\n{}", self.done, self.wanted, self.tally)?;
        writeln!(f, "acquire to answer  {}", self.acquire_to_answer)?;
        let handoffs = self.spans[0].1.count();
        if handoffs > 0 {
            writeln!(f, "handoffs           {handoffs}, to successors that waited")?;
            for (name, span) in &self.spans {
                writeln!(f, "{:<17}  {span}", name.replace('_', " "))?;
            }
        }
        match self.worker {
            None => writeln!(f, "at the worker      not looked at (--worker-listen)")?,
            Some(worker) => writeln!(f, "at the worker      {worker}")?,
        }
        self.broke_off.iter().try_for_each(|why| writeln!(f, "BROKEN OFF: {why}"))?;
        writeln!(f, "verdict            {}", self.tally.verdict(self.missing(), self.worker))?;
        f.write_str(match self.conclusion() {
            Conclusion::AsExpected => "All as it should be.\n",
            Conclusion::PutOff => "Nothing was wrong, but some holders were put off with 503.\n",
            Conclusion::NotAsExpected => "NOT as it should be.\n",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn token(revision: i64) -> Token {
        Token::new("shard-1", revision).unwrap()
    }

    fn answer(status: u16, reason: &str) -> Answer {
        let reason = (!reason.is_empty()).then(|| reason.to_owned());
        Answer { status: StatusCode::from_u16(status).unwrap(), reason }
    }

    /// Two takeovers: the second holder and the late predecessor get these answers, and the worker
    /// sees these revisions.
    fn report(second: (u16, &str), late: (u16, &str), seen: &[i64]) -> Report {
        let mut report = Report::new(2);
        report.first_request(&token(10), answer(200, ""), Duration::from_millis(1), None);
        let second = answer(second.0, second.1);
        report.first_request(&token(20), second, Duration::from_millis(2), None);
        report.late_request(answer(late.0, late.1));
        let mut order = Order::default();
        for revision in seen {
            order.begins(&format!("owner of {revision}"), *revision, Instant::now());
            order.ends(*revision);
        }
        report.worker_saw(&order);
        report
    }

    const OK: (u16, &str) = (200, "");
    const REFUSED: (u16, &str) = (412, "stale-tenure");

    #[track_caller]
    fn check(second: (u16, &str), late: (u16, &str), seen: &[i64], words: &str, code: Conclusion) {
        let report = report(second, late, seen);
        assert_eq!(report.conclusion(), code, "{report}");
        assert!(report.to_string().contains(words), "{words:?} is not in {report}");
    }

    #[test]
    fn served_holders_are_as_expected() {
        for late in [REFUSED, (412, "replayed-tenure"), (412, "not-owner")] {
            check(OK, late, &[10, 20], "2 requests, revisions never", Conclusion::AsExpected);
        }
        assert_eq!(report(OK, REFUSED, &[10, 20]).as_json()["as_expected"], true);
    }

    #[test]
    fn refused_holder_is_wrong() {
        let wrong = Conclusion::NotAsExpected;
        check((412, "unknown-revision"), REFUSED, &[10], "1 false refusals", wrong);
        check((403, "identity-mismatch"), REFUSED, &[10], "1 false refusals", wrong);
        check((502, ""), REFUSED, &[10, 20], "1 unexpected answers", wrong);
        check(OK, (502, ""), &[10, 20, 20], "1 unexpected answers", wrong);
        // In shadow mode a served response has a reason beside it.
        for late in [OK, (204, ""), (200, "stale-tenure")] {
            check(OK, late, &[10, 20, 20], "1 false admissions", wrong);
        }
    }

    /// Without a reason the worker may have seen the request or not.
    #[test]
    fn holder_with_503_is_put_off() {
        for (reason, seen) in [("unverifiable", &[10][..]), ("", &[10]), ("", &[10, 20])] {
            check((503, reason), REFUSED, seen, "PUT OFF", Conclusion::PutOff);
        }
    }

    #[test]
    fn worker_that_disagrees_is_told() {
        let wrong = Conclusion::NotAsExpected;
        check(OK, REFUSED, &[20, 10], "OUT OF ORDER", wrong);
        check(OK, REFUSED, &[10, 20, 20], "1 refused, and at the worker", wrong);
        check(OK, REFUSED, &[], "2 served elsewhere", wrong);
    }

    #[test]
    fn broken_run_is_not_as_expected() {
        let mut broken = report(OK, REFUSED, &[10, 20]);
        broken.broke_off("etcd is gone".to_owned());
        assert_eq!(broken.conclusion(), Conclusion::NotAsExpected);
        let mut short = Report::new(2);
        short.first_request(&token(10), answer(200, ""), Duration::ZERO, None);
        assert_eq!(short.conclusion(), Conclusion::NotAsExpected);
    }

    #[test]
    fn handoff_ends_at_its_first_request() {
        let (start, mut report) = (Instant::now(), Report::new(2));
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let handoff = Handoff { released: after(100), told: after(101), held: after(103) };
        for revision in [20, 30] {
            let ok = answer(200, "");
            report.first_request(&token(revision), ok, Duration::ZERO, Some(handoff));
        }
        let mut order = Order::default();
        order.begins("shard-1", 20, after(107));
        order.begins("shard-1", 20, after(200));
        report.worker_saw(&order);
        let json = &report.as_json()["handoffs"];
        assert_eq!(json["count"], 1, "the worker did not see 30: {json:#}");
        for (name, milliseconds) in [
            ("release_to_worker", 7.0),
            ("release_to_told", 1.0),
            ("told_to_held", 2.0),
            ("held_to_worker", 4.0),
        ] {
            let p99 = json[name]["p99_seconds"].as_f64().unwrap() * 1000.0;
            assert!((p99 - milliseconds).abs() < 0.01, "{name}: {json:#}");
        }
        assert!(report.to_string().contains("release to worker  of 1: min "), "{report}");
    }
}
