//! The log: lines on standard error. A thread of its own writes them, so that no other thread waits
//! for a slow reader.

mod causes;
mod complaints;
mod filter;
mod lines;

use std::fmt;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use tracing::{Level, Metadata};
use tracing_subscriber::filter::{EnvFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

pub(crate) use causes::WithCauses;
pub(crate) use complaints::Complaints;
pub use filter::NoFilter;
pub use lines::Lost;
pub(crate) use lines::{Lines, Writing};

use crate::cli::LogFormat;

/// How long the process waits at its end for the reader of its log.
const END_MAX: Duration = Duration::from_secs(1);

/// The log of a process. Its control changes what is logged. On drop, it writes the lines that are
/// left.
pub struct Log {
    control: LogControl,
    lines: Lines,
    writing: Writing,
}

/// Changes what is logged while the process runs.
#[derive(Clone)]
pub struct LogControl {
    filter: reload::Handle<EnvFilter, Registry>,
    lost: Lost,
}

impl Log {
    /// Begins the log, for the whole process.
    ///
    /// # Errors
    /// If the filter is invalid.
    ///
    /// # Panics
    /// If there is a log already, or if the system gives no thread.
    pub fn begin(filter: &str, format: LogFormat) -> Result<Log, NoFilter> {
        let (filter, handle) = reload::Layer::new(filter::parse(filter)?);
        let lost = Lost::default();
        let write = |line: &[u8]| stderr().write_all(line);
        let (lines, writing) =
            Lines::begin("log", lost.clone(), write).expect("the system gives the log a thread");
        let control = LogControl { filter: handle, lost };
        let layer = tracing_subscriber::fmt::layer().with_writer(lines.clone());
        let registry = tracing_subscriber::registry().with(filter).with(filter_fn(tells_no_secret));
        match format {
            LogFormat::Text => {
                registry.with(layer.with_ansi(stderr().is_terminal()).with_target(false)).init();
            }
            LogFormat::Json => registry.with(layer.json().flatten_event(true)).init(),
        }
        Ok(Log { control, lines, writing })
    }

    /// What changes it.
    pub fn control(&self) -> LogControl {
        self.control.clone()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.lines.end();
        self.writing.ends_by(Instant::now() + END_MAX);
    }
}

/// Whether a line may be written, whatever the filter says. Libraries follow what passes through
/// them, frame by frame, and what of it they show is theirs to change with any version. rustls warns
/// of what any client may send, as often as it comes.
fn tells_no_secret(line: &Metadata<'_>) -> bool {
    let level_max = match line.target() {
        target if target.starts_with("fencepost") => return true,
        target if target.starts_with("rustls") => Level::ERROR,
        _ => Level::INFO,
    };
    *line.level() <= level_max
}

impl LogControl {
    /// What is logged, as a filter.
    pub fn filter(&self) -> String {
        self.filter.with_current(ToString::to_string).unwrap_or_default()
    }

    /// Logs with this filter from now on. A restart does not keep it.
    ///
    /// # Errors
    /// If the filter is invalid. Then the present one stays.
    pub fn set_filter(&self, filter: &str) -> Result<(), NoFilter> {
        // It fails only if the log has ended, and then nothing is logged anyway.
        let _ = self.filter.reload(filter::parse(filter)?);
        Ok(())
    }

    /// How many lines are lost, because they could not be written, or not as fast as they came.
    pub fn lines_lost(&self) -> u64 {
        self.lost.count()
    }
}

impl fmt::Debug for LogControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogControl").field(&self.filter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_libraries_are_left_out_by_target() {
        let registry = tracing_subscriber::registry().with(filter_fn(tells_no_secret));
        tracing::subscriber::with_default(registry, || {
            let written = [
                tracing::enabled!(target: "fencepost::gate", Level::TRACE),
                tracing::enabled!(target: "hyper::proto", Level::INFO),
                tracing::enabled!(target: "hyper::proto", Level::DEBUG),
                tracing::enabled!(target: "rustls::msgs", Level::ERROR),
                tracing::enabled!(target: "rustls::msgs", Level::WARN),
            ];
            assert_eq!(written, [true, true, false, true, false]);
        });
    }
}
