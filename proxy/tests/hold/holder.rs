//! The program under test, as a process.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, ExitStatus};

use fencepost_tests::{Process, Scratch, until};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{LOCK, Stage};

/// The path of the binary.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_fencepost");

/// A `fencepost hold` that runs a shell script. It is killed with this value.
pub(crate) struct Holder {
    process: Option<Process>,
    _scratch: Scratch,
}

impl Holder {
    /// Starts one on a stage's etcd and lock, with more arguments. The script finds the stage's
    /// directory in `$stage`, and every process that runs a script names it in its arguments.
    pub(crate) fn start(stage: &Stage, owner: &str, arguments: &[&str], script: &str) -> Holder {
        Holder::start_at(&stage.etcd.endpoint(), &stage.file(""), owner, arguments, script)
    }

    /// As [`Holder::start`], by another way to etcd.
    pub(crate) fn start_at(
        etcd: &str,
        stage: &Path,
        owner: &str,
        arguments: &[&str],
        script: &str,
    ) -> Holder {
        let script = format!("stage={}; {script}", stage.display());
        Holder::at(etcd, owner, arguments, &["sh", "-c", &script])
    }

    pub(crate) fn run(stage: &Stage, owner: &str, arguments: &[&str], command: &[&str]) -> Holder {
        Holder::at(&stage.etcd.endpoint(), owner, arguments, command)
    }

    /// As [`Holder::start`], its standard error a pipe that is full and that nobody reads for as
    /// long as there is what is returned.
    pub(crate) fn start_unheard(
        stage: &Stage,
        owner: &str,
        arguments: &[&str],
        script: &str,
    ) -> (Holder, File) {
        let pipe = stage.file("unread");
        if !pipe.exists() {
            assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        }
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let mut full =
            File::options().read(true).write(true).custom_flags(nonblocking).open(&pipe).unwrap();
        while full.write(b"x").is_ok() {}
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec 2> \"$0\"; exec \"$@\""]).arg(&pipe).arg(BINARY);
        let script = format!("stage={}; {script}", stage.file("").display());
        (Holder::by(shell, &stage.etcd.endpoint(), owner, arguments, &["sh", "-c", &script]), full)
    }

    /// As [`Holder::start`], by this program, which gets `fencepost` and its arguments as
    /// arguments.
    pub(crate) fn start_by(
        program: &[&str],
        stage: &Stage,
        owner: &str,
        arguments: &[&str],
        script: &str,
    ) -> Holder {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).arg(BINARY);
        let script = format!("stage={}; {script}", stage.file("").display());
        Holder::by(command, &stage.etcd.endpoint(), owner, arguments, &["sh", "-c", &script])
    }

    /// Starts one with that command, on another etcd.
    pub(crate) fn at(etcd: &str, owner: &str, arguments: &[&str], command: &[&str]) -> Holder {
        // However the tests themselves were started.
        let mut env = Command::new("env");
        env.args(["--default-signal=HUP,INT,QUIT", BINARY]);
        Holder::by(env, etcd, owner, arguments, command)
    }

    /// Starts one of another lock, with that command.
    pub(crate) fn of_lock(
        lock: &str,
        stage: &Stage,
        owner: &str,
        arguments: &[&str],
        command: &[&str],
    ) -> Holder {
        Holder::by_of_lock(
            Command::new(BINARY),
            lock,
            &stage.etcd.endpoint(),
            owner,
            arguments,
            command,
        )
    }

    fn by(hold: Command, etcd: &str, owner: &str, arguments: &[&str], command: &[&str]) -> Holder {
        Holder::by_of_lock(hold, LOCK, etcd, owner, arguments, command)
    }

    fn by_of_lock(
        mut hold: Command,
        lock: &str,
        etcd: &str,
        owner: &str,
        arguments: &[&str],
        command: &[&str],
    ) -> Holder {
        let scratch = Scratch::new();
        hold.args(["hold", "--etcd", etcd, "--lock", lock, "--owner", owner]);
        hold.args(arguments).arg("--").args(command).env_remove("FENCEPOST_LOG");
        let process = Process::start(&hold, &scratch.path().join("log"));
        Holder { process: Some(process), _scratch: scratch }
    }

    /// What it and its command have printed.
    pub(crate) fn log(&self) -> String {
        self.process().log()
    }

    #[track_caller]
    pub(crate) fn says(&self, text: &str) {
        assert!(self.log().contains(text), "{text:?} is not in {}", self.log());
    }

    #[track_caller]
    pub(crate) fn does_not_say(&self, text: &str) {
        assert!(!self.log().contains(text), "{text:?} is in {}", self.log());
    }

    pub(crate) async fn until_log(&self, text: &str) {
        until(&format!("{text:?} is printed"), async || self.log().contains(text)).await;
    }

    /// Waits until it has ended, and returns its exit code.
    pub(crate) async fn code(&mut self) -> i32 {
        let status = self.status().await;
        status.code().unwrap_or_else(|| panic!("{status}: {}", self.log()))
    }

    pub(crate) async fn status(&mut self) -> ExitStatus {
        self.process.as_mut().expect("it was not killed").end_of_itself().await
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Stops it in its tracks, and it alone.
    pub(crate) async fn pause(&self) {
        self.process().pause().await;
    }

    pub(crate) fn resume(&self) {
        self.process().resume();
    }

    pub(crate) fn kill(&mut self) {
        self.process.take().expect("it was not killed").kill();
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.process().id().cast_signed()).unwrap()
    }

    /// Its children: the command and the watchdog.
    pub(crate) fn children(&self) -> Vec<(Pid, String)> {
        let above = format!("PPid:\t{}\n", self.pid().as_raw_nonzero());
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let child = |entry: std::fs::DirEntry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
            let arguments = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
            (status.contains(&above) && !arguments.is_empty()).then_some((pid, arguments))
        };
        entries.filter_map(child).collect()
    }

    pub(crate) fn watchdog(&self) -> Pid {
        let watchdog =
            self.children().into_iter().find(|(_, arguments)| arguments.contains("hold-watchdog"));
        watchdog.expect("it has a watchdog").0
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("it was not killed")
    }
}

/// Runs `fencepost hold` with these arguments, which spaces separate, to its end, which is one of
/// wrong usage and says this.
pub(crate) fn is_wrong_usage(arguments: &str, says: &str) {
    let output =
        Command::new(BINARY).arg("hold").args(arguments.split_whitespace()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{arguments}: {said}");
    assert!(!said.is_empty() && said.contains(says), "{arguments}: {said}");
}
