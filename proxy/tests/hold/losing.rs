//! Locks that are lost, and holders that can't act.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fencepost_hold::BootInstant;
use fencepost_tests::{EtcdVersion, Process, Relay, eventually};
use rustix::fs::OFlags;
use rustix::process::Signal;

use crate::holder::{BINARY, Holder};
use crate::stage::{LOCK, Stage};

/// A command that writes down when it was there, every 20 ms, and does not end when asked to.
const STUBBORN: &str = "trap '' TERM; while :; do date +%s%N >> $stage/beats; sleep 0.02; done";

/// A command that says under which revision it runs, and when it was asked to end.
const DOCILE: &str = r#"trap 'echo "end $FENCE_REVISION" >> $stage/log; exit 0' TERM; echo "begin $FENCE_REVISION" >> $stage/log
       while :; do sleep 0.02; done"#;

/// The last beat.
fn last_beat(stage: &Stage) -> SystemTime {
    let beats = stage.read("beats");
    let nanoseconds =
        beats.lines().filter_map(|line| line.parse().ok()).max().expect("there was a beat");
    UNIX_EPOCH + Duration::from_nanos(nanoseconds)
}

async fn until_no_command_runs(stage: &Stage) {
    eventually("the command has ended", async || {
        let commands =
            stage.processes().into_iter().filter(|arguments| arguments.starts_with("sh\0"));
        (commands.count() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_command_ends_with_its_lock_and_reruns_under_the_next() {
    let stage = Stage::set().await;
    let mut holder = Holder::start(&stage, "a", &["--verbose"], DOCILE);
    let mut expected = Vec::new();
    for how in ["deleted", "lease revoked", "overwritten"] {
        let log = stage.until_lines("log", expected.len() + 1).await;
        let record = stage.until_held_by("a").await;
        expected.push(format!("begin {}", record.create_revision()));
        expected.push(format!("end {}", record.create_revision()));
        assert_eq!(log, expected[..expected.len() - 1], "{how}");
        let mut client = stage.client();
        match how {
            "deleted" => drop(client.delete(LOCK, None).await.unwrap()),
            "lease revoked" => drop(client.lease_revoke(record.lease()).await.unwrap()),
            _ => {
                client.put(LOCK, "somebody else", None).await.unwrap();
                stage.until_lines("log", expected.len()).await;
                // What somebody else has written is waited for, not removed.
                holder.until_log("changed by somebody else").await;
                client.delete(LOCK, None).await.unwrap();
            }
        }
    }
    stage.until_lines("log", expected.len() + 1).await;
    // It was said to have been given back each time, also when it stood there with the other's
    // value.
    let given_back = format!("gave {LOCK} back");
    assert!(!holder.log().contains(&given_back), "{}", holder.log());
    assert_eq!(holder.log().matches(" has left nothing in etcd\n").count(), 3, "{}", holder.log());
    holder.signal(Signal::TERM);
    assert_eq!(holder.code().await, 0);
    assert_eq!(holder.log().matches(&given_back).count(), 1, "{}", holder.log());
    stage.is_left_clean().await;
}

#[tokio::test]
async fn with_once_a_lost_lock_is_the_end() {
    let stage = Stage::set().await;
    let mut holder = Holder::start(&stage, "a", &["--once"], DOCILE);
    stage.until_lines("log", 1).await;
    stage.client().delete(LOCK, None).await.unwrap();
    assert_eq!(holder.code().await, 76);
    assert!(holder.log().ends_with("the lock was lost: the key was deleted\n"), "{}", holder.log());
    stage.is_left_clean().await;
}

#[tokio::test]
async fn without_etcd_a_command_dies_before_its_lock_moves() {
    let stage = Stage::set().await;
    let ttl = Duration::from_secs(3);
    let mut holder = Holder::start(&stage, "a", &["--once", "--ttl", "3s"], STUBBORN);
    stage.until_lines("beats", 1).await;
    // Every renewal that was confirmed was sent before this.
    let paused = SystemTime::now();
    stage.etcd.pause().await;
    until_no_command_runs(&stage).await;
    // On the grounds that a busy machine takes its time to end a process.
    let outlived = last_beat(&stage).duration_since(paused).unwrap();
    assert!(outlived < ttl + Duration::from_millis(500), "it ran on for {outlived:?}");
    stage.etcd.resume();
    assert_eq!(holder.code().await, 76);
    assert!(holder.log().contains("no renewal was confirmed in time"), "{}", holder.log());
    stage.is_left_clean().await;
}

/// The lock is lost while `hold` ends what the command left.
#[tokio::test]
async fn an_ended_command_is_not_run_again_for_what_it_left() {
    for once in [&[][..], &["--once"]] {
        let stage = Stage::set().await;
        let script = r#"echo ran >> $stage/log
            sh -c 'trap "" TERM; touch $1/deaf; while :; do sleep 0.02; done' left $stage &
            until [ -e $stage/deaf ]; do sleep 0.02; done
            exit 3"#;
        let arguments = [&["--ttl", "3s", "--grace", "30s", "--verbose"], once].concat();
        let mut holder = Holder::start(&stage, "a", &arguments, script);
        holder.until_log("the command has ended and left processes behind").await;
        stage.etcd.pause().await;
        holder.until_log("lost the lock: no renewal was confirmed in time").await;
        stage.etcd.resume();
        assert_eq!(holder.code().await, 3, "{once:?}: {}", holder.log());
        assert_eq!(stage.read("log"), "ran\n", "{once:?}");
        stage.is_left_clean().await;
    }
}

/// Both were there to be seen at once: the end of the command, and that of the time for which the
/// lock was sure.
#[tokio::test]
async fn a_command_that_ended_while_its_holder_stood_is_not_rerun() {
    for once in [&[][..], &["--once"]] {
        let stage = Stage::set().await;
        let script = "echo ran >> $stage/log; until [ -e $stage/go ]; do sleep 0.02; done";
        let mut holder = Holder::start(&stage, "a", &[&["--ttl", "3s"], once].concat(), script);
        stage.until_lines("log", 1).await;
        holder.pause().await;
        std::fs::write(stage.file("go"), "").unwrap();
        // It is another's by now.
        let mut next = Holder::start(&stage, "b", &[], "true");
        assert_eq!(next.code().await, 0);
        holder.resume();
        assert_eq!(holder.code().await, 0, "{once:?}: {}", holder.log());
        assert_eq!(stage.read("log"), "ran\n", "{once:?}");
        // It was said to be ended, not to have ended in time, and to be killed.
        let said = "fencepost hold: lost the lock: no renewal was confirmed in time; the command has ended\n";
        assert!(holder.log().ends_with(said), "{once:?}: {}", holder.log());
        assert!(!holder.log().contains("in time: killing it"), "{once:?}: {}", holder.log());
        stage.is_left_clean().await;
    }
}

/// Neither a word from etcd nor an error: the connection takes whatever is sent, and so does every
/// new one.
#[tokio::test]
async fn a_cut_off_holder_ends_its_command_before_the_lock_moves() {
    for (version, how) in [
        (EtcdVersion::V3_4, "blackholed"),
        (EtcdVersion::V3_5, "blackholed"),
        (EtcdVersion::V3_5, "cut"),
    ] {
        let stage = Stage::set_with(version).await;
        let way = Relay::before(&stage.etcd).await;
        let etcd = format!("http://{}", way.address());
        let arguments = ["--once", "--ttl", "3s"];
        let mut holder = Holder::start_at(&etcd, &stage.file(""), "a", &arguments, STUBBORN);
        stage.until_lines("beats", 1).await;
        let taken = "date +%s%N > $stage/taken; until [ -e $stage/go ]; do sleep 0.02; done";
        let mut next = Holder::start(&stage, "b", &[], taken);
        eventually("b waits", async || (stage.leases().await == 2).then_some(())).await;
        match how {
            "cut" => way.cut().await,
            _ => way.freeze().await,
        }
        let taken = stage.until_lines("taken", 1).await[0].parse().unwrap();
        let taken = UNIX_EPOCH + Duration::from_nanos(taken);
        assert!(last_beat(&stage) < taken, "etcd {version}, {how}: it ran on under another's lock");
        // It can't give back what it holds no more, and does not try for ever.
        assert_eq!(holder.code().await, 76, "etcd {version}, {how}: {}", holder.log());
        assert!(holder.log().contains("no renewal was confirmed in time"), "{}", holder.log());
        std::fs::write(stage.file("go"), "").unwrap();
        assert_eq!(next.code().await, 0);
        stage.is_left_clean().await;
    }
}

#[tokio::test]
async fn a_holder_that_stands_still_does_not_keep_its_command_running() {
    let stage = Stage::set().await;
    // And what it has left, which is its child by now and of no group that it knows.
    let script =
        format!("(setsid sh -c 'while :; do sleep 0.02; : $1; done' left $stage &); {STUBBORN}");
    let holder = Holder::start(&stage, "a", &["--once", "--ttl", "3s"], &script);
    stage.until_lines("beats", 1).await;
    eventually("it has a third child", async || (holder.children().len() == 3).then_some(())).await;
    let paused = SystemTime::now();
    holder.pause().await;
    until_no_command_runs(&stage).await;
    let outlived = last_beat(&stage).duration_since(paused).unwrap();
    assert!(outlived < Duration::from_millis(3_500), "it ran on for {outlived:?}");
    // Meanwhile the lock is another's.
    let mut next = Holder::start(&stage, "b", &[], "true");
    assert_eq!(next.code().await, 0);
    assert_eq!(
        holder.log().lines().count(),
        1,
        "only the watchdog has said something: {}",
        holder.log()
    );
    let mut holder = holder;
    holder.resume();
    assert_eq!(holder.code().await, 76);
    // The watchdog has, and there was nobody left to be killed.
    assert!(
        holder.log().contains("no renewal was confirmed in time; the command has ended\n"),
        "{}",
        holder.log()
    );
    assert!(!holder.log().contains("killing it"), "{}", holder.log());
    stage.is_left_clean().await;
}

/// What was to be said came before what was to be done, and nobody took it.
#[tokio::test]
async fn a_command_ends_in_time_though_nobody_reads_the_messages() {
    let stage = Stage::set().await;
    for how in ["its lock is deleted", "its holder stands still", "its holder is killed"] {
        let arguments = ["--once", "--ttl", "2s", "--verbose"];
        let (mut holder, unread) = Holder::start_unheard(&stage, "a", &arguments, STUBBORN);
        stage.until_lines("beats", 1).await;
        let watchdog = PathBuf::from(format!("/proc/{}", holder.watchdog().as_raw_nonzero()));
        let began = SystemTime::now();
        match how {
            "its lock is deleted" => drop(stage.client().delete(LOCK, None).await.unwrap()),
            "its holder stands still" => holder.pause().await,
            _ => holder.kill(),
        }
        until_no_command_runs(&stage).await;
        let outlived = last_beat(&stage).duration_since(began).unwrap_or_default();
        assert!(outlived < Duration::from_millis(2_500), "{how}: it ran on for {outlived:?}");
        if how != "its holder is killed" {
            holder.resume();
            assert_eq!(holder.code().await, 76, "{how}");
        }
        eventually("its watchdog has ended", async || (!watchdog.exists()).then_some(())).await;
        std::fs::remove_file(stage.file("beats")).unwrap();
        drop(unread);
    }
}

#[tokio::test]
async fn a_killed_holder_takes_its_command_with_it() {
    let stage = Stage::set().await;
    // A shell, its child, and that one's, which has left the group.
    let script = "sh -c 'setsid sh -c \"while :; do date +%s%N >> $1/beats; sleep 0.02; done\" grandchild; :' child $stage; :";
    for foreground in [&[][..], &["--foreground"]] {
        let mut holder =
            Holder::start(&stage, "a", &[&["--ttl", "2s"], foreground].concat(), script);
        stage.until_held_by("a").await;
        eventually("three shells run", async || {
            (stage.processes().iter().filter(|arguments| arguments.starts_with("sh\0")).count()
                == 3)
                .then_some(())
        })
        .await;
        stage.until_lines("beats", 1).await;
        let mut next = Holder::start(&stage, "b", &[], "date +%s%N > $stage/taken");
        eventually("b waits", async || (stage.leases().await == 2).then_some(())).await;
        let killed = Instant::now();
        holder.kill();
        assert_eq!(next.code().await, 0);
        println!("taken over {:?} after the holder was killed", killed.elapsed());
        until_no_command_runs(&stage).await;
        let taken = UNIX_EPOCH + Duration::from_nanos(stage.read("taken").trim().parse().unwrap());
        assert!(last_beat(&stage) < taken, "{foreground:?}: the command went before its lock did");
        stage.is_left_clean().await;
        std::fs::remove_file(stage.file("beats")).unwrap();
    }
}

/// A process ends its files first, and its watchdog hears of that. The system would end a command
/// that was stopped then, and what had left its group would be nobody's.
#[tokio::test]
async fn a_watchdog_stops_nobody_before_its_holder_is_gone() {
    let stage = Stage::set().await;
    let directory = stage.file("");
    let (stage_is, orders) = (format!("stage={}", directory.display()), stage.file("orders"));
    let command = format!(
        "{stage_is}; setsid sh -c \"while :; do date +%s%N >> $stage/beats; sleep 0.02; done\" grandchild $stage; :"
    );
    // A holder that closes what it has and is still there.
    let script = format!(
        r#"{stage_is}; mkfifo $stage/orders; sh -c "$1" & echo $! > $stage/command; "$0" hold-watchdog $$ < $stage/orders & wait"#
    );
    let mut holder = Command::new("sh");
    holder.args(["-c", &script, BINARY, &command]);
    let holder = Process::start(&holder, &stage.file("log"));
    let pid = stage.until_lines("command", 1).await.remove(0);
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let mut input = eventually("the watchdog listens", async || {
        File::options().write(true).custom_flags(nonblocking).open(&orders).ok()
    })
    .await;
    let in_time = (BootInstant::now() + Duration::from_secs(3600)).since_boot().as_nanos();
    stage.until_lines("beats", 1).await;
    writeln!(input, "process {pid} {in_time}").unwrap();
    drop(input);
    let beats = stage.read("beats").lines().count();
    stage.until_lines("beats", beats + 10).await;
    holder.kill();
    until_no_command_runs(&stage).await;
}

#[tokio::test]
async fn a_clean_exit_hands_the_lock_on_at_once() {
    let stage = Stage::set().await;
    let script = "until [ -e $stage/go ]; do sleep 0.005; done; date +%s%N > $stage/given";
    let mut first = Holder::start(&stage, "a", &["--ttl", "600s"], script);
    stage.until_held_by("a").await;
    let mut next =
        Holder::start(&stage, "b", &["--queue", "--ttl", "600s"], "date +%s%N > $stage/taken");
    eventually("b queues", async || (stage.keys().await.len() == 2).then_some(())).await;
    std::fs::write(stage.file("go"), "").unwrap();
    assert_eq!([first.code().await, next.code().await], [0, 0]);
    let at = |name: &str| stage.read(name).trim().parse::<u64>().unwrap();
    println!("handed on within {:?}", Duration::from_nanos(at("taken") - at("given")));
    stage.is_left_clean().await;
}

#[tokio::test]
async fn without_its_watchdog_a_command_ends_and_gives_its_lock_back() {
    let stage = Stage::set().await;
    let mut holder = Holder::start(&stage, "a", &[], DOCILE);
    stage.until_lines("log", 1).await;
    rustix::process::kill_process(holder.watchdog(), Signal::KILL).unwrap();
    assert_eq!(holder.code().await, 1);
    assert_eq!(stage.read("log").lines().count(), 2, "it was asked to end");
    stage.is_left_clean().await;
}

/// It took the lock again, and ran its command under later tenures with nobody to end it in its
/// place.
#[tokio::test]
async fn without_its_watchdog_nothing_runs_again() {
    let stage = Stage::set().await;
    let script = "trap '' TERM; echo begin >> $stage/log; while :; do sleep 0.02; done";
    let mut holder = Holder::start(&stage, "a", &["--grace", "2s"], script);
    stage.until_lines("log", 1).await;
    rustix::process::kill_process(holder.watchdog(), Signal::KILL).unwrap();
    holder.until_log("the watchdog has ended: ending the command").await;
    stage.client().delete(LOCK, None).await.unwrap();
    assert_eq!(holder.code().await, 1);
    assert!(holder.log().contains("lost the lock"), "{}", holder.log());
    assert_eq!(stage.read("log"), "begin\n");
    stage.is_left_clean().await;
}

#[tokio::test]
async fn a_command_that_stands_still_is_ended_without_being_let_go_on() {
    let stage = Stage::set().await;
    let mut holder = Holder::start(&stage, "a", &["--once", "--grace", "200ms"], DOCILE);
    stage.until_lines("log", 1).await;
    let command = holder
        .children()
        .into_iter()
        .find(|(_, arguments)| arguments.starts_with("sh\0"))
        .unwrap()
        .0;
    rustix::process::kill_process(command, Signal::STOP).unwrap();
    stage.client().delete(LOCK, None).await.unwrap();
    assert_eq!(holder.code().await, 76);
    assert_eq!(stage.read("log").lines().count(), 1, "it did nothing more, not even to end");
    stage.is_left_clean().await;
}

/// Between the start of a process and the order to the watchdog, its holder may be killed.
#[tokio::test]
async fn a_holder_killed_at_once_takes_its_command_with_it() {
    let stage = Stage::set().await;
    for round in 1..=10 {
        let script = "trap '' TERM HUP; echo runs >> $stage/log; while :; do sleep 0.02; done";
        let mut holder = Holder::start(&stage, "a", &[], script);
        while stage.read("log").lines().count() < round {
            std::thread::yield_now();
        }
        holder.kill();
        eventually("its command has ended", async || stage.processes().is_empty().then_some(()))
            .await;
        stage.client().delete(LOCK, None).await.unwrap();
    }
}

/// The process waits for leave, which comes when its watchdog knows of it. Without leave it ends.
#[test]
fn a_command_runs_only_once_it_was_let_go() {
    use std::os::fd::AsRawFd;
    for (leave, code) in [("\n", 0), ("", 1)] {
        let scratch = fencepost_tests::Scratch::new();
        let ran = scratch.path().join("ran");
        let (gate, mut pipe) = std::io::pipe().unwrap();
        let name = format!("/proc/{}/fd/{}", std::process::id(), gate.as_raw_fd());
        let mut start = Command::new(BINARY);
        start.args(["hold-start", &name, "--", "touch"]).arg(&ran);
        let mut started = start.spawn().unwrap();
        // It has the pipe in its hand.
        while std::fs::read_dir(format!("/proc/{}/fd", started.id())).unwrap().count() < 4 {
            std::thread::yield_now();
        }
        assert!(!ran.exists() && started.try_wait().unwrap().is_none());
        pipe.write_all(leave.as_bytes()).unwrap();
        drop(pipe);
        assert_eq!(started.wait().unwrap().code(), Some(code));
        assert_eq!(ran.exists(), code == 0);
    }
}
