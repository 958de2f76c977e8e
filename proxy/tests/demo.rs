//! `fencepost demo`, as somebody who has just installed it runs it.

use std::process::Stdio;
use std::time::{Duration, Instant};

use fencepost_tests::{Etcd, EtcdVersion, FreePort, Process, Scratch, eventually, until};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

const BINARY: &str = env!("CARGO_BIN_EXE_fencepost");

/// The demo ends by itself before that.
const DURATION_MAX: Duration = Duration::from_secs(60);

/// What a terminal turns into SIGINT.
const CTRL_C: &[u8] = b"\x03";

/// What any telling of the story has, in this order.
const STORY: [&str; 17] = [
    "1. shard-1 takes the lock",
    "shard-1    sends R1",
    "network    holds R1 back",
    "2. shard-1 falls silent",
    "shard-2    takes the lock",
    "fencepost  forwards R2",
    "worker     applies R2: the balance is 70.",
    "3. shard-2 crashes",
    "network    holds R2b back",
    "shard-1    takes the lock",
    "fencepost  forwards R3",
    "worker     applies R3: the balance is 85.",
    "fencepost  refuses R2b: 412 stale-tenure.",
    "network    delivers R1",
    "fencepost  refuses R1: 412 replayed-tenure.",
    "worker     has seen neither of them. The balance is 85",
    "With fencepost the balance is 85, as the holder of the lock left it. Without, it would be 100",
];

/// How a run ended.
struct Telling {
    code: Option<i32>,
    printed: String,
    errors: String,
}

async fn run(mut command: Command) -> Telling {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let began = Instant::now();
    let output = timeout(DURATION_MAX, command.output())
        .await
        .expect("the demo ends by itself in time")
        .unwrap();
    assert!(began.elapsed() < DURATION_MAX);
    Telling {
        code: output.status.code(),
        printed: String::from_utf8(output.stdout).unwrap(),
        errors: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs it with its output piped, where a terminal would have colours.
async fn demo(arguments: &[&str]) -> Telling {
    let mut command = Command::new(BINARY);
    command.arg("demo").args(arguments).env("TERM", "xterm-256color").env_remove("NO_COLOR");
    run(command).await
}

/// The demo on a terminal of its own.
fn on_terminal(arguments: &str) -> Command {
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command"]);
    command.arg(format!("exec {BINARY} demo {arguments}")).arg("/dev/null");
    command.env("TERM", "xterm-256color");
    command
}

#[track_caller]
fn assert_told(printed: &str) {
    let mut rest = printed;
    for sentence in STORY {
        let Some(at) = rest.find(sentence) else {
            panic!("no {sentence:?} where it should be in: {printed}")
        };
        rest = &rest[at + sentence.len()..];
    }
}

#[track_caller]
fn assert_plain(printed: &str) {
    assert!(!printed.contains('\x1b'), "{printed:?}");
}

#[tokio::test]
async fn the_story_is_told_in_plain_text_where_nobody_watches() {
    let told = demo(&[]).await;
    assert_eq!((told.code, told.errors.as_str()), (Some(0), ""));
    assert_told(&told.printed);
    assert_plain(&told.printed);
}

#[tokio::test]
async fn a_terminal_gets_colours_unless_they_are_declined() {
    let play = async |no_color: &str| {
        let mut command = on_terminal("");
        command.env("NO_COLOR", no_color);
        let told = run(command).await;
        assert_eq!(told.code, Some(0), "{}", told.printed);
        told.printed
    };
    let (coloured, plain) = tokio::join!(play(""), play("1"));
    assert!(coloured.contains("\x1b[31mrefuses R1: 412 replayed-tenure.\x1b[0m"), "{coloured:?}");
    assert!(coloured.contains("\x1b[32mapplies R3"), "{coloured:?}");
    assert_told(&plain);
    assert_plain(&plain);
}

#[tokio::test]
async fn the_story_is_the_same_in_a_real_etcd() {
    for version in EtcdVersion::ALL {
        let etcd = Etcd::start(version).await;
        etcd.etcdctl(&["put", "/somebody/elses", "1"]).await;
        let told = demo(&["--etcd", &format!("{}/", etcd.endpoint())]).await;
        assert_eq!((told.code, told.errors.as_str()), (Some(0), ""), "{version}");
        assert_told(&told.printed);
        assert!(
            told.printed.contains(&format!("in etcd at {}", etcd.endpoint())),
            "{}",
            told.printed
        );
        // The store was at 2; every take-over is two writes.
        for token in ["shard-1, 3", "shard-2, 5", "shard-1, 7"] {
            assert!(told.printed.contains(token), "no {token} in {}", told.printed);
        }
        assert_left_clean(&etcd).await;
        assert_eq!(
            etcd.etcdctl(&["get", "", "--prefix", "--keys-only"]).await.trim(),
            "/somebody/elses"
        );
    }
}

async fn assert_left_clean(etcd: &Etcd) {
    assert_eq!(etcd.etcdctl(&["get", "/fencepost-demo", "--prefix", "--keys-only"]).await, "");
    assert_eq!(etcd.etcdctl(&["lease", "list"]).await.trim(), "found 0 leases");
}

#[tokio::test]
async fn an_etcd_that_is_not_there_is_named() {
    let nobody = FreePort::reserve();
    let url = format!("http://{}", nobody.address());
    let told = demo(&["--etcd", &url]).await;
    let expected = format!("fencepost: etcd does not answer: {url}: no connection: ");
    assert_eq!((told.code, told.printed.as_str()), (Some(1), ""));
    assert!(
        told.errors.starts_with(&expected) && told.errors.contains("Connection refused"),
        "{}",
        told.errors
    );
    assert_eq!(told.errors.lines().count(), 1, "{}", told.errors);

    let silent = Etcd::start(EtcdVersion::V3_4).await;
    silent.pause().await;
    let told = demo(&["--etcd", &silent.endpoint()]).await;
    let expected = format!(
        "fencepost: etcd does not answer: {}: no connection within 500ms\n",
        silent.endpoint()
    );
    assert_eq!((told.code, told.printed.as_str(), told.errors), (Some(1), "", expected));

    let told = demo(&["--etcd", "ftp://127.0.0.1:2379"]).await;
    assert_eq!((told.code, told.printed.as_str()), (Some(64), ""));
    assert!(
        told.errors.contains(r#"invalid value 'ftp://127.0.0.1:2379' for '--etcd <URL>'"#),
        "{}",
        told.errors
    );
    assert!(told.errors.contains(r#"must be "http://host:port""#), "{}", told.errors);
}

#[tokio::test]
async fn the_stage_stays_and_its_commands_work() {
    let etcd = Etcd::start(EtcdVersion::V3_4).await;
    let scratch = Scratch::new();
    let listen = FreePort::reserve().address().to_string();
    let mut command = std::process::Command::new(BINARY);
    command.args(["demo", "--stay", "--listen", &listen, "--etcd", &etcd.endpoint()]);
    let mut demo = Process::start(&command, &scratch.path().join("log"));
    let last_hint = "read the lock's record";
    let log = eventually("the demo invites to look around", async || {
        assert!(demo.ended().is_none(), "{}", demo.log());
        demo.log()
            .split_once(last_hint)
            .filter(|(_, rest)| rest.ends_with("\n\n"))
            .map(|_| demo.log())
    })
    .await;
    assert_told(&log);
    assert!(
        log.starts_with("  The page of this fencepost, in a browser: http://127.0.0.1:"),
        "{log}"
    );

    let printed_by = async |hint: &str| {
        let (_, after) =
            log.split_once(hint).unwrap_or_else(|| panic!("no hint {hint:?} in {log}"));
        let shell_command = after.lines().nth(1).unwrap().trim();
        let output = Command::new("sh")
            .args(["-c", shell_command])
            .kill_on_drop(true)
            .output()
            .await
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let try_out = async |hint: &str, expected: &[&str]| {
        let printed = printed_by(hint).await;
        for expected in expected {
            assert!(printed.contains(expected), "{hint} ({log}): no {expected:?} in {printed}");
        }
    };
    try_out("write as shard-1", &["HTTP/1.1 200", "the balance is 99"]).await;
    try_out("send R1 once more", &["HTTP/1.1 412", "fence-reason: replayed-tenure"]).await;
    try_out("write without a token", &["HTTP/1.1 428", "fence-reason: token-missing"]).await;
    try_out("read (", &["99"]).await;
    try_out("go past the fence", &["HTTP/1.1 200", "the balance is 100"]).await;
    try_out("what fencepost knows", &["\"owner\": \"shard-1\""]).await;
    try_out("what it has counted", &["fencepost_requests_total"]).await;
    try_out(last_hint, &["mod_revision"]).await;
    try_out("give the lock to somebody else", &["OK"]).await;
    until("the takeover is known", async || {
        printed_by("what fencepost knows").await.contains("\"owner\": \"shard-2\"")
    })
    .await;
    try_out("write as shard-1", &["HTTP/1.1 412", "fence-reason: stale-tenure"]).await;
    assert!(
        demo.log().contains("applies a write of \"shard-1, 6\": the balance is 99."),
        "{}",
        demo.log()
    );

    demo.terminate();
    assert_eq!(demo.end_of_itself().await.code(), Some(0), "{}", demo.log());
    assert_left_clean(&etcd).await;
}

#[tokio::test]
async fn an_interrupted_story_leaves_nothing_behind() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    // On a terminal it takes its time, so that it can be interrupted in the middle.
    let mut command = on_terminal(&format!("--etcd {}", etcd.endpoint()));
    let mut demo =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    until("the lock is held", async || {
        !etcd.etcdctl(&["get", "/fencepost-demo", "--prefix", "--keys-only"]).await.is_empty()
    })
    .await;
    let mut keyboard = demo.stdin.take().unwrap();
    keyboard.write_all(CTRL_C).await.unwrap();
    let output =
        timeout(DURATION_MAX, demo.wait_with_output()).await.expect("the demo ends").unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("interrupted before the story was over"), "{printed}");
    assert_left_clean(&etcd).await;
}
