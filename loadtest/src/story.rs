//! The story of the delayed write, over the wire.

use std::fmt;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use hyper::StatusCode;

use crate::Conclusion;
use crate::answer::Answer;
use crate::cli::StorySettings;
use crate::client::{Client, Protocol};
use crate::lock::{Layout, Lock};
use crate::output::print;
use crate::token::Token;
use crate::worker::{Event, Moment, Worker};

/// Plays it and prints how it went.
pub(crate) async fn run(settings: StorySettings) -> anyhow::Result<Conclusion> {
    let worker = match settings.worker_listen {
        Some(address) => Some(Worker::listen(address).await?),
        None => None,
    };
    let asked_to_end = crate::signals::asked_to_end()?;
    let mut telling = Telling::default();
    let told = tokio::select! {
        told = telling.tell(&settings) => told,
        () = asked_to_end => Err(anyhow!("ended early")),
    };
    let Telling { at, steps, lock } = telling;
    // Whatever came of it: the lock is free when the story is over.
    let given_back = match lock {
        Some(lock) => lock.give_back().await,
        None => Ok(()),
    };
    if !steps.is_empty() {
        print_table(&steps);
    }
    told.and(given_back).with_context(|| format!("the story was at: {at}"))?;
    let reached_as_told = match &worker {
        Some(worker) => told_of_worker(&steps, &worker.log()),
        None => true,
    };
    let conclusion = if reached_as_told { conclusion_of(&steps) } else { Conclusion::NotAsExpected };
    print(match conclusion {
        Conclusion::AsExpected => "\nThe story ended as it should.\n",
        Conclusion::PutOff => "\nThe story shows nothing: the proxy put requests off with 503. Nothing was wrong.\n",
        Conclusion::NotAsExpected => "\nThe story did NOT end as it should.\n",
    });
    Ok(conclusion)
}

/// What the answers show.
fn conclusion_of(steps: &[Step]) -> Conclusion {
    if steps.iter().all(Step::is_as_expected) {
        Conclusion::AsExpected
    } else if steps.iter().all(|step| step.is_as_expected() || step.is_put_off()) {
        Conclusion::PutOff
    } else {
        Conclusion::NotAsExpected
    }
}

/// A request of the story.
#[derive(Debug)]
struct Step {
    what: &'static str,
    token: Token,
    expected: Expected,
    answer: Answer,
}

/// What must become of a request.
#[derive(Clone, Copy, Debug)]
enum Expected {
    Done,
    ReplayRefused,
}

impl Step {
    fn is_as_expected(&self) -> bool {
        match self.expected {
            Expected::Done => self.answer.is_success(),
            Expected::ReplayRefused => {
                self.answer.status == StatusCode::PRECONDITION_FAILED
                    && self.answer.reason.as_deref() == Some("replayed-tenure")
            }
        }
    }

    /// Whether its sender was told to come again. A holder may be told so without a reason: the way to the worker was not free. Whoever is to
    /// be refused never gets so far.
    fn is_put_off(&self) -> bool {
        match self.expected {
            Expected::Done => self.answer.is_put_off(),
            Expected::ReplayRefused => self.answer.is_put_off() && self.answer.reason.is_some(),
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Expected::Done => "2xx",
            Expected::ReplayRefused => "412 replayed-tenure",
        })
    }
}

/// How far the story has come.
#[derive(Default)]
struct Telling {
    /// What is being waited for.
    at: &'static str,
    steps: Vec<Step>,
    lock: Option<Lock>,
}

impl Telling {
    /// Tells it from the beginning.
    async fn tell(&mut self, settings: &StorySettings) -> anyhow::Result<()> {
        self.at = "connecting to etcd";
        let lock = self.lock.insert(Lock::open(&settings.lock, Layout::Key).await?).clone();
        self.at = "connecting to the proxy";
        let (path, target) = (&settings.proxy.path, settings.proxy.at.target()?);
        let mut shard_1 = Client::connect(&target, Protocol::Http1).await?;
        let mut shard_2 = Client::connect(&target, Protocol::Http1).await?;

        self.at = "shard-1 takes the lock";
        let first = lock.acquire("shard-1").await?;
        let delayed = first.token.clone();
        print(format_args!("shard-1 takes the lock and sends R1 = {delayed}. The network holds R1 back.\n"));

        self.at = "shard-2 takes the lock from shard-1";
        lock.release(&first).await?;
        let second = lock.acquire("shard-2").await?;
        print(format_args!("The lease of shard-1 ends. shard-2 takes the lock and sends R2 = {}.\n", second.token));
        self.at = "R2 is sent, and its answer waited for";
        let answer = shard_2.send(path, &second.token, Bytes::from_static(b"R2")).await?;
        let token = second.token.clone();
        self.steps.push(Step { what: "R2 arrives", token, expected: Expected::Done, answer });

        self.at = "shard-1 takes the lock from shard-2";
        lock.release(&second).await?;
        let third = lock.acquire("shard-1").await?;
        print(format_args!("shard-2 crashes. shard-1 takes the lock again and sends R3 = {}.\n", third.token));
        self.at = "R3 is sent, and its answer waited for";
        let answer = shard_1.send(path, &third.token, Bytes::from_static(b"R3")).await?;
        self.steps.push(Step { what: "R3 arrives", token: third.token, expected: Expected::Done, answer });

        print(format_args!("R1 = {delayed} arrives: from the present owner, but of an earlier tenure.\n"));
        self.at = "R1 is sent, and its answer waited for";
        let answer = shard_1.send(path, &delayed, Bytes::from_static(b"R1")).await?;
        self.steps.push(Step { what: "R1 arrives", token: delayed, expected: Expected::ReplayRefused, answer });
        self.at = "the lock is given back";
        Ok(())
    }
}

fn print_table(steps: &[Step]) {
    print(format_args!("\n{:<12} {:<20} {:<20} {:<28}\n", "step", "token", "expected", "answer"));
    for step in steps {
        let Step { what, token, expected, answer } = step;
        let mark = match (step.is_as_expected(), step.is_put_off()) {
            (true, _) => "ok",
            (false, true) => "PUT OFF",
            (false, false) => "WRONG",
        };
        print(format_args!("{what:<12} {:<20} {expected:<20} {:<28} {mark}\n", token.to_string(), answer.to_string()));
    }
}

/// Tells what reached the worker; false if that is not what was answered.
fn told_of_worker(steps: &[Step], log: &[Event]) -> bool {
    let begun: Vec<i64> =
        log.iter().filter(|event| event.moment == Moment::Begins).map(|event| event.revision).collect();
    let passed: Vec<&Step> = steps.iter().filter(|step| step.answer.may_have_passed()).collect();
    let is_told = reached(&begun, &passed);
    if is_told {
        print(format_args!("\nThe worker saw the revisions {begun:?}.\n"));
    } else {
        let answered: Vec<i64> = passed.iter().map(|step| step.token.revision()).collect();
        print(format_args!(
            "\nThe worker saw the revisions {begun:?}; the answers say {answered:?}. Is it fencepost's upstream?\n"
        ));
    }
    is_told
}

/// Whether these are the revisions of the steps that passed the fence, in their order. One that was put off then may have got no farther.
fn reached(begun: &[i64], passed: &[&Step]) -> bool {
    let mut begun = begun.iter().peekable();
    let all_there = passed.iter().all(|step| begun.next_if_eq(&&step.token.revision()).is_some() || step.is_put_off());
    all_there && begun.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn step(expected: Expected, status: u16, reason: Option<&str>) -> Step {
        let status = StatusCode::from_u16(status).unwrap();
        let answer = Answer { status, reason: reason.map(str::to_owned) };
        Step { what: "R", token: Token::new("shard-1", 7).unwrap(), expected, answer }
    }

    #[test]
    fn only_the_exact_refusal_will_do_for_r1() {
        assert!(step(Expected::ReplayRefused, 412, Some("replayed-tenure")).is_as_expected());
        for (status, reason) in [
            (200, None),
            (200, Some("replayed-tenure")),
            (412, None),
            (412, Some("stale-tenure")),
            (503, Some("replayed-tenure")),
            (502, None),
        ] {
            assert!(!step(Expected::ReplayRefused, status, reason).is_as_expected(), "{status} {reason:?}");
        }
    }

    #[test]
    fn a_holder_s_request_must_be_done() {
        assert!(step(Expected::Done, 200, None).is_as_expected());
        assert!(step(Expected::Done, 204, None).is_as_expected());
        for (status, reason) in [(412, Some("stale-tenure")), (503, Some("unverifiable")), (502, None), (404, None)] {
            assert!(!step(Expected::Done, status, reason).is_as_expected(), "{status} {reason:?}");
        }
    }

    #[test]
    fn a_story_whose_requests_are_put_off_shows_nothing() {
        let done = || step(Expected::Done, 200, None);
        let put_off = || step(Expected::Done, 503, Some("unverifiable"));
        assert_eq!(conclusion_of(&[done()]), Conclusion::AsExpected);
        assert_eq!(conclusion_of(&[done(), put_off()]), Conclusion::PutOff);
        // Nobody had a connection to the worker left.
        assert_eq!(conclusion_of(&[done(), step(Expected::Done, 503, None)]), Conclusion::PutOff);
        assert_eq!(conclusion_of(&[step(Expected::ReplayRefused, 503, None)]), Conclusion::NotAsExpected);
        let wrong = step(Expected::ReplayRefused, 200, None);
        assert_eq!(conclusion_of(&[put_off(), wrong]), Conclusion::NotAsExpected);
    }

    #[test]
    fn what_reached_the_worker_must_be_what_was_answered() {
        let steps = [step(Expected::Done, 200, None), step(Expected::ReplayRefused, 412, Some("replayed-tenure"))];
        let event = |moment| Event { moment, at: Instant::now(), owner: "shard-1".to_owned(), revision: 7 };
        assert!(told_of_worker(&steps, &[event(Moment::Begins), event(Moment::Ends)]));
        assert!(!told_of_worker(&steps, &[]));
        assert!(!told_of_worker(&steps, &[event(Moment::Begins), event(Moment::Begins)]));
        let put_off = [step(Expected::Done, 503, None)];
        assert!(told_of_worker(&put_off, &[]) && told_of_worker(&put_off, &[event(Moment::Begins)]));
    }
}
