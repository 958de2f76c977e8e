//! Another configuration put in force while requests go on: all of it or nothing.

use std::path::Path;

use fencepost_tests::{EtcdVersion, Scratch, request, until};

use crate::access_log::make_fifo;
use crate::fencepost::{Config, Fencepost, Route};
use crate::scene::{Ask, Scene};

fn route(name: &str, mode: &str) -> Route {
    Route::new(name, &format!("/{name}/"), &format!("key = \"/{name}\""))
        .with(&format!("mode = {mode:?}"))
}

#[tokio::test]
async fn a_file_edited_under_load_turns_one_route_to_enforce() {
    let before = [route("turns", "shadow"), route("stays", "enforce"), route("watches", "shadow")];
    let scene = Scene::open(EtcdVersion::V3_5, &before).await;
    let mut callers = Vec::new();
    for (name, path) in [("turns", "/turns/x"), ("stays", "/stays/x"), ("watches", "/watches/x")] {
        let zombie = scene.store.hold(&format!("/{name}"), "shard-1").await;
        let holder = scene.store.hold(&format!("/{name}"), "shard-2").await;
        scene.until_known(&format!("/{name}"), Some("shard-2")).await;
        for _ in 0..2 {
            callers.push((name, "holder", scene.caller(path, &holder).await));
        }
        callers.push((name, "zombie", scene.caller(path, &zombie).await));
    }
    for (.., caller) in &callers {
        caller.until_sent(20).await;
    }
    let after = [route("turns", "enforce"), route("stays", "enforce"), route("watches", "shadow")];
    std::fs::write(scene.fence.file(), scene.config.clone().routes(&after).toml()).unwrap();
    scene.fence.until_generation(2).await;
    for (.., caller) in &callers {
        caller.until_sent(20).await;
    }
    for (name, who, caller) in callers {
        let answers = caller.stop().await;
        let refused_from =
            answers.iter().position(|status| *status == 412).unwrap_or(answers.len());
        let (forwarded, refused) = answers.split_at(refused_from);
        assert!(forwarded.iter().all(|status| *status == 200), "{name}, {who}: {answers:?}");
        assert!(refused.iter().all(|status| *status == 412), "{name}, {who}: {answers:?}");
        let expected = match (name, who) {
            ("stays", "zombie") => (false, true),
            ("turns", "zombie") => (true, true),
            _ => (true, false),
        };
        assert_eq!((!forwarded.is_empty(), !refused.is_empty()), expected, "{name}, {who}");
    }
    scene.fence.until_log("configuration reloaded").await;
    let log = scene.fence.log();
    let line = log
        .lines()
        .find(|line| line.contains("configuration reloaded"))
        .unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("generation=2 changed=route.turns.mode: shadow → enforce"), "{line}");
    scene.finish().await;
}

#[tokio::test]
async fn a_wrong_file_is_explained_and_the_old_one_stays() {
    let mut scene = Scene::open(EtcdVersion::V3_5, &[route("one", "enforce")]).await;
    let tenure = scene.store.hold("/one", "shard-1").await;
    let file = scene.fence.file().display().to_string();
    let wrong = scene
        .config
        .toml()
        .replace("[limits]\n", "[limits]\nconfirm_timeout = \"1 h\"\n")
        .replace("mode", "mood");
    std::fs::write(&file, wrong).unwrap();

    let answer = scene.fence.admin("POST", "/reload").await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    scene.fence.process().hang_up();
    scene.fence.until_log("cause=\"SIGHUP\" generation=1").await;
    scene.fence.until_log("cause=\"the operator\" generation=1").await;
    for problem in [
        ": limits.confirm_timeout: must be one number and one unit",
        "route.one.mood: unknown key; did you mean \"mode\"?",
    ] {
        for text in [answer.text(), scene.fence.log()] {
            let line = text
                .lines()
                .find(|line| line.contains(problem))
                .unwrap_or_else(|| panic!("{text}"));
            assert!(line.contains(&format!("{file}:")), "{line}");
        }
    }
    assert_eq!(scene.fence.metric("fencepost_config_generation").await, 1.0);
    assert_eq!(scene.fence.metric("fencepost_config_rejected").await, 1.0);
    let rejected = scene.fence.metric("fencepost_config_reloads_total{outcome=\"rejected\"}").await;
    assert!(rejected >= 2.0, "{rejected}: it may have been looked at by itself too");
    assert_eq!(scene.fence.admin("GET", "/readyz").await.status, 200);
    scene.admits("/one/x", &tenure).await;

    let since = scene.fence.metric("fencepost_config_last_success_timestamp_seconds").await;
    let mended = scene.config.clone().limit("confirm_timeout = \"1s\"");
    scene.fence.reloads(&mended).await;
    assert_eq!(
        scene.fence.metric("fencepost_config_reloads_total{outcome=\"applied\"}").await,
        1.0
    );
    assert!(scene.fence.metric("fencepost_config_last_success_timestamp_seconds").await > since);
    assert_eq!(scene.fence.metric("fencepost_config_rejected").await, 0.0);
    std::fs::write(&file, format!("# The same.\n{}", mended.toml())).unwrap();
    let answer = scene.fence.admin("POST", "/reload").await;
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "unchanged: generation 2 stays in force\n")
    );
    scene.admits("/one/x", &tenure).await;
    scene.finish().await;
}

#[tokio::test]
async fn included_files_are_followed_and_named() {
    let folder = Scratch::new();
    let routes = folder.path().join("routes.d");
    std::fs::create_dir(&routes).unwrap();
    let write = |name: &str, path: &str, more: &str| {
        let route = format!(
            "[[route]]\nname = \"{name}\"\npath = \"{path}\"\nupstream = \"http://127.0.0.1:9\"\nmode = \"off\"\n{more}"
        );
        std::fs::write(routes.join(format!("{name}.toml")), route).unwrap();
    };
    let pattern = format!("include = [\"{}/*.toml\"]\n", routes.display());
    let mut scene = Scene::open(EtcdVersion::V3_5, &[Route::k()]).await;
    let tenure = scene.store.hold("/k", "shard-1").await;
    let file = pattern + &scene.config.toml();
    write("b", "/gone/", "");
    scene.start_again_as(&file).await;
    let status = async |path: &str| {
        request(scene.fence.listener.clone(), "GET", path, &[], b"").await.unwrap().status
    };
    assert_eq!(
        [status("/gone/").await, status("/").await],
        [502, 428],
        "the included route is first"
    );
    write("a", "/away/", "");
    until("a new file is followed", async || status("/away/").await == 502).await;
    write("a", "/away/", "mood = \"off\"\n");
    let problem = format!("{}:6: route.a.mood: unknown key", routes.join("a.toml").display());
    scene.fence.until_log(&problem).await;
    assert_eq!(status("/away/").await, 502);
    std::fs::remove_file(routes.join("a.toml")).unwrap();
    until("what is gone is gone", async || status("/away/").await == 428).await;
    scene.admits("/away/", &tenure).await;
    let shown = scene.fence.admin("GET", "/config").await.text();
    assert!(shown.contains("routes.d/*.toml"), "{shown}");
}

#[tokio::test]
async fn variable_of_the_environment_is_used_and_not_shown() {
    // cargo sets it for tests, and so for what they start.
    let value = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let variable = "${CARGO_MANIFEST_DIR}";
    let set = |name: &str| format!("request_headers.set = {{ {name} = \"{variable}\" }}");
    let scene = Scene::open(EtcdVersion::V3_5, &[Route::k().with(&set("X-One"))]).await;
    let tenure = scene.store.hold("/k", "shard-1").await;
    scene.admits("/", &tenure).await;
    assert_eq!(scene.worker.seen()[0].header("x-one"), Some(&*value));
    scene.fence.reloads(&scene.config.clone().routes(&[Route::k().with(&set("X-Two"))])).await;
    scene.admits("/", &tenure).await;
    assert_eq!(scene.worker.seen()[1].header("x-two"), Some(&*value));
    let wrong = Route::k().with(&set("X-Two")).with(&format!("max_age = \"{variable}\""));
    let refused = scene.fence.reload(&scene.config.clone().routes(&[wrong])).await;
    assert_eq!(refused.status, 422);
    let restart = "a change of the environment takes a restart";
    scene.fence.until_log(restart).await;
    let mut shown = vec![refused.text(), scene.fence.log()];
    for path in ["/config", "/routes"] {
        shown.push(scene.fence.admin("GET", path).await.text());
    }
    assert!(shown.iter().all(|text| !text.contains(&value)), "{shown:?}");
    assert!(shown[..3].iter().all(|text| text.contains(variable)), "{shown:?}");
    scene.finish().await;
}

#[tokio::test]
async fn what_takes_a_restart_is_refused_as_a_whole_and_named() {
    let scene = Scene::open(EtcdVersion::V3_5, &[route("one", "shadow")]).await;
    let state_dir = Scratch::new();
    let asked = scene
        .config
        .clone()
        .threads(3)
        .listening_on("127.0.0.1:1")
        .remembering_in(state_dir.path())
        .limit("idle_timeout = \"9s\"\ntracked_locks_max = 7")
        .routes(&[route("one", "enforce")])
        .toml();
    let asked = asked.replace("listen = \"127.0.0.1:0\"", "listen = \"off\"");
    let asked = asked.replace("kind = \"etcd\"", "kind = \"etcd\"\ncluster_id = \"1\"");
    std::fs::write(scene.fence.file(), asked).unwrap();
    let answer = scene.fence.admin("POST", "/reload").await;
    assert_eq!(answer.status, 422);
    let text = answer.text();
    for key in [
        "threads: 2 → 3",
        "state_dir: none → ",
        "admin.listen: 127.0.0.1:0 → off",
        "listener.address: [127.0.0.1:0] → [127.0.0.1:1]",
        "limits.idle_timeout: 1m → 9s",
        "limits.tracked_locks_max: 100000 → 7",
        "source.main.cluster_id: none → 1",
    ] {
        let line = text
            .lines()
            .find(|line| line.contains(key))
            .unwrap_or_else(|| panic!("{key} in {text}"));
        assert!(line.ends_with(" needs a restart"), "{line}");
        let file = scene.fence.file();
        let place =
            line.strip_prefix(&format!("{}:", file.display())).unwrap_or_else(|| panic!("{line}"));
        assert!(
            place.split_once(": ").is_some_and(|(line, _)| line.parse::<u32>().is_ok()),
            "{line}"
        );
    }
    assert_eq!(text.lines().count(), 8, "{text}");
    assert!(!text.contains("mode"), "{text}");
    assert_eq!(
        scene.send(Ask::post("/one/x").token("nobody", "1")).await.status,
        200,
        "it only watches, as before"
    );
    scene.finish().await;
}

/// Kubernetes writes a ConfigMap beside the old one and moves a link.
#[tokio::test]
async fn a_link_that_is_moved_to_another_file_is_a_change() {
    let (scene, folder) =
        (Scene::open(EtcdVersion::V3_5, &[route("one", "shadow")]).await, Scratch::new());
    let write = |version: &str, config: &Config| {
        std::fs::create_dir(folder.path().join(version)).unwrap();
        std::fs::write(folder.path().join(version).join("fencepost.toml"), config.toml()).unwrap();
        std::os::unix::fs::symlink(version, folder.path().join("..data_tmp")).unwrap();
        std::fs::rename(folder.path().join("..data_tmp"), folder.path().join("..data")).unwrap();
    };
    write("..1", &scene.config);
    let file = folder.path().join("fencepost.toml");
    std::os::unix::fs::symlink(Path::new("..data/fencepost.toml"), &file).unwrap();
    let fence = Fencepost::launch_with(&["serve", "-c", file.to_str().unwrap()]).await;
    fence.wait_until_ready().await;
    write("..2", &scene.config.clone().routes(&[route("one", "enforce")]));
    fence.until_generation(2).await;
    std::fs::remove_file(folder.path().join("..data")).unwrap();
    fence.until_log("cause=\"the file\" generation=2").await;
    fence.until_log("No such file").await;
    assert_eq!(fence.metric("fencepost_config_generation").await, 2.0);
    write("..3", &scene.config);
    fence.until_generation(3).await;
    scene.finish().await;
}

#[tokio::test]
async fn without_a_file_there_is_nothing_to_reload() {
    let scene = Scene::open(EtcdVersion::V3_5, &[route("one", "enforce")]).await;
    let (etcd, upstream) = (scene.etcd.endpoint(), scene.worker.endpoint().to_string());
    let arguments =
        ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--upstream", &upstream];
    let mut fence =
        Fencepost::launch_with(&[&arguments[..], &["--etcd", &etcd, "--lock", "/one"]].concat())
            .await;
    fence.wait_until_ready().await;
    fence.process().hang_up();
    fence.until_log("there is nothing to reload").await;
    let answer = fence.admin("POST", "/reload").await;
    assert_eq!(answer.status, 422);
    assert!(answer.text().contains("there is nothing to reload"), "{}", answer.text());
    assert_eq!(fence.metric("fencepost_config_rejected").await, 0.0);
    assert_eq!(fence.admin("GET", "/reload").await.status, 405);
    scene.finish().await;
}

#[tokio::test]
async fn routes_that_are_added_and_removed_are_there_and_gone() {
    let scene =
        Scene::open(EtcdVersion::V3_5, &[route("old", "enforce"), route("both", "enforce")]).await;
    let holds = async |name: &str| scene.store.hold(&format!("/{name}"), "shard-1").await;
    let (old, both, new) = (holds("old").await, holds("both").await, holds("new").await);
    let mut line = scene.line().await;
    assert_eq!(line.send(Ask::post("/old/x").under(&old)).await.unwrap().status, 200);
    let no_route = async |path: &str| {
        let answer = request(scene.fence.listener.clone(), "POST", path, &[], b"").await.unwrap();
        assert_eq!(answer.status, 404, "{path}: {}", answer.text());
    };
    no_route("/new/x?secret=1").await;
    // Nothing else says which one it was: it has no decision, and its metric no path.
    scene.fence.until_log("no route takes the request").await;
    let log = scene.fence.log();
    let logged = log.lines().find(|line| line.contains("no route takes the request")).unwrap();
    for told in "INFO no-route host=\"localhost\" path=\"/new/x\" method=\"POST\" client=127.0.0.1:"
        .split(' ')
    {
        assert!(logged.contains(told), "{told} is not in {logged}");
    }
    scene
        .fence
        .reloads(&scene.config.clone().routes(&[route("both", "enforce"), route("new", "enforce")]))
        .await;
    no_route("/old/x").await;
    assert_eq!(line.send(Ask::post("/new/x").under(&new)).await.unwrap().status, 200);
    assert_eq!(line.send(Ask::post("/both/x").under(&both)).await.unwrap().status, 200);
    let changed = "changed=route.new: added; route.old: removed";
    scene.fence.until_log(changed).await;
    // What nobody names any more is read no more.
    until("the lock is forgotten", async || {
        scene.fence.admin("GET", "/locks//old").await.status == 404
    })
    .await;
    scene.finish().await;
}

#[tokio::test]
async fn many_reloads_under_load_lose_and_leave_nothing() {
    let stays = [route("stays", "enforce")];
    let scene = Scene::open(EtcdVersion::V3_5, &stays).await;
    let holder = scene.store.hold("/stays", "shard-1").await;
    scene.until_known("/stays", Some("shard-1")).await;
    let threads = scene.fence.threads();
    let mut callers = Vec::new();
    for _ in 0..4 {
        callers.push(scene.caller("/stays/x", &holder).await);
    }
    let upstream = scene.worker.endpoint().to_string();
    let more = format!(
        "[source.more]\nkind = \"etcd\"\nendpoints = [{:?}]\n[[route]]\nname = \"more\"\npath = \"/more/{{n}}/\"\n\
         upstream = {upstream:?}\nlock = {{ source = \"more\", key = \"/more/{{n}}\" }}\n",
        scene.etcd.endpoint()
    );
    let with_more = scene
        .config
        .clone()
        .more(&more)
        .routes(&[route("stays", "enforce"), route("old", "shadow")]);
    let some = scene.store.hold("/more/7", "shard-7").await;
    for _ in 0..20 {
        scene.fence.reloads(&with_more).await;
        scene.admits("/more/7/x", &some).await;
        callers[0].until_sent(2).await;
        scene.fence.reloads(&scene.config).await;
        callers[0].until_sent(2).await;
    }
    for caller in callers {
        let answers = caller.stop().await;
        assert!(answers.iter().all(|status| *status == 200), "{answers:?}");
    }
    assert_eq!(scene.fence.metric("fencepost_config_generation").await, 41.0);
    until("the threads are those of the start", async || scene.fence.threads() == threads).await;
    let locks = scene.fence.admin_json("/locks").await;
    assert_eq!(locks["sources"].as_array().unwrap().len(), 1, "{locks}");
    assert_eq!(locks["sources"][0]["locks"].as_array().unwrap().len(), 1, "{locks}");
    scene.finish().await;
}

#[tokio::test]
async fn connections_to_a_worker_are_kept_unless_they_change() {
    let one_thread = |config: Config| config.threads(1);
    let scene = Scene::with(EtcdVersion::V3_5, &[route("one", "enforce")], one_thread).await;
    let tenure = scene.store.hold("/one", "shard-1").await;
    let kept = scene.config.clone().limit("upstream_idle_timeout = \"1m\"");
    let modes = [route("one", "enforce"), route("two", "shadow")];
    let fewer = kept.clone().limit("upstream_connections_max = 7");
    for (config, connection) in [(kept.clone(), 0), (kept.routes(&modes), 0), (fewer, 1)] {
        scene.fence.reloads(&config).await;
        scene.admits("/one/x", &tenure).await;
        assert_eq!(scene.worker.seen().last().unwrap().connection, connection);
    }
    scene.finish().await;
}

#[tokio::test]
async fn a_file_from_a_pipe_is_read_once_and_holds_up_nobody() {
    let (scene, folder) =
        (Scene::open(EtcdVersion::V3_5, &[route("one", "enforce")]).await, Scratch::new());
    let file = folder.path().join("pipe.toml");
    make_fifo(&file);
    let (text, pipe) = (scene.config.toml(), file.clone());
    let writer = std::thread::spawn(move || std::fs::write(pipe, text));
    let mut fence = Fencepost::launch_with(&["serve", "-c", file.to_str().unwrap()]).await;
    writer.join().unwrap().unwrap();
    fence.wait_until_ready().await;
    let why = format!("{}: is not a regular file, and so read at the start only", file.display());
    fence.until_log(&why).await;
    let answer = fence.admin("POST", "/reload").await;
    assert_eq!((answer.status, answer.text()), (422, format!("nothing is changed:\n{why}\n")));
    assert_eq!(fence.metric("fencepost_config_rejected").await, 0.0, "nothing is wrong with it");
    assert!(fence.terminate().await.success());
    scene.finish().await;
}
