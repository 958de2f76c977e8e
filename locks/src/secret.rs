//! Secrets, which come from files and are shown nowhere.

use std::io;
use std::path::Path;

/// The largest file that is taken for a secret's.
const BYTES_MAX: u64 = 4096;

/// The secret in a file: UTF-8, up to 4 KiB, without the one line's end after it. Not empty.
///
/// # Errors
/// If the file can't be read, or can't be a secret's. The error does not have the secret.
pub(crate) async fn read(path: &Path) -> io::Result<String> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || read_here(&path)).await?
}

/// [`read`] on this thread.
pub(crate) fn read_here(path: &Path) -> io::Result<String> {
    // Before it is opened: a pipe would wait for its writer.
    let metadata = path.metadata()?;
    if !metadata.is_file() || metadata.len() > BYTES_MAX {
        return Err(io::Error::other("it is no file of at most 4 KiB"));
    }
    // The error of a conversion would hold the secret.
    let text =
        String::from_utf8(std::fs::read(path)?).map_err(|_| io::Error::other("it is not UTF-8"))?;
    let secret = text
        .strip_suffix('\n')
        .map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    if secret.is_empty() { Err(io::Error::other("it is empty")) } else { Ok(secret.to_owned()) }
}
