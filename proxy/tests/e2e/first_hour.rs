//! What a new user meets: the first lines of the log, whether it is ready, what mistakes are told.

use fencepost_tests::{Etcd, EtcdVersion, Response, Worker, eventually};
use serde_json::{Value, json};

use crate::cli::{Ran, Written, fencepost};
use crate::fencepost::{Config, Fencepost, Route};
use crate::refusal::{assert_refused, reason};
use crate::scene::{Ask, Scene};
use crate::store::{Layout, Tenure};

const VERSION: EtcdVersion = EtcdVersion::V3_5;

#[tokio::test]
async fn start_is_one_block_in_the_log() {
    let scene = Scene::open(VERSION, &[Route::k()]).await;
    scene.fence.until_log(" ready").await;
    let (log, file) = (scene.fence.log(), scene.fence.file());
    let says = |text: &str| log.find(text).unwrap_or_else(|| panic!("{text} in {log}"));
    let version = format!("fencepost {} (commit ", env!("CARGO_PKG_VERSION"));
    let page = format!("admin listening address={0} page=\"http://{0}/\"", scene.fence.admin);
    let places = [
        says(&version),
        says(&format!("configuration={:?}", file.display().to_string())),
        says(" listening address="),
        says(&page),
        says(" ready\n"),
    ];
    assert!(places.is_sorted(), "{places:?}: {log}");
    let Ran { stdout, .. } = fencepost("--version").await.ended(0);
    let (_, kind) = stdout.trim_end().rsplit_once(", ").unwrap();
    assert!(stdout.starts_with(&version) && kind.ends_with(" build)"), "{stdout}");
    for metric in ["process_threads", "process_open_fds", "process_resident_memory_bytes"] {
        assert!(scene.fence.metric(metric).await > 0.0, "{metric}");
    }
    scene.finish().await;
}

#[tokio::test]
async fn ready_says_whether_the_running_process_is() {
    let scene = Scene::open(VERSION, &[Route::k()]).await;
    let admin = scene.fence.admin;
    for url in [format!("http://{admin}"), admin.to_string()] {
        let Ran { stdout, .. } = fencepost(format!("ready {url}")).await.ended(0);
        assert_eq!(stdout, "ready\n");
    }
    // No lock has been read yet.
    let unread =
        Config::new(&["http://127.0.0.1:1".to_owned()], "http://127.0.0.1:1", &[Route::k()]);
    let unread = Fencepost::launch(&unread).await;
    let Ran { stderr, .. } = fencepost(format!("ready http://{}", unread.admin)).await.ended(1);
    assert_eq!(stderr, "fencepost: not ready: locks have not been read yet from: main\n");
    let Ran { stderr, .. } = fencepost("ready http://127.0.0.1:1").await.ended(1);
    assert!(stderr.contains("http://127.0.0.1:1 cannot be asked: Connection refused"), "{stderr}");
    let worker = scene.worker.endpoint().to_string();
    let Ran { stderr, .. } = fencepost(format!("ready {worker}")).await.ended(1);
    assert!(stderr.contains("answered 200 OK: it is no admin listener"), "{stderr}");
    // By the file of the process.
    let socket = Written::new("");
    let address = format!("unix:{}", socket.place("admin.sock"));
    let toml = scene.config.toml().replacen("127.0.0.1:0", &address, 1);
    socket.write(&toml);
    let Ran { stderr, .. } = socket.ask("ready").await.ended(1);
    assert!(stderr.contains(&format!("{address} cannot be asked: No such file")), "{stderr}");
    fencepost("ready ftp://127.0.0.1").await.ended(64);
    scene.finish().await;
}

#[tokio::test]
async fn a_missing_file_says_what_to_do() {
    for command in ["serve", "check"] {
        let Ran { stderr, .. } = fencepost(format!("{command} -c /nope.toml")).await.ended(64);
        assert!(stderr.starts_with("/nope.toml: No such file or directory"), "{stderr}");
        assert!(stderr.contains("--config") && stderr.contains("fencepost demo"), "{stderr}");
    }
}

#[tokio::test]
async fn mistyped_command_suggests_no_internal_one() {
    for (mistyped, suggested) in [("hold-watchdo", false), ("hold-star", false), ("checks", true)] {
        let Ran { stderr, .. } = fencepost(mistyped).await.ended(64);
        assert!(!stderr.contains("hold-watchdog") && !stderr.contains("hold-start"), "{stderr}");
        assert!(!suggested || stderr.contains("'check'"), "{stderr}");
    }
    let Ran { stdout, .. } = fencepost("completions bash").await.ended(0);
    assert!(stdout.contains("completions") && !stdout.contains("hold-watchdog"), "{stdout}");
    fencepost("completions tcsh").await.ended(64);
}

#[tokio::test]
async fn lock_not_allowed_says_which_segment_and_route() {
    let route = Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#);
    let scene = Scene::open(VERSION, &[route]).await;
    let answer = scene.send(Ask::post("/shards/a%20b/x").token("shard-1", "7")).await;
    assert_refused(&answer, "lock-not-allowed", None, None);
    let told = detail(&answer);
    let says = "The segment \"a%20b\" of the path stands for {shard}: write it with A-Z, a-z, 0-9, \".\", \"_\", \"~\" and \"-\" alone. \
                Route \"shards\" takes paths like \"/shards/{shard}/\".";
    assert_eq!(told, says);
    scene.finish().await;
}

fn detail(answer: &Response) -> String {
    let body: Value = serde_json::from_str(&answer.text()).unwrap();
    body["detail"].as_str().unwrap().to_owned()
}

/// Every request was refused as `no-owner`, and nobody was told why.
#[tokio::test]
async fn wrong_layout_is_told_by_the_running_process() {
    let routes = [
        Route::new("enforced", "/k/", r#"key = "/k""#),
        Route::new("watched", "/w/{w}/", r#"key = "/w/{w}""#).with(r#"mode = "shadow""#),
    ];
    let scene = Scene::open(VERSION, &routes).await;
    let session = scene.store.session("shard-1").await;
    // As `etcdctl lock` does.
    let held = scene.store.acquire(Layout::Mutex, "/k", &session).await;
    scene.store.acquire(Layout::Mutex, "/w/1", &session).await;
    let free = scene.send(Ask::post("/w/2/").token("shard-1", "1")).await;
    assert_eq!(free.status, 200);
    for path in ["/k/", "/w/1/"] {
        scene.send(Ask::post(path).under(&held.tenure)).await;
    }
    for lock in ["/k", "/w/1"] {
        let hint = format!(
            "nobody holds it, but there is 1 key below {lock}/: etcdctl lock keeps its locks so (layout = \"mutex\")"
        );
        let found = eventually("the lock has a hint", async || {
            let told = scene.fence.admin_json(&format!("/locks/{lock}")).await;
            told["hint"].as_str().map(str::to_owned)
        })
        .await;
        assert!(found.starts_with(&hint), "{found}");
        scene.fence.until_log(&format!("requests are refused as no-owner: {hint}")).await;
        let text = scene.fence.admin("GET", "/shadow?format=text").await.text();
        assert!(text.contains(&format!("Lock {lock} of source main: {hint}")), "{text}");
    }
    let hints = scene.fence.admin_json("/routes").await["layout_hints"].clone();
    assert_eq!(hints.as_array().map(Vec::len), Some(2), "no hint for /w/2: {hints}");
    let all = scene.fence.admin_json("/locks").await["sources"][0]["locks"].clone();
    let of = |key: &str| {
        all.as_array().unwrap().iter().find(|lock| lock["key"] == key).unwrap()["hint"].clone()
    };
    assert!(of("/k").is_string() && of("/w/2") == json!(null), "{all}");
    let logged = scene.fence.log().matches("requests are refused as no-owner").count();
    assert_eq!(logged, 2, "once per lock and minute");
    scene.finish().await;
}

#[tokio::test]
async fn check_names_the_layout_of_templated_locks() {
    let etcd = Etcd::start(VERSION).await;
    let (store, worker) = (crate::store::Store::of(&etcd).await, Worker::start().await);
    store.put("/queued/7/694d", "").await;
    store.put("/plain/7", "shard-1").await;
    store.put("/right/7", "shard-1").await;
    let route = |name: &str, layout: &str| {
        let lock = format!("key = \"/{name}/{{n}}\", layout = \"{layout}\"");
        Route::new(name, &format!("/{name}/{{n}}/"), &lock)
    };
    let routes = [
        route("queued", "key"),
        route("plain", "mutex"),
        route("right", "key"),
        route("empty", "key"),
    ];
    let file = Written::new(&Config::of(&etcd, &worker, &routes).toml());
    let Ran { stdout, .. } = file.ask("check --live").await.ended(0);
    let warnings: Vec<&str> =
        stdout.lines().filter(|line| line.starts_with("warning: route")).collect();
    let expected = [
        "warning: route queued: no key is like /queued/{n}, but /queued/7/694d is below one: etcdctl lock keeps its locks so \
         (layout = \"mutex\"), and etcdctl elect (layout = \"election\")",
        "warning: route plain: nothing is below a key like /plain/{n}, where layout = \"mutex\" has its keys, but /plain/7 itself is \
         there (layout = \"key\")",
    ];
    assert_eq!(warnings, expected, "{stdout}");
}

/// A master over `clientv3/namespace` does not see the namespace before its own key.
#[tokio::test]
async fn owner_without_its_namespace_gets_a_hint() {
    let lock = r#"key = "app//k", layout = "mutex""#;
    let scene = Scene::open(VERSION, &[Route::new("k", "/", lock)]).await;
    let session = scene.store.session("shard-1").await;
    let Tenure { owner, revision } =
        scene.store.acquire(Layout::Mutex, "app//k", &session).await.tenure;
    let seen = owner.strip_prefix("app/").unwrap();
    for _ in 0..2 {
        let answer = scene.send(Ask::post("/").token(seen, &revision.to_string())).await;
        assert_eq!(reason(&answer), Some("not-owner"), "{answer:?}");
    }
    let hint = format!("requests are refused as not-owner: its holder's key is {owner}, ");
    scene.fence.until_log(&hint).await;
    assert_eq!(scene.fence.log().matches(&hint).count(), 1);
    let escaped = owner.replace('/', "%2f");
    assert_eq!(scene.send(Ask::post("/").token(&escaped, &revision.to_string())).await.status, 200);
    scene.finish().await;
}
