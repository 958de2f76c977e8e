//! `fencepost demo`: the story of the delayed write, played live.
//!
//! A worker that applies whatever reaches it, two masters, a network that holds requests back, and
//! the real proxy between them, all on loopback sockets. `story` is what happens; the other files
//! are its cast. Whatever goes otherwise than it should ends the story with an error.

mod client;
mod lock;
mod narrator;
mod proxy;
mod stay;
mod story;
mod summary;
mod worker;

use std::pin::pin;

use anyhow::anyhow;

use self::lock::Lock;
use self::narrator::Narrator;
use self::proxy::Proxy;
use self::worker::Worker;
use crate::cli::DemoSettings;
use crate::signals::terminated;

/// What to do after the story.
const NEXT: &str = "\nWhat next? With --stay all of it keeps running, with a page to look at. For a worker and a lock of your own, see\n\
    \"Quick start\" in README.md.";

/// What the story is played with.
struct Stage {
    narrator: Narrator,
    lock: Lock,
    worker: Worker,
    proxy: Proxy,
}

/// Plays the story, and keeps its stage for a look around if that is wanted. Runs on a
/// current-thread runtime, within a `LocalSet`.
///
/// # Errors
/// If the stage can't be set up, or if the story did not end exactly as it should: the error says
/// what differed.
pub async fn play(settings: DemoSettings) -> anyhow::Result<()> {
    let worker = Worker::start().await?;
    let lock = Lock::named_by(settings.etcd.as_deref())?;
    let config = proxy::config(&settings, &lock, worker.address())?;
    lock.check().await?;
    let proxy = Proxy::start(config, lock.memory()).await?;
    let mut stage = Stage { narrator: Narrator::to_stdout(), lock, worker, proxy };

    if settings.stay {
        stage.narrator.say(&stay::page(stage.proxy.admin))?;
    }
    let mut interrupted = pin!(terminated());
    let mut played = tokio::select! {
        played = story::play(&mut stage) => played,
        () = &mut interrupted => Err(anyhow!("interrupted before the story was over")),
    };
    if played.is_ok() && !settings.stay {
        stage.narrator.say(NEXT)?;
    }
    if let Ok(ending) = &played
        && settings.stay
    {
        let looked_around = tokio::select! {
            ended = stay::look_around(&mut stage, ending) => ended,
            () = &mut interrupted => Ok(()),
        };
        played = looked_around.and(played);
    }

    // Whatever happened, nothing is left behind; what went wrong first is what is told.
    let Stage { lock, proxy, .. } = stage;
    let (stopped, removed) = (proxy.stop().await, lock.remove().await);
    played?;
    stopped?;
    removed
}

/// Fails, with what differed, unless the story goes as it should.
fn expect_that(holds: bool, what_differed: impl FnOnce() -> String) -> anyhow::Result<()> {
    if holds { Ok(()) } else { Err(otherwise(what_differed())) }
}

/// The error of a story that went otherwise.
fn otherwise(what_differed: String) -> anyhow::Error {
    anyhow!("the story did not go as it should: {what_differed}")
}
