//! Files that a run writes when it is over.

use std::fs::OpenOptions;
use std::path::Path;

use anyhow::Context;

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
