//! The binary: arguments, configuration, exit code.

// Nobody may read what is said: see `fencepost::output`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use fencepost::cli::{
    Cli, Command, HoldPart, LogFormat, Question, ReadySettings, Settings, completions,
};
use fencepost::explain::Asked;
use fencepost::logging::Log;
use fencepost::output::{Unprinted, print, tell};
use fencepost::ready::{self, AdminPlace};
use fencepost::{ConfigFile, Origin, Surroundings, check, demo, panics};
use fencepost_config::{Config, Problems};
use fencepost_hold::command as hold;
use nix::sys::signal::SigSet;

/// Each request takes some two dozen pieces of memory, several of them larger than what the C
/// library keeps at hand for a thread, and decisions are freed by another thread than made them.
/// This allocator keeps more at hand.
#[cfg(target_arch = "x86_64")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Failed to run.
const EXIT_FAILED: u8 = 1;
/// Wrong usage or configuration (EX_USAGE of sysexits.h).
const EXIT_USAGE: u8 = 64;

fn main() -> ExitCode {
    // Whoever has started this may have blocked some, which is inherited: SIGTERM would never be
    // heard, nor that a child has ended. It has to come before any thread, and cannot fail.
    let _ = SigSet::empty().thread_set_mask();
    if HoldPart::is_asked_for() {
        return HoldPart::try_parse().map_or_else(no_command, part_of_hold);
    }
    Cli::try_parse().map_or_else(no_command, |cli| run_command(cli.command))
}

/// What is wrong goes to standard error, what was asked for to standard output.
fn no_command(error: clap::Error) -> ExitCode {
    match (error.use_stderr(), error.print()) {
        (true, _) => ExitCode::from(EXIT_USAGE),
        (false, Ok(())) => ExitCode::SUCCESS,
        (false, Err(error)) => exit_code(Err(Unprinted::from(error).into())),
    }
}

fn part_of_hold(part: HoldPart) -> ExitCode {
    match part {
        HoldPart::HoldStart { gate, command } => {
            ExitCode::from(hold::become_command(&gate, &command))
        }
        HoldPart::HoldWatchdog { holder, others } => {
            by_its_code(hold::run_watchdog(holder, &others))
        }
    }
}

fn run_command(command: Command) -> ExitCode {
    match command {
        Command::Serve { settings, log } => {
            let (filter, said_by) = log.filter();
            match Log::begin(&filter, log.log_format) {
                Ok(running) => {
                    panics::note();
                    let ended =
                        with_config(settings, |config, origin| serve(config, origin, &running));
                    end_serving(ended, running, log.log_format)
                }
                Err(error) => told(Err(Failed::Usage(format!("{said_by}: {error}")))),
            }
        }
        Command::Check { settings, live } => {
            told(with_config(settings, |config, _| check_config(&config, live)))
        }
        Command::Explain { config, question } => {
            told(with_file(&config, |config, _| explain_token(&config, question)))
        }
        Command::Demo(settings) => exit_code(block_on(demo::play(settings))),
        Command::Hold(settings) => by_its_code(hold::hold(*settings)),
        Command::Ready(settings) => told(is_ready(settings)),
        Command::Completions { shell } => {
            let script = String::from_utf8_lossy(&completions(shell)).into_owned();
            exit_code(print(script.trim_end()).map_err(anyhow::Error::from))
        }
    }
}

/// Why a command came to nothing.
enum Failed {
    /// Wrong usage or configuration: what is wrong, a line each.
    Usage(String),
    /// It failed to run.
    Run(anyhow::Error),
}

impl Failed {
    fn exit_code(&self) -> u8 {
        match self {
            Failed::Usage(_) => EXIT_USAGE,
            Failed::Run(_) => EXIT_FAILED,
        }
    }
}

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Failed {
        Failed::Run(error)
    }
}

impl From<Problems> for Failed {
    fn from(problems: Problems) -> Failed {
        Failed::Usage(problems.to_string())
    }
}

/// Says at last, if serving failed, why: in the log's form where that is for programs. Whatever was
/// logged before is written first.
fn end_serving(ended: Result<(), Failed>, log: Log, format: LogFormat) -> ExitCode {
    let is_for_programs = format == LogFormat::Json && tracing::enabled!(tracing::Level::ERROR);
    if is_for_programs {
        match &ended {
            Ok(()) => {}
            Err(Failed::Usage(wrong)) => wrong.lines().for_each(|line| tracing::error!("{line}")),
            Err(Failed::Run(error)) => tracing::error!("{error:#}"),
        }
    }
    drop(log);
    match ended {
        Err(failed) if is_for_programs => ExitCode::from(failed.exit_code()),
        ended => told(ended),
    }
}

/// Reads the configuration and goes on with it, or has everything that is wrong with it.
fn with_config<T>(
    settings: Settings,
    run: impl FnOnce(Config, Origin) -> Result<T, Failed>,
) -> Result<T, Failed> {
    match &settings.config {
        Some(path) => with_file(path, run),
        None if settings.name_nothing() => {
            let says = "give -c FILE; or, for one worker without a file, --listen, --upstream, --etcd and --lock";
            Err(Failed::Usage(says.to_owned()))
        }
        None => run(Config::from_flags(settings.flags())?, Origin::Flags),
    }
}

fn with_file<T>(
    path: &Path,
    run: impl FnOnce(Config, Origin) -> Result<T, Failed>,
) -> Result<T, Failed> {
    let file = ConfigFile::read(path).map_err(Failed::Usage)?;
    run(file.first()?, Origin::File(file))
}

fn serve(config: Config, origin: Origin, log: &Log) -> Result<(), Failed> {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    // Of what is only worth a warning, whoever uses it warns.
    check::files(&config, check::User::Ourselves)?;
    let bound = fencepost::bind(&config).map_err(anyhow::Error::from)?;
    block_on(async move {
        let surroundings =
            Surroundings { origin, log: Some(log.control()), ..Surroundings::default() };
        fencepost::run(config, bound, surroundings, fencepost::terminated)
            .await
            .map_err(anyhow::Error::from)
    })?;
    Ok(())
}

fn check_config(config: &Config, live: bool) -> Result<(), Failed> {
    let files = check::files(config, check::User::Service);
    let mut warnings = config.warnings.iter().chain(files.iter().flatten());
    let warned = warnings.try_for_each(|warning| print(format_args!("warning: {warning}")));
    files?;
    warned.map_err(anyhow::Error::from)?;
    for line in check::trusted(config) {
        print(line).map_err(anyhow::Error::from)?;
    }
    print(format_args!("The configuration is right: {}.", check::summary(config)))
        .map_err(anyhow::Error::from)?;
    if live {
        block_on(check::live(config))?;
    }
    Ok(())
}

fn explain_token(config: &Config, question: Question) -> Result<(), Failed> {
    let as_json = question.json;
    let asked =
        Asked::of(config, question).map_err(|problem| Failed::Usage(problem.to_string()))?;
    block_on(async move {
        let explanation = asked.answer().await?;
        match as_json {
            true => print(format_args!("{:#}", explanation.to_json()))?,
            false => print(explanation)?,
        }
        Ok(())
    })?;
    Ok(())
}

fn is_ready(settings: ReadySettings) -> Result<(), Failed> {
    let place = match &settings.config {
        Some(path) => with_file(path, |config, _| AdminPlace::of(&config).map_err(Failed::Usage))?,
        None => AdminPlace::parse(&settings.url).map_err(Failed::Usage)?,
    };
    block_on(ready::ask(&place))?;
    Ok(())
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

/// Runs the main thread's share: admin listener and signals. Requests and the lock store have
/// threads of their own.
fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = look_for_descriptors()
        .and_then(|()| tokio::runtime::Builder::new_current_thread().enable_all().build());
    let runtime = runtime.context("cannot start")?;
    let done = runtime.block_on(tokio::task::LocalSet::new().run_until(work));
    // What still blocks reads a file, maybe of a file system that does not answer: that is no
    // reason to stay.
    runtime.shutdown_background();
    done
}

/// Whether there are some for this thread's event queue and signals: for want of those of the
/// latter tokio panics.
fn look_for_descriptors() -> io::Result<()> {
    (0..4).map(|_| UnixStream::pair()).collect::<io::Result<Vec<_>>>().map(drop)
}

fn exit_code(ended: anyhow::Result<()>) -> ExitCode {
    told(ended.map_err(Failed::Run))
}

/// Says why a command came to nothing, if it did.
fn told(ended: Result<(), Failed>) -> ExitCode {
    let Err(failed) = ended else { return ExitCode::SUCCESS };
    match &failed {
        Failed::Usage(wrong) => tell(wrong),
        Failed::Run(error) => tell(format_args!("fencepost: {error:#}")),
    }
    ExitCode::from(failed.exit_code())
}
