//! What a run says, and the files that it writes when it is over.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{Write, stderr, stdout};
use std::path::Path;

use anyhow::Context;

/// Prints it. Whoever read may have left, as by Ctrl-C in a pipeline: then nobody wants to know, and the run goes on to its end.
pub(crate) fn print(text: impl Display) {
    let _ = write!(stdout(), "{text}");
}

/// The same on stderr, at once.
pub(crate) fn tell(text: impl Display) {
    let _ = write!(stderr(), "{text}");
}

/// Whether it will be possible to write it, as far as can be seen before: a run may take long.
///
/// # Errors
/// If not, now. What is in the file stays there.
pub(crate) fn check(file: &Path) -> anyhow::Result<()> {
    // A pipe's reader would leave when it is closed.
    if file.metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) {
        return Ok(());
    }
    let opened = OpenOptions::new().append(true).create(true).open(file);
    opened.map(|_| ()).with_context(|| format!("{} cannot be written", file.display()))
}

/// Writes it.
///
/// # Errors
/// If it can't be.
pub(crate) fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("{} cannot be written", file.display()))
}
