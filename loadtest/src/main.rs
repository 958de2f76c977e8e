//! `fencepost-loadtest`: drives a running fencepost over the wire, with a real etcd, and checks
//! that it fences.
//!
//! Of fencepost's crates it uses only the client of etcd and the reader of certificates, so it sees
//! what any client could see. The modules, in reading order: `cli` holds the options. `client`
//! sends a request with a token and reads its answer; hyper carries it. `lock` takes locks in etcd
//! and hands them over. `worker` plays the worker and checks the order of revisions. `durations`,
//! `report`, `stop` and `machine` serve all commands: percentiles, output, Ctrl-C, CPU time. The
//! commands are `story`, `takeovers`, `drive` (`open` and `closed`) and `compare`.

// These panic when nobody reads the output; `report` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod cli;
mod client;
mod compare;
mod drive;
mod durations;
mod lock;
mod machine;
mod report;
mod stop;
mod story;
mod takeovers;
mod worker;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::FromArgMatches;
use clap::error::ErrorKind;
use tokio::runtime::{Builder, Runtime};

use crate::cli::{Cli, Command};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conclusion {
    AsExpected,
    /// Nothing was wrong, but the proxy answered some requests with 503.
    PutOff,
    NotAsExpected,
}

const PUT_OFF: u8 = 2;

/// Wrong usage, as in the other programs of this project.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Printing fails when nobody reads the output, which is no error here.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match run(cli.command) {
        Ok(Conclusion::AsExpected) => ExitCode::SUCCESS,
        Ok(Conclusion::PutOff) => ExitCode::from(PUT_OFF),
        Ok(Conclusion::NotAsExpected) => ExitCode::FAILURE,
        Err(error) => {
            report::tell(format_args!("fencepost-loadtest: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

fn parse() -> Result<Cli, clap::Error> {
    let mut command = cli::command();
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    let cli = Cli::from_arg_matches(&matches)?;
    let name = matches.subcommand_name().expect("clap requires a subcommand");
    let used = command.find_subcommand_mut(name).expect("clap matched it");
    cli.command.check().map_err(|message| used.error(ErrorKind::ValueValidation, message))?;
    Ok(cli)
}

fn run(command: Command) -> Result<Conclusion> {
    let runtime = one_thread()?;
    match command {
        Command::Story(options) => runtime.block_on(story::run(options)),
        Command::Takeovers(options) => runtime.block_on(takeovers::run(options)),
        Command::Open(options) => runtime.block_on(drive::run(options.drive, Some(options.rate))),
        Command::Closed(options) => runtime.block_on(drive::run(*options, None)),
        Command::Compare(options) => runtime.block_on(compare::run(options)),
        Command::Worker { listen } => runtime.block_on(worker::serve(listen)),
    }
}

fn one_thread() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("cannot start a runtime")
}
