//! A recipe's master, as a process that gets its jobs from a test.

use std::fs::File;
use std::io::Write;
use std::process::{Command, ExitStatus};

use fencepost_testsupport::{Etcd, Process, Scratch, eventually};

/// A master. It is killed with this value.
pub(super) struct Master {
    process: Process,
    /// The other end of its jobs.
    jobs: Option<File>,
    _scratch: Scratch,
}

impl Master {
    /// Starts it with the variables that all recipes take.
    pub(super) fn start(mut command: Command, etcd: &Etcd, lock: &str, owner: &str, fence: &str) -> Master {
        let scratch = Scratch::new();
        let jobs = scratch.path().join("jobs");
        assert!(Command::new("mkfifo").arg(&jobs).status().unwrap().success());
        // For reading as well: so it opens at once, and stays open when nobody reads yet.
        let kept = File::options().read(true).write(true).open(&jobs).unwrap();
        command.env("ETCD", etcd.endpoint()).env("LOCK", lock).env("OWNER", owner);
        command.env("WORKER", format!("http://{fence}/jobs")).env("JOBS", &jobs).env("PATH", path_with_etcdctl(etcd));
        let process = Process::start(&command, &scratch.path().join("log"));
        Master { process, jobs: Some(kept), _scratch: scratch }
    }

    /// Gives it one more job.
    pub(super) fn give(&mut self, job: &str) {
        self.jobs.as_mut().unwrap().write_all(format!("{job}\n").as_bytes()).unwrap();
    }

    /// It will get no more jobs.
    pub(super) fn no_more(&mut self) {
        self.jobs = None;
    }

    /// Waits until it says that a job is done.
    pub(super) async fn until_done(&mut self, job: &str) {
        let answer = self.until_answered(job).await;
        assert!(answer.starts_with("200"), "{job}: {answer}; {}", self.log());
    }

    /// Waits until it says that a job was refused; returns why.
    pub(super) async fn until_refused(&mut self, job: &str) -> String {
        let answer = self.until_answered(job).await;
        let reason = answer.strip_prefix("412 ");
        reason.unwrap_or_else(|| panic!("{job}: {answer}")).to_owned()
    }

    /// What it says of a job after `shard-1, revision 10, JOB: `.
    async fn until_answered(&mut self, job: &str) -> String {
        eventually(&format!("{job} is answered"), async || {
            let log = self.process.log();
            let mut whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let answer = whole.find_map(|line| Some(line.split_once(&format!(", {job}: "))?.1.trim_end().to_owned()));
            assert!(answer.is_some() || self.process.ended().is_none(), "it has ended: {log}");
            answer
        })
        .await
    }

    pub(super) async fn pause(&self) {
        self.process.pause().await;
    }

    pub(super) fn resume(&self) {
        self.process.resume();
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
