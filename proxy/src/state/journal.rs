//! The file that remembers: a whole state, then what changed it, commit by commit.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

use super::StateError;
use super::directory::{Directory, is_at};
use super::frame::{self, FRAME_BYTES_MAX, Link};
use super::remembered::{Entry, Remembered};

const JOURNAL: &str = "journal";
/// A journal that does not count yet.
const NEXT: &str = "journal.next";

/// As many bytes of commits are added before the journal is written anew, or as many as the state itself has.
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
            let entry = entry.map_err(|error| damaged(format!("what it says is not of this version: {error}")))?;
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
    /// Whether the file says what it should. After a failed write nobody knows what the disk has: a later sync that succeeds
    /// does not mean that the earlier bytes are there. Then the journal is written anew, into another file.
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

    /// Makes these changes durable, all or none; `state` has them already. After an error, the next commit makes the whole
    /// of its state durable.
    pub(super) fn commit(&mut self, changes: &[Entry], state: &Remembered) -> io::Result<()> {
        let was_sound = std::mem::replace(&mut self.sound, false);
        self.directory.check_claim()?;
        let (frame, link) = frame::write(&text(changes.iter().cloned())?, self.link);
        let fits =
            frame.len() <= FRAME_BYTES_MAX && self.added_bytes + frame.len() <= self.whole_bytes.max(ADDED_BYTES_MIN);
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

/// Writes a journal with this state in it and nothing else, which takes the name once it is durable.
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
