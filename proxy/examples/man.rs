//! Writes the man pages, one for each command: `cargo run --locked --package fencepost --example man -- DIRECTORY`.

use std::io;
use std::path::PathBuf;

use clap::CommandFactory;
use fencepost::cli::Cli;

fn main() -> io::Result<()> {
    let directory: PathBuf = std::env::args_os().nth(1).unwrap_or_else(|| "man".into()).into();
    std::fs::create_dir_all(&directory)?;
    clap_mangen::generate_to(Cli::command(), &directory)
}
