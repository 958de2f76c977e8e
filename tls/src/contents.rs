//! What files hold, read in one go.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::{Error as PemError, PemObject};

use crate::error::{FileRole, Flaw, TlsError};

/// Files as they were when they were read, one after the other.
pub(crate) struct Contents(Vec<(PathBuf, Result<Vec<u8>, Flaw>)>);

/// Tells contents apart. Of what they hold nothing can be told from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint(u64);

impl Contents {
    /// Reads files. What stands in them counts, and not their dates: those are too coarse to tell
    /// two writes in one tick apart, and say nothing where a link is swapped.
    pub(crate) fn read<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Contents {
        Contents(paths.into_iter().map(|path| (path.to_owned(), read(path))).collect())
    }

    /// What is at hand, as if it had been read from files of these names.
    pub(crate) fn given(named: &[(&Path, &[u8])]) -> Contents {
        Contents(
            named.iter().map(|(path, bytes)| (path.to_path_buf(), Ok(bytes.to_vec()))).collect(),
        )
    }

    /// What one of the files holds, in which that is looked for.
    ///
    /// # Errors
    /// If it could not be read.
    pub(crate) fn of<'c>(&'c self, path: &'c Path, role: FileRole) -> Result<Text<'c>, TlsError> {
        let (_, read) = self
            .0
            .iter()
            .find(|(name, _)| name == path)
            .expect("only files that were read are asked for");
        match read {
            Ok(bytes) => Ok(Text { path, role, bytes }),
            Err(flaw) => Err(TlsError::new(path, role, flaw.clone())),
        }
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let mut hasher = DefaultHasher::new();
        for (_, read) in &self.0 {
            read.as_ref().map_err(Flaw::to_string).hash(&mut hasher);
        }
        Fingerprint(hasher.finish())
    }
}

/// What one file holds.
#[derive(Clone, Copy)]
pub(crate) struct Text<'c> {
    pub(crate) path: &'c Path,
    role: FileRole,
    bytes: &'c [u8],
}

impl Text<'_> {
    /// Every object of one kind, in order; `none` if there is not one.
    ///
    /// # Errors
    /// If there is no such object, or the PEM is not whole.
    pub(crate) fn objects<T: PemObject>(&self, none: Flaw) -> Result<Vec<T>, TlsError> {
        let objects: Result<Vec<T>, PemError> = T::pem_slice_iter(self.bytes).collect();
        // The cause may quote the file.
        let objects = objects.map_err(|_| self.error(Flaw::Garbled))?;
        if !objects.is_empty() {
            return Ok(objects);
        }
        let is_pem = self.contains("-----BEGIN ");
        Err(self.error(if is_pem { none } else { Flaw::NotPem }))
    }

    /// Whether some words stand in it.
    pub(crate) fn contains(&self, words: &str) -> bool {
        self.bytes.windows(words.len()).any(|window| window == words.as_bytes())
    }

    pub(crate) fn error(&self, flaw: Flaw) -> TlsError {
        TlsError::new(self.path, self.role, flaw)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Flaw> {
    let unreadable = |error: io::Error| Flaw::Unreadable(error.to_string());
    // Before it is opened: a pipe would wait for its writer.
    if !path.metadata().map_err(unreadable)?.is_file() {
        return Err(Flaw::NotAFile);
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(Flaw::BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    if bytes.len() as u64 > Flaw::BYTES_MAX { Err(Flaw::TooLarge) } else { Ok(bytes) }
}

/// Reads a file, which may be a pipe.
///
/// # Errors
/// If it cannot be read, or is larger than `mebibytes_max`.
pub fn read_up_to(mebibytes_max: u64, path: &Path) -> io::Result<Vec<u8>> {
    let bytes_max = mebibytes_max << 20;
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(io::Error::other(format!("is larger than {mebibytes_max} MiB"))),
        false => Ok(bytes),
    }
}
