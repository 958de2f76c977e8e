//! The binary: arguments, configuration, exit code.

// Nobody may read what is said: see `fencepost::output`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use fencepost::cli::{Cli, Command, Question, Settings};
use fencepost::explain::Asked;
use fencepost::logging::Log;
use fencepost::output::{Unprinted, print, tell};
use fencepost::{ConfigFile, Origin, Surroundings, check, demo, hold, panics};
use fencepost_config::{Config, Problems};
use nix::sys::signal::SigSet;

/// Each request takes some two dozen pieces of memory, several of them larger than what the C library keeps at hand for a thread, and
/// decisions are freed by another thread than made them. This allocator keeps more at hand.
#[cfg(target_arch = "x86_64")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Failed to run.
const EXIT_FAILED: u8 = 1;
/// Wrong usage or configuration (EX_USAGE of sysexits.h).
const EXIT_USAGE: u8 = 64;

fn main() -> ExitCode {
    // Whoever has started this may have blocked some, which is inherited: SIGTERM would never be heard, nor that a child has ended. It has
    // to come before any thread, and cannot fail.
    let _ = SigSet::empty().thread_set_mask();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // What is wrong goes to standard error, what was asked for to standard output.
            return match (error.use_stderr(), error.print()) {
                (true, _) => ExitCode::from(EXIT_USAGE),
                (false, Ok(())) => ExitCode::SUCCESS,
                (false, Err(error)) => exit_code(Err(Unprinted::from(error).into())),
            };
        }
    };
    match cli.command {
        Command::Serve { settings, log } => {
            let (filter, said_by) = log.filter();
            match Log::begin(&filter, log.log_format) {
                Ok(log) => {
                    panics::note();
                    with_config(settings, |config, origin| serve(config, origin, &log))
                }
                Err(error) => {
                    tell(format_args!("{said_by}: {error}"));
                    ExitCode::from(EXIT_USAGE)
                }
            }
        }
        Command::Check { settings, live } => with_config(settings, |config, _| check_config(&config, live)),
        Command::Explain { config, question } => with_file(&config, |config, _| explain_token(&config, question)),
        Command::Demo(settings) => exit_code(block_on(demo::play(settings))),
        Command::Hold(settings) => by_its_code(hold::hold(*settings)),
        Command::HoldStart { gate, descriptors, command } => {
            ExitCode::from(hold::become_command(&gate, descriptors, &command))
        }
        Command::HoldWatchdog { holder, others } => by_its_code(hold::run_watchdog(holder, &others)),
    }
}

/// Reads the configuration and goes on with it, or says everything that is wrong with it.
fn with_config(settings: Settings, run: impl FnOnce(Config, Origin) -> ExitCode) -> ExitCode {
    match &settings.config {
        Some(path) => with_file(path, run),
        None if settings.name_nothing() => {
            tell("give -c FILE; or, for one worker without a file, --listen, --upstream, --etcd and --lock");
            ExitCode::from(EXIT_USAGE)
        }
        None => with_checked(Config::from_flags(settings.flags()), Origin::Flags, run),
    }
}

fn with_file(path: &Path, run: impl FnOnce(Config, Origin) -> ExitCode) -> ExitCode {
    match ConfigFile::read(path) {
        Ok(file) => with_checked(file.first(), Origin::File(file), run),
        Err(error) => {
            tell(error);
            ExitCode::from(EXIT_USAGE)
        }
    }
}

fn with_checked(
    config: Result<Config, Problems>,
    origin: Origin,
    run: impl FnOnce(Config, Origin) -> ExitCode,
) -> ExitCode {
    match config {
        Ok(config) => run(config, origin),
        Err(problems) => {
            tell(problems);
            ExitCode::from(EXIT_USAGE)
        }
    }
}

fn serve(config: Config, origin: Origin, log: &Log) -> ExitCode {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    // Of what is only worth a warning, whoever uses it warns.
    if let Err(problems) = check::files(&config, check::User::Ourselves) {
        tell(problems);
        return ExitCode::from(EXIT_USAGE);
    }
    let served = fencepost::bind(&config).map_err(anyhow::Error::from).and_then(|bound| {
        block_on(async move {
            let surroundings = Surroundings { origin, log: Some(log.control()), ..Surroundings::default() };
            fencepost::run(config, bound, surroundings, fencepost::terminated).await.map_err(anyhow::Error::from)
        })
    });
    exit_code(served)
}

fn check_config(config: &Config, live: bool) -> ExitCode {
    let files = check::files(config, check::User::Service);
    let mut warnings = config.warnings.iter().chain(files.iter().flatten());
    let warned = warnings.try_for_each(|warning| print(format_args!("warning: {warning}")));
    if let Err(problems) = files {
        tell(problems);
        return ExitCode::from(EXIT_USAGE);
    }
    let told = warned.and_then(|()| print(format_args!("The configuration is right: {}.", check::summary(config))));
    exit_code(match told {
        Ok(()) if live => block_on(check::live(config)),
        told => told.map_err(anyhow::Error::from),
    })
}

fn explain_token(config: &Config, question: Question) -> ExitCode {
    let as_json = question.json;
    match Asked::of(config, question) {
        Ok(asked) => exit_code(block_on(async move {
            let explanation = asked.answer().await?;
            match as_json {
                true => print(format_args!("{:#}", explanation.to_json()))?,
                false => print(explanation)?,
            }
            Ok(())
        })),
        Err(problem) => {
            tell(problem);
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// Runs what returns an exit code.
fn by_its_code(work: impl Future<Output = u8>) -> ExitCode {
    let mut code = EXIT_FAILED;
    let done = block_on(async {
        code = work.await;
        Ok(())
    });
    match done {
        Ok(()) => ExitCode::from(code),
        Err(error) => exit_code(Err(error)),
    }
}

/// Runs the main thread's share: admin listener and signals. Requests and the lock store have threads of their own.
fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime =
        look_for_descriptors().and_then(|()| tokio::runtime::Builder::new_current_thread().enable_all().build());
    let runtime = runtime.context("cannot start")?;
    let done = runtime.block_on(tokio::task::LocalSet::new().run_until(work));
    // What still blocks reads a file, maybe of a file system that does not answer: that is no reason to stay.
    runtime.shutdown_background();
    done
}

/// Whether there are some for this thread's event queue and signals: for want of those of the latter tokio panics.
fn look_for_descriptors() -> io::Result<()> {
    (0..4).map(|_| UnixStream::pair()).collect::<io::Result<Vec<_>>>().map(drop)
}

fn exit_code(ended: anyhow::Result<()>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(format_args!("fencepost: {error:#}"));
            ExitCode::from(EXIT_FAILED)
        }
    }
}
