//! What a process remembers across restarts: what is durable, who may write it, and what becomes of
//! it when a process is killed, a disk fails or a file is damaged.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fencepost::state::{Remembered, RememberedLock, Seen, StateDir, StateError};
use fencepost_locks::StoreIdentity;
use fencepost_policy::{Layout, LockKey, Revision};
use fencepost_tests::{Process, Scratch, eventually};

const ORPHAN_TIMEOUT: Duration = Duration::from_secs(30);

fn lock(key: &str) -> LockKey {
    LockKey::new(key).unwrap()
}

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

fn seen(revision: Revision) -> Seen {
    let store =
        StoreIdentity { cluster: Some(0xcdf8_1819_4e3a_8c32), terms: [(u64::MAX, 9)].into() };
    Seen { revision, store }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn record(state: &StateDir, key: &str, tenure: u64) -> Result<(), StateError> {
    wait(state.record("main", &lock(key), Layout::Key, revision(tenure), ORPHAN_TIMEOUT))
}

fn open(path: &Path) -> (StateDir, Remembered) {
    let (state, remembered) =
        StateDir::open(path).unwrap_or_else(|error| panic!("{}", chain(&error)));
    // On a thread of its own, since the test may have a runtime.
    let begun = std::thread::scope(|scope| scope.spawn(|| wait(state.begin())).join().unwrap());
    begun.unwrap_or_else(|error| panic!("{}", chain(&error)));
    (state, remembered)
}

/// What the next process gets to know; it leaves as it found things.
fn remembered(path: &Path) -> Remembered {
    let (state, remembered) = open(path);
    state.close(remembered.clean).unwrap();
    remembered
}

fn tenure(remembered: &Remembered, key: &str) -> Option<u64> {
    remembered.lock("main", &lock(key)).and_then(|lock| lock.tenure).map(Revision::get)
}

/// An error with its causes, as the program prints it.
fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn journal(path: &Path) -> PathBuf {
    path.join("journal")
}

/// How many commits the journal has, the state that it begins with counted as one.
fn commits(path: &Path) -> usize {
    let journal = fs::read(journal(path)).unwrap();
    journal.chunks(512).filter(|sector| sector.starts_with(b"fencepost-1 ")).count()
}

#[test]
fn an_empty_directory_means_no_process_before() {
    let scratch = Scratch::new();
    let (_state, first) = open(&scratch.path().join("lib/fencepost"));
    assert_eq!(first, Remembered { clean: true, ..Remembered::default() });
    let file = scratch.path().join("file");
    fs::write(&file, "").unwrap();
    let Err(error) = StateDir::open(&file.join("state")) else {
        panic!("a directory below a file")
    };
    assert!(
        chain(&error)
            .starts_with(&format!("cannot use {}/state as the state_dir: ", file.display())),
        "{error}"
    );
}

#[test]
fn what_is_recorded_is_remembered() {
    let scratch = Scratch::new();
    let (state, _) = open(scratch.path());
    record(&state, "/a", 7).unwrap();
    record(&state, "/b", 9).unwrap();
    wait(state.record("other", &lock("/a"), Layout::Key, revision(3), Duration::from_millis(1500)))
        .unwrap();
    state.note_seen("main", seen(revision(12)));
    state.note_seen("main", seen(revision(11)));
    state.close(false).unwrap();

    let of = |tenure, orphan_timeout| RememberedLock {
        layout: Layout::Key,
        tenure: Some(revision(tenure)),
        orphan_timeout,
    };
    let main =
        BTreeMap::from([(lock("/a"), of(7, ORPHAN_TIMEOUT)), (lock("/b"), of(9, ORPHAN_TIMEOUT))]);
    let other = BTreeMap::from([(lock("/a"), of(3, Duration::from_millis(1500)))]);
    let expected = Remembered {
        clean: false,
        highest_seen: BTreeMap::from([("main".to_owned(), seen(revision(12)))]),
        distrusted: BTreeMap::new(),
        locks: BTreeMap::from([("main".to_owned(), main), ("other".to_owned(), other)]),
        watched: BTreeMap::new(),
    };
    assert_eq!(remembered(scratch.path()), expected);
    assert_eq!(remembered(scratch.path()), expected, "a process that did nothing changed nothing");
}

#[test]
fn only_a_process_that_says_so_left_clean() {
    let scratch = Scratch::new();
    let (state, _) = open(scratch.path());
    record(&state, "/a", 7).unwrap();
    state.close(true).unwrap();

    let (state, after_clean) = open(scratch.path());
    assert!(after_clean.clean);
    state.close(false).unwrap();
    let (state, after_unclean) = open(scratch.path());
    assert!(!after_unclean.clean);
    assert_eq!(after_unclean.locks, after_clean.locks);
    drop(state);
    assert!(!remembered(scratch.path()).clean, "one that was dropped said nothing");
}

#[test]
fn a_short_clean_life_hides_no_earlier_crash() {
    let leave_clean_after_a_crash = |orphan_timeout| {
        let scratch = Scratch::new();
        let (crashed, _) = open(scratch.path());
        wait(crashed.record("main", &lock("/a"), Layout::Key, revision(7), orphan_timeout))
            .unwrap();
        drop(crashed);
        open(scratch.path()).0.close(true).unwrap();
        remembered(scratch.path()).clean
    };
    assert!(
        !leave_clean_after_a_crash(Duration::from_secs(3600)),
        "its requests may run for an hour"
    );
    assert!(leave_clean_after_a_crash(Duration::from_nanos(1)), "they have ended long ago");
}

#[test]
fn the_clean_mark_is_gone_once_it_has_begun() {
    let scratch = Scratch::new();
    open(scratch.path()).0.close(true).unwrap();
    let (_state, first) = open(scratch.path());
    assert!(first.clean);
    assert!(!after_a_crash_now(scratch.path()).clean);
}

/// What the next process would know if this one crashed right now.
fn after_a_crash_now(path: &Path) -> Remembered {
    let crashed = Scratch::new();
    fs::copy(journal(path), journal(crashed.path())).unwrap();
    remembered(crashed.path())
}

#[test]
fn a_start_that_has_not_begun_leaves_no_trace() {
    let scratch = Scratch::new();
    let (state, _) = open(scratch.path());
    record(&state, "/a", 7).unwrap();
    state.close(true).unwrap();
    let not_begun = || {
        let before = fs::read(journal(scratch.path())).unwrap();
        let (state, remembered) = StateDir::open(scratch.path()).unwrap();
        state.inbox().distrust("main", revision(9));
        drop(state);
        assert_eq!(fs::read(journal(scratch.path())).unwrap(), before);
        remembered.clean
    };
    assert!(not_begun() && not_begun());
    drop(open(scratch.path()));
    assert!(!not_begun() && !not_begun());
}

#[test]
fn one_process_at_a_time_has_the_directory() {
    let scratch = Scratch::new();
    let (state, _) = open(scratch.path());
    record(&state, "/a", 7).unwrap();
    let Err(second) = StateDir::open(scratch.path()) else { panic!("a second one got in") };
    assert!(matches!(second, StateError::InUse { .. }));
    let text = second.to_string();
    assert!(
        text.starts_with(&format!(
            "another fencepost process uses the state_dir {}",
            scratch.path().display()
        )),
        "{text}"
    );

    record(&state, "/a", 9).unwrap();
    drop(state);
    assert_eq!(tenure(&remembered(scratch.path()), "/a"), Some(9), "the refused one left no trace");
}

#[test]
fn a_replaced_directory_is_written_by_its_new_process_only() {
    let scratch = Scratch::new();
    let path = scratch.path().join("state");
    let (before, _) = open(&path);
    record(&before, "/a", 7).unwrap();
    fs::rename(&path, scratch.path().join("moved away")).unwrap();
    assert!(record(&before, "/a", 9).is_err(), "nobody would find it");

    let (now, _) = open(&path);
    record(&now, "/a", 2).unwrap();
    let text = chain(&record(&before, "/a", 9).unwrap_err());
    assert!(text.ends_with("the directory was removed or replaced while it was in use"), "{text}");
    drop((before, now));
    assert_eq!(tenure(&remembered(&path), "/a"), Some(2));
}

#[test]
fn an_accepted_regression_forgets_revisions_not_requests() {
    let scratch = Scratch::new();
    let (state, _) = open(scratch.path());
    record(&state, "/a", 700).unwrap();
    record(&state, "/b", 800).unwrap();
    wait(state.record("other", &lock("/a"), Layout::Key, revision(900), ORPHAN_TIMEOUT)).unwrap();
    state.note_seen("main", seen(revision(1000)));
    state.inbox().distrust("main", revision(1000));
    state.inbox().distrust("other", revision(1100));
    state.inbox().forget("main");
    wait(state.written()).unwrap();
    state.note_seen("main", seen(revision(20)));
    record(&state, "/b", 10).unwrap();
    drop(state);

    let after = remembered(scratch.path());
    assert_eq!(after.highest_seen["main"], seen(revision(20)));
    assert_eq!(after.distrusted, BTreeMap::from([("other".to_owned(), revision(1100))]));
    let forgotten =
        RememberedLock { layout: Layout::Key, tenure: None, orphan_timeout: ORPHAN_TIMEOUT };
    assert_eq!(
        after.lock("main", &lock("/a")),
        Some(&forgotten),
        "its requests may still be at the worker"
    );
    assert_eq!(tenure(&after, "/b"), Some(10));
    assert_eq!(after.lock("other", &lock("/a")).unwrap().tenure, Some(revision(900)));
}

#[test]
fn a_tenure_is_not_recorded_over_a_later_one() {
    let scratch = Scratch::new();
    let (state, _) = open(scratch.path());
    record(&state, "/a", 100).unwrap();
    let before = commits(scratch.path());
    for tenure in [7, 99] {
        let refused = record(&state, "/a", tenure).unwrap_err();
        assert!(
            matches!(refused, StateError::Later { known } if known == revision(100)),
            "{refused}"
        );
    }
    assert_eq!(commits(scratch.path()), before);
    // Also where all three come together, and whatever stands behind them.
    let asked = [7, 100, 7].map(|tenure| {
        state.record("main", &lock("/a"), Layout::Key, revision(tenure), ORPHAN_TIMEOUT)
    });
    let [earlier, same, forgotten] = asked;
    state.inbox().forget("main");
    record(&state, "/a", 7).unwrap();
    assert!(wait(earlier).is_err() && wait(same).is_ok() && wait(forgotten).is_err());
    drop(state);
    assert_eq!(tenure(&remembered(scratch.path()), "/a"), Some(7));
}

#[test]
fn the_journal_stays_small_whatever_is_written() {
    let scratch = Scratch::new();
    let (state, _) = open(scratch.path());
    for tenure in 1..=2000 {
        record(&state, "/a", tenure).unwrap();
        let length = fs::metadata(journal(scratch.path())).unwrap().len();
        assert!(length <= 66 << 10, "{length} bytes at tenure {tenure}");
    }
    drop(state);
    assert_eq!(tenure(&remembered(scratch.path()), "/a"), Some(2000));
}

/// A journal with a commit per tenure from 1 to 6, some longer than a sector.
fn written() -> Vec<u8> {
    let scratch = Scratch::new();
    let (state, _) = open(scratch.path());
    for tenure in 1..=6 {
        let others = (0..tenure * 3).map(|other| format!("/{tenure}/{other}"));
        let others = others
            .map(|key| state.record("main", &lock(&key), Layout::Key, revision(1), ORPHAN_TIMEOUT));
        others.collect::<Vec<_>>().into_iter().for_each(|record| wait(record).unwrap());
        record(&state, "/a", tenure).unwrap();
    }
    fs::read(journal(scratch.path())).unwrap()
}

#[test]
fn a_damaged_journal_stops_the_start_and_is_explained() {
    let journal_bytes = written();
    let scratch = Scratch::new();
    for at in (0..journal_bytes.len()).step_by(7) {
        let mut damaged = journal_bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(journal(scratch.path()), &damaged).unwrap();
        let Err(error) = StateDir::open(scratch.path()) else {
            panic!("byte {at} is damaged, and nobody noticed")
        };
        let text = error.to_string();
        let begins = format!("{} is damaged (at byte ", journal(scratch.path()).display());
        let advice = "restore the file; or wait until the longest orphan_timeout has passed";
        assert!(text.starts_with(&begins) && text.contains(advice), "{text}");
        assert_eq!(fs::read(journal(scratch.path())).unwrap(), damaged, "it is left alone");
    }
}

#[test]
fn a_cut_journal_is_an_earlier_state_or_damaged() {
    let journal_bytes = written();
    let scratch = Scratch::new();
    let mut latest = 0;
    for length in (0..journal_bytes.len()).step_by(11) {
        fs::write(journal(scratch.path()), &journal_bytes[..length]).unwrap();
        match StateDir::open(scratch.path()) {
            Ok((_state, remembered)) => {
                assert!(!remembered.clean);
                let tenure = tenure(&remembered, "/a").unwrap_or(0);
                assert!(
                    latest <= tenure,
                    "{tenure} with {length} bytes, after {latest} with fewer"
                );
                latest = tenure;
            }
            Err(error) => assert!(length < 512, "{length} bytes: {error}"),
        }
    }
    assert!(latest >= 5, "a whole file would be at 6");
}

#[test]
fn a_journal_of_another_version_is_not_guessed_at() {
    let scratch = Scratch::new();
    fs::write(journal(scratch.path()), "fencepost-2 whatever that may be\n".repeat(40)).unwrap();
    let Err(error) = StateDir::open(scratch.path()) else { panic!("it was read") };
    assert!(error.to_string().contains("there is no frame of this version"), "{error}");
}

/// The journal is gone, and no other can be made until the directory in its place is removed.
fn break_disk(path: &Path) -> PathBuf {
    fs::remove_file(journal(path)).unwrap();
    let in_the_way = path.join("journal.next");
    fs::create_dir(&in_the_way).unwrap();
    in_the_way
}

#[test]
fn a_failing_disk_is_named_and_used_again_once_it_is_well() {
    let scratch = Scratch::new();
    let (state, _) = open(scratch.path());
    record(&state, "/a", 7).unwrap();
    let in_the_way = break_disk(scratch.path());
    for tenure in [9, 9, 11] {
        let text = chain(&record(&state, "/a", tenure).unwrap_err());
        let start =
            format!("cannot write to the state_dir {}: Is a directory", scratch.path().display());
        assert!(text.starts_with(&start), "{text}");
        assert!(state.is_failing(Duration::MAX));
    }
    fs::remove_dir(&in_the_way).unwrap();
    record(&state, "/b", 3).unwrap();
    assert!(!state.is_failing(Duration::ZERO));
    let after = after_a_crash_now(scratch.path());
    assert_eq!(
        (tenure(&after, "/a"), tenure(&after, "/b")),
        (Some(11), Some(3)),
        "the last failed record is written"
    );
    let in_the_way = break_disk(scratch.path());
    state.inbox().forget("main");
    assert!(wait(state.written()).is_err() && wait(state.written()).is_err());
    fs::remove_dir(&in_the_way).unwrap();
    wait(state.written()).unwrap();
    let after = after_a_crash_now(scratch.path());
    assert_eq!(after.lock("main", &lock("/a")).map(|lock| lock.tenure), Some(None));
    record(&state, "/a", 11).unwrap();
    state.close(true).unwrap();
    let after = remembered(scratch.path());
    assert_eq!((after.clean, tenure(&after, "/a"), tenure(&after, "/b")), (true, Some(11), None));
}

#[test]
fn there_is_no_clean_mark_if_it_cannot_be_written() {
    let scratch = Scratch::new();
    let (state, _) = open(scratch.path());
    record(&state, "/a", 7).unwrap();
    let before = fs::read(journal(scratch.path())).unwrap();
    let in_the_way = break_disk(scratch.path());
    assert!(state.close(true).is_err());
    fs::remove_dir(in_the_way).unwrap();
    fs::write(journal(scratch.path()), before).unwrap();
    assert!(!remembered(scratch.path()).clean);
}

// What follows needs a second process: this very program, told by its surroundings which of the two
// parts it plays.

const PART: &str = "FENCEPOST_TEST_STATE_PART";
const PATH: &str = "FENCEPOST_TEST_STATE_PATH";

/// Writes as the surroundings say, in a process of its own; without them there is nothing to do.
#[test]
fn a_second_process_plays_the_part_it_is_told() {
    let Ok(path) = std::env::var(PATH) else { return };
    match std::env::var(PART).as_deref() {
        Ok("busy") => write_until_killed(Path::new(&path)),
        Ok("full") => write_until_the_disk_was_full_for_a_while(Path::new(&path)),
        Ok("without files") => open_without_opening_a_file(Path::new(&path)),
        other => panic!("there is no part {other:?}"),
    }
}

fn second_process(program: &mut Command, part: &str, path: &Path, log: &Path) -> Process {
    let program = program.arg(std::env::current_exe().unwrap());
    program.args(["--exact", "a_second_process_plays_the_part_it_is_told", "--nocapture"]);
    Process::start(program.env(PART, part).env(PATH, path), log)
}

const WRITERS: u64 = 4;

/// Keys as long as they may be, so that much of the time a journal is written anew.
fn long(key: &str) -> String {
    format!("{key}/{}", "x".repeat(900))
}

/// Records ever later tenures, each writer for its own lock and one after the other, and says which
/// are durable.
fn write_until_killed(path: &Path) {
    let (state, remembered) = open(path);
    for other in 0..40 {
        record(&state, &long(&format!("/other/{other}")), 1).unwrap();
    }
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (state, key) = (&state, long(&format!("/{writer}")));
            let begin = tenure(&remembered, &key).unwrap_or(0) + 1;
            scope.spawn(move || {
                for tenure in begin.. {
                    state.note_seen("main", seen(revision(tenure)));
                    record(state, &key, tenure).unwrap();
                    println!("durable {writer} {tenure}");
                }
            });
        }
    });
}

/// What the process said was durable last, by writer.
fn said_durable(log: &str) -> BTreeMap<u64, u64> {
    let whole_lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let said =
        whole_lines.filter_map(|line| line.trim_end().strip_prefix("durable ")?.split_once(' '));
    said.map(|(writer, tenure)| (writer.parse().unwrap(), tenure.parse().unwrap())).collect()
}

#[tokio::test]
async fn a_kill_at_any_moment_loses_nothing_durable() {
    let scratch = Scratch::new();
    let path = scratch.path().join("state");
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}");
    let mut random = seed;
    let mut durable = BTreeMap::from_iter((0..WRITERS).map(|writer| (writer, 0)));
    for round in 0..50 {
        let log = scratch.path().join(format!("log-{round}"));
        let process = second_process(&mut Command::new("env"), "busy", &path, &log);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let lines = random as usize % 400;
        let enough = async || (process.log().matches("durable ").count() >= lines).then_some(());
        eventually("the process has written for a while", enough).await;
        process.kill();

        durable.extend(said_durable(&fs::read_to_string(&log).unwrap_or_default()));
        let (_state, after) = StateDir::open(&path)
            .unwrap_or_else(|error| panic!("round {round}: {}", chain(&error)));
        // The very first process may have been killed before it took the directory.
        assert!(!after.clean || round == 0, "round {round}");
        for (writer, durable) in &mut durable {
            let found = tenure(&after, &long(&format!("/{writer}"))).unwrap_or(0);
            // Each writer waits for one record before the next: one more may be durable and not
            // said to be.
            assert!(
                (*durable..=*durable + 1).contains(&found),
                "round {round}, {writer}: {found}, not {durable}"
            );
            *durable = found;
        }
    }
    assert!(durable.values().all(|tenure| *tenure > 50), "{durable:?}");
}

/// Goes on recording until it failed and succeeded again, and leaves clean.
fn write_until_the_disk_was_full_for_a_while(path: &Path) {
    let (state, _) = open(path);
    for other in 0..10 {
        record(&state, &long(&format!("/other/{other}")), 1).unwrap();
    }
    println!("ready");
    let mut failed = false;
    for tenure in 1.. {
        match record(&state, "/a", tenure) {
            Err(error) if !failed => {
                println!("failed with {}", chain(&error));
                failed = true;
            }
            Ok(()) if failed => {
                state.close(true).unwrap();
                println!("recovered with {tenure}");
                return;
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// A limit on the length of files stands for the size of the disk: that needs no rights. The signal
/// would end the process.
fn on_a_limited_disk(bytes: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!(r#"trap '' XFSZ; exec prlimit --fsize={bytes}: "$0" "$@""#)]);
    shell
}

/// Waits for a line that begins so, and gives the rest of it.
async fn line(process: &Process, start: &str) -> String {
    let find =
        async || process.log().lines().find_map(|line| Some(line.strip_prefix(start)?.to_owned()));
    eventually(start, find).await
}

#[tokio::test]
async fn nothing_is_added_behind_a_write_that_was_cut_short() {
    let scratch = Scratch::new();
    let path = scratch.path().join("state");
    // More than the state, less than the journal grows to before it is written anew, and not at the
    // end of a sector.
    let mut disk = on_a_limited_disk("50100");
    let mut process = second_process(&mut disk, "full", &path, &scratch.path().join("log"));
    let failure = line(&process, "failed with ").await;
    assert!(failure.ends_with("File too large (os error 27)"), "{failure}");
    let recovered: u64 = line(&process, "recovered with ").await.parse().unwrap();
    assert!(process.end_of_itself().await.success());
    assert_eq!(tenure(&remembered(&path), "/a"), Some(recovered));
}

#[tokio::test]
async fn a_full_disk_refuses_records_until_there_is_room() {
    let scratch = Scratch::new();
    let path = scratch.path().join("state");
    let log = scratch.path().join("log");
    let mut process = second_process(&mut on_a_limited_disk("unlimited"), "full", &path, &log);
    let limit = |bytes: &str| {
        let mut prlimit = Command::new("prlimit");
        let limited = prlimit
            .arg(format!("--pid={}", process.id()))
            .arg(format!("--fsize={bytes}:"))
            .status();
        assert!(limited.expect("prlimit (of util-linux) can be started").success());
    };
    line(&process, "ready").await;
    limit("4096");
    let failure = line(&process, "failed with ").await;
    assert!(
        failure.starts_with(&format!(
            "cannot write to the state_dir {}: File too large",
            path.display()
        ))
    );
    limit("unlimited");
    let recovered: u64 = line(&process, "recovered with ").await.parse().unwrap();
    assert!(process.end_of_itself().await.success());

    let after = remembered(&path);
    assert!(after.clean);
    assert_eq!(tenure(&after, "/a"), Some(recovered));
    assert_eq!(after.locks["main"].len(), 11);
}

fn open_without_opening_a_file(path: &Path) {
    let _all: Vec<fs::File> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
    let Err(error) = StateDir::open(path) else { panic!("there was a file left") };
    println!("failed with {}", chain(&error));
}

#[tokio::test]
async fn nothing_is_made_below_a_name_that_is_not_durable() {
    let scratch = Scratch::new();
    let path = scratch.path().join("lib/fencepost");
    let mut few_files = Command::new("prlimit");
    let mut process = second_process(
        few_files.arg("--nofile=64:"),
        "without files",
        &path,
        &scratch.path().join("log"),
    );
    let failure = line(&process, "failed with ").await;
    assert!(failure.ends_with("Too many open files (os error 24)"), "{failure}");
    assert!(process.end_of_itself().await.success());
    assert!(scratch.path().join("lib").is_dir() && !path.exists());
}
