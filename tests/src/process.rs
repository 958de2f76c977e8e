//! Child processes that can be paused and that never outlive the test.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, mpsc};

use rustix::process::{Pid, Signal, kill_process};

use crate::patience::eventually;

/// A child process with its output in a file. It is killed with this value, and by the system if
/// the test process itself is killed.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` (its program, arguments, environment and directory); what it prints goes to
    /// the end of `log`.
    pub fn start(command: &Command, log: &Path) -> Process {
        let child = spawn(bound_to_us(command, log))
            .unwrap_or_else(|error| panic!("setpriv (of util-linux) cannot be started: {error}"));
        Process { child, log: log.to_owned() }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Stops it in its tracks (SIGSTOP): its sockets stay open and take bytes, nobody answers.
    /// Returns once it has stopped.
    pub async fn pause(&self) {
        self.signal(Signal::STOP);
        eventually("the process is stopped", async || {
            let state = self.state();
            assert_ne!(state, 'Z', "process {} has ended; it printed: {}", self.id(), self.log());
            (state == 'T').then_some(())
        })
        .await;
    }

    /// Lets it go on after [`Process::pause`].
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to end (SIGTERM).
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Tells it that its configuration may have changed (SIGHUP).
    pub fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    /// Has it end at once, and end its own children (SIGQUIT). Returns once it is gone.
    pub(crate) fn quit(&mut self) {
        if self.ended().is_none() {
            self.signal(Signal::QUIT);
            let _ = self.child.wait();
        }
    }

    /// Ends it (SIGKILL), paused or not. Returns once it is gone.
    pub fn kill(mut self) {
        self.end();
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// How it ended, once it has.
    pub async fn end_of_itself(&mut self) -> ExitStatus {
        eventually("the process ends", async || self.ended()).await
    }

    fn signal(&self, signal: Signal) {
        // The id is still ours: it is given back only when the child has been waited for, and then
        // this fails.
        let sent = kill_process(Pid::from_child(&self.child), signal);
        sent.unwrap_or_else(|error| {
            panic!("process {} is gone ({error}); it printed: {}", self.id(), self.log())
        });
    }

    /// The letter of its state, as `ps` shows it.
    fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap_or_default();
        // The program's name stands in brackets and may hold anything; the state is the word after
        // it.
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?')
    }

    fn end(&mut self) {
        // Fails only if it has ended already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// `command`, as a child that the system kills when its parent thread ends.
fn bound_to_us(command: &Command, log: &Path) -> Command {
    let log = File::options()
        .create(true)
        .append(true)
        .open(log)
        .expect("the log of a process can be opened");
    let errors = log.try_clone().expect("an open file can be cloned");
    let mut bound = Command::new("setpriv");
    bound.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(name, value),
            None => bound.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        bound.current_dir(directory);
    }
    bound.stdin(Stdio::null()).stdout(log).stderr(errors);
    bound
}

/// Spawns on a thread that lives as long as this process: the parent that counts for the system is
/// the *thread*, and a test's own thread may end before the process that it started is given up.
fn spawn(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        std::thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || {
                for (mut command, reply) in inbox {
                    // Whoever asked may have been given up meanwhile; then the child is of no use.
                    if let Err(mpsc::SendError(Ok(mut child))) = reply.send(command.spawn()) {
                        let _ = child.kill();
                        let _ = child.wait();
                    }
                }
            })
            .expect("a thread can be started");
        orders
    });
    let (reply, child) = mpsc::channel();
    SPAWNER.send((command, reply)).expect("the spawner never ends");
    child.recv().expect("the spawner answers each order")
}
