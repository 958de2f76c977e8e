//! The file that remembers: a whole state, then what changed it, commit by commit.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

use super::directory::{Directory, is_at};
use super::entry::Entry;
use super::error::StateError;
use super::frame::{self, FRAME_BYTES_MAX, Link};
use super::remembered::Remembered;

const JOURNAL: &str = "journal";
/// A journal that does not count yet.
const NEXT: &str = "journal.next";

/// As many bytes of commits are added before the journal is written anew, or as many as the state
/// itself has.
const ADDED_BYTES_MIN: usize = 64 << 10;

/// What the journal of this directory says; no journal means that there was no process before.
pub(super) fn read(directory: &Directory) -> Result<Remembered, StateError> {
    let path = directory.path().join(JOURNAL);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Remembered { clean: true, ..Remembered::default() });
        }
        Err(error) => return Err(StateError::unusable(directory.path())(error)),
    };
    let damaged = |damage: String| StateError::Damaged { file: path.clone(), damage };
    let mut remembered = Remembered::default();
    for text in frame::read(&bytes).map_err(|damage| damaged(damage.to_string()))? {
        for entry in serde_json::Deserializer::from_str(text).into_iter() {
            let entry = entry.map_err(|error| {
                damaged(format!("what it says is not of this version: {error}"))
            })?;
            remembered.apply(&entry);
        }
    }
    Ok(remembered)
}

/// The journal of this process.
pub(super) struct Journal {
    directory: Directory,
    file: File,
    link: Link,
    /// Bytes of the state that the journal begins with, and of the commits added to it.
    whole_bytes: usize,
    added_bytes: usize,
    /// Whether the file says what it should. After a failed write nobody knows what the disk has: a
    /// later sync that succeeds does not mean that the earlier bytes are there. Then the journal is
    /// written anew, into another file.
    sound: bool,
}

impl Journal {
    /// Begins a journal with this state, in the place of the one before.
    pub(super) fn begin(directory: Directory, state: &Remembered) -> io::Result<Journal> {
        let (file, link, whole_bytes) = replace(&directory, state)?;
        Ok(Journal { directory, file, link, whole_bytes, added_bytes: 0, sound: true })
    }

    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Whether all that was committed is on the disk.
    pub(super) fn is_sound(&self) -> bool {
        self.sound
    }

    /// Makes these changes durable, all or none; `state` has them already. After an error, the next
    /// commit makes the whole of its state durable.
    pub(super) fn commit(&mut self, changes: &[Entry], state: &Remembered) -> io::Result<()> {
        let was_sound = std::mem::replace(&mut self.sound, false);
        self.directory.check_claim()?;
        let (frame, link) = frame::write(&text(changes.iter().cloned())?, self.link);
        let fits = frame.len() <= FRAME_BYTES_MAX
            && self.added_bytes + frame.len() <= self.whole_bytes.max(ADDED_BYTES_MIN);
        if was_sound && fits && is_at(&self.file, &self.directory.path().join(JOURNAL))? {
            self.file.write_all(&frame)?;
            self.file.sync_data()?;
            (self.link, self.added_bytes) = (link, self.added_bytes + frame.len());
        } else {
            (self.file, self.link, self.whole_bytes) = replace(&self.directory, state)?;
            self.added_bytes = 0;
        }
        self.sound = true;
        Ok(())
    }
}

/// Writes a journal with this state in it and nothing else, which takes the name once it is
/// durable.
fn replace(directory: &Directory, state: &Remembered) -> io::Result<(File, Link, usize)> {
    let path = |name: &str| -> PathBuf { directory.path().join(name) };
    let (frame, link) = frame::write(&text(state.entries())?, Link::default());
    let mut file = File::create(path(NEXT))?;
    file.write_all(&frame)?;
    file.sync_all()?;
    fs::rename(path(NEXT), path(JOURNAL))?;
    directory.sync()?;
    Ok((file, link, frame.len()))
}

fn text(entries: impl Iterator<Item = Entry>) -> io::Result<String> {
    let mut text = String::new();
    for entry in entries {
        text += &serde_json::to_string(&entry)?;
        text.push('\n');
    }
    Ok(text)
}

/// What no crash takes away is on the disk, which is to say that it was synced; and a pipe takes
/// bytes as a file does but cannot be synced.
#[cfg(test)]
pub(super) mod tests {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::Path;

    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
    use tempfile::tempdir;

    use super::*;

    /// How a sync of a pipe fails.
    pub(in super::super) const NOT_SYNCED: io::ErrorKind = io::ErrorKind::InvalidInput;

    /// A pipe of that name, to be written and to see what was written by then.
    pub(in super::super) fn pipe(path: &Path) -> File {
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let at_once = i32::try_from(OFlags::NONBLOCK.bits()).unwrap();
        File::options().read(true).write(true).custom_flags(at_once).open(path).unwrap()
    }

    /// There is a frame with this in it.
    fn assert_written(mut pipe: File, text: &str) {
        let mut written = [0; 512];
        pipe.read_exact(&mut written).unwrap();
        let written = String::from_utf8_lossy(&written);
        assert!(written.contains(text), "{written}");
    }

    #[test]
    fn a_commit_is_none_until_it_was_synced() {
        let folder = tempdir().unwrap();
        let state = Remembered::default();
        let mut journal = Journal::begin(Directory::claim(folder.path()).unwrap(), &state).unwrap();
        fs::remove_file(folder.path().join(JOURNAL)).unwrap();
        let pipe = pipe(&folder.path().join(JOURNAL));
        journal.file = pipe.try_clone().unwrap();
        let committed = journal.commit(&[Entry::CleanLeave], &state);
        assert_eq!(committed.map_err(|error| error.kind()), Err(NOT_SYNCED));
        assert!(!journal.is_sound());
        assert_written(pipe, &text([Entry::CleanLeave].into_iter()).unwrap());
        // What may be lost is no part of the next commit: all is written anew.
        journal.commit(&[], &Remembered { clean: true, ..state }).unwrap();
        assert!(journal.is_sound() && read(journal.directory()).unwrap().clean);
    }

    #[test]
    fn a_journal_gets_its_name_only_once_it_was_synced() {
        let folder = tempdir().unwrap();
        let state = Remembered { clean: true, ..Remembered::default() };
        drop(
            Journal::begin(Directory::claim(folder.path()).unwrap(), &Remembered::default())
                .unwrap(),
        );
        let pipe = pipe(&folder.path().join(NEXT));
        let begun = Journal::begin(Directory::claim(folder.path()).unwrap(), &state);
        assert_eq!(begun.err().map(|error| error.kind()), Some(NOT_SYNCED));
        assert_written(pipe, &text(state.entries()).unwrap());
        assert!(folder.path().join(NEXT).exists(), "it has not taken the name");
        assert!(
            !read(&Directory::claim(folder.path()).unwrap()).unwrap().clean,
            "what it says does not count"
        );
    }
}
