use super::*;
use crate::cli::{Cli, Command};
use crate::machine::CpuShare;
use clap::Parser;
use hyper::StatusCode;
use std::time::Instant;

fn plan() -> Plan {
    let words = ["fencepost-loadtest", "closed", "--proxy", "http://127.0.0.1:1", "--owner", "a", "--revision", "7"];
    let Command::Closed(settings) = Cli::try_parse_from(words).unwrap().command else {
        panic!("this is a closed loop")
    };
    Plan::of(&settings, None).unwrap()
}

/// A run whose only thread was that busy, and did the rest as it is told.
fn outcome(busy: f64, more: impl FnOnce(&mut Sent)) -> Outcome {
    let window = Window { begin: Instant::now(), length: Duration::from_secs(1) };
    let mut recorder = Recorder::new(window);
    let answer = Answer { status: StatusCode::OK, reason: None };
    recorder.answered(window.begin, Standing::Holder, answer, Finding::Served);
    let cpu = CpuShare { had: busy, waited: 0.0, of: window.length };
    let mut sent = Sent { recorder, cpu, ended: window.begin + window.length };
    more(&mut sent);
    Outcome::of(&plan(), window, vec![sent], None, None)
}

#[test]
fn a_generator_that_was_the_limit_says_so() {
    for (busy, is_limit) in [(0.5, false), (0.95, true)] {
        let outcome = outcome(busy, |_| {});
        assert_eq!(outcome.to_string().contains("the generator was the limit"), is_limit, "{outcome}");
        assert_eq!(outcome.as_json()["generator"]["was_the_limit"], is_limit);
        assert_eq!(outcome.conclusion(), Conclusion::AsExpected, "what was judged stands");
    }
}

#[test]
fn whatever_is_missing_or_out_of_order_is_not_as_expected() {
    let changes: [fn(&mut Sent); 5] = [
        |sent| sent.recorder.unsent = 1,
        |sent| sent.recorder.unanswered = 1,
        |sent| sent.recorder.failed(Instant::now(), "gone".to_owned()),
        |sent| sent.recorder.answers.clear(),
        |sent| sent.recorder.false_refusals = 1,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        assert_eq!(outcome(0.5, change).conclusion(), Conclusion::NotAsExpected, "{number}");
    }
    let put_off = |sent: &mut Sent| {
        sent.recorder.put_off.insert("unverifiable".to_owned(), 2);
    };
    assert_eq!(outcome(0.5, put_off).conclusion(), Conclusion::PutOff);
    let and_wrong = outcome(0.5, |sent| {
        put_off(sent);
        sent.recorder.false_refusals = 1;
    });
    assert_eq!(and_wrong.conclusion(), Conclusion::NotAsExpected);
    let mut outcome = outcome(0.5, |_| {});
    let breaches = Breaches { overlapped: 1, ..Breaches::default() };
    outcome.worker_saw(Some(AtWorker { begun: 1, breaches }));
    assert_eq!(outcome.conclusion(), Conclusion::NotAsExpected);
}

#[test]
fn what_was_served_must_have_been_at_the_worker_and_what_was_refused_not() {
    let refused = |sent: &mut Sent| {
        let answer = Answer { status: StatusCode::PRECONDITION_FAILED, reason: Some("stale-tenure".to_owned()) };
        sent.recorder.answered(Instant::now(), Standing::Superseded, answer, Finding::Refused);
    };
    for (begun, expected) in
        [(0, Conclusion::NotAsExpected), (1, Conclusion::AsExpected), (2, Conclusion::NotAsExpected)]
    {
        let mut outcome = outcome(0.5, refused);
        outcome.worker_saw(Some(AtWorker { begun, ..AtWorker::default() }));
        assert_eq!(outcome.conclusion(), expected, "{outcome}");
        let worker = &outcome.as_json()["worker"];
        let (elsewhere, uninvited) = (u64::from(begun == 0), u64::from(begun == 2));
        assert_eq!(worker["requests"], begun, "{worker:#}");
        assert_eq!(
            (&worker["done_elsewhere"], &worker["reached_though_refused"]),
            (&elsewhere.into(), &uninvited.into()),
            "{worker:#}"
        );
    }
}

#[test]
fn what_has_no_answer_may_have_been_at_the_worker() {
    let changes: [fn(&mut Sent); 2] =
        [|sent| sent.recorder.unanswered = 1, |sent| sent.recorder.failed(Instant::now(), "gone".to_owned())];
    for change in changes {
        let mut outcome = outcome(0.5, change);
        outcome.worker_saw(Some(AtWorker { begun: 2, ..AtWorker::default() }));
        assert_eq!(outcome.uninvited(), 0, "{outcome}");
    }
}

/// A run that was ended early had slots of nothing up to its planned end, and what was left of a second was drawn as a whole slot.
#[test]
fn slots_end_with_what_was_measured_and_rates_are_of_whole_ones() {
    let milliseconds = Duration::from_millis;
    for (measured, slots, with_rates) in
        [(None, 21, 20), (Some(330), 7, 6), (Some(350), 7, 7), (Some(20), 1, 1), (Some(0), 0, 0)]
    {
        let mut outcome = outcome(0.5, |_| {});
        outcome.window.length = milliseconds(1020);
        outcome.recorder = Recorder::new(outcome.window);
        outcome.ended_early = measured.map(|measured| outcome.plan.warm_up + milliseconds(measured));
        assert_eq!((outcome.slots().len(), outcome.slots_with_rates().len()), (slots, with_rates), "{measured:?}");
        let all: Duration = (0..slots).map(|number| outcome.slot_length(number)).sum();
        assert_eq!(all, milliseconds(measured.unwrap_or(1020)));
    }
}

#[test]
fn locks_that_were_to_move_and_did_not_are_not_as_expected() {
    let mut outcome = outcome(0.5, |_| {});
    outcome.plan.handoff_every = Some(Duration::from_millis(100));
    assert_eq!(outcome.conclusion(), Conclusion::NotAsExpected);
    assert!(outcome.to_string().contains("no lock changed hands"), "{outcome}");
    outcome.ended_early = Some(Duration::from_millis(50));
    assert_eq!(outcome.conclusion(), Conclusion::AsExpected, "there was no time for it");
}
