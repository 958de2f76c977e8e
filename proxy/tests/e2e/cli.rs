//! The command line.

use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use fencepost_tests::{Authority, Etcd, EtcdVersion, FreePort, PATIENCE, Scratch, Worker, eventually, request};

use crate::fencepost::{BINARY, Config, Fencepost, Route};
use crate::programs::{printed, run};
use crate::refusal::assert_refused;
use crate::scene::{Ask, Ledger, send};
use crate::store::{Store, Tenure};

pub(crate) async fn fencepost(arguments: &[&str]) -> Output {
    run(BINARY, arguments).await
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[tokio::test]
async fn every_problem_of_a_file_is_named_with_its_line_and_key() {
    let scratch = Scratch::new();
    let file = scratch.path().join("bad.toml");
    let text = r#"
[[listener]]
address = "8080"
[source.main]
kind = "etcd"
endpoints = []
[[route]]
name = "shards"
path = "/shards/{shard}/"
upstream = "ftp://127.0.0.1"
max_agee = "5s"
max_age = "1ms"
lock = { source = "other", key = "/shards/{shrad}/lock", layout = "mutex", owner_field = "holder" }
[limits]
drain_delay = 5
"#;
    std::fs::write(&file, text).unwrap();
    let name = file.to_str().unwrap();
    for command in [&["check", "-c", name][..], &["check", "--live", "-c", name], &["serve", "-c", name]] {
        let output = fencepost(command).await;
        assert_eq!(output.status.code(), Some(64), "{command:?}: {output:?}");
        let said = stderr(&output);
        for (line, key) in [
            (3, "listener[0].address"),
            (6, "source.main.endpoints"),
            (10, "route.shards.upstream"),
            (11, "route.shards.max_agee"),
            (12, "route.shards.max_age"),
            (13, "route.shards.lock.source"),
            (13, "route.shards.lock.key"),
            (13, "route.shards.lock.owner_field"),
            (15, "limits.drain_delay"),
        ] {
            let place = format!("{name}:{line}: {key}: ");
            assert!(said.lines().any(|problem| problem.starts_with(&place)), "{place} in {said}");
        }
        assert_eq!(said.lines().count(), 9, "{said}");
        assert_eq!(stdout(&output), "");
    }
}

#[tokio::test]
async fn wrong_usage_is_64_and_says_what_is_wrong() {
    let flags =
        ["serve", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--etcd", "http://127.0.0.1:1"];
    for (arguments, names) in [
        (&[][..], "Usage"),
        (&["serve", "--colour", "red"], "--colour"),
        (&["frobnicate"], "frobnicate"),
        (&["serve"], "give -c FILE; or, for one worker without a file, --listen, --upstream, --etcd and --lock\n"),
        (&["check"], "give -c FILE; or, "),
        (&["serve", "--upstream", "http://127.0.0.1:1"], "--listen: missing"),
        (&flags, "--lock"),
        (&["serve", "-c", "/nonexistent/fencepost.toml"], "/nonexistent/fencepost.toml"),
        (&["check", "-c", "/dev/null"], "/dev/null"),
        (&["serve", "-c", "x.toml", "--listen", "127.0.0.1:0"], "--listen"),
        (&["serve", "--log", "fencepost=loud"], "--log: "),
        (&["serve", "--log", "info fencepost=debug"], "--log: \"info fencepost=debug\" names no part"),
        (&["serve", "--log", "fencpost=debug"], "--log: \"fencpost=debug\" has nothing of fencepost's own logged"),
        // Those that keep no log take no word of one: it went unread, wrong or right.
        (&["check", "--log", "warm", "-c", "x.toml"], "'--log'"),
        (&["explain", "--log-format", "json", "-c", "x.toml", "--revision", "1"], "'--log-format'"),
        (&["demo", "--log", "debug"], "'--log'"),
        (&["hold", "--log", "debug"], "'--log'"),
    ] {
        let output = fencepost(arguments).await;
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains(names), "{arguments:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    }
    // Those that were not given were said to be empty, or wrong.
    let said = stderr(&fencepost(&["serve", "--listen", "127.0.0.1:0"]).await);
    let missing = [
        r#"--etcd: missing: a member of the etcd cluster, like "http://127.0.0.1:2379""#,
        r#"--upstream: missing: the worker, like "http://127.0.0.1:9000""#,
        r#"--lock: missing: the key of the lock, like "/shards/2/lock""#,
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), missing);
    let flags_with_all_wrong = [
        "serve",
        "--listen",
        "8080",
        "--upstream",
        "x",
        "--etcd",
        "y",
        "--lock",
        "/k",
        "--layout",
        "z",
        "--max-age",
        "0s",
    ];
    let output = fencepost(&flags_with_all_wrong).await;
    assert_eq!(output.status.code(), Some(64));
    for flag in ["--listen: ", "--upstream: ", "--etcd: ", "--layout: ", "--max-age: "] {
        assert!(stderr(&output).lines().any(|line| line.starts_with(flag)), "{flag}: {}", stderr(&output));
    }
}

#[tokio::test]
async fn a_file_in_another_encoding_is_named_with_the_line_of_the_first_byte_that_is_none() {
    let scratch = Scratch::new();
    let file = scratch.path().join("latin-1.toml");
    std::fs::write(&file, b"[admin]\n# caf\xe9\n").unwrap();
    let output = fencepost(&["check", "-c", file.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert_eq!(stderr(&output), format!("{}:2: is not UTF-8: byte 0xe9\n", file.display()));
}

/// All of it was read, and looked at by the thread that has the signals: a log that had got in its place took a GiB, and seconds.
#[tokio::test]
async fn a_file_that_is_far_too_large_is_refused_without_being_read_whole() {
    let scratch = Scratch::new();
    let file = scratch.path().join("large.toml");
    std::fs::File::create(&file).unwrap().set_len(300 << 20).unwrap();
    for command in ["check", "serve"] {
        for name in [file.to_str().unwrap(), "/dev/zero"] {
            let output = run(BINARY, &[command, "-c", name]).await;
            assert_eq!(output.status.code(), Some(64), "{output:?}");
            assert_eq!(stderr(&output), format!("{name}: is larger than 16 MiB\n"));
        }
    }
    let config = Config::new(&[], "http://127.0.0.1:9", &[Route::new("k", "/", "")]).without_source();
    let fence = Fencepost::launch(&config).await;
    std::fs::File::create(fence.file()).unwrap().set_len(300 << 20).unwrap();
    let answer = fence.admin("POST", "/reload").await;
    assert!(answer.status != 200 && answer.text().contains("is larger than 16 MiB"), "{}", answer.text());
}

#[tokio::test]
async fn members_of_etcd_may_stand_in_one_word_and_a_url_may_end_in_a_slash() {
    let flags = ["check", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1/", "--lock", "/k", "--etcd"];
    let output = fencepost(&[&flags[..], &["http://127.0.0.1:1/,http://127.0.0.1:2"]].concat()).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = fencepost(&[&flags[..], &["http://127.0.0.1:1/,http://127.0.0.1:1"]].concat()).await;
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert!(stderr(&output).contains(r#"--etcd: "http://127.0.0.1:1" is in the list already"#), "{}", stderr(&output));
}

/// It panicked, and ended with 101: no code that a unit of systemd has in `RestartPreventExitStatus`.
#[tokio::test]
async fn what_nobody_takes_of_the_output_is_a_failure_and_what_nobody_takes_of_the_errors_changes_no_code() {
    let scratch = Scratch::new();
    let file = |name: &str, text: &str| {
        let path = scratch.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let routes = [Route::new("k", "/", r#"key = "/k""#)];
    let text = Config::new(&["http://127.0.0.1:1".to_owned()], "http://127.0.0.1:1", &routes).toml();
    let memory = text.replace("kind = \"etcd\"\nendpoints = [\"http://127.0.0.1:1\"]", "kind = \"memory\"");
    let (good, bad) = (file("good.toml", &memory), file("bad.toml", "colour = 1\n"));
    let (full, errors_full) = (r#"exec "$0" "$@" > /dev/full"#, r#"exec "$0" "$@" 2> /dev/full"#);
    let explain = ["explain", "-c", &good, "--owner", "a", "--revision", "1"];
    for (way, arguments, code) in [
        (full, &["check", "-c", &good][..], 1),
        (full, &["check", "--live", "-c", &good], 1),
        (full, &explain, 1),
        (full, &[&explain[..], &["--json"]].concat(), 1),
        (full, &["--help"], 1),
        (full, &["check", "-c", &bad], 64),
        (errors_full, &["check", "-c", &bad], 64),
        (errors_full, &["serve", "-c", "/nonexistent"], 64),
        (errors_full, &["serve"], 64),
        (errors_full, &["serve", "--log", "loud", "-c", &good], 64),
        (errors_full, &["explain", "-c", &good, "--owner", "a"], 64),
        (errors_full, &["demo", "--etcd", "http://127.0.0.1:1"], 1),
        (errors_full, &["check", "-c", &good], 0),
    ] {
        let output = run("sh", &[&["-c", way, BINARY], arguments].concat()).await;
        assert_eq!(output.status.code(), Some(code), "{way} {arguments:?}: {output:?}");
        let says = if way == full && code == 1 { "standard output cannot be written: No space left" } else { "" };
        assert!(stderr(&output).contains(says), "{arguments:?}: {output:?}");
    }
    // Whoever reads has left before anything is printed.
    for arguments in [&["check", "-c", &good][..], &["check", "--live", "-c", &good], &explain] {
        let (theirs, ours) = std::io::pipe().unwrap();
        drop(theirs);
        let mut command = tokio::process::Command::new(BINARY);
        let ended = command.args(arguments).stdout(ours).stderr(std::process::Stdio::null()).status();
        let ended = tokio::time::timeout(PATIENCE, ended).await.expect("it ends").unwrap();
        assert_eq!(ended.code(), Some(1), "{arguments:?}");
    }
}

#[tokio::test]
async fn help_and_version_are_right_usage() {
    for (arguments, says) in [
        (&["--help"][..], "fencepost demo"),
        (&["--help"], "has more: 75, 76, 126 and 127"),
        (&["serve", "--help"], "FENCEPOST_LOG"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
        (&["serve", "--help"], "--upstream"),
        (&["check", "--help"], "--live"),
        (&["explain", "--help"], "0 whatever the verdict, also if the store does not"),
        (&["demo", "--help"], "--etcd"),
        (&["hold", "--help"], "readwrite --prefix /shards/2/lock.queue/"),
    ] {
        let output = fencepost(arguments).await;
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(stdout(&output).contains(says), "{arguments:?}: {}", stdout(&output));
        assert!(stdout(&output).contains("--log ") == (arguments[0] == "serve"), "{arguments:?}: {}", stdout(&output));
    }
}

#[tokio::test]
async fn an_address_in_use_is_named_and_ends_it_with_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let base = ["serve", "--upstream", "http://127.0.0.1:1", "--etcd", "http://127.0.0.1:1", "--lock", "/k"];
    for place in [["--listen", &address, "--admin", "127.0.0.1:0"], ["--listen", "127.0.0.1:0", "--admin", &address]] {
        let output = fencepost(&[&base[..], &place].concat()).await;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(stderr(&output).contains(&address), "{}", stderr(&output));
        assert!(stderr(&output).contains("in use"), "{}", stderr(&output));
    }
}

/// tokio panicked, which ended it with 101.
#[tokio::test]
async fn too_few_descriptors_end_a_start_with_1() {
    let scratch = Scratch::new();
    let file = scratch.path().join("fencepost.toml");
    let routes = [Route::new("k", "/", r#"key = "/k""#)];
    std::fs::write(&file, Config::new(&["http://127.0.0.1:1".to_owned()], "http://127.0.0.1:1", &routes).toml())
        .unwrap();
    for (descriptors, command) in (5..=16).map(|count| (count, "serve")).chain((5..=8).map(|count| (count, "check"))) {
        let limit = format!("--nofile={descriptors}");
        let live = if command == "check" { &["--live"][..] } else { &[] };
        let arguments = [&limit, "--", BINARY, command, "-c", file.to_str().unwrap()];
        let output = run("prlimit", &[&arguments[..], live].concat()).await;
        assert_eq!(output.status.code(), Some(1), "{limit} {command}: {output:?}");
        assert!(stderr(&output).contains("Too many open files"), "{limit} {command}: {output:?}");
    }
}

/// What a start would fail at, or not get over until somebody sees to it.
#[tokio::test]
async fn check_finds_a_state_dir_and_a_password_that_are_of_no_use() {
    let scratch = Scratch::new();
    let place = |name: &str| scratch.path().join(name);
    let (file, password, state_dir) = (place("fencepost.toml"), place("password"), place("a/b/state"));
    let text =
        Config::new(&["http://127.0.0.1:1".to_owned()], "http://127.0.0.1:1", &[Route::new("k", "/", r#"key = "/k""#)])
            .remembering_in(&state_dir)
            .toml()
            .replace("kind = \"etcd\"", &format!("kind = \"etcd\"\nusername = \"root\"\npassword_file = {password:?}"));
    std::fs::write(&file, text).unwrap();
    let check = async || fencepost(&["check", "-c", file.to_str().unwrap()]).await;
    let warns = async |says: &str| {
        let output = check().await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let is_there = stdout(&output).lines().any(|line| line.starts_with("warning: ") && line.contains(says));
        assert!(is_there, "{says:?} in {}", stdout(&output));
    };
    warns(&format!("toml:12: source.main.password_file: {}: No such file", password.display())).await;
    std::fs::write(&password, "\n").unwrap();
    warns("it is empty").await;
    std::fs::write(&password, "secret\n").unwrap();
    std::fs::write(place("a"), "").unwrap();
    let output = check().await;
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    let says = format!("toml:2: state_dir: {}: {} is no directory\n", state_dir.display(), place("a").display());
    assert!(stderr(&output).contains(&says), "{}", stderr(&output));
    std::fs::remove_file(place("a")).unwrap();
    let output = check().await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!stdout(&output).contains("state_dir ") && !stdout(&output).contains("password_file "), "{output:?}");
    assert!(!place("a").exists(), "a check leaves nothing behind");
}

/// `check` found these right, and a start failed at them with 1, again and again where something restarts what has failed.
#[tokio::test]
async fn what_cannot_be_used_is_wrong_for_check_and_for_a_start_and_has_its_line_and_key() {
    let scratch = Scratch::new();
    let place = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let (mine, other) = (Authority::new("mine").issue_for_localhost(), Authority::new("other").issue_for_localhost());
    mine.write(scratch.path(), "mine");
    other.write(scratch.path(), "other");
    let _socket = std::os::unix::net::UnixListener::bind(place("socket")).unwrap();
    let of_two = |certificate: &str, key: &str| format!("tls = {{ certificate = {certificate:?}, key = {key:?} }}");
    let tls = |key: &str| of_two(&place("mine.pem"), key);
    for (key, written, says) in [
        (
            "access_log.path",
            "[access_log]\npath = \"/nope/access.log\"".to_owned(),
            "/nope/access.log: /nope: No such file",
        ),
        ("access_log.path", format!("[access_log]\npath = {:?}", place("")), "is a directory"),
        ("access_log.path", format!("[access_log]\npath = {:?}", place("socket")), "socket is a socket"),
        ("state_dir", format!("state_dir = {:?}", place("mine.pem/x")), "mine.pem is no directory"),
        (
            "listener[0].tls.key",
            tls("/nope/k.pem"),
            "/nope/k.pem: cannot be read: No such file or directory (os error 2)",
        ),
        ("listener[0].tls.key", tls(&place("other.key")), "its private key does not belong to"),
        // One file for both: what is wrong is what was looked for in it as the one or the other.
        ("listener[0].tls.key", tls(&place("mine.pem")), "has no private key in it"),
        ("listener[0].tls.certificate", of_two(&place("mine.key"), &place("mine.key")), "has no certificate in it"),
    ] {
        let (top, rest) = if key == "state_dir" { (written, String::new()) } else { (String::new(), written) };
        let (of_listener, rest) =
            if key.starts_with("listener") { (rest, String::new()) } else { (String::new(), rest) };
        let text = format!(
            "{top}\n[[listener]]\naddress = \"127.0.0.1:0\"\n{of_listener}\n{rest}\n[admin]\nlisten = \"off\"\n\
             [[route]]\nname = \"a\"\npath = \"/\"\nupstream = \"http://127.0.0.1:9\"\nmode = \"off\"\n"
        );
        let last = key.rsplit_once('.').map_or(key, |(_, last)| last);
        let line = 1 + text.lines().position(|line| line.contains(&format!("{last} = "))).unwrap();
        let file = place("fencepost.toml");
        std::fs::write(&file, text).unwrap();
        for command in ["check", "serve"] {
            let output = fencepost(&[command, "-c", &file]).await;
            assert_eq!(output.status.code(), Some(64), "{command} {key}: {output:?}");
            let said = stderr(&output);
            let begins = format!("{file}:{line}: {key}: ");
            assert!(
                said.lines().any(|line| line.starts_with(&begins) && line.contains(says)),
                "{begins}{says}: {said}"
            );
        }
    }
}

/// No check was possible of what the unit and the README recommend.
#[tokio::test]
async fn what_systemd_hands_to_the_service_alone_is_worth_a_warning_to_check() {
    let scratch = Scratch::new();
    Authority::new("mine").issue_for_localhost().write(scratch.path(), "mine");
    let (certificate, file) = (scratch.path().join("mine.pem"), scratch.path().join("fencepost.toml"));
    let key = "/run/credentials/fencepost.service/tls.key";
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\ntls = {{ certificate = {certificate:?}, key = {key:?} }}\n[admin]\nlisten = \"off\"\n\
         [[route]]\nname = \"a\"\npath = \"/\"\nupstream = \"http://127.0.0.1:9\"\nmode = \"off\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let checked = fencepost(&["check", "-c", file]).await;
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    let warning = format!("warning: {file}:3: listener[0].tls.key: {key}: cannot be read: ");
    assert!(stdout(&checked).contains(&warning), "{checked:?}");
    let served = fencepost(&["serve", "-c", file]).await;
    assert_eq!(served.status.code(), Some(64), "{served:?}");
}

#[tokio::test]
async fn check_says_what_it_finds_alive() {
    for version in EtcdVersion::ALL {
        let etcd = Etcd::start(version).await;
        let store = Store::of(&etcd).await;
        let held = store.hold("/k", "shard-1").await;
        let worker = Worker::start().await;
        let routes = [
            Route::new("k", "/k/", r#"key = "/k""#),
            Route::new("free", "/free/", r#"key = "/free", layout = "election""#),
            Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#),
        ];
        let scratch = Scratch::new();
        let file = scratch.path().join("good.toml");
        // Where the process answers for itself, nobody does before it is there.
        let admin = FreePort::reserve();
        let own = format!(
            "[[route]]\nname = \"ready\"\npath = \"/readyz\"\nmode = \"off\"\nupstream = \"http://{}\"",
            admin.address()
        );
        let config = Config::new(&[etcd.endpoint()], &worker.endpoint().to_string(), &routes).section(&own);
        let listens = |address: &str| format!("[admin]\nlisten = {address:?}\n");
        let text = config.toml().replace(&listens("127.0.0.1:0"), &listens(&admin.address().to_string()));
        std::fs::write(&file, text).unwrap();
        let name = file.to_str().unwrap();

        let output = fencepost(&["check", "-c", name]).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");

        let output = fencepost(&["check", "--live", "-c", name]).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let said = stdout(&output);
        for finding in [
            "shard-1",
            &format!("revision {}", held.revision),
            "free",
            &format!("etcd {version}."),
            "age ",
            "#20418",
            &format!("worker {}: accepts connections", worker.endpoint()),
            &format!("worker http://{}: is the admin listener of this configuration", admin.address()),
        ] {
            assert!(said.contains(finding), "{finding} in {said}");
        }

        // A lock that can't be read is named.
        store.put("/json", "shard-1").await;
        let bad = [Route::new("json", "/", r#"key = "/json", owner_field = "holder""#)];
        std::fs::write(&file, Config::new(&[etcd.endpoint()], &worker.endpoint().to_string(), &bad).toml()).unwrap();
        let output = fencepost(&["check", "--live", "-c", name]).await;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(stdout(&output).contains("/json"), "{}", stdout(&output));

        // Nobody is at home.
        let nobody = FreePort::reserve();
        let dead = format!("http://{}", nobody.address());
        for (endpoint, upstream) in [(&dead, &worker.endpoint().to_string()), (&etcd.endpoint(), &dead)] {
            std::fs::write(&file, Config::new(std::slice::from_ref(endpoint), upstream, &routes).toml()).unwrap();
            let began = Instant::now();
            let output = fencepost(&["check", "--live", "-c", name]).await;
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let said = stdout(&output);
            assert!(said.contains(&nobody.address().to_string()), "{said}");
            assert_eq!(said.matches("Connection refused").count(), 1, "why is said once: {said}");
            assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        }
    }
}

/// It named the wrong one beside the others, or took it for the right one, and ended with 0.
#[tokio::test]
async fn a_check_of_endpoints_of_two_clusters_fails_and_says_which_is_of_which() {
    let (ours, theirs) = tokio::join!(Etcd::start(EtcdVersion::V3_5), Etcd::start(EtcdVersion::V3_5));
    let worker = Worker::start().await;
    let scratch = Scratch::new();
    let file = scratch.path().join("fencepost.toml");
    let check = async |config: Config| {
        std::fs::write(&file, config.toml()).unwrap();
        let output = fencepost(&["check", "--live", "-c", file.to_str().unwrap()]).await;
        (output.status.code(), stdout(&output))
    };
    let endpoints = [ours.endpoint(), theirs.endpoint()];
    for mode in ["enforce", "off"] {
        let routes = [Route::new("k", "/", r#"key = "/k""#).with(&format!("mode = {mode:?}"))];
        let config = Config::new(&endpoints, &worker.endpoint().to_string(), &routes);
        let (code, said) = check(config.clone()).await;
        assert_eq!(code, Some(1), "{said}");
        let told = said.split_once("source main: the endpoints belong to different clusters (").expect(&said).1;
        let (told, help) = told.split_once(')').expect(&said);
        assert!(help.starts_with(": set cluster_id to the one that is meant"), "{said}");
        assert_eq!(said.matches("different clusters").count(), 1, "it is said once: {said}");
        let of = |etcd: &Etcd| {
            let begins = format!("{} to ", etcd.endpoint());
            told.split(", ").find_map(|one| one.strip_prefix(&begins)).expect(&said).to_owned()
        };
        assert_ne!(of(&ours), of(&theirs));

        let configured = config.source(&format!("cluster_id = {:?}", of(&ours)));
        let (code, said) = check(configured.clone()).await;
        assert_eq!(code, Some(1), "{said}");
        let wrong = format!("{} belongs to cluster {}, not to", theirs.endpoint(), of(&theirs));
        assert!(said.contains(&wrong) && said.contains(&format!("{} runs etcd", ours.endpoint())), "{said}");
        let (code, said) = check(configured.endpoints(&[ours.endpoint()])).await;
        assert_eq!(code, Some(0), "{said}");
    }
}

/// It read once for each route, one after the other, and so it tried workers: 20 routes took 35 s for etcd alone.
#[tokio::test]
async fn a_check_of_many_routes_does_not_wait_for_each_of_them_where_nobody_answers() {
    let silent = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = |listener: &std::net::TcpListener| listener.local_addr().unwrap();
    let (etcd, workers): (_, Vec<_>) = (silent(), (0..20).map(|_| silent()).collect());
    let scratch = Scratch::new();
    let authority = scratch.path().join("ca.pem");
    std::fs::write(&authority, Authority::new("mine").certificate()).unwrap();
    let routes: Vec<Route> = workers
        .iter()
        .enumerate()
        .map(|(number, worker)| {
            let route = Route::new(&format!("k{number}"), &format!("/{number}/"), &format!("key = \"/k/{number}\""));
            // They take connections, and say nothing by TLS.
            route.with(&format!("upstream = \"https://{}\"\nupstream_tls = {{ ca = {authority:?} }}", at(worker)))
        })
        .collect();
    let file = scratch.path().join("fencepost.toml");
    std::fs::write(&file, Config::new(&[format!("http://{}", at(&etcd))], "", &routes).toml()).unwrap();
    let began = Instant::now();
    let output = fencepost(&["check", "--live", "-c", file.to_str().unwrap()]).await;
    let took = began.elapsed();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = stdout(&output);
    let told: Vec<&str> = said.lines().filter(|line| line.starts_with("worker ")).collect();
    let expected = workers.iter().map(|worker| format!("worker https://{}: did not accept", at(worker)));
    assert!(told.len() == 20 && told.iter().zip(expected).all(|(line, begins)| line.starts_with(&begins)), "{said}");
    assert!(took < Duration::from_secs(15), "{took:?}");
}

/// It waited for reads that nobody makes, and called a healthy store one that cannot be read.
#[tokio::test]
async fn a_store_that_no_route_reads_from_is_not_taken_for_one_that_does_not_answer() {
    let (etcd, worker, nobody) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await, FreePort::reserve());
    let scratch = Scratch::new();
    let file = scratch.path().join("off.toml");
    let off = [Route::new("k", "/", r#"key = "/k""#).with(r#"mode = "off""#)];
    let dead = format!("http://{}", nobody.address());
    for (endpoint, code, says) in [(etcd.endpoint(), 0, "runs etcd 3.5"), (dead, 1, "Connection refused")] {
        let unused = Config::new(std::slice::from_ref(&endpoint), &worker.endpoint().to_string(), &off).toml();
        std::fs::write(&file, &unused).unwrap();
        let output = fencepost(&["check", "--live", "-c", file.to_str().unwrap()]).await;
        let said = stdout(&output);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(said.contains("source main: not in use") && said.contains(says), "{said}");
    }
    let memory = Config::new(&[], &worker.endpoint().to_string(), &off).toml();
    std::fs::write(&file, memory.replace("kind = \"etcd\"\nendpoints = []", "kind = \"memory\"")).unwrap();
    let output = fencepost(&["check", "--live", "-c", file.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// It was warned of as etcd 0.1.0, with a fault of etcd's, and `check` said nothing of it.
#[tokio::test]
async fn a_source_in_memory_is_not_taken_for_an_etcd() {
    let worker = Worker::start().await;
    let scratch = Scratch::new();
    let file = scratch.path().join("memory.toml");
    let routes = [Route::new("k", "/", r#"key = "/k""#)];
    let text = Config::new(&[], &worker.endpoint().to_string(), &routes).limit(r#"drain_delay = "0s""#).toml();
    let text = text.replace("kind = \"etcd\"\nendpoints = []", "kind = \"memory\"");
    std::fs::write(&file, &text).unwrap();
    let output = fencepost(&["check", "--live", "-c", file.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = stdout(&output);
    assert!(said.contains("source main: a store inside of this process") && !said.contains("etcd"), "{said}");

    let mut fence = Fencepost::launch_text(&text).await;
    eventually("its members are known", async || {
        let known = fence.admin_json("/locks").await;
        (known["sources"][0]["members"][0]["endpoint"] == "memory").then_some(())
    })
    .await;
    fence.process().terminate();
    assert!(fence.process().end_of_itself().await.success());
    assert!(!fence.log().contains("etcd"), "{}", fence.log());
}

#[tokio::test]
async fn flags_serve_one_worker_without_a_file() {
    for (layout, freshness) in [("key", "cached"), ("key", "linearizable")] {
        let etcd = Etcd::start(EtcdVersion::V3_4).await;
        let store = Store::of(&etcd).await;
        let worker = Worker::start().await;
        let (upstream, endpoint) = (worker.endpoint().to_string(), etcd.endpoint());
        let one = ["serve", "--listen", "127.0.0.1:0", "--upstream", &upstream, "--etcd", &endpoint, "--lock", "/k"];
        let more = ["--layout", layout, "--admin", "127.0.0.1:0", "--freshness", freshness, "--max-age", "1s"];
        let fence = Fencepost::launch_with(&[&one[..], &more].concat()).await;
        fence.wait_until_ready().await;
        let ledger = Ledger::default();
        let first = store.hold("/k", "shard-1").await;
        assert_eq!(send(&fence.listener, &ledger, Ask::post("/any/path").under(&first)).await.status, 200);
        let second = store.hold("/k", "shard-2").await;
        assert_eq!(send(&fence.listener, &ledger, Ask::post("/").under(&second)).await.status, 200);
        assert_refused(
            &send(&fence.listener, &ledger, Ask::post("/").under(&first)).await,
            "stale-tenure",
            "/k",
            &second,
        );
        ledger.check(&worker);
    }
}

#[tokio::test]
async fn the_demo_tells_its_story_and_ends_well() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let endpoint = etcd.endpoint();
    for arguments in [&["demo"][..], &["demo", "--etcd", &endpoint]] {
        let began = Instant::now();
        let output = fencepost(arguments).await;
        let took = began.elapsed();
        let (told, errors) = (stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {told}{errors}");
        println!("{arguments:?} took {took:?}:\n{told}");
        assert!(took < Duration::from_secs(20), "{took:?}");
        assert!(!told.contains('\u{1b}') && !errors.contains('\u{1b}'), "no colours where nobody sees them: {told:?}");
        for word in ["shard-1", "shard-2", "R1", "R2", "replayed-tenure"] {
            assert!(told.contains(word), "{word} in {told}");
        }
        assert!(told.lines().count() < 100 && told.lines().all(|line| line.chars().count() <= 120), "{told}");
    }
    let nobody = FreePort::reserve();
    let output = fencepost(&["demo", "--etcd", &format!("http://{}", nobody.address())]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains(&nobody.address().to_string()), "{}", stderr(&output));
}

#[tokio::test]
async fn a_demo_that_stays_can_be_looked_at() {
    let scratch = Scratch::new();
    let mut command = std::process::Command::new(BINARY);
    command.args(["demo", "--stay"]);
    let mut demo = fencepost_tests::Process::start(&command, &scratch.path().join("log"));
    // It says how to send a request of one's own.
    let (listener, admin) = eventually("the demo tells where it is", async || {
        assert!(demo.ended().is_none(), "{}", demo.log());
        let log = demo.log();
        let mut ports: Vec<u16> = Vec::new();
        for (at, _) in log.match_indices("127.0.0.1:") {
            let digits: String = log[at + 10..].chars().take_while(char::is_ascii_digit).collect();
            ports.extend(digits.parse::<u16>().ok().filter(|port| !ports.contains(port)));
        }
        // The worker, the proxy and, last of all, its admin listener.
        (log.contains("/metrics") && ports.len() >= 3).then(|| (ports[0], ports.clone()))
    })
    .await;
    assert_ne!(listener, 0);
    let mut alive = 0;
    for port in admin {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        let answer = request(address, "GET", "/readyz", &[], b"").await;
        alive += usize::from(answer.is_ok_and(|answer| answer.status == 200));
    }
    assert!(alive >= 1, "{}", demo.log());
    demo.terminate();
    let ended = demo.end_of_itself().await;
    assert!(ended.success(), "{ended}: {}", demo.log());
}

/// What a first user tries: the README's commands, but for the addresses. The lock has had another holder before.
#[tokio::test]
async fn curl_is_all_a_master_needs() {
    let etcd = Etcd::start(EtcdVersion::V3_4).await;
    let worker = Worker::start().await;
    let quick_start = include_str!("../../../README.md").split_once("## Quick start").unwrap().1;
    let mut commands = quick_start.split("```sh\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    let at = |command: &str, places: &[(&str, &str)]| {
        places.iter().fold(command.to_owned(), |command, (place, here)| {
            assert!(command.contains(place), "{place} in {command}");
            command.replace(place, here)
        })
    };
    let (upstream, endpoint) = (worker.endpoint().to_string(), etcd.endpoint());
    let places =
        [("127.0.0.1:8080", "127.0.0.1:0"), ("http://127.0.0.1:9000", &upstream), ("http://127.0.0.1:2379", &endpoint)];
    let serve = at(commands.next().unwrap(), &places);
    let serve = serve.split_once("target/release/fencepost ").expect("what cargo builds").1.replace('\\', "");
    let arguments: Vec<&str> = serve.split_whitespace().chain(["--admin", "127.0.0.1:0"]).collect();
    let fence = Fencepost::launch_with(&arguments).await;
    fence.wait_until_ready().await;

    etcd.etcdctl(&["put", "/shards/2/lock", "shard-2"]).await;
    let master = at(commands.next().unwrap(), &[("http://127.0.0.1:8080", &fence.listener.to_string())]);
    let etcdctl = etcd.etcdctl_command();
    let tools = Path::new(etcdctl.as_std().get_program()).parent().unwrap().display();
    let set_up = format!("set -eu; PATH={tools}:$PATH; export ETCDCTL_ENDPOINTS={endpoint}");
    assert_eq!(printed("sh", &["-c", &format!("{set_up}\n{master}")]).await, "OK\nok");
    let seen = worker.seen();
    assert_eq!(seen.iter().map(|one| one.path.as_str()).collect::<Vec<_>>(), ["/jobs"]);
}

#[tokio::test]
async fn what_would_become_of_a_token_is_explained() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let store = Store::of(&etcd).await;
    let first = store.hold("/shards/2/lock", "shard-1").await;
    let second = store.hold("/shards/2/lock", "shard-2").await;
    let third = store.hold("/shards/2/lock", "shard-1").await;
    let routes = [
        Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#),
        Route::new("watched", "/", r#"key = "/k""#)
            .with("mode = \"shadow\"")
            .with(r#"exempt_methods = ["GET", "HEAD"]"#),
        Route::new("named", "/named/", r#"key = "/k", from_header = true"#),
    ];
    let scratch = Scratch::new();
    let (file, log) = (scratch.path().join("fencepost.toml"), scratch.path().join("access.log"));
    let config = Config::new(&[etcd.endpoint()], "http://127.0.0.1:9", &routes);
    let config = config.section(&format!("[access_log]\npath = {:?}", log.to_str().unwrap()));
    std::fs::write(&file, config.toml()).unwrap();
    let explain = async |route: &str, lock: &str, owner: &str, revision: &str, more: &[&str]| {
        let file = file.to_str().unwrap();
        let asked = ["explain", "-c", file, "--route", route, "--lock", lock, "--owner", owner, "--revision", revision];
        fencepost(&[&asked[..], more].concat()).await
    };
    let revision = |tenure: &Tenure| tenure.revision.to_string();
    for (owner, revision, expected) in [
        ("shard-1", revision(&third), "admitted"),
        ("shard-1", revision(&first), "refused: 412 replayed-tenure"),
        ("shard-2", revision(&second), "refused: 412 stale-tenure"),
        ("shard-2", revision(&third), "refused: 412 not-owner"),
        ("shard-1", (third.revision + 1000).to_string(), "refused: 412 ahead-of-store"),
        ("shard-1", "07".to_owned(), "refused: 400 token-malformed"),
    ] {
        let output = explain("shards", "/shards/2/lock", owner, &revision, &[]).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let said = stdout(&output);
        assert!(said.starts_with(&format!("route shards (enforce): {expected}\n")), "{said}");
        let held = format!("is held by shard-1, revision {}", third.revision);
        assert!(said.contains(&held), "{said}");
    }
    let output = explain("shards", "/shards/3/lock", "shard-1", "1", &["--json"]).await;
    let answer: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&answer["reason"], &answer["action"]), (&"no-owner".into(), &"acquire".into()), "{answer}");
    assert_eq!(answer["lock"]["owner"], serde_json::Value::Null);
    // As in `/decisions`: it was a text.
    assert_eq!(answer["revision"], 1, "{answer}");
    let output = explain("shards", "/shards/3/lock", "shard-1", "07", &["--json"]).await;
    let answer: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&answer["reason"], &answer["revision"]), (&"token-malformed".into(), &serde_json::Value::Null));
    // An owner without a name could not be seen.
    let nameless = store.hold("/shards/4/lock", "").await;
    store.hold("/shards/4/lock", "shard-2").await;
    let again = store.hold("/shards/4/lock", "").await;
    for (owner, expected) in [
        ("", r#" of "" is older than the present tenure of the same owner, "#),
        ("shard-2", r#" of shard-2 is older than the tenure of "", "#),
    ] {
        let said = stdout(&explain("shards", "/shards/4/lock", owner, &revision(&nameless), &[]).await);
        assert!(said.contains(expected), "{said}");
        assert!(said.contains(&format!(r#" is held by "", revision {};"#, again.revision)), "{said}");
    }
    let output = explain("watched", "/k", "shard-1", "1", &[]).await;
    let said = stdout(&output);
    assert!(
        said.contains("forwarded, since the route is in shadow mode; enforced, it would be refused: 412 no-owner"),
        "{said}"
    );
    assert!(said.ends_with("\n  No token is looked at with GET, HEAD (exempt_methods).\n"), "{said}");
    // A request that is to name its lock and does not gets no further, whatever else it presents.
    let file_name = file.to_str().unwrap();
    let unnamed = ["explain", "-c", file_name, "--route", "named", "--owner", "shard-1", "--revision", "07"];
    let said = stdout(&fencepost(&unnamed).await);
    assert!(
        said.starts_with("route named (enforce): refused: 428 token-missing\n  The request names no lock"),
        "{said}"
    );
    assert!(said.contains("The sender is told: Name the lock that you hold in Fence-Lock"), "{said}");
    let output = explain("named", "/k", "shard-1", "1", &[]).await;
    assert!(stdout(&output).starts_with("route named (enforce): refused: 412 no-owner\n"), "{output:?}");
    let output = explain("shards", "/other", "shard-1", "1", &[]).await;
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert!(stderr(&output).contains("--lock: \"/other\" is none of the locks"), "{output:?}");
    assert!(!log.exists(), "a question leaves nothing behind");
}

/// Such a lock was free, and nothing said that its masters hold it all the same.
#[tokio::test]
async fn a_lock_that_is_kept_as_another_layout_has_it_is_pointed_out() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let (store, worker) = (Store::of(&etcd).await, Worker::start().await);
    store.put("/queued/694d", "").await;
    store.put("/plain", "shard-1").await;
    let routes = [
        Route::new("queued", "/queued/", r#"key = "/queued""#),
        Route::new("plain", "/plain/", r#"key = "/plain", layout = "mutex""#),
        Route::new("free", "/", r#"key = "/free""#),
    ];
    let scratch = Scratch::new();
    let file = scratch.path().join("fencepost.toml");
    std::fs::write(&file, Config::new(&[etcd.endpoint()], &worker.endpoint().to_string(), &routes).toml()).unwrap();
    let name = file.to_str().unwrap();
    let output = fencepost(&["check", "--live", "-c", name]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = stdout(&output);
    let warnings: Vec<&str> = said.lines().filter(|line| line.starts_with("warning: route")).collect();
    let queued = "nobody holds it, but there is 1 key below /queued/: etcdctl lock keeps its locks so (layout = \"mutex\"), \
                  and etcdctl elect (layout = \"election\")";
    let plain = "nobody holds it and nothing is below /plain/, where layout = \"mutex\" has its keys, but /plain itself is \
                 there (layout = \"key\")";
    let expected = [
        format!("warning: route queued: lock /queued: {queued}"),
        format!("warning: route plain: lock /plain: {plain}"),
    ];
    assert_eq!(warnings, expected, "{said}");
    let explain = async |route| {
        let asked = ["explain", "-c", name, "--route", route, "--owner", "shard-1", "--revision", "7"];
        stdout(&fencepost(&asked).await)
    };
    assert!(explain("queued").await.contains(&format!("\n  Look at its layout: {queued}.\n")));
    assert!(!explain("free").await.contains("layout:"));
}

#[tokio::test]
async fn without_a_store_it_is_explained_what_becomes_of_requests_meanwhile() {
    let port = FreePort::reserve();
    let scratch = Scratch::new();
    let file = scratch.path().join("fencepost.toml");
    let routes = [
        Route::new("k", "/k/", r#"key = "/k""#),
        Route::new("lax", "/", r#"key = "/l""#).with(r#"on_unavailable = "dangerous_admit""#),
    ];
    let config = Config::new(&[format!("http://127.0.0.1:{}", port.number())], "http://127.0.0.1:9", &routes);
    std::fs::write(&file, config.toml()).unwrap();
    let explain = async |route: &str, revision: &str, more: &[&str]| {
        let asked = ["explain", "-c", file.to_str().unwrap(), "--route", route, "--owner", "a", "--revision", revision];
        let output = fencepost(&[&asked[..], more].concat()).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        stdout(&output)
    };
    for (route, expected) in [("k", "refused: 503 unverifiable"), ("lax", "forwarded unjudged")] {
        let said = explain(route, "1", &[]).await;
        assert!(said.starts_with(&format!("route {route} (enforce): {expected}")), "{said}");
        assert!(said.contains("The lock store was asked, and ") && said.contains("Connection refused"), "{said}");
    }
    // What is told by the token alone is told all the same.
    let said = explain("lax", "07", &[]).await;
    assert!(said.starts_with("route lax (enforce): refused: 400 token-malformed\n"), "{said}");
    let answer: serde_json::Value = serde_json::from_str(&explain("lax", "1", &["--json"]).await).unwrap();
    assert_eq!((&answer["reason"], &answer["let_past"]), (&"unverifiable".into(), &true.into()), "{answer}");
    assert!(answer["cause"].as_str().unwrap().contains("Connection refused"), "{answer}");
}
