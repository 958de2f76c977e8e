//! Starts the command so that it cannot run before its watchdog knows it.
//!
//! Between the start of a process and the watchdog's order this process may be killed, and then
//! nobody would end the command. So this program starts itself again as the [`Starter`]. That one
//! waits at a pipe for leave, and then becomes the command. When this process ends first, the pipe
//! ends too, and there is no command.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::Pid;

use super::console::ConsoleWriter;
use super::exit::Exit;

/// The hidden subcommand of the process that becomes the command.
const SUBCOMMAND: &str = "hold-start";

/// There is no such command, and the command cannot be run: as in shells.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// A process that becomes the command once it is let go. To be kept for as long as that process
/// runs.
#[derive(Debug)]
pub(super) struct Starter {
    id: Pid,
    leave: PipeWriter,
    /// The process opens the gate by its name in /proc, so that the command does not inherit it.
    _gate: PipeReader,
}

impl Starter {
    /// Starts the process with this environment, in a process group of its own unless it is to stay
    /// in this one's.
    pub(super) fn start(
        command: &[OsString],
        foreground: bool,
        environment: &[(&str, String)],
    ) -> io::Result<Starter> {
        let (gate, leave) = io::pipe()?;
        // This name stays right when the program's file is replaced.
        let mut starter = Command::new("/proc/self/exe");
        starter.arg(SUBCOMMAND).arg(format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            gate.as_raw_fd()
        ));
        starter.arg("--").args(command);
        // A `hold` around this one may have set it, for another tenure.
        starter
            .env_remove("FENCE_STAMP")
            .envs(environment.iter().map(|(name, value)| (name, value)));
        if !foreground {
            starter.process_group(0);
        }
        let id = Pid::from_child(&starter.spawn()?);
        Ok(Starter { id, leave, _gate: gate })
    }

    pub(super) fn id(&self) -> Pid {
        self.id
    }

    /// Lets the process become the command.
    pub(super) fn let_go(&mut self) {
        // If the process has ended, its parent learns that from the system.
        let _ = self.leave.write_all(b"\n");
    }
}

/// What the started process does until it becomes the command. Returns an exit code if it cannot.
pub fn become_command(gate: &Path, command: &[OsString]) -> u8 {
    let console = ConsoleWriter::begin();
    let may_begin = match File::open(gate) {
        Ok(mut gate) => gate.read_exact(&mut [0]),
        Err(error) => Err(error),
    };
    let exit = match may_begin {
        Ok(()) => {
            let (program, arguments) =
                command.split_first().expect("the command line has a command");
            let error = Command::new(program).args(arguments).exec();
            let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
            Exit::new(code, format!("{} cannot be run: {error}", program.display()))
        }
        Err(_) => Exit::failed("the command is not started, since hold has ended"),
    };
    exit.report(&console.console(false))
}
