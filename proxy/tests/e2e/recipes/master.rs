//! A recipe's master, as a process that gets its jobs from a test.

use std::fs::File;
use std::io::Write;
use std::process::{Command, ExitStatus};

use fencepost_tests::{Etcd, Process, Scratch, eventually};

/// A master. It is killed with this value.
pub(super) struct Master {
    process: Process,
    /// The other end of its jobs.
    jobs: Option<File>,
    _scratch: Scratch,
}

impl Master {
    /// Starts it with the variables that all recipes take.
    pub(super) fn start(
        command: Command,
        etcd: &Etcd,
        lock: &str,
        owner: &str,
        fence: &str,
    ) -> Master {
        Master::start_far(command, etcd, &etcd.endpoint(), lock, owner, fence)
    }

    /// As [`Master::start`], with another way to etcd.
    pub(super) fn start_far(
        mut command: Command,
        etcd: &Etcd,
        endpoint: &str,
        lock: &str,
        owner: &str,
        fence: &str,
    ) -> Master {
        let scratch = Scratch::new();
        let jobs = scratch.path().join("jobs");
        assert!(Command::new("mkfifo").arg(&jobs).status().unwrap().success());
        // For reading as well: so it opens at once, and stays open when nobody reads yet.
        let kept = File::options().read(true).write(true).open(&jobs).unwrap();
        command.env("ETCD", endpoint).env("LOCK", lock).env("OWNER", owner);
        command
            .env("WORKER", format!("http://{fence}/jobs"))
            .env("JOBS", &jobs)
            .env("PATH", path_with_etcdctl(etcd));
        let process = Process::start(&command, &scratch.path().join("log"));
        Master { process, jobs: Some(kept), _scratch: scratch }
    }

    pub(super) fn give(&mut self, job: &str) {
        self.jobs.as_mut().unwrap().write_all(format!("{job}\n").as_bytes()).unwrap();
    }

    pub(super) fn no_more(&mut self) {
        self.jobs = None;
    }

    /// Waits until it says that a job is done.
    pub(super) async fn until_done(&mut self, job: &str) {
        let answer = self.until_answered(job).await;
        assert!(answer.is_some_and(|answer| answer.starts_with("200")), "{job}: {}", self.log());
    }

    /// Waits until it says that a job was refused, and returns why; `None` if it has ended before.
    pub(super) async fn until_refused(&mut self, job: &str) -> Option<String> {
        let answer = self.until_answered(job).await?;
        let reason = answer.strip_prefix("412 ");
        Some(reason.unwrap_or_else(|| panic!("{job}: {answer}")).to_owned())
    }

    /// What it says of a job after `shard-1, revision 10, JOB: `; `None` if it has ended before.
    async fn until_answered(&mut self, job: &str) -> Option<String> {
        eventually(&format!("{job} is answered"), async || {
            let ended = self.process.ended().is_some();
            let log = self.process.log();
            let mut whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let answer = whole.find_map(|line| {
                Some(line.split_once(&format!(", {job}: "))?.1.trim_end().to_owned())
            });
            (ended || answer.is_some()).then_some(answer)
        })
        .await
    }

    pub(super) async fn pause(&self) {
        self.process.pause().await;
    }

    pub(super) fn resume(&self) {
        self.process.resume();
    }

    pub(super) fn terminate(&self) {
        self.process.terminate();
    }

    pub(super) async fn status(&mut self) -> ExitStatus {
        self.process.end_of_itself().await
    }

    pub(super) fn log(&self) -> String {
        self.process.log()
    }
}

impl Drop for Master {
    /// What it has said explains why a test has failed.
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("a master has said: {}", self.log());
        }
    }
}

/// A search path where `etcdctl` is that of the member.
fn path_with_etcdctl(etcd: &Etcd) -> String {
    let etcdctl = etcd.etcdctl_command();
    let folder = std::path::Path::new(etcdctl.as_std().get_program()).parent().unwrap().to_owned();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}
