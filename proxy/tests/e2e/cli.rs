//! The command line.

use std::path::Path;

use fencepost_tests::{
    Authority, Etcd, EtcdVersion, FreePort, Scratch, Worker, WorkerTls, replace_file,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::fencepost::{BINARY, Config, Fencepost, Route};
use crate::programs::{printed, run};
use crate::refusal::assert_refused;
use crate::scene::{Ask, Ledger, send};
use crate::store::{Store, Tenure};

/// What a run of the program came to.
#[derive(Debug)]
pub(crate) struct Ran {
    code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A configuration file to ask the program about.
pub(crate) struct Written(Scratch);

impl Ran {
    async fn of(program: &str, arguments: &[&str]) -> Ran {
        let output = run(program, arguments).await;
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    #[track_caller]
    pub(crate) fn ended(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

impl Written {
    pub(crate) fn new(text: &str) -> Written {
        let written = Written(Scratch::new());
        written.write(text);
        written
    }

    pub(crate) fn write(&self, text: impl AsRef<[u8]>) {
        std::fs::write(self.name(), text).unwrap();
    }

    pub(crate) fn name(&self) -> String {
        self.place("fencepost.toml")
    }

    pub(crate) fn place(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs a command of the program on the file: `check --live` as `check -c FILE --live`.
    pub(crate) async fn ask(&self, command: impl AsRef<str>) -> Ran {
        let (command, more) = command.as_ref().split_once(' ').unwrap_or((command.as_ref(), ""));
        fencepost(format!("{command} -c {} {more}", self.name())).await
    }
}

/// Runs the program with these arguments, which spaces separate.
pub(crate) async fn fencepost(arguments: impl AsRef<str>) -> Ran {
    Ran::of(BINARY, &arguments.as_ref().split_whitespace().collect::<Vec<_>>()).await
}

const NOBODY: &str = "http://127.0.0.1:1";

fn k() -> [Route; 1] {
    [Route::k()]
}

/// A file with no etcd and no worker behind it.
fn lonely() -> Config {
    Config::new(&[NOBODY.to_owned()], NOBODY, &k())
}

#[tokio::test]
async fn each_problem_of_a_file_has_its_line_and_key() {
    let file = Written::new(
        r#"
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
"#,
    );
    for command in ["check", "check --live", "serve"] {
        let Ran { stdout, stderr, .. } = file.ask(command).await.ended(64);
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
            let place = format!("{}:{line}: {key}: ", file.name());
            assert!(
                stderr.lines().any(|problem| problem.starts_with(&place)),
                "{place} in {stderr}"
            );
        }
        assert_eq!((stderr.lines().count(), stdout.as_str()), (9, ""), "{stderr}");
    }
}

#[tokio::test]
async fn wrong_usage_is_64_and_is_named() {
    for (arguments, names) in [
        ("", "Usage"),
        ("serve --colour red", "--colour"),
        ("frobnicate", "frobnicate"),
        (
            "serve",
            "give -c FILE; or, for one worker without a file, --listen, --upstream, --etcd and --lock\n",
        ),
        ("check", "give -c FILE; or, "),
        ("serve --upstream http://127.0.0.1:1", "--listen: missing"),
        (
            "serve --listen 127.0.0.1:0 --upstream http://127.0.0.1:1 --etcd http://127.0.0.1:1",
            "--lock",
        ),
        ("serve -c /nonexistent/fencepost.toml", "/nonexistent/fencepost.toml"),
        ("check -c /dev/null", "/dev/null"),
        ("serve -c /dev/zero", "/dev/zero: is larger than 16 MiB\n"),
        ("serve -c x.toml --listen 127.0.0.1:0", "--listen"),
        ("serve --log fencepost=loud", "--log: "),
        (
            "serve --log fencpost=debug",
            "--log: \"fencpost=debug\" has nothing of fencepost's own logged",
        ),
        ("check --log warm -c x.toml", "'--log'"),
        ("explain --log-format json -c x.toml --revision 1", "'--log-format'"),
        ("demo --log debug", "'--log'"),
        ("hold --log debug", "'--log'"),
    ] {
        let Ran { stderr, .. } = fencepost(arguments).await.ended(64);
        assert!(stderr.contains(names) && !stderr.contains("panicked"), "{arguments:?}: {stderr}");
    }
    let missing = "--etcd: missing: a member of the etcd cluster, like \"http://127.0.0.1:2379\"\n\
                   --upstream: missing: the worker, like \"http://127.0.0.1:9000\"\n\
                   --lock: missing: the key of the lock, like \"/shards/2/lock\"\n";
    assert_eq!(fencepost("serve --listen 127.0.0.1:0").await.ended(64).stderr, missing);
    let all_wrong = "serve --listen 8080 --upstream x --etcd y --lock /k --layout z --max-age 0s";
    let Ran { stderr, .. } = fencepost(all_wrong).await.ended(64);
    for flag in ["--listen: ", "--upstream: ", "--etcd: ", "--layout: ", "--max-age: "] {
        assert!(stderr.lines().any(|line| line.starts_with(flag)), "{flag}: {stderr}");
    }
    // Members of etcd may stand in one word, and a URL may end in a slash.
    let check = "check --listen 127.0.0.1:0 --upstream http://127.0.0.1:1/ --lock /k --etcd http://127.0.0.1:1/";
    fencepost(format!("{check},http://127.0.0.1:2")).await.ended(0);
    let twice = fencepost(format!("{check},http://127.0.0.1:1")).await.ended(64);
    assert!(
        twice.stderr.contains(r#"--etcd: "http://127.0.0.1:1" is in the list already"#),
        "{twice:?}"
    );
}

#[tokio::test]
async fn unreadable_files_are_named_with_what_is_wrong() {
    let file = Written::new("");
    file.write(b"[admin]\n# caf\xe9\n");
    let not_utf8 = format!("{}:2: is not UTF-8: byte 0xe9\n", file.name());
    assert_eq!(file.ask("check").await.ended(64).stderr, not_utf8);
    std::fs::File::create(file.name()).unwrap().set_len(300 << 20).unwrap();
    for command in ["check", "serve"] {
        let too_large = format!("{}: is larger than 16 MiB\n", file.name());
        assert_eq!(file.ask(command).await.ended(64).stderr, too_large);
    }
    let fence = Fencepost::launch(&lonely().without_source()).await;
    std::fs::File::create(fence.file()).unwrap().set_len(300 << 20).unwrap();
    let answer = fence.admin("POST", "/reload").await;
    assert!(
        answer.status != 200 && answer.text().contains("is larger than 16 MiB"),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn help_and_version_are_right_usage() {
    for (arguments, says) in [
        ("--help", "fencepost demo"),
        ("--help", "has more: 75, 76, 126 and 127"),
        ("serve --help", "FENCEPOST_LOG"),
        ("--version", env!("CARGO_PKG_VERSION")),
        ("serve --help", "--upstream"),
        ("check --help", "--live"),
        ("explain --help", "0 whatever the verdict, also if the store does not"),
        ("demo --help", "--etcd"),
        ("hold --help", "readwrite --prefix /shards/2/lock.queue/"),
    ] {
        let Ran { stdout, .. } = fencepost(arguments).await.ended(0);
        assert!(stdout.contains(says), "{arguments:?}: {stdout}");
        assert_eq!(
            stdout.contains("--log "),
            arguments.starts_with("serve"),
            "{arguments:?}: {stdout}"
        );
    }
}

#[tokio::test]
async fn a_start_on_a_taken_address_ends_with_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (listen, admin) in [(address.as_str(), "127.0.0.1:0"), ("127.0.0.1:0", &address)] {
        let serve = format!(
            "serve --listen {listen} --admin {admin} --upstream {NOBODY} --etcd {NOBODY} --lock /k"
        );
        let Ran { stderr, .. } = fencepost(serve).await.ended(1);
        assert!(stderr.contains(&address) && stderr.contains("in use"), "{stderr}");
    }
}

#[tokio::test]
async fn check_finds_a_useless_state_dir_and_password() {
    let file = Written::new("");
    let (password, state_dir, above) =
        (file.place("password"), file.place("a/b/state"), file.place("a"));
    let login = format!("username = \"root\"\npassword_file = {password:?}");
    file.write(lonely().remembering_in(Path::new(&state_dir)).source(&login).toml());
    let warns = async |says: &str| {
        let Ran { stdout, .. } = file.ask("check").await.ended(0);
        let is_there =
            stdout.lines().any(|line| line.starts_with("warning: ") && line.contains(says));
        assert!(is_there, "{says:?} in {stdout}");
    };
    warns(&format!("source.main.password_file: {password}: No such file")).await;
    std::fs::write(&password, "\n").unwrap();
    warns("it is empty").await;
    std::fs::write(&password, "secret\n").unwrap();
    std::fs::write(&above, "").unwrap();
    let Ran { stderr, .. } = file.ask("check").await.ended(64);
    assert!(
        stderr.contains(&format!("toml:2: state_dir: {state_dir}: {above} is no directory\n")),
        "{stderr}"
    );
    std::fs::remove_file(&above).unwrap();
    let Ran { stdout, .. } = file.ask("check").await.ended(0);
    assert!(!stdout.contains("state_dir ") && !stdout.contains("password_file "), "{stdout}");
    assert!(!Path::new(&above).exists(), "a check leaves nothing behind");
}

#[tokio::test]
async fn unusable_files_are_wrong_for_check_and_serve() {
    let file = Written::new("");
    let folder = Path::new(&file.name()).parent().unwrap().to_owned();
    for name in ["mine", "other"] {
        Authority::new(name).issue_for_localhost().write(&folder, name);
    }
    let _socket = std::os::unix::net::UnixListener::bind(file.place("socket")).unwrap();
    let pair = |certificate: &str, key: &str| {
        format!("tls = {{ certificate = {certificate:?}, key = {key:?} }}")
    };
    let tls = |key: &str| pair(&file.place("mine.pem"), key);
    let log = |path: &str| format!("[access_log]\npath = {path:?}");
    let text = |top: &str, listener: &str, rest: &str| {
        format!(
            "{top}\n[[listener]]\naddress = \"127.0.0.1:0\"\n{listener}\n{rest}\n[admin]\nlisten = \"off\"\n\
             [[route]]\nname = \"a\"\npath = \"/\"\nupstream = \"http://127.0.0.1:9\"\nmode = \"off\"\n"
        )
    };
    let (certificate, key) = ("listener[0].tls.certificate", "listener[0].tls.key");
    for (name, written, says) in [
        ("access_log.path", log("/nope/access.log"), "/nope/access.log: /nope: No such file"),
        ("access_log.path", log(&file.place("")), "is a directory"),
        ("access_log.path", log(&file.place("socket")), "socket is a socket"),
        (
            "state_dir",
            format!("state_dir = {:?}", file.place("mine.pem/x")),
            "mine.pem is no directory",
        ),
        (
            key,
            tls("/nope/k.pem"),
            "/nope/k.pem: cannot be read: No such file or directory (os error 2)",
        ),
        (key, tls(&file.place("other.key")), "its private key does not belong to"),
        (key, tls(&file.place("mine.pem")), "has no private key in it"),
        (
            certificate,
            pair(&file.place("mine.key"), &file.place("mine.key")),
            "has no certificate in it",
        ),
    ] {
        let text = match name.split_once('.') {
            None => text(&written, "", ""),
            Some(("access_log", _)) => text("", "", &written),
            Some(_) => text("", &written, ""),
        };
        let last = name.rsplit_once('.').map_or(name, |(_, last)| last);
        let line = 1 + text.lines().position(|line| line.contains(&format!("{last} = "))).unwrap();
        file.write(text);
        for command in ["check", "serve"] {
            let Ran { stderr, .. } = file.ask(command).await.ended(64);
            let begins = format!("{}:{line}: {name}: ", file.name());
            let is_named = |line: &str| line.starts_with(&begins) && line.contains(says);
            assert!(stderr.lines().any(is_named), "{begins}{says}: {stderr}");
        }
    }
    // What systemd hands to the service alone is not there for a check.
    let of_service = "/run/credentials/fencepost.service/tls.key";
    file.write(text("", &tls(of_service), ""));
    let warning = format!("warning: {}:4: {key}: {of_service}: cannot be read: ", file.name());
    let checked = file.ask("check").await.ended(0);
    assert!(checked.stdout.contains(&warning), "{checked:?}");
    file.ask("serve").await.ended(64);
}

#[tokio::test]
async fn check_says_what_it_finds_alive() {
    for version in EtcdVersion::ALL {
        let etcd = Etcd::start(version).await;
        let (store, worker) = (Store::of(&etcd).await, Worker::start().await);
        let held = store.hold("/k", "shard-1").await;
        let routes = [
            Route::new("k", "/k/", r#"key = "/k""#),
            Route::new("free", "/free/", r#"key = "/free", layout = "election""#),
            Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#),
        ];
        let (admin, upstream) = (FreePort::reserve(), worker.endpoint().to_string());
        let own = format!(
            "[[route]]\nname = \"ready\"\npath = \"/readyz\"\nmode = \"off\"\nupstream = \"http://{}\"",
            admin.address()
        );
        let config = Config::new(&[etcd.endpoint()], &upstream, &routes).section(&own);
        let listens = |address: &str| format!("[admin]\nlisten = {address:?}\n");
        let text =
            config.toml().replace(&listens("127.0.0.1:0"), &listens(&admin.address().to_string()));
        let file = Written::new(&text);
        file.ask("check").await.ended(0);
        let Ran { stdout, .. } = file.ask("check --live").await.ended(0);
        for finding in [
            "shard-1",
            &format!("revision {}", held.revision),
            "free",
            &format!("etcd {version}."),
            "age ",
            "#20418",
            &format!("worker {upstream}: accepts connections"),
            &format!(
                "worker http://{}: is the admin listener of this configuration",
                admin.address()
            ),
        ] {
            assert!(stdout.contains(finding), "{finding} in {stdout}");
        }

        store.put("/json", "shard-1").await;
        let bad = [Route::new("json", "/", r#"key = "/json", owner_field = "holder""#)];
        file.write(Config::new(&[etcd.endpoint()], &upstream, &bad).toml());
        let Ran { stdout, .. } = file.ask("check --live").await.ended(1);
        assert!(stdout.contains("/json"), "a lock that cannot be read is named: {stdout}");

        let nobody = FreePort::reserve();
        let dead = format!("http://{}", nobody.address());
        for (endpoint, upstream) in [(&dead, &upstream), (&etcd.endpoint(), &dead)] {
            file.write(Config::new(std::slice::from_ref(endpoint), upstream, &routes).toml());
            let Ran { stdout, .. } = file.ask("check --live").await.ended(1);
            assert!(stdout.contains(&nobody.address().to_string()), "{stdout}");
            assert_eq!(stdout.matches("Connection refused").count(), 1, "{stdout}");
        }
    }
}

/// A worker that answers each connection as it should, or not at all.
async fn worker_that(answer: fn(&[u8]) -> &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut said = [0; 64];
            let count = socket.read(&mut said).await.unwrap_or(0);
            let _ = socket.write_all(answer(&said[..count])).await;
        }
    });
    address
}

/// All of them were called right, and failed with the first request.
#[tokio::test]
async fn check_live_finds_what_a_worker_speaks() {
    let http1 = worker_that(|said| match said {
        [b'O', b'P', ..] => b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        _ => b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n",
    });
    let h2c = worker_that(|said| match said {
        [b'P', b'R', ..] => b"\0\0\0\x04\0\0\0\0\0",
        _ => b"",
    });
    // As those that say in the clear, too, that they want TLS.
    let polite = worker_that(|said| match said {
        [22, ..] => b"\x15\x03\x03\0\x02\x02\x28",
        _ => b"HTTP/1.1 400 Bad Request\r\n\r\n",
    });
    let (http1, h2c, polite, silent) = tokio::join!(http1, h2c, polite, worker_that(|_| b""));
    let old = worker_that(|_| b"HTTP/1.0 200 OK\r\n\r\n").await;
    let to_come = worker_that(|_| b"HTTP/1.2 200 OK\r\n\r\n").await;
    let redis = worker_that(|_| b"-ERR unknown command\r\n").await;
    let (authority, file) = (Authority::new("workers"), Written::new(""));
    let issued = authority.issue_for_localhost();
    let tls = WorkerTls { identity: &issued, client_ca: None, protocols: &["h2", "http/1.1"] };
    let (secure, both) = (Worker::start_tls(&tls).await, Worker::start().await);
    replace_file(Path::new(&file.place("ca.pem")), &authority.certificate());
    let (plain, unbound) = (file.place("fencepost.toml"), file.place("unbound.sock"));
    drop(std::os::unix::net::UnixListener::bind(&unbound).unwrap());
    let missing = file.place("missing.sock");
    for (upstream, code, says) in [
        (format!("http://{http1}"), 0, "accepts connections, speaks HTTP/1.1"),
        (both.endpoint().to_string(), 0, "accepts connections, speaks HTTP/1.1"),
        (format!("h2c://{h2c}"), 0, "accepts connections, speaks HTTP/2"),
        (secure.https(), 0, "accepts connections, picks HTTP/2"),
        (format!("http://{silent}"), 0, "accepts connections, but answers neither"),
        (format!("http://{old}"), 0, "accepts connections, speaks HTTP/1.0"),
        (format!("h2c://{old}"), 1, "speaks HTTP/1.1 and not HTTP/2: write http://"),
        (format!("http://{to_come}"), 1, "something that is neither HTTP/1.0, HTTP/1.1"),
        (format!("http://{redis}"), 1, "something that is neither HTTP/1.0, HTTP/1.1"),
        (format!("h2c://{redis}"), 1, "something that is neither HTTP/1.0, HTTP/1.1"),
        (format!("http://{h2c}"), 1, "speaks HTTP/2 only, as gRPC does: write h2c://"),
        (format!("h2c://{http1}"), 1, "speaks HTTP/1.1 and not HTTP/2: write http://"),
        (secure.https().replace("https", "http"), 1, "speaks TLS: write https://"),
        (secure.https().replace("https", "h2c"), 1, "speaks TLS: write https://"),
        (format!("http://{polite}"), 1, "speaks TLS: write https://"),
        (format!("https://{http1}"), 1, "it speaks HTTP/1.1 in the clear: write http://"),
        (format!("https://{h2c}"), 1, "it speaks HTTP/2 in the clear: write h2c://"),
        (format!("unix:{missing}"), 1, "start the worker, or write the path"),
        (format!("unix:{plain}"), 1, "that is no socket"),
        (format!("unix:{unbound}"), 1, "nobody listens at this socket"),
    ] {
        let tls = if upstream.starts_with("https:") {
            format!("upstream_tls = {{ ca = {:?} }}", file.place("ca.pem"))
        } else {
            String::new()
        };
        file.write(format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[[route]]\nname = \"all\"\npath = \"/\"\nmode = \"off\"\nupstream = {upstream:?}\n{tls}"
        ));
        let said = file.ask("check --live").await.ended(code).stdout;
        assert!(said.contains(says), "{upstream}: {says} in {said}");
    }
}

#[tokio::test]
async fn check_of_endpoints_of_two_clusters_says_which_is_which() {
    let (ours, theirs) =
        tokio::join!(Etcd::start(EtcdVersion::V3_5), Etcd::start(EtcdVersion::V3_5));
    let worker = Worker::start().await;
    let file = Written::new("");
    let check = async |config: &Config, code| {
        file.write(config.toml());
        file.ask("check --live").await.ended(code).stdout
    };
    for mode in ["enforce", "off"] {
        let routes = k().map(|route| route.with(&format!("mode = {mode:?}")));
        let config =
            Config::of(&ours, &worker, &routes).endpoints(&[ours.endpoint(), theirs.endpoint()]);
        let said = check(&config, 1).await;
        let told = said
            .split_once("source main: the endpoints belong to different clusters (")
            .expect(&said)
            .1;
        let (told, help) = told.split_once(')').expect(&said);
        assert!(help.starts_with(": set cluster_id to the one that is meant"), "{said}");
        assert_eq!(said.matches("different clusters").count(), 1, "it is said once: {said}");
        let of = |etcd: &Etcd| {
            let begins = format!("{} to ", etcd.endpoint());
            told.split(", ").find_map(|one| one.strip_prefix(&begins)).expect(&said).to_owned()
        };
        assert_ne!(of(&ours), of(&theirs));

        let configured = config.source(&format!("cluster_id = {:?}", of(&ours)));
        let wrong = format!("{} belongs to cluster {}, not to", theirs.endpoint(), of(&theirs));
        let said = check(&configured, 1).await;
        assert!(
            said.contains(&wrong) && said.contains(&format!("{} runs etcd", ours.endpoint())),
            "{said}"
        );
        check(&configured.endpoints(&[ours.endpoint()]), 0).await;
    }
}

#[tokio::test]
async fn flags_serve_one_worker_without_a_file() {
    for freshness in ["cached", "linearizable"] {
        let etcd = Etcd::start(EtcdVersion::V3_4).await;
        let (store, worker, ledger) =
            (Store::of(&etcd).await, Worker::start().await, Ledger::default());
        let (upstream, endpoint) = (worker.endpoint().to_string(), etcd.endpoint());
        let one = format!(
            "--listen 127.0.0.1:0 --upstream {upstream} --etcd {endpoint} --lock /k --layout key"
        );
        let serve = format!("serve {one} --admin 127.0.0.1:0 --freshness {freshness} --max-age 1s");
        let fence = Fencepost::launch_with(&serve.split(' ').collect::<Vec<_>>()).await;
        fence.wait_until_ready().await;
        let post = async |tenure: &Tenure| {
            send(&fence.listener, &ledger, Ask::post("/any/path").under(tenure)).await
        };
        let first = store.hold("/k", "shard-1").await;
        assert_eq!(post(&first).await.status, 200);
        let second = store.hold("/k", "shard-2").await;
        assert_eq!(post(&second).await.status, 200);
        assert_refused(&post(&first).await, "stale-tenure", "/k", &second);
        ledger.check(&worker);
    }
}

/// The README's commands, but for the addresses. The lock has had another holder before.
#[tokio::test]
async fn curl_is_all_a_master_needs() {
    let etcd = Etcd::start(EtcdVersion::V3_4).await;
    let worker = Worker::start().await;
    let quick_start = include_str!("../../../README.md").split_once("## Quick start").unwrap().1;
    let mut commands =
        quick_start.split("```sh\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    let at = |command: &str, places: &[(&str, &str)]| {
        places.iter().fold(command.to_owned(), |command, (place, here)| {
            assert!(command.contains(place), "{place} in {command}");
            command.replace(place, here)
        })
    };
    let (upstream, endpoint) = (worker.endpoint().to_string(), etcd.endpoint());
    let places = [
        ("127.0.0.1:8080", "127.0.0.1:0"),
        ("http://127.0.0.1:9000", &upstream),
        ("http://127.0.0.1:2379", &endpoint),
    ];
    let serve = at(commands.next().unwrap(), &places);
    let serve = serve
        .split_once("target/release/fencepost ")
        .expect("what cargo builds")
        .1
        .replace('\\', "");
    let arguments: Vec<&str> = serve.split_whitespace().chain(["--admin", "127.0.0.1:0"]).collect();
    let fence = Fencepost::launch_with(&arguments).await;
    fence.wait_until_ready().await;

    let (proxy, stamp) = (fence.listener.to_string(), "127.0.0.1:0");
    let places = [
        ("target/release/fencepost", env!("CARGO_BIN_EXE_fencepost")),
        ("http://127.0.0.1:2379", &endpoint),
        ("--stamp 127.0.0.1:8081", &format!("--stamp {stamp}")),
        ("http://127.0.0.1:8080", &proxy),
        (
            "curl -sS --fail-with-body http://127.0.0.1:8081/jobs",
            "sh -c 'curl -sS --fail-with-body http://$FENCE_STAMP/jobs'",
        ),
    ];
    let held = at(commands.next().unwrap(), &places);
    assert_eq!(printed("sh", &["-c", &held]).await, "ok");

    etcd.etcdctl(&["put", "/shards/2/lock", "shard-2"]).await;
    let master =
        at(commands.next().unwrap(), &[("http://127.0.0.1:8080", &fence.listener.to_string())]);
    let etcdctl = etcd.etcdctl_command();
    let tools = Path::new(etcdctl.as_std().get_program()).parent().unwrap().display();
    let set_up = format!("set -eu; PATH={tools}:$PATH; export ETCDCTL_ENDPOINTS={endpoint}");
    assert_eq!(printed("sh", &["-c", &format!("{set_up}\n{master}")]).await, "OK\nok");
    let seen = worker.seen();
    assert_eq!(seen.iter().map(|one| one.path.as_str()).collect::<Vec<_>>(), ["/jobs"; 2]);
}

#[tokio::test]
async fn explain_says_what_becomes_of_a_token() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let store = Store::of(&etcd).await;
    let hold = async |lock: &str, owner: &str| store.hold(lock, owner).await.revision;
    let shard = "/shards/2/lock";
    let first = hold(shard, "shard-1").await;
    let second = hold(shard, "shard-2").await;
    let third = hold(shard, "shard-1").await;
    let routes = [
        Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#),
        Route::new("watched", "/", r#"key = "/k""#)
            .with("mode = \"shadow\"\nexempt_methods = [\"GET\", \"HEAD\"]"),
        Route::new("named", "/named/", r#"key = "/k", from_header = true"#),
    ];
    let file = Written::new("");
    let log = file.place("access.log");
    let config = Config::new(&[etcd.endpoint()], "http://127.0.0.1:9", &routes);
    file.write(config.section(&format!("[access_log]\npath = {log:?}")).toml());
    let explain = async |route: &str, lock: &str, owner: &str, revision: &str| {
        let token =
            if owner.is_empty() { "--owner=".to_owned() } else { format!("--owner {owner}") };
        file.ask(format!("explain --route {route} --lock {lock} {token} --revision {revision}"))
            .await
    };
    for (owner, revision, expected) in [
        ("shard-1", third.to_string(), "admitted"),
        ("shard-1", first.to_string(), "refused: 412 replayed-tenure"),
        ("shard-2", second.to_string(), "refused: 412 stale-tenure"),
        ("shard-2", third.to_string(), "refused: 412 not-owner"),
        ("shard-1", (third + 1000).to_string(), "refused: 412 ahead-of-store"),
        ("shard-1", "07".to_owned(), "refused: 400 token-malformed"),
    ] {
        let said = explain("shards", shard, owner, &revision).await.ended(0).stdout;
        assert!(said.starts_with(&format!("route shards (enforce): {expected}\n")), "{said}");
        assert!(said.contains(&format!("is held by shard-1, revision {third}")), "{said}");
    }
    for (revision, told) in
        [("1", json!(["no-owner", "acquire", 1])), ("07", json!(["token-malformed", "fix", null]))]
    {
        let asked =
            "explain --json --route shards --lock /shards/3/lock --owner shard-1 --revision";
        let said = file.ask(format!("{asked} {revision}")).await.ended(0).stdout;
        let answer: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(
            json!([answer["reason"], answer["action"], answer["revision"]]),
            told,
            "{answer}"
        );
        assert_eq!(answer["lock"]["owner"], Value::Null);
    }
    let nameless = hold("/shards/4/lock", "").await.to_string();
    hold("/shards/4/lock", "shard-2").await;
    let again = hold("/shards/4/lock", "").await;
    for (owner, shown) in [("", r#""""#), ("shard-2", "shard-2")] {
        let expected = format!("The request presents revision {nameless} of {shown}.\n");
        let said = explain("shards", "/shards/4/lock", owner, &nameless).await.ended(0).stdout;
        assert!(said.contains(&expected), "{said}");
        assert!(said.contains(&format!(r#" is held by "", revision {again};"#)), "{said}");
    }
    let said = explain("watched", "/k", "shard-1", "1").await.ended(0).stdout;
    let watched =
        "forwarded, since the route is in shadow mode; enforced, it would be refused: 412 no-owner";
    assert!(said.contains(watched), "{said}");
    assert!(
        said.ends_with("\n  No token is looked at with GET, HEAD (exempt_methods).\n"),
        "{said}"
    );
    let said = explain("named", "/k", "shard-1", "1").await.ended(0).stdout;
    assert!(said.starts_with("route named (enforce): refused: 412 no-owner\n"), "{said}");
    // A request that has to name its lock and does not gets no further.
    let said =
        file.ask("explain --route named --owner shard-1 --revision 07").await.ended(0).stdout;
    let refused = "route named (enforce): refused: 428 token-missing\n  The request names no lock";
    assert!(said.starts_with(refused), "{said}");
    assert!(
        said.contains("The sender is told: Name the lock that you hold in Fence-Lock"),
        "{said}"
    );
    let Ran { stderr, .. } = explain("shards", "/other", "shard-1", "1").await.ended(64);
    assert!(stderr.contains("--lock: \"/other\" is none of the locks"), "{stderr}");
    assert!(!Path::new(&log).exists(), "a question leaves nothing behind");
}

#[tokio::test]
async fn check_and_explain_point_at_another_layout() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let (store, worker) = (Store::of(&etcd).await, Worker::start().await);
    store.put("/queued/694d", "").await;
    store.put("/plain", "shard-1").await;
    store.put("app//spaced/694d", "").await;
    let routes = [
        Route::new("spaced", "/spaced/", r#"key = "/spaced", layout = "mutex""#),
        Route::new("queued", "/queued/", r#"key = "/queued""#),
        Route::new("plain", "/plain/", r#"key = "/plain", layout = "mutex""#),
        Route::new("free", "/", r#"key = "/free""#),
    ];
    let file = Written::new(&Config::of(&etcd, &worker, &routes).toml());
    let Ran { stdout, .. } = file.ask("check --live").await.ended(0);
    let warnings: Vec<&str> =
        stdout.lines().filter(|line| line.starts_with("warning: route")).collect();
    let queued = "nobody holds it, but there is 1 key below /queued/: etcdctl lock keeps its locks so (layout = \"mutex\"), \
                  and etcdctl elect (layout = \"election\")";
    let plain = "nobody holds it and nothing is below /plain/, where layout = \"mutex\" has its keys, but /plain itself is \
                 there (layout = \"key\")";
    let spaced = "nobody holds it, but there is app//spaced, as of a client with the namespace \"app/\" (clientv3/namespace): write \
                  key = \"app//spaced\"; the owner is the whole name of the holder's own key then, with \"app/\" before it";
    let expected = [
        format!("warning: route spaced: lock /spaced: {spaced}"),
        format!("warning: route queued: lock /queued: {queued}"),
        format!("warning: route plain: lock /plain: {plain}"),
    ];
    assert_eq!(warnings, expected, "{stdout}");
    let explain = async |route| {
        file.ask(format!("explain --route {route} --owner shard-1 --revision 7"))
            .await
            .ended(0)
            .stdout
    };
    assert!(explain("queued").await.contains(&format!("\n  Look at its layout: {queued}.\n")));
    assert!(!explain("free").await.contains("layout:"));
}

#[tokio::test]
async fn explain_without_a_store_says_what_happens_meanwhile() {
    let port = FreePort::reserve();
    let routes = [
        Route::new("k", "/k/", r#"key = "/k""#),
        Route::new("lax", "/", r#"key = "/l""#).with(r#"on_unavailable = "dangerous_admit""#),
    ];
    let file =
        Written::new(&Config::new(&[format!("http://{}", port.address())], NOBODY, &routes).toml());
    let explain = async |route: &str, more: &str| {
        file.ask(format!("explain --route {route} --owner a --revision {more}"))
            .await
            .ended(0)
            .stdout
    };
    for (route, expected) in [("k", "refused: 503 unverifiable"), ("lax", "forwarded unjudged")] {
        let said = explain(route, "1").await;
        assert!(said.starts_with(&format!("route {route} (enforce): {expected}")), "{said}");
        assert!(
            said.contains("The lock store was asked, and ") && said.contains("Connection refused"),
            "{said}"
        );
    }
    let said = explain("lax", "07").await;
    assert!(said.starts_with("route lax (enforce): refused: 400 token-malformed\n"), "{said}");
    let answer: Value = serde_json::from_str(&explain("lax", "1 --json").await).unwrap();
    assert_eq!(
        (&answer["reason"], &answer["let_past"]),
        (&"unverifiable".into(), &true.into()),
        "{answer}"
    );
    assert!(answer["cause"].as_str().unwrap().contains("Connection refused"), "{answer}");
}
