//! `fencepost-loadtest`: drives a running fencepost over the wire, with a real etcd, and says whether it fences.
//!
//! It uses none of fencepost's own crates: what it finds, any client could find.

mod answer;
mod cli;
mod client;
mod latency;
mod load;
mod lock;
mod progress;
mod story;
mod takeovers;
mod target;
mod token;
mod worker;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use tokio::runtime::{Builder, Runtime};

use crate::cli::{Cli, Command};

/// Whether all that was seen is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conclusion {
    AsExpected,
    NotAsExpected,
}

/// Wrong usage, as in the other programs of this project.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Fails if nobody reads any more: then nobody needs it.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match run(cli.command) {
        Ok(Conclusion::AsExpected) => ExitCode::SUCCESS,
        Ok(Conclusion::NotAsExpected) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fencepost-loadtest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<Conclusion> {
    match command {
        Command::Story(settings) => one_thread()?.block_on(story::run(settings)),
        Command::Takeovers(settings) => one_thread()?.block_on(takeovers::run(settings)),
        Command::Load(settings) => threads(settings.threads.get())?.block_on(load::run(settings)),
    }
}

fn one_thread() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("cannot start a runtime")
}

fn threads(count: usize) -> anyhow::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(count).enable_all().build().context("cannot start a runtime")
}
