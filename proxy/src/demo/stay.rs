//! A look around: the stage after the story, with everything still running.

use std::net::SocketAddr;
use std::pin::pin;

use super::Stage;
use super::client::{PATH, Write};
use super::narrator::Tone::{KeptOut, Through};
use super::story::Ending;
use super::worker::Applied;

/// Says what can be tried, keeps the lock, and tells what reaches the worker, until this is
/// dropped.
pub(super) async fn look_around(stage: &mut Stage, ending: &Ending) -> anyhow::Result<()> {
    invite(stage, ending)?;
    let Stage { narrator, lock, worker, .. } = stage;
    let mut kept = pin!(lock.lost());
    let mut is_kept = true;
    loop {
        tokio::select! {
            over = &mut kept, if is_kept => {
                is_kept = false;
                let text = format!("{}'s lease is not renewed any more: {over}.", ending.holder.owner);
                narrator.tell("store", KeptOut, &text)?;
            }
            Some(Applied { owner, revision, balance }) = worker.next_applied() => {
                let text = format!("applies a write of \"{owner}, {revision}\": the balance is {balance}.");
                narrator.tell("worker", Through, &text)?;
            }
        }
    }
}

/// Says where the page is while everything runs.
pub(super) fn page(admin: SocketAddr) -> String {
    format!("The page of this fencepost, in a browser: http://{admin}/\n")
}

fn invite(stage: &Stage, ending: &Ending) -> anyhow::Result<()> {
    let Stage { narrator, lock, worker, proxy } = stage;
    let Ending { holder, replayed } = ending;
    let (fence, key, admin) = (proxy.address, lock.key(), proxy.admin);
    let present = Write { name: "", token: holder.clone(), balance: replayed.balance - 1 };
    narrator.heading("Everything keeps running until Ctrl-C. Look around:")?;
    narrator.say(&page(admin))?;
    let mut hints = vec![
        (format!("write as {}, the holder of the lock", holder.owner), put(fence, &present, true)),
        (format!("send {} once more", replayed.name), put(fence, replayed, true)),
        ("write without a token".to_owned(), put(fence, replayed, false)),
        ("read (here that takes no token)".to_owned(), format!("curl http://{fence}{PATH}")),
        (
            "go past the fence: the worker alone applies anything".to_owned(),
            put(worker.address(), replayed, true),
        ),
        (
            "what fencepost knows of the lock".to_owned(),
            format!("curl http://{admin}/locks/{}", key.replace('/', "%2F")),
        ),
        ("what it has counted".to_owned(), format!("curl http://{admin}/metrics")),
    ];
    if let Some(url) = lock.etcd() {
        let etcdctl = format!("ETCDCTL_API=3 etcdctl --endpoints {url}");
        hints.push((
            "give the lock to somebody else, then write again".to_owned(),
            format!("{etcdctl} put {key} shard-2"),
        ));
        let record = "read the lock's record: its mod_revision is the revision to send";
        hints.push((record.to_owned(), format!("{etcdctl} get -w json {key}")));
    }
    for (what, command) in hints {
        narrator.say(&format!("{what}:\n  {command}\n"))?;
    }
    Ok(())
}

/// A write as a command.
fn put(to: SocketAddr, write: &Write, with_token: bool) -> String {
    let Write { token, balance, .. } = write;
    let headers =
        format!(" -H 'Fence-Owner: {}' -H 'Fence-Revision: {}'", token.owner, token.revision);
    let headers = if with_token { headers.as_str() } else { "" };
    format!("curl -i -X PUT -d {balance}{headers} http://{to}{PATH}")
}
