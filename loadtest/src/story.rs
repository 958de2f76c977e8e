//! `story`: the delayed write, over the wire.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::Conclusion;
use crate::cli::StoryOptions;
use crate::client::{Answer, Connection, Protocol, Target, Token};
use crate::lock::Lock;
use crate::report::print;
use crate::stop::Stop;
use crate::worker::Worker;

const DONE: &str = "2xx";
const REPLAY_REFUSED: &str = "412 replayed-tenure";

pub(crate) async fn run(options: StoryOptions) -> Result<Conclusion> {
    let worker = Worker::listen(options.proxy.worker_listen, Duration::ZERO).await?;
    let stop = Stop::when_asked()?;
    let mut story = Story::default();
    let played = tokio::select! {
        played = story.play(&options) => played,
        () = stop.stopped() => Err(anyhow!("ended early")),
    };
    let Story { at, steps, lock } = story;
    let given_back = match lock {
        Some(lock) => lock.give_back().await,
        None => Ok(()),
    };
    if !steps.is_empty() {
        print_table(&steps);
    }
    played.and(given_back).with_context(|| format!("the story was at: {at}"))?;
    let reached = worker.is_none_or(|worker| reached_as_answered(&steps, &worker.order().begun()));
    let conclusion = if reached { conclude(&steps) } else { Conclusion::NotAsExpected };
    print(match conclusion {
        Conclusion::AsExpected => "\nThe story ended as it should.\n",
        Conclusion::PutOff => "\nThe story shows nothing: the proxy answered with 503.\n",
        Conclusion::NotAsExpected => "\nThe story did NOT end as it should.\n",
    });
    Ok(conclusion)
}

#[derive(Default)]
struct Story {
    at: &'static str,
    steps: Vec<Step>,
    lock: Option<Lock>,
}

impl Story {
    async fn play(&mut self, options: &StoryOptions) -> Result<()> {
        self.at = "connecting to etcd";
        let lock = self.lock.insert(Lock::open(&options.lock, Duration::ZERO).await?).clone();
        self.at = "connecting to the proxy";
        let target = Target::of(&options.proxy, Protocol::Http1)?;
        let connection = Connection::open(&target, None).await?;
        let path = options.proxy.path.of(0);

        self.at = "shard-1 takes the lock";
        let first = lock.acquire("shard-1").await?;
        let r1 = &first.token;
        print(format_args!("shard-1 takes the lock and sends R1 = {r1}. The network is slow.\n"));

        self.at = "shard-2 takes the lock from shard-1";
        lock.release(&first).await?;
        let second = lock.acquire("shard-2").await?;
        let r2 = &second.token;
        print(format_args!("The lease of shard-1 ends. shard-2 takes it and sends R2 = {r2}.\n"));
        self.at = "R2 is sent, and its answer waited for";
        let answer = connection.ask(&path, r2, "R2").await?;
        self.add("R2", r2, DONE, answer);

        self.at = "shard-1 takes the lock from shard-2";
        lock.release(&second).await?;
        let r3 = &lock.acquire("shard-1").await?.token;
        print(format_args!("shard-2 crashes. shard-1 takes the lock and sends R3 = {r3}.\n"));
        self.at = "R3 is sent, and its answer waited for";
        let answer = connection.ask(&path, r3, "R3").await?;
        self.add("R3", r3, DONE, answer);

        print(format_args!("R1 = {r1} arrives: the present owner's, of an earlier tenure.\n"));
        self.at = "R1 is sent, and its answer waited for";
        let answer = connection.ask(&path, r1, "R1").await?;
        self.add("R1", r1, REPLAY_REFUSED, answer);
        self.at = "the lock is given back";
        Ok(())
    }

    fn add(&mut self, what: &'static str, token: &Token, expected: &'static str, answer: Answer) {
        self.steps.push(Step { what, token: token.clone(), expected, answer });
    }
}

#[derive(Debug)]
struct Step {
    what: &'static str,
    token: Token,
    /// A status and a reason, or "2xx".
    expected: &'static str,
    answer: Answer,
}

impl Step {
    fn is_as_expected(&self) -> bool {
        match self.expected {
            DONE => self.answer.is_success(),
            exact => self.answer.to_string() == exact,
        }
    }

    /// Whether the sender is to come again. Without a reason, no connection to the worker was free;
    /// a request that must be refused never gets so far.
    fn is_put_off(&self) -> bool {
        (self.expected == DONE || self.answer.reason.is_some()) && self.answer.is_put_off()
    }
}

fn conclude(steps: &[Step]) -> Conclusion {
    if steps.iter().all(Step::is_as_expected) {
        Conclusion::AsExpected
    } else if steps.iter().all(|step| step.is_as_expected() || step.is_put_off()) {
        Conclusion::PutOff
    } else {
        Conclusion::NotAsExpected
    }
}

fn print_table(steps: &[Step]) {
    print(format_args!("\n{:<12} {:<20} {:<20} {:<28}\n", "step", "token", "expected", "answer"));
    for step in steps {
        let mark = match (step.is_as_expected(), step.is_put_off()) {
            (true, _) => "ok",
            (false, true) => "PUT OFF",
            (false, false) => "WRONG",
        };
        let (token, answer) = (step.token.to_string(), step.answer.to_string());
        let (what, expected) = (format!("{} arrives", step.what), step.expected);
        print(format_args!("{what:<12} {token:<20} {expected:<20} {answer:<28} {mark}\n"));
    }
}

/// Prints what reached the worker; false if that differs from the answers.
fn reached_as_answered(steps: &[Step], begun: &BTreeMap<i64, u64>) -> bool {
    let mut left = begun.clone();
    let is_right = steps.iter().all(|step| match left.remove(&step.token.revision()) {
        Some(count) => count == 1 && step.answer.may_have_passed(),
        // The worker may have been out of reach.
        None => !step.answer.may_have_passed() || step.is_put_off(),
    });
    let is_right = is_right && left.is_empty();
    let revisions: Vec<&i64> = begun.keys().collect();
    let doubt = if is_right { "." } else { ", unlike the answers. Is it fencepost's upstream?" };
    print(format_args!("\nThe worker saw the revisions {revisions:?}{doubt}\n"));
    is_right
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::StatusCode;

    fn step(expected: &'static str, status: u16, reason: &str) -> Step {
        let reason = (!reason.is_empty()).then(|| reason.to_owned());
        let answer = Answer { status: StatusCode::from_u16(status).unwrap(), reason };
        let token = Token::new("shard-1", 7).unwrap();
        Step { what: "R", token, expected, answer }
    }

    #[test]
    fn r1_needs_the_exact_refusal() {
        assert!(step(REPLAY_REFUSED, 412, "replayed-tenure").is_as_expected());
        for (status, reason) in [
            (200, ""),
            (200, "replayed-tenure"),
            (412, ""),
            (412, "stale-tenure"),
            (503, "replayed-tenure"),
            (502, ""),
        ] {
            let step = step(REPLAY_REFUSED, status, reason);
            assert!(!step.is_as_expected(), "{step:?}");
        }
    }

    #[test]
    fn story_that_is_put_off_shows_nothing() {
        let done = || step(DONE, 200, "");
        let put_off = || step(DONE, 503, "unverifiable");
        let check = |steps: &[Step], expected| assert_eq!(conclude(steps), expected);
        check(&[done(), step(DONE, 204, "")], Conclusion::AsExpected);
        check(&[done(), put_off()], Conclusion::PutOff);
        check(&[done(), step(DONE, 503, "")], Conclusion::PutOff);
        check(&[step(REPLAY_REFUSED, 503, "")], Conclusion::NotAsExpected);
        check(&[put_off(), step(REPLAY_REFUSED, 200, "")], Conclusion::NotAsExpected);
        for (status, reason) in [(412, "stale-tenure"), (502, ""), (404, "")] {
            check(&[step(DONE, status, reason)], Conclusion::NotAsExpected);
        }
    }

    #[test]
    fn worker_must_have_seen_what_was_answered() {
        let check = |step: Step, begun: &[(i64, u64)], expected: bool| {
            let begun = begun.iter().copied().collect();
            assert_eq!(reached_as_answered(&[step], &begun), expected, "{begun:?}");
        };
        let done = || step(DONE, 200, "");
        check(done(), &[(7, 1)], true);
        check(done(), &[], false);
        check(done(), &[(7, 2)], false);
        check(done(), &[(7, 1), (5, 1)], false);
        let refused = || step(REPLAY_REFUSED, 412, "replayed-tenure");
        check(refused(), &[], true);
        check(refused(), &[(7, 1)], false);
        let put_off = || step(DONE, 503, "");
        check(put_off(), &[], true);
        check(put_off(), &[(7, 1)], true);
    }
}
