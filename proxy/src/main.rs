//! The binary: arguments, configuration, exit code.

use std::process::ExitCode;

use clap::Parser;
use fencepost::cli::{Cli, Command, LogFormat, Settings};
use fencepost::{Surroundings, check, demo};
use fencepost_config::Config;
use tracing_subscriber::EnvFilter;

/// Failed to run.
const EXIT_FAILED: u8 = 1;
/// Wrong usage or configuration (EX_USAGE of sysexits.h).
const EXIT_USAGE: u8 = 64;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print(); // Nowhere to say that nothing can be said.
            return if error.use_stderr() { ExitCode::from(EXIT_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let filter = match EnvFilter::try_new(&cli.log) {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("--log: {error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    match cli.command {
        Command::Serve(settings) => {
            log_to_stderr(filter, cli.log_format);
            with_config(settings, serve)
        }
        Command::Check { settings, live } => with_config(settings, |config| check_config(&config, live)),
        Command::Demo(settings) => exit_code(block_on(demo::play(settings))),
    }
}

fn log_to_stderr(filter: EnvFilter, format: LogFormat) {
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => {
            lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).with_target(false).init();
        }
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}

/// Reads the configuration and goes on with it, or says everything that is wrong with it.
fn with_config(settings: Settings, run: impl FnOnce(Config) -> ExitCode) -> ExitCode {
    let config = match &settings.config {
        Some(file) => match std::fs::read_to_string(file) {
            Ok(text) => Config::from_toml(&file.display().to_string(), &text),
            Err(error) => {
                eprintln!("{}: {error}", file.display());
                return ExitCode::from(EXIT_USAGE);
            }
        },
        None => Config::from_flags(settings.flags()),
    };
    match config {
        Ok(config) => run(config),
        Err(problems) => {
            eprintln!("{problems}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}

fn serve(config: Config) -> ExitCode {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let served = fencepost::bind(&config).map_err(anyhow::Error::from).and_then(|bound| {
        block_on(async move {
            fencepost::run(config, bound, Surroundings::default(), fencepost::terminated())
                .await
                .map_err(anyhow::Error::from)
        })
    });
    exit_code(served)
}

fn check_config(config: &Config, live: bool) -> ExitCode {
    for warning in &config.warnings {
        println!("warning: {warning}");
    }
    println!("The configuration is right: {}.", check::summary(config));
    if live { exit_code(block_on(check::live(config))) } else { ExitCode::SUCCESS }
}

/// Runs the main thread's share: admin listener and signals. Requests and the lock store have threads of their own.
fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(tokio::task::LocalSet::new().run_until(work))
}

fn exit_code(ended: anyhow::Result<()>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fencepost: {error:#}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}
