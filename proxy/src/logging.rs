//! The log: lines on standard error, written by a thread of their own, so that nobody waits for whoever reads them.

use std::fmt;
use std::io::{IsTerminal, stderr};

use tracing::{Level, Metadata};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{EnvFilter, LevelFilter, ParseError, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::LogFormat;

/// How many lines wait to be written. Further ones are left out, and counted.
const LINES_MAX: usize = 8_192;

/// The log of a process. Whoever has this can change what is logged; what is written when it goes is written to its end.
pub struct Log {
    control: LogControl,
    _writer: WorkerGuard,
}

/// Changes what is logged while the process runs.
#[derive(Clone)]
pub struct LogControl {
    filter: reload::Handle<EnvFilter, Registry>,
    left_out: ErrorCounter,
}

impl Log {
    /// Begins the log, for the whole process.
    ///
    /// # Errors
    /// If the filter is none.
    ///
    /// # Panics
    /// If there is a log already.
    pub fn begin(filter: &str, format: LogFormat) -> Result<Log, NoFilter> {
        let (filter, handle) = reload::Layer::new(parse(filter)?);
        let (writer, guard) = without_waiting(stderr());
        let control = LogControl { filter: handle, left_out: writer.error_counter() };
        let lines = tracing_subscriber::fmt::layer().with_writer(writer);
        let registry = tracing_subscriber::registry().with(filter).with(filter_fn(tells_no_secret));
        match format {
            LogFormat::Text => {
                registry.with(lines.with_ansi(stderr().is_terminal()).with_target(false)).init();
            }
            LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
        }
        Ok(Log { control, _writer: guard })
    }

    /// What changes it.
    pub fn control(&self) -> LogControl {
        self.control.clone()
    }
}

/// Whether a line may be written, whatever the filter says. Libraries follow what passes through them, frame by frame, and what of it
/// they show is theirs to change with any version.
fn tells_no_secret(line: &Metadata<'_>) -> bool {
    *line.level() <= Level::INFO || line.target().starts_with("fencepost")
}

impl LogControl {
    /// What is logged, as a filter.
    pub fn filter(&self) -> String {
        self.filter.with_current(ToString::to_string).unwrap_or_default()
    }

    /// Logs by that filter from now on; the next restart knows nothing of it.
    ///
    /// # Errors
    /// If the filter is none. Nothing is changed then.
    pub fn set_filter(&self, filter: &str) -> Result<(), NoFilter> {
        let filter = parse(filter)?;
        // It fails only if the log has ended, and then nothing is logged anyway.
        let _ = self.filter.reload(filter);
        Ok(())
    }

    /// How many lines were left out, because they could not be written as fast as they came.
    pub fn lines_left_out(&self) -> u64 {
        self.left_out.dropped_lines() as u64
    }
}

/// A text that is no filter of the log.
#[derive(Debug, thiserror::Error)]
pub enum NoFilter {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] ParseError),
    /// It may have been meant for a level. The library takes it for the name of a module, of which there is none, and logs nothing.
    #[error("{0:?} is no level: off, error, warn, info, debug or trace, or of a part only, like fencepost=debug")]
    NoLevel(String),
}

fn parse(filter: &str) -> Result<EnvFilter, NoFilter> {
    // Untrimmed, the library takes " info" for the name of a module, too.
    let directives: Vec<&str> = filter.split(',').map(str::trim).filter(|directive| !directive.is_empty()).collect();
    let mut alone = directives.iter().filter(|directive| !directive.contains(['=', '[', ']', '{', '}']));
    match alone.find(|directive| directive.parse::<LevelFilter>().is_err()) {
        Some(directive) => Err(NoFilter::NoLevel((*directive).to_owned())),
        None if directives.is_empty() => Err(NoFilter::NoLevel(filter.to_owned())),
        None => Ok(EnvFilter::try_new(directives.join(","))?),
    }
}

impl fmt::Debug for LogControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogControl").field(&self.filter()).finish()
    }
}

/// A writer whose lines are written to `target` by a thread of its own, until the guard goes.
pub(crate) fn without_waiting(target: impl std::io::Write + Send + 'static) -> (NonBlocking, WorkerGuard) {
    NonBlockingBuilder::default().buffered_lines_limit(LINES_MAX).lossy(true).thread_name("log").finish(target)
}
