//! What becomes the command, once its watchdog knows of it.
//!
//! Between the start of a process and the order to the watchdog, this process may be killed, and then nobody would end that one. So
//! what is started is this program again, while the lock is still waited for: it waits for word of the tenure, and then becomes the
//! command. If this process ends before, there is no command.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use crate::BootInstant;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};

use super::console::ConsoleWriter;
use super::exit::Exit;

/// The hidden subcommand that a command is started with.
const SUBCOMMAND: &str = "hold-start";

/// What a word of the tenure ends with: whatever ends otherwise is not whole.
const END: &[u8] = b"\0\0";

/// A process that waits to become the command. It is killed with this value, unless it was let go.
#[derive(Debug)]
pub(super) struct Starter {
    process: Spare,
    word: PipeWriter,
    /// Opened by the process by its name, so that it is left to nobody, the command included.
    gate: PipeReader,
}

/// A child that is killed with this value; `None`: it is no longer ours to kill.
#[derive(Debug)]
struct Spare(Option<Child>);

impl Starter {
    /// Starts one, in a process group of its own unless it is to stay in this one's. The command may have so many descriptors.
    pub(super) fn wait(command: &[OsString], foreground: bool, descriptors: Option<u64>) -> io::Result<Starter> {
        let (gate, word) = io::pipe()?;
        // By this name it is found also if its file was replaced meanwhile.
        let mut starter = Command::new("/proc/self/exe");
        let name = format!("/proc/{}/fd/{}", std::process::id(), gate.as_raw_fd());
        starter.args([SUBCOMMAND, &name]);
        starter.args(descriptors.map(|limit| format!("--descriptors={limit}")));
        starter.arg("--").args(command);
        if !foreground {
            starter.process_group(0);
        }
        Ok(Starter { process: Spare(Some(starter.spawn()?)), word, gate })
    }

    pub(super) fn id(&self) -> Pid {
        Pid::from_child(self.process.0.as_ref().expect("it was not let go"))
    }

    /// It has ended, and leave was taken of it.
    pub(super) fn ended(mut self) {
        self.process.0 = None;
    }

    /// Has it become the command, with these in its environment, unless that moment has come: until then the lock is sure. From now on it is its
    /// parent's to wait for. What is returned has to last as long as that: it may be slow to read.
    #[must_use]
    pub(super) fn let_go(mut self, until: BootInstant, environment: &[(&str, String)]) -> PipeReader {
        let until = until.since_boot().as_nanos();
        let environment: String = environment.iter().map(|(name, value)| format!("{name}={value}\0")).collect();
        // Should it be gone already, its parent learns that from the system.
        let _ = self.word.write_all(format!("{until}\0{environment}\0").as_bytes());
        self.process.0 = None;
        self.gate
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        if let Some(process) = &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// What the process is told: until when it may become the command, and what is to be added to its environment.
struct Word {
    until: BootInstant,
    environment: Vec<(OsString, OsString)>,
}

/// What the started process does until it becomes the command; returns with an exit code if it can't.
pub fn become_command(gate: &Path, descriptors: Option<u64>, command: &[OsString]) -> u8 {
    let failed = |why: &str| {
        Exit::Failed(format!("the command is not started: {why}")).report(&ConsoleWriter::begin().console(false))
    };
    let environment = match wait_for_word(gate) {
        Ok(Some(Word { until, environment })) if BootInstant::now() < until => environment,
        // This process, or the one that gave the word, stood still meanwhile.
        Ok(Some(_)) => return failed("the lock may be another's by now"),
        // Its parent has ended: nobody waits for words of its own.
        Ok(None) => return Exit::Failed(String::new()).code(),
        Err(error) => return failed(&error.to_string()),
    };
    let (program, arguments) = command.split_first().expect("the command line has a command");
    // As it was before this program raised it for itself: a program may take a high limit for a task to go through so many. If it is not to
    // be lowered, it stays raised.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: descriptors, ..getrlimit(Resource::Nofile) });
    // Of a `hold` around this one, whose tenure is another, there may be one that this one does not set.
    let error = Command::new(program).args(arguments).env_remove("FENCE_STAMP").envs(environment).exec();
    let why = format!("{} cannot be run: {error}", program.display());
    Exit::NoCommand { is_missing: error.kind() == ErrorKind::NotFound, why }
        .report(&ConsoleWriter::begin().console(false))
}

/// `None` if the command is not to be any more.
fn wait_for_word(gate: &Path) -> io::Result<Option<Word>> {
    let mut gate = match File::open(gate) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut word = Vec::new();
    while !word.ends_with(END) {
        let mut piece = [0; 512];
        match gate.read(&mut piece)? {
            0 => return Ok(None),
            count => word.extend_from_slice(&piece[..count]),
        }
    }
    let mut entries = word[..word.len() - END.len()].split(|byte| *byte == 0);
    let until = entries.next().and_then(|until| str::from_utf8(until).ok()?.parse().ok());
    let until = until.ok_or_else(|| io::Error::other("it was not told until when it may be"))?;
    let pairs = entries.filter_map(|entry| {
        let at = entry.iter().position(|byte| *byte == b'=')?;
        Some((OsString::from_vec(entry[..at].to_vec()), OsString::from_vec(entry[at + 1..].to_vec())))
    });
    Ok(Some(Word { until: BootInstant::from_boot(Duration::from_nanos(until)), environment: pairs.collect() }))
}
