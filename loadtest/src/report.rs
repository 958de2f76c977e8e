//! What a run prints, and the JSON file that it writes at its end.

use std::error::Error;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use etcd_client::Error as EtcdError;
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
        let is_pipe = |file: &Path| file.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
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
        std::fs::write(file, format!("{report:#}\n")).with_context(|| format!("{} cannot be written", file.display()))
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

/// An error with its causes. etcd's client hides its causes from the chain, so they are added here.
pub(crate) fn in_words(error: &anyhow::Error) -> String {
    let all = error.chain().map(|cause| match cause.downcast_ref::<EtcdError>() {
        Some(EtcdError::GRpcStatus(status)) if status.message().is_empty() => {
            with_causes(status.code().description(), status.source())
        }
        Some(EtcdError::GRpcStatus(status)) => with_causes(status.message(), status.source()),
        Some(EtcdError::TransportError(error)) => with_causes(&error.to_string(), error.source()),
        _ => cause.to_string(),
    });
    all.collect::<Vec<_>>().join(": ")
}

fn with_causes(message: &str, mut cause: Option<&(dyn Error + 'static)>) -> String {
    let mut text = message.to_owned();
    while let Some(error) = cause {
        let addition = error.to_string();
        // tonic calls everything beneath itself a "transport error".
        if !text.contains(&addition) && addition != "transport error" {
            text = format!("{text}: {addition}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Status;

    #[test]
    fn etcd_error_is_told_with_each_cause_once() {
        let check = |error: EtcdError, expected: &str| {
            let error = anyhow::Error::from(error).context("etcd does not answer");
            assert_eq!(in_words(&error), expected);
        };
        let refused = "etcd does not answer: tcp connect error: Connection refused (os error 111)";
        for message in ["tcp connect error", &refused["etcd does not answer: ".len()..]] {
            let mut status = Status::unavailable(message);
            let cause = std::io::Error::other("Connection refused (os error 111)");
            status.set_source(std::sync::Arc::new(cause));
            check(EtcdError::GRpcStatus(status), refused);
        }
        let wordless = EtcdError::GRpcStatus(Status::deadline_exceeded(""));
        let expected = "etcd does not answer: Deadline expired before operation could complete";
        check(wordless, expected);
    }
}
