//! Counts and latencies of answers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hyper::StatusCode;

use super::verdict::{Finding, Standing, Tally};
use crate::client::Answer;
use crate::durations::Durations;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) begin: Instant,
    pub(crate) length: Duration,
}

impl Window {
    fn has(&self, moment: Instant) -> bool {
        moment >= self.begin && moment < self.begin + self.length
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    window: Window,
    /// All answers since the start, those in the warm-up and late ones included.
    pub(crate) tally: Tally,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) unanswered: u64,
    pub(crate) unsent: u64,
    pub(crate) answered_within: u64,
    pub(crate) right_within: u64,
    /// Latencies of requests due within the window.
    pub(crate) latencies: Latencies,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies {
    /// With the requests that were not sent, or not answered in time: each counts with the time
    /// until it was given up. Without them a proxy that hangs would look fast.
    pub(crate) served: Durations,
    /// Times of superseded requests, counted like [`served`](Self::served).
    pub(crate) refused: Durations,
    pub(crate) put_off: Durations,
    pub(crate) failed: Durations,
    /// How late requests were sent for which a connection was free.
    pub(crate) lag: Durations,
    /// How long other requests waited for a connection.
    pub(crate) queued: Durations,
}

impl Recorder {
    pub(crate) fn new(window: Window, refusal: StatusCode) -> Recorder {
        let (tally, latencies) = (Tally::new(refusal), Latencies::default());
        let (unanswered, unsent, answered_within, right_within) = (0, 0, 0, 0);
        let errors = BTreeMap::new();
        Recorder {
            window,
            tally,
            errors,
            unanswered,
            unsent,
            answered_within,
            right_within,
            latencies,
        }
    }

    pub(crate) fn answered(&mut self, due: Instant, standing: Standing, answer: Answer) -> Finding {
        let (now, finding) = (Instant::now(), self.tally.add(standing, answer));
        if self.window.has(now) {
            self.answered_within += 1;
            self.right_within += u64::from(finding.is_right());
        }
        let latencies = match finding {
            Finding::Served => Some(&mut self.latencies.served),
            Finding::Refused => Some(&mut self.latencies.refused),
            Finding::PutOff => Some(&mut self.latencies.put_off),
            Finding::FalseRefusal | Finding::FalseAdmission | Finding::Unexpected => None,
        };
        if let Some(latencies) = latencies.filter(|_| self.window.has(due)) {
            latencies.add(now - due);
        }
        finding
    }

    pub(crate) fn failed(&mut self, due: Instant, why: String) {
        if self.window.has(due) {
            self.latencies.failed.add(due.elapsed());
        }
        *self.errors.entry(why).or_default() += 1;
    }

    /// The answer to a request that was due then is not awaited any longer.
    pub(crate) fn abandoned(&mut self, due: Instant, standing: Standing) {
        self.unanswered += 1;
        if self.window.has(due) {
            match standing {
                Standing::Superseded => self.latencies.refused.add(due.elapsed()),
                Standing::Holder | Standing::Leaving => self.latencies.served.add(due.elapsed()),
            }
        }
    }

    /// A request that was due then had not been sent when the run was over.
    pub(crate) fn unsent(&mut self, due: Instant, over: Instant) {
        self.unsent += 1;
        if self.window.has(due) {
            self.latencies.served.add(over.saturating_duration_since(due));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder(begin: Instant) -> Recorder {
        let window = Window { begin, length: Duration::from_secs(1) };
        Recorder::new(window, StatusCode::PRECONDITION_FAILED)
    }

    fn answer(status: u16) -> Answer {
        Answer { status: StatusCode::from_u16(status).unwrap(), reason: None }
    }

    #[test]
    fn warm_up_counts_for_verdicts() {
        let (now, begin) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
        let mut recorder = recorder(begin);
        recorder.answered(now, Standing::Superseded, answer(200));
        recorder.answered(now, Standing::Holder, answer(200));
        assert_eq!((recorder.latencies.served.count(), recorder.answered_within), (0, 0));
        assert_eq!(recorder.tally.answered(), 2);
    }

    /// A server that hung until the end of the run looked as fast as it had been before.
    #[test]
    fn unsent_request_counts_since_due() {
        let begin = Instant::now();
        let mut recorder = recorder(begin);
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        recorder.answered(begin, Standing::Holder, answer(200));
        (500..1000).step_by(5).for_each(|due| recorder.unsent(at(due), at(2000)));
        recorder.unsent(begin - Duration::from_millis(1), at(2000));
        let served = &recorder.latencies.served;
        assert_eq!((recorder.unsent, served.count()), (101, 101));
        assert!(served.at(0.9).unwrap() > Duration::from_millis(1400), "{served}");
    }

    #[test]
    fn answers_count_by_what_they_show() {
        let begin = Instant::now();
        let mut recorder = recorder(begin);
        for status in [200, 412, 503] {
            recorder.answered(begin, Standing::Holder, answer(status));
        }
        recorder.failed(begin, "gone".to_owned());
        let Latencies { served, put_off, failed, .. } = &recorder.latencies;
        assert_eq!((served.count(), put_off.count(), failed.count()), (1, 1, 1));
        assert_eq!((recorder.answered_within, recorder.right_within), (3, 1));
        assert_eq!(recorder.errors["gone"], 1);
    }
}
