//! Writes the output of a command. When the reader has left or the disk is full, `println!` and
//! `eprintln!` panic, but this does not.

use std::fmt::Display;
use std::io::{self, Write, stderr, stdout};

/// Standard output takes nothing more: nobody has what was asked for.
#[derive(Debug, thiserror::Error)]
#[error("standard output cannot be written")]
pub struct Unprinted(#[from] io::Error);

/// Prints a line on standard output.
///
/// # Errors
/// If it can't be.
pub fn print(line: impl Display) -> Result<(), Unprinted> {
    Ok(writeln!(stdout(), "{line}")?)
}

/// Says a line on standard error. If it can't be said there, there is nowhere else.
pub fn tell(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}
