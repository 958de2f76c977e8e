//! Reloads of a file, on virtual time.

use std::fs;
use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::task::Poll;

use fencepost_tls::{Expiry, Followed, Look};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, advance, sleep};

use super::*;
use crate::metrics::TlsUse;
use crate::process::Process;

fn write(path: &Path, route: &str) {
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n\n[[route]]\nname = {route:?}\npath = \"/\"\nmode = \"off\"\n\
         upstream = \"http://127.0.0.1:9\"\n"
    );
    fs::write(path, text).unwrap();
}

fn reloader(path: &Path) -> (Reloader, Reloads) {
    let file = ConfigFile::read(path).unwrap();
    let process = Arc::new(Process::alone().unwrap());
    let first = Generation::new(file.first().unwrap(), 1, process).unwrap();
    let origin = Origin::File(file);
    let signals = ReloadSignals::listen(&origin);
    Reloader::new(origin, signals, first)
}

#[tokio::test(start_paused = true)]
async fn a_changed_file_is_in_force_within_two_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fencepost.toml");
    write(&path, "first");
    let (mut reloader, _reloads) = reloader(&path);
    let in_force = reloader.in_force();
    let until_second = async {
        sleep(Duration::from_millis(1)).await; // It has just been looked at.
        write(&path, "second");
        let written = Instant::now();
        while in_force.now().number == 1 {
            sleep(Duration::from_millis(1)).await;
        }
        written.elapsed()
    };
    tokio::select! {
        () = reloader.run() => panic!("it goes on for as long as it is polled"),
        took = until_second => assert!(took <= Duration::from_secs(2), "{took:?}"),
    }
}

/// Files on a file system that does not answer, for as long as the test takes.
struct Unread {
    looked_at: mpsc::UnboundedSender<&'static str>,
    answers: Mutex<Receiver<()>>,
}

impl Followed for Unread {
    fn look(&self) -> Look {
        let _ = self.looked_at.send("begun");
        let _ = self.answers.lock().unwrap().recv_timeout(Duration::from_secs(10));
        let _ = self.looked_at.send("ended");
        Look::Unchanged
    }

    fn expiries(&self) -> Arc<[Expiry]> {
        Arc::default()
    }
}

/// It was never answered, and no change of the file was seen any more.
#[tokio::test(start_paused = true)]
async fn a_reload_is_answered_though_tls_files_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fencepost.toml");
    write(&path, "first");
    let (mut reloader, reloads) = reloader(&path);
    let (looked_at, mut looks) = mpsc::unbounded_channel();
    let (_answer, answers) = channel();
    let files: Arc<dyn Followed> = Arc::new(Unread { looked_at, answers: Mutex::new(answers) });
    reloader.in_force().now().process.tls_files.follow(TlsUse::Upstream, "first", &files);
    let time_passes = async {
        assert_eq!(looks.recv().await, Some("begun"));
        advance(READ_TIMEOUT * 2).await;
    };
    tokio::select! {
        () = reloader.run() => panic!("it goes on for as long as it is polled"),
        (outcome, ()) = async { tokio::join!(reloads.reload(), time_passes) } => {
            assert_eq!(outcome, Some(Outcome::Unchanged { generation: 1 }));
        }
    }
    assert!(looks.try_recv().is_err(), "it has ended, or was begun again");
}

/// That many routes were checked and compared at once: the thread that hears signals and feeds the
/// watchdog did nothing else for seconds.
#[test]
fn others_have_their_turn_while_a_file_is_checked_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fencepost.toml");
    write(&path, "first");
    let runtime =
        Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let (mut reloader, _reloads) = reloader(&path);
        let content = super::file::read(&path);
        let (go_on, told) = channel::<()>();
        spawn_blocking(move || told.recv()); // There is no other thread for what takes its time.
        let mut reload = pin!(reloader.put_in_force(&content));
        assert!(
            poll_fn(|context| Poll::Ready(reload.as_mut().poll(context).is_pending())).await,
            "it is done already"
        );
        drop(go_on);
        assert_eq!(reload.await, Ok(Outcome::Unchanged { generation: 1 }));
    });
}
