//! The access log, where nobody takes its lines, or not all of them.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use fencepost_testsupport::{Connection, Endpoint, Etcd, EtcdVersion, Scratch, Worker};
use futures_util::future::join_all;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::fencepost::{Config, Fencepost, Route};
use crate::scene::{Ask, Ledger, send};
use crate::store::Store;

const LOST: &str = r#"fencepost_log_lines_lost_total{log="access_log"}"#;

fn guarded() -> Route {
    Route::new("k", "/", r#"key = "/k""#)
}

fn logging_to(path: &str) -> String {
    format!("[access_log]\npath = {path:?}")
}

/// A FIFO, and its reader, which reads nothing unless it is told to.
fn fifo(scratch: &Scratch) -> (PathBuf, File) {
    let path = scratch.path().join("fifo");
    make_fifo(&path);
    // Whoever may write too waits for no writer.
    let reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    (path, reader)
}

fn make_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// Sends requests that are refused until lines of the access log are lost: neither its pipe nor its queue has room for more.
async fn until_lines_are_lost(fence: &Fencepost) {
    while fence.metric(LOST).await == 0.0 {
        join_all((0..8).map(|_| refused(fence.listener.clone(), 100))).await;
    }
}

/// Sends that many requests without a token, all at once.
async fn refused(listener: Endpoint, count: usize) {
    let request = format!("GET /{} HTTP/1.1\r\nHost: test\r\n\r\n", "x".repeat(1_000));
    let mut connection = Connection::open(listener).await.unwrap();
    connection.send(request.repeat(count)).await.unwrap();
    for _ in 0..count {
        assert_eq!(connection.response().await.unwrap().status, 428);
    }
}

/// It hung for ever in the middle of its end, and the next process waited for requests that were nowhere.
#[tokio::test]
async fn a_process_ends_cleanly_though_nobody_reads_its_access_log() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await);
    let (scratch, state_dir) = (Scratch::new(), Scratch::new());
    let config = Config::new(&[etcd.endpoint()], &worker.endpoint().to_string(), &[guarded()])
        .remembering_in(&state_dir.path().join("state"))
        .limit(r#"drain_delay = "0s""#)
        .section(&logging_to("stdout"));
    let (output, _reader) = fifo(&scratch);
    let mut fence = Fencepost::serve_writing_to(&config, &output).await;
    let held = Store::of(&etcd).await.hold("/k", "shard-1").await;
    let ledger = Ledger::default();
    assert_eq!(send(&fence.listener, &ledger, Ask::post("/").under(&held)).await.status, 200);
    until_lines_are_lost(&fence).await;

    let status = fence.terminate().await;
    assert!(status.success(), "{status}: {}", fence.log());
    assert!(fence.log().contains("remembered: nothing is left at the worker"), "{}", fence.log());
    let next = Fencepost::serve(&config).await;
    assert!(next.log().contains("no earlier process has left anything at the worker"), "{}", next.log());
    ledger.check(&worker);
}
