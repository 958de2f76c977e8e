//! What a fuzzer runs: one function of bytes for each place where bytes from outside are read.
//!
//! Each target says more than "does not panic": it holds what came out against a second, simpler
//! reading of the same bytes, or against what must be true whatever they are. A target panics where
//! that fails. `tests/seeds.rs` runs all of them over the inputs that are kept in `seeds/` and
//! `regressions/`; `engine/` has libFuzzer make new ones (`bin/fuzz`).

mod chance;
mod config;
mod connection;
mod headers;
mod history;
mod journal;
mod paths;
mod queue;
mod records;
mod token;

/// One thing to run over arbitrary bytes.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, and that of the folder of its inputs.
    pub name: &'static str,
    /// Panics if something is not as it must be.
    pub run: fn(&[u8]),
}

/// All targets, the quickest first.
pub const TARGETS: [Target; 9] = [
    Target { name: "token", run: token::run },
    Target { name: "headers", run: headers::run },
    Target { name: "records", run: records::run },
    Target { name: "history", run: history::run },
    Target { name: "queue", run: queue::run },
    Target { name: "paths", run: paths::run },
    Target { name: "config", run: config::run },
    Target { name: "journal", run: journal::run },
    Target { name: "connection", run: connection::run },
];

impl Target {
    /// The target of that name.
    pub fn named(name: &str) -> Option<Target> {
        TARGETS.into_iter().find(|target| target.name == name)
    }
}
