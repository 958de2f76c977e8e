//! Runs of the loadtest.

use std::process::Command;

use fencepost_testsupport::{Process, Scratch};

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Run {
    /// Its exit code.
    pub(crate) code: i32,
    /// What it printed.
    pub(crate) printed: String,
}

impl Run {
    /// Asserts that all was as it should be.
    pub(crate) fn is_as_expected(&self) -> &Run {
        self.ended_with(0)
    }

    /// Asserts that it ended so.
    pub(crate) fn ended_with(&self, code: i32) -> &Run {
        assert_eq!(self.code, code, "{}", self.printed);
        self
    }

    /// Asserts that it printed this.
    pub(crate) fn says(&self, text: &str) -> &Run {
        assert!(self.printed.contains(text), "{text:?} is not in: {}", self.printed);
        self
    }
}

/// Runs the loadtest with these arguments to its end.
pub(crate) async fn loadtest(arguments: &[&str]) -> Run {
    let scratch = Scratch::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost-loadtest"));
    command.args(arguments);
    let mut process = Process::start(&command, &scratch.path().join("log"));
    let status = process.end_of_itself().await;
    let code = status.code().unwrap_or_else(|| panic!("the loadtest ended with {status}: {}", process.log()));
    Run { code, printed: process.log() }
}
