//! What the `state_dir` remembers, read from whatever is in its file.

use std::collections::BTreeMap;
use std::path::Path;

use fencepost::state::{Remembered, StateDir, StateError};

const SECTOR: usize = 512;

/// The first byte says how the rest is a journal: as it is, or as texts between NULs that are
/// framed as they should be, the last frame cut short by as many bytes as the second byte says.
pub(crate) fn run(input: &[u8]) {
    let Some((form, rest)) = input.split_first() else { return };
    if form % 2 == 0 {
        let _ = restart(rest); // An error says what is wrong with it.
        return;
    }
    let Some((cut, texts)) = rest.split_first() else { return };
    let Ok(texts) = std::str::from_utf8(texts) else { return };
    let texts: Vec<&str> = texts.split('\0').collect();
    let whole = framed(&texts);
    if restart(&whole).is_err() {
        return; // A text in it is none of this version.
    }
    // A write that never ended: what was there before it is what is remembered, never something
    // else.
    let before = framed(&texts[..texts.len() - 1]);
    let cut_short =
        &whole[..whole.len() - (usize::from(*cut) * SECTOR / 16).min(whole.len() - before.len())];
    if cut_short.len() < whole.len() && texts.len() > 1 {
        let earlier = restart(cut_short).expect("a journal may end early");
        assert_eq!(
            earlier,
            restart(&before).expect("it was right up to there"),
            "a commit is there whole or not"
        );
    }
}

/// What a process remembers that finds this journal, and so does the one after it.
fn restart(journal: &[u8]) -> Result<Remembered, StateError> {
    let folder = folder();
    std::fs::write(folder.path().join("journal"), journal).expect("a file can be written");
    let (state, remembered) = StateDir::open(folder.path())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime without anything can be had");
    runtime.block_on(state.begin())?;
    drop(state);
    let (_, again) = StateDir::open(folder.path()).expect("what a process leaves can be read");
    // What was let past before a clean end has left the worker.
    let watched = if remembered.clean { BTreeMap::new() } else { remembered.watched.clone() };
    let kept = Remembered { clean: false, watched, ..remembered.clone() };
    assert_eq!(
        again, kept,
        "nothing is forgotten but the clean mark, and with it what routes have watched"
    );
    Ok(remembered)
}

fn folder() -> tempfile::TempDir {
    // Nothing is to survive: memory will do for a disk.
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a folder can be made")
}

/// The frames of these texts, written by the description of the format and by nothing of the
/// program.
fn framed(texts: &[&str]) -> Vec<u8> {
    const HEADER: usize = 47;
    let (mut journal, mut link) = (Vec::new(), 0);
    for text in texts {
        let length = (HEADER + text.len()).next_multiple_of(SECTOR);
        let mut body = text.as_bytes().to_vec();
        if HEADER + text.len() < length {
            body.resize(length - HEADER - 1, b' ');
            body.push(b'\n');
        }
        let header = format!("fencepost-1 {length:016x} {:08x} ", crc32(0, &body));
        link = crc32(link, header.as_bytes());
        journal.extend_from_slice(format!("{header}{link:08x}\n").as_bytes());
        journal.extend_from_slice(&body);
    }
    journal
}

/// CRC-32 (IEEE 802.3), bit by bit.
fn crc32(earlier: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!earlier, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 }
        })
    })
}
