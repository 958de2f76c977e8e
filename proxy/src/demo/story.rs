//! What happens, step by step. What fencepost and the worker do is told once it has happened, and
//! only if it has happened exactly so.

use anyhow::Context;

use super::client::{self, Answer, PATH, Refusal, Token, Write};
use super::narrator::Tone::{KeptOut, Plain, Through};
use super::summary;
use super::worker::Applied;
use super::{Stage, expect_that, otherwise};

/// How things stand when the story is over.
pub(super) struct Ending {
    /// Under which token the lock is held.
    pub(super) holder: Token,
    /// The write that came back from the past.
    pub(super) replayed: Write,
}

/// Plays the story.
///
/// # Errors
/// If anything goes otherwise than it should.
pub(super) async fn play(stage: &mut Stage) -> anyhow::Result<Ending> {
    introduce(stage)?;
    stage.narrator.pause().await;

    stage
        .narrator
        .heading("1. shard-1 takes the lock and writes, but the network holds its write back")?;
    let first = take_the_lock(stage, "shard-1").await?;
    let r1 = Write { name: "R1", token: first, balance: 100 };
    let held_r1 = send_into_the_network(stage, &r1)?;
    stage.narrator.pause().await;

    stage.narrator.heading("2. shard-1 falls silent, and shard-2 takes over")?;
    stage.lock.expire().await?;
    stage.narrator.tell(
        "store",
        Plain,
        "shard-1 has not renewed its lease: it runs out, and the lock is free.",
    )?;
    let second = take_the_lock(stage, "shard-2").await?;
    expect_later(&second, &r1.token)?;
    let r2 = Write { name: "R2", token: second.clone(), balance: 70 };
    send(stage, &r2).await?;
    stage.narrator.pause().await;

    stage.narrator.heading("3. shard-2 crashes, and shard-1 takes the lock again")?;
    let late = Write { name: "R2b", token: second, balance: 40 };
    let held_late = send_into_the_network(stage, &late)?;
    stage.lock.expire().await?;
    stage.narrator.tell("shard-2", Plain, "crashes. Its lease runs out, and the lock is free.")?;
    let third = take_the_lock(stage, "shard-1").await?;
    expect_later(&third, &late.token)?;
    let r3 = Write { name: "R3", token: third.clone(), balance: 85 };
    send(stage, &r3).await?;
    stage.narrator.pause().await;

    stage.narrator.heading("4. The network delivers what it has held back")?;
    let why = format!(
        "the lock was taken again after revision {}, and not by shard-2.",
        late.token.revision
    );
    let late_refusal = deliver(stage, &late, held_late, "stale-tenure", &why).await?;
    let why = format!(
        "the owner is right: shard-1 holds the lock. The revision is not: {} is of a tenure\n\
         that has ended, shard-1 holds the lock under {} now. Comparing names lets R1 through.",
        r1.token.revision, r3.token.revision
    );
    let r1_refusal = deliver(stage, &r1, held_r1, "replayed-tenure", &why).await?;
    worker_was_spared(stage, &r3).await?;
    stage.narrator.pause().await;

    let arrivals =
        [(&r2, None), (&r3, None), (&late, Some(&late_refusal)), (&r1, Some(&r1_refusal))];
    summary::tell(&stage.narrator, &arrivals)?;
    Ok(Ending { holder: third, replayed: r1 })
}

fn introduce(stage: &Stage) -> anyhow::Result<()> {
    let Stage { narrator, lock, worker, proxy } = stage;
    narrator.heading("fencepost demo: the write that came back from the past")?;
    narrator.say(
        "A worker keeps an account's balance and applies every write that reaches it. Two masters,\n\
         shard-1 and shard-2, may write to it, one at a time: whoever holds the lock. But a lock cannot\n\
         call back what its last holder has already sent. fencepost stands before the worker and can.\n",
    )?;
    let place = lock.etcd().map_or_else(
        || "in a store within this program".to_owned(),
        |url| format!("in etcd at {url}"),
    );
    narrator.tell("store", Plain, &format!("keeps the lock {}, {place}.", lock.key()))?;
    narrator.tell("worker", Plain, &format!("listens on {}.", worker.address()))?;
    narrator.tell(
        "fencepost",
        Plain,
        &format!("listens on {} and forwards to the worker.", proxy.address),
    )?;
    Ok(())
}

async fn take_the_lock(stage: &mut Stage, owner: &'static str) -> anyhow::Result<Token> {
    let token = stage.lock.acquire(owner).await?;
    let revision = token.revision;
    let text = format!(
        "takes the lock. The store numbers every write; this one got revision {revision}.\n\
         {owner}'s token is \"{owner}, {revision}\" from now on: everything it sends carries it."
    );
    stage.narrator.tell(owner, Plain, &text)?;
    Ok(token)
}

fn expect_later(token: &Token, than: &Token) -> anyhow::Result<()> {
    expect_that(token.revision > than.revision, || {
        format!(
            "{} got revision {}, which is not after {}",
            token.owner, token.revision, than.revision
        )
    })
}

fn tell_of_sending(stage: &Stage, write: &Write) -> anyhow::Result<()> {
    let Write { name, token, balance } = write;
    let text = format!(
        "sends {name}: PUT {PATH} {balance}\n    Fence-Owner: {}\n    Fence-Revision: {}",
        token.owner, token.revision
    );
    Ok(stage.narrator.tell(token.owner, Plain, &text)?)
}

/// Returns what the network has of it.
fn send_into_the_network(stage: &Stage, write: &Write) -> anyhow::Result<Vec<u8>> {
    tell_of_sending(stage, write)?;
    let held = write.bytes();
    let text = format!(
        "holds {} back: all its {} bytes are on their way, and stay there.",
        write.name,
        held.len()
    );
    stage.narrator.tell("network", KeptOut, &text)?;
    Ok(held)
}

/// Sends a write of the lock's holder, which has to be applied.
async fn send(stage: &mut Stage, write: &Write) -> anyhow::Result<()> {
    tell_of_sending(stage, write)?;
    let Write { name, token, balance } = write;
    let answer = client::send(stage.proxy.address, &write.bytes()).await;
    let answer = answer.with_context(|| format!("{name} was not answered"))?;
    expect_that(answer == Answer::Applied, || {
        format!("{name} of the lock's holder was answered {answer}")
    })?;
    let text = format!(
        "forwards {name}: {} holds the lock, and {} is its revision.",
        token.owner, token.revision
    );
    stage.narrator.tell("fencepost", Through, &text)?;
    let applied = stage.worker.already_applied();
    expect_that(applied == Some(Applied::of(write)), || {
        format!("after {name} the worker had applied {applied:?}")
    })?;
    Ok(stage.narrator.tell(
        "worker",
        Through,
        &format!("applies {name}: the balance is {balance}."),
    )?)
}

/// Delivers a held write, which has to be refused for that reason.
async fn deliver(
    stage: &mut Stage,
    write: &Write,
    held: Vec<u8>,
    reason: &str,
    why: &str,
) -> anyhow::Result<Refusal> {
    let Write { name, token, .. } = write;
    let text =
        format!("delivers {name}, sent by {} under revision {}.", token.owner, token.revision);
    stage.narrator.tell("network", Plain, &text)?;
    let answer = client::send(stage.proxy.address, &held).await;
    let answer = answer.with_context(|| format!("{name} was not answered"))?;
    let Answer::Refused(refusal) = &answer else {
        return Err(otherwise(format!("{name} was answered {answer} instead of being refused")));
    };
    expect_that(refusal.status == 412 && refusal.reason == reason && !refusal.forwarded, || {
        format!(
            "{name} was refused as {answer}, forwarded: {}, not as 412 {reason}",
            refusal.forwarded
        )
    })?;
    stage.narrator.tell(
        "fencepost",
        KeptOut,
        &format!("refuses {name}: {} {}.", refusal.status, refusal.reason),
    )?;
    stage.narrator.tell("", Plain, &format!("Why: {why}"))?;
    if token.owner == "shard-1" {
        // The other sender has crashed.
        let text = format!(
            "is told: {}.\nWhat would help, says the answer: {}.",
            refusal.title, refusal.action
        );
        stage.narrator.tell(token.owner, Plain, &text)?;
    }
    Ok(refusal.clone())
}

/// Nothing reached the worker after `last`.
async fn worker_was_spared(stage: &mut Stage, last: &Write) -> anyhow::Result<()> {
    let (status, balance) =
        client::get(stage.worker.address(), PATH).await.context("the worker does not answer")?;
    expect_that(status == 200 && balance == last.balance.to_string(), || {
        format!("the worker's balance is {balance}, not {}", last.balance)
    })?;
    let applied = stage.worker.already_applied();
    expect_that(applied.is_none(), || format!("a refused write reached the worker: {applied:?}"))?;
    let text =
        format!("has seen neither of them. The balance is {balance}, as {} left it.", last.name);
    Ok(stage.narrator.tell("worker", Through, &text)?)
}
