//! What a run prints, and the JSON file that it writes at its end.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Prints to stdout. Ignores a reader that has left, so that the run goes on to its end.
pub(crate) fn print(text: impl Display) {
    let _ = write!(stdout(), "{text}");
}

pub(crate) fn tell(text: impl Display) {
    let _ = write!(stderr(), "{text}");
}

/// The file of `--json`, if there is one, and when the run began.
#[derive(Debug)]
pub(crate) struct ReportFile {
    file: Option<PathBuf>,
    began: SystemTime,
}

impl ReportFile {
    /// Notes that the run begins now.
    /// Fails if the file cannot be written. A run may take hours, so this shows before it.
    pub(crate) fn open(file: Option<&Path>) -> Result<ReportFile> {
        // Opening a pipe and closing it would make its reader leave.
        let is_pipe =
            |file: &Path| file.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
        if let Some(file) = file.filter(|file| !is_pipe(file)) {
            let opened = OpenOptions::new().append(true).create(true).open(file);
            opened.with_context(|| format!("{} cannot be written", file.display()))?;
        }
        Ok(ReportFile { file: file.map(Path::to_owned), began: SystemTime::now() })
    }

    pub(crate) fn write(&self, mut report: Value) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let words: Vec<_> = std::env::args_os().skip(1).collect();
        report["run"] = json!({
            "began": humantime::format_rfc3339_seconds(self.began).to_string(),
            "program": concat!("fencepost-loadtest ", env!("CARGO_PKG_VERSION")),
            "arguments": words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>(),
        });
        std::fs::write(file, format!("{report:#}\n"))
            .with_context(|| format!("{} cannot be written", file.display()))
    }
}

/// Tells on stderr how far a run has come: a line for each 10 %.
#[derive(Debug)]
pub(crate) struct Progress {
    total: u64,
    unit: &'static str,
    next_percent: u64,
}

impl Progress {
    pub(crate) fn new(total: u64, unit: &'static str) -> Progress {
        Progress { total, unit, next_percent: 10 }
    }

    pub(crate) fn done(&mut self, done: u64) {
        let percent = (done.min(self.total) * 100).checked_div(self.total).unwrap_or(100);
        if percent >= self.next_percent {
            self.next_percent = (percent / 10 + 1) * 10;
            tell(format_args!("{done} of {} {} ({percent} %)\n", self.total, self.unit));
        }
    }
}
