//! `fencepost-loadtest`: drives a running fencepost over the wire, with a real etcd, and says whether it fences.
//!
//! It uses none of fencepost's own crates: what it finds, any client could find.

// These panic where nobody reads any more: `output` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod answer;
mod cli;
mod client;
mod compare;
mod drive;
mod failure;
mod framing;
mod latency;
mod load;
mod lock;
mod machine;
mod occasion;
mod output;
mod page;
mod progress;
mod retry;
mod signals;
mod story;
mod stream;
mod takeovers;
mod target;
mod tls;
mod token;
mod worker;

use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use tokio::runtime::{Builder, Runtime};

use crate::cli::{Cli, Command};
use crate::worker::quick;

/// Whether all that was seen is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conclusion {
    AsExpected,
    /// Nothing was wrong, but not everybody was served: the proxy told some to come again.
    PutOff,
    NotAsExpected,
}

/// The same as an exit code.
const PUT_OFF: u8 = 2;

/// Wrong usage, as in the other programs of this project.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Fails if nobody reads any more: then nobody needs it.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match run(cli.command) {
        Ok(Conclusion::AsExpected) => ExitCode::SUCCESS,
        Ok(Conclusion::PutOff) => ExitCode::from(PUT_OFF),
        Ok(Conclusion::NotAsExpected) => ExitCode::FAILURE,
        Err(error) => {
            output::tell(format_args!("fencepost-loadtest: {}\n", failure::in_words(&error)));
            ExitCode::FAILURE
        }
    }
}

fn parse() -> Result<Cli, clap::Error> {
    // A number may be negative as far as its option's own words can say that it may not.
    let numbers_may_be_negative = |command: clap::Command| {
        command.mut_args(|argument| {
            let takes_values = argument.get_action().takes_values();
            argument.allow_negative_numbers(takes_values)
        })
    };
    let mut command = Cli::command().mut_subcommands(numbers_may_be_negative);
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    let cli = Cli::from_arg_matches(&matches)?;
    let asked = matches.subcommand_name().and_then(|name| command.find_subcommand_mut(name));
    let Some(asked) = asked else { return Ok(cli) };
    cli.command.check().map_err(|message| asked.error(ErrorKind::ValueValidation, message))?;
    Ok(cli)
}

fn run(command: Command) -> anyhow::Result<Conclusion> {
    match command {
        Command::Story(settings) => one_thread()?.block_on(story::run(settings)),
        Command::Takeovers(settings) => one_thread()?.block_on(takeovers::run(settings)),
        Command::Load(settings) => one_thread()?.block_on(load::run(settings)),
        Command::Open(settings) => one_thread()?.block_on(drive::run(settings.drive, Some(settings.rate))),
        Command::Closed(settings) => one_thread()?.block_on(drive::run(*settings, None)),
        Command::Compare(settings) => one_thread()?.block_on(compare::run(settings)),
        Command::Worker(settings) => {
            let listener =
                one_thread()?.block_on(async { anyhow::Ok(quick::bind(settings.listen).await?.into_std()?) })?;
            quick::run(listener, None)?;
            Ok(Conclusion::AsExpected)
        }
    }
}

fn one_thread() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("cannot start a runtime")
}
