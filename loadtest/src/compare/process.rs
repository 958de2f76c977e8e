//! Processes of a comparison. Each ends with its value, or when this program is killed.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::net::TcpStream;

use crate::machine::stay_on;

const START_TIMEOUT: Duration = Duration::from_secs(30);
const END_TIMEOUT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// A process, and all that it started, that end with this value.
pub(super) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program on these CPUs. Its output goes into a file of that directory.
    pub(super) fn start(
        name: &str,
        command: Command,
        cpus: &[usize],
        directory: &Path,
    ) -> Result<Process> {
        let log = directory.join(format!("{name}.log"));
        let output =
            File::create(&log).with_context(|| format!("{} cannot be written", log.display()))?;
        let errors = output.try_clone()?;
        let mut command = bound_to_us(command);
        // In a group of its own: Ctrl-C does not reach it, and it ends as a whole.
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        // A process inherits the CPUs of the thread that starts it, and ends with that thread.
        let before = crate::machine::cpus()?;
        stay_on(cpus)?;
        let child = command.spawn();
        stay_on(&before)?;
        let child = child.with_context(|| format!("{name} cannot be started"))?;
        Ok(Process { name: name.to_owned(), child, log })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) async fn listens(&mut self, address: SocketAddr) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if TcpStream::connect(address).await.is_ok() {
                return Ok(());
            }
            self.runs()?;
            if Instant::now() > deadline {
                bail!("{} does not listen on {address}; it printed: {}", self.name, self.printed());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    pub(super) fn runs(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                bail!("{} ended with {status}; it printed: {}", self.name, self.printed())
            }
        }
    }

    fn printed(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn signal(&self, signal: Signal) {
        // Fails only if the whole group is gone. The id is valid until the child is waited for.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
            return;
        }
        self.signal(Signal::TERM);
        let deadline = Instant::now() + END_TIMEOUT;
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            if Instant::now() > deadline {
                self.signal(Signal::KILL);
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// The command as a child that the kernel kills when this program dies, if setpriv is installed.
fn bound_to_us(command: Command) -> Command {
    let Some(setpriv) = installed(Path::new("setpriv")) else { return command };
    let mut bound = Command::new(setpriv);
    bound.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
    bound
}

/// The path of a program, from the search path if it is a bare name; `None` if not installed.
pub(super) fn installed(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    // Servers are often outside a user's search path.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(more)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Free addresses for programs that must be told theirs.
///
/// Each run has a loopback address of its own, by its process id. On a shared one, HAProxy would
/// share a port with another run's, and each would answer for both.
#[derive(Debug)]
pub(super) struct Addresses {
    pub(super) host: Ipv4Addr,
    /// Below the ports of outgoing connections.
    ports: Range<u16>,
}

impl Addresses {
    pub(super) fn new() -> Addresses {
        // Process ids have 22 bits; 127.0 is everybody's.
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let host = Ipv4Addr::new(127, 1 + (high & 0x3f), middle, low);
        Addresses { host, ports: 20_000..30_000 }
    }

    pub(super) fn take(&mut self) -> Result<SocketAddr> {
        let free = self.ports.find(|port| TcpListener::bind((self.host, *port)).is_ok());
        let port = free.with_context(|| format!("no port of {} is free", self.host))?;
        Ok(SocketAddr::from((self.host, port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_process_ends_its_children() {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]);
        let cpus = crate::machine::cpus().unwrap();
        let mut process = Process::start("shell", command, &cpus, scratch.path()).unwrap();
        let deadline = Instant::now() + START_TIMEOUT;
        while !process.printed().ends_with('\n') {
            assert!(Instant::now() < deadline, "the shell prints nothing");
        }
        let inner = process.printed().trim().to_owned();
        process.runs().unwrap();
        drop(process);
        let state = || std::fs::read_to_string(format!("/proc/{inner}/stat")).unwrap_or_default();
        while !(state().is_empty() || state().contains(") Z")) {
            assert!(Instant::now() < deadline, "process {inner} goes on: {}", state());
        }
    }

    #[test]
    fn ended_process_tells_its_output() {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such option >&2; exit 3"]);
        let mut process =
            Process::start("shell", command, &crate::machine::cpus().unwrap(), scratch.path())
                .unwrap();
        let _ = process.child.wait();
        let error = process.runs().unwrap_err().to_string();
        assert!(error.contains("no such option") && error.contains('3'), "{error}");
    }

    #[test]
    fn missing_program_is_none() {
        assert!(installed(Path::new("sh")).is_some_and(|path| path.is_absolute()));
        assert_eq!(installed(Path::new("no-such-program-at-all")), None);
        assert_eq!(installed(Path::new("/no/such/program")), None);
    }

    #[test]
    fn each_address_is_new_and_free() {
        let mut addresses = Addresses::new();
        // Bound first: a child of another test may keep a port that was free a moment ago.
        let taken = TcpListener::bind((addresses.host, addresses.ports.start)).unwrap();
        let (one, two) = (addresses.take().unwrap(), addresses.take().unwrap());
        assert_ne!(one, two);
        assert_ne!(one, taken.local_addr().unwrap());
    }
}
