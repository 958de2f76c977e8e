//! A run still ends properly after the reader of its output has left, as every reader in a pipeline
//! does at Ctrl-C.

use std::process::{Child, Command, ExitStatus, Stdio};

use fencepost_tests::{Etcd, EtcdVersion, Worker, eventually};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{ReportFile, nothing_is_left_in};

/// A loadtest whose output goes into a pipe that nobody reads any more. It ends with this value.
struct Unread(Child);

impl Unread {
    fn start(arguments: &str) -> Unread {
        let (reader, writer) = std::io::pipe().expect("there are descriptors");
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost-loadtest"));
        command.args(arguments.split_whitespace()).stdin(Stdio::null());
        command.stdout(writer.try_clone().expect("there are descriptors")).stderr(writer);
        Unread(command.spawn().expect("the loadtest can be started"))
    }

    fn terminate(&self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).expect("it runs");
    }

    async fn end(&mut self) -> ExitStatus {
        eventually("it ends", async || self.0.try_wait().expect("a child can be waited for")).await
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        // It fails if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn unread_run_ends_when_asked_and_writes_its_report() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    // The takeovers are not fenced, which is found.
    for (what, figure, code) in [
        ("closed --duration 1h --connections 1", "answered", 0),
        ("takeovers --count 100", "takeovers", 1),
    ] {
        let (server, report) = (Worker::start().await, ReportFile::new());
        let (url, etcd_url) = (server.endpoint().to_string(), etcd.endpoint());
        let wire = format!("--proxy {url} --etcd {etcd_url} --lock /lock --json {}", report.path());
        let mut run = Unread::start(&format!("{what} {wire}"));
        server.wait_for(60).await; // Of a hundred takeovers it has told of ten.
        run.terminate();
        assert_eq!(run.end().await.code(), Some(code), "{what:?}");
        assert!(report.read()[figure].as_u64() >= Some(20), "{what:?}: {:#}", report.read());
        nothing_is_left_in(&etcd).await;
    }
}
