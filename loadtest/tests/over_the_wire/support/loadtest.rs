//! Runs of the loadtest.

use std::process::Command;

use fencepost_tests::{Process, Scratch};
use serde_json::Value;

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) printed: String,
}

impl Run {
    /// Asserts that all was as it should be.
    pub(crate) fn is_as_expected(&self) -> &Run {
        self.ended_with(0)
    }

    pub(crate) fn ended_with(&self, code: i32) -> &Run {
        assert_eq!(self.code, code, "{}", self.printed);
        self
    }

    pub(crate) fn says(&self, text: &str) -> &Run {
        assert!(self.printed.contains(text), "{text:?} is not in: {}", self.printed);
        self
    }
}

/// A loadtest that runs. It ends with this value.
#[derive(Debug)]
pub(crate) struct Running {
    process: Process,
    _scratch: Scratch,
}

impl Running {
    /// Starts it with these arguments, which spaces separate.
    pub(crate) fn start(arguments: impl AsRef<str>) -> Running {
        Running::start_with(arguments, ("FENCEPOST_TEST", "1"))
    }

    /// Starts it with these arguments and one more environment variable.
    pub(crate) fn start_with(arguments: impl AsRef<str>, (name, value): (&str, &str)) -> Running {
        let scratch = Scratch::new();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost-loadtest"));
        command.args(arguments.as_ref().split_whitespace()).env(name, value);
        Running {
            process: Process::start(&command, &scratch.path().join("log")),
            _scratch: scratch,
        }
    }

    pub(crate) fn terminate(&self) {
        self.process.terminate();
    }

    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    pub(crate) async fn end(mut self) -> Run {
        let status = self.process.end_of_itself().await;
        let printed = self.process.log();
        Run {
            code: status
                .code()
                .unwrap_or_else(|| panic!("the loadtest ended with {status}: {printed}")),
            printed,
        }
    }
}

/// Runs the loadtest with these arguments to its end.
pub(crate) async fn loadtest(arguments: impl AsRef<str>) -> Run {
    Running::start(arguments).end().await
}

/// A file for the report of a run (`--json`), as long as this lives.
#[derive(Debug)]
pub(crate) struct ReportFile {
    path: String,
    _scratch: Scratch,
}

impl ReportFile {
    pub(crate) fn new() -> ReportFile {
        let scratch = Scratch::new();
        let path = scratch.path().join("report.json");
        let path = path.into_os_string().into_string().expect("a scratch directory's path is text");
        ReportFile { path, _scratch: scratch }
    }

    /// Where the run is to write it.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn read(&self) -> Value {
        self.try_read().expect("there is a report")
    }

    /// What the run has written, if it has.
    pub(crate) fn try_read(&self) -> Option<Value> {
        let report = std::fs::read_to_string(&self.path).ok()?;
        Some(serde_json::from_str(&report).expect("the report is JSON"))
    }
}
