//! Whether an answer is right.

use hyper::StatusCode;

use crate::answer::Answer;

/// What its sender was to the lock while a request was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Standing {
    /// It held the lock the whole time.
    Holder,
    /// It held the lock when it sent the request, and began to give it up before the answer came.
    Leaving,
    /// Its tenure had ended, and a successor had been served, before it sent the request.
    Superseded,
}

impl Standing {
    /// What it is called in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Standing::Holder => "holder",
            Standing::Leaving => "leaving",
            Standing::Superseded => "superseded",
        }
    }
}

/// Which answers are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Those of a fence, which refuses what is superseded with this status.
    Fenced(StatusCode),
    /// Those with this status, whoever asks.
    Status(StatusCode),
}

/// What an answer shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The request was served, as it should be or may be.
    Served,
    /// The request was refused, as it should be or may be.
    Refused,
    /// The lock's holder was refused.
    FalseRefusal,
    /// The proxy could not say, or not let it pass, just now: 503. Nobody was judged wrongly, and the sender was not served.
    PutOff,
    /// A superseded request was served.
    FalseAdmission,
    /// Neither served nor refused as a fence does it.
    Unexpected,
}

/// What is not as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A fence does not do so.
    Wrong,
    /// Nobody was judged wrongly, and somebody was told to come again.
    PutOff,
    /// Nobody was judged, for want of an answer.
    Missing,
}

impl Finding {
    /// What is not as it should be; `None` if all is.
    pub(crate) fn fault(self) -> Option<Fault> {
        match self {
            Finding::Served | Finding::Refused => None,
            Finding::PutOff => Some(Fault::PutOff),
            Finding::FalseRefusal | Finding::FalseAdmission | Finding::Unexpected => Some(Fault::Wrong),
        }
    }

    /// Of an answer, where those are expected.
    pub(crate) fn of(standing: Standing, answer: &Answer, expected: Expected) -> Finding {
        match expected {
            Expected::Fenced(refusal) => Finding::of_a_fence(standing, answer, refusal),
            Expected::Status(status) if answer.status == status => Finding::Served,
            Expected::Status(_) => Finding::Unexpected,
        }
    }

    fn of_a_fence(standing: Standing, answer: &Answer, refusal: StatusCode) -> Finding {
        let (is_served, has_status) = (answer.is_success(), answer.status == refusal);
        let is_refused = has_status || answer.reason.is_some();
        let is_put_off = answer.is_put_off() && !has_status;
        match standing {
            Standing::Holder | Standing::Leaving if is_served => Finding::Served,
            Standing::Superseded if is_served => Finding::FalseAdmission,
            // Without a reason too: no connection to the worker was free, or the worker itself said so.
            Standing::Holder if is_put_off => Finding::PutOff,
            Standing::Holder if is_refused => Finding::FalseRefusal,
            Standing::Leaving if is_refused => Finding::Refused,
            Standing::Leaving if is_put_off => Finding::PutOff,
            Standing::Superseded if has_status => Finding::Refused,
            // Only with a reason: without one it may be the worker that answers, to whom this must never come.
            Standing::Superseded if is_put_off && answer.reason.is_some() => Finding::PutOff,
            Standing::Holder | Standing::Leaving | Standing::Superseded => Finding::Unexpected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(standing: Standing, status: u16, reason: &str, expected: Finding) {
        let reason = (!reason.is_empty()).then(|| reason.to_owned());
        let answer = Answer { status: StatusCode::from_u16(status).unwrap(), reason };
        let fenced = Expected::Fenced(StatusCode::PRECONDITION_FAILED);
        assert_eq!(Finding::of(standing, &answer, fenced), expected, "{standing:?} {answer}");
    }

    #[test]
    fn a_holder_is_served_and_whatever_refuses_it_is_wrong() {
        check(Standing::Holder, 200, "", Finding::Served);
        check(Standing::Holder, 204, "", Finding::Served);
        check(Standing::Holder, 412, "stale-tenure", Finding::FalseRefusal);
        check(Standing::Holder, 403, "identity-mismatch", Finding::FalseRefusal);
        check(Standing::Holder, 412, "", Finding::FalseRefusal);
        check(Standing::Holder, 502, "", Finding::Unexpected);
    }

    #[test]
    fn a_superseded_request_is_refused_and_with_the_right_status() {
        check(Standing::Superseded, 412, "stale-tenure", Finding::Refused);
        check(Standing::Superseded, 200, "", Finding::FalseAdmission);
        // A route in shadow mode says what it would have done, and does not do it.
        check(Standing::Superseded, 200, "stale-tenure", Finding::FalseAdmission);
        check(Standing::Superseded, 500, "", Finding::Unexpected);
    }

    #[test]
    fn whoever_is_told_to_come_again_is_judged_neither_rightly_nor_wrongly() {
        for reason in ["unverifiable", "store-regressed", "handoff-timeout", "draining"] {
            check(Standing::Holder, 503, reason, Finding::PutOff);
            check(Standing::Superseded, 503, reason, Finding::PutOff);
        }
        check(Standing::Holder, 503, "", Finding::PutOff);
        check(Standing::Superseded, 503, "", Finding::Unexpected);
    }

    #[test]
    fn a_fence_that_refuses_with_503_is_judged_by_its_own_status() {
        let answer = Answer { status: StatusCode::SERVICE_UNAVAILABLE, reason: None };
        let of = |standing| Finding::of(standing, &answer, Expected::Fenced(StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!((of(Standing::Holder), of(Standing::Superseded)), (Finding::FalseRefusal, Finding::Refused));
    }

    #[test]
    fn where_one_status_is_expected_it_alone_is_right() {
        for (status, reason) in [(200, None), (412, Some("stale-tenure")), (503, Some("unverifiable")), (502, None)] {
            let answer = Answer { status: StatusCode::from_u16(status).unwrap(), reason: reason.map(str::to_owned) };
            let of = |expected| Finding::of(Standing::Holder, &answer, Expected::Status(expected));
            assert_eq!((of(answer.status), of(StatusCode::NO_CONTENT)), (Finding::Served, Finding::Unexpected));
        }
    }

    #[test]
    fn who_is_leaving_may_be_served_or_refused() {
        check(Standing::Leaving, 200, "", Finding::Served);
        check(Standing::Leaving, 412, "stale-tenure", Finding::Refused);
        check(Standing::Leaving, 503, "handoff-timeout", Finding::Refused);
        // As of a holder: a worker that answers 503 to everybody made a run with handoffs end with 1 instead of 2.
        check(Standing::Leaving, 503, "", Finding::PutOff);
        check(Standing::Leaving, 502, "", Finding::Unexpected);
    }
}
