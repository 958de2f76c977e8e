//! Processes of a comparison: each ends with what started it, whatever happens.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::net::TcpStream;

use crate::machine::stay_on;

/// How long a process may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a process may take to end once it was asked to.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How often to look.
const LOOK: Duration = Duration::from_millis(20);

/// A process that runs as long as this value lives, with all that it started.
pub(super) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program on these CPUs; what it prints goes into a file of that directory.
    pub(super) fn start(name: &str, command: Command, cpus: &[usize], directory: &Path) -> anyhow::Result<Process> {
        let log = directory.join(format!("{name}.log"));
        let output = File::create(&log).with_context(|| format!("{} cannot be written", log.display()))?;
        let errors = output.try_clone()?;
        let mut command = bound_to_us(command);
        // A group of its own: what the terminal sends at Ctrl-C is for us, and it ends as a whole.
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        let child = on(cpus, move || command.spawn())?.with_context(|| format!("{name} cannot be started"))?;
        Ok(Process { name: name.to_owned(), child, log })
    }

    /// Its process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it takes connections there.
    pub(super) async fn listens(&mut self, address: SocketAddr) -> anyhow::Result<()> {
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

    /// That it has not ended by itself.
    pub(super) fn runs(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}; it printed: {}", self.name, self.printed()),
        }
    }

    fn printed(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn signal(&self, signal: Signal) {
        // Fails only if the whole group is gone, which is what is wanted. The number is still its own: it has not been waited for.
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

/// Does something while this thread is on these CPUs: a process runs where the thread does that starts it.
///
/// Not on a thread of its own: the system ends what is bound to its parent ([`bound_to_us`]) when the thread ends that started it.
fn on<T>(cpus: &[usize], work: impl FnOnce() -> T) -> anyhow::Result<T> {
    let before = crate::machine::cpus()?;
    stay_on(cpus)?;
    let done = work();
    stay_on(&before)?;
    Ok(done)
}

/// The command as a child that the system kills if this process is killed and can end it no more, where there is a program for that.
fn bound_to_us(command: Command) -> Command {
    let Some(setpriv) = installed(Path::new("setpriv")) else { return command };
    let mut bound = Command::new(setpriv);
    bound.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
    bound
}

/// The program's path: as given if that is a path, else from the search path; `None` if it is not installed.
pub(super) fn installed(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    // Servers are often where only administrators look.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Addresses that nobody listens on: for programs that must be told theirs.
///
/// Each process has a loopback address of its own, by its number. On one that others use too, HAProxy would share a port with another
/// run's, and each would answer for both.
#[derive(Debug)]
pub(super) struct Addresses {
    host: Ipv4Addr,
    next: u16,
}

/// Below the ports from which the system takes those of outgoing connections.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

impl Addresses {
    /// Those of this process.
    pub(super) fn new() -> Addresses {
        // Numbers of processes have 22 bits; 127.0 is everybody's.
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        Addresses { host: Ipv4Addr::new(127, 1 + (high & 0x3f), middle, low), next: PORTS.start }
    }

    /// The host of all.
    pub(super) fn host(&self) -> Ipv4Addr {
        self.host
    }

    /// Another one.
    pub(super) fn take(&mut self) -> anyhow::Result<SocketAddr> {
        while self.next < PORTS.end {
            let address = SocketAddr::from((self.host, self.next));
            self.next += 1;
            match TcpListener::bind(address) {
                Ok(_) => return Ok(address),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error).with_context(|| format!("{} cannot be bound", self.host)),
            }
        }
        bail!("no port of {} from {} to {} is free", self.host, PORTS.start, PORTS.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_ends_with_its_value_and_so_does_what_it_started() {
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
    fn a_process_that_ended_by_itself_is_an_error_with_what_it_printed() {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such option >&2; exit 3"]);
        let mut process = Process::start("shell", command, &crate::machine::cpus().unwrap(), scratch.path()).unwrap();
        let _ = process.child.wait();
        let error = process.runs().unwrap_err().to_string();
        assert!(error.contains("no such option") && error.contains('3'), "{error}");
    }

    #[test]
    fn what_is_not_installed_is_not_found() {
        assert!(installed(Path::new("sh")).is_some_and(|path| path.is_absolute()));
        assert_eq!(installed(Path::new("no-such-program-at-all")), None);
        assert_eq!(installed(Path::new("/no/such/program")), None);
    }

    #[test]
    fn each_address_is_another_one_and_free() {
        let mut addresses = Addresses::new();
        // Taken first: what was free a moment ago may be kept by a child that another test is just starting.
        let taken = TcpListener::bind((addresses.host, PORTS.start)).unwrap();
        let (one, two) = (addresses.take().unwrap(), addresses.take().unwrap());
        assert_ne!(one, two);
        assert_ne!(one, taken.local_addr().unwrap());
    }
}
