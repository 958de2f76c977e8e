//! etcd with TLS, users and logins that end all the time.

use std::sync::Arc;
use std::time::Duration;

use fencepost_tests::{
    Cluster, Etcd, EtcdOptions, EtcdSecurity, EtcdVersion, Tokens, Worker, eventually,
    replace_file, until,
};
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::cli::Written;
use crate::fencepost::{Config, Fencepost, Route};
use crate::scene::{Ask, Ledger, send};
use crate::store::{Layout, Store, Tenure};

/// Logins that end after so many seconds, and up to one more.
fn secured(seconds: u64) -> (Arc<EtcdSecurity>, EtcdOptions) {
    let security = EtcdSecurity::new(Tokens::Jwt(Duration::from_secs(seconds)));
    let options = EtcdOptions { security: Some(Arc::clone(&security)), ..EtcdOptions::default() };
    (security, options)
}

/// What a configuration says of the access to it.
fn access(security: &EtcdSecurity, user: &str) -> String {
    let ((certificate, key), ca) = (security.client(), security.ca());
    let password = security.directory().join("password");
    format!(
        "tls = {{ ca = {ca:?}, certificate = {certificate:?}, key = {key:?} }}\nusername = {user:?}\npassword_file = {password:?}"
    )
}

/// Has etcd ask for logins, and runs the commands of the reference, whose user has this password.
async fn enable_users(etcd: &Etcd, security: &EtcdSecurity, password: &str) {
    etcd.enable_users().await;
    let file = security.directory().join("password");
    replace_file(&file, &format!("{password}\n"));
    let reference = include_str!("../../../docs/configuration.md");
    let commands =
        reference.split("```sh\n").find(|block| block.starts_with("etcdctl role add")).unwrap();
    let commands = commands.split("```").next().unwrap();
    assert!(
        include_str!("../../../docs/etcd.md").contains(commands),
        "docs/etcd.md has the same commands"
    );
    let commands = commands.replace("/run/secrets/etcd", file.to_str().unwrap());
    run_in_shell(etcd, &commands).await;
}

/// The command by which the page about groups lets their members write, for the group `jobs`.
fn grant_to_group() -> &'static str {
    let page = include_str!("../../../docs/several-proxies.md");
    let command = page
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("etcdctl role grant-permission"))
        .unwrap();
    assert!(include_str!("../../../docs/etcd.md").contains(command), "docs/etcd.md has the same");
    command
}

/// Runs commands in which `etcdctl` is that of a member, as `root`.
async fn run_in_shell(etcd: &Etcd, commands: &str) {
    let etcdctl = etcd.etcdctl_command();
    let etcdctl = etcdctl.as_std();
    let words = std::iter::once(etcdctl.get_program()).chain(etcdctl.get_args());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let script = format!("set -e\netcdctl() {{ {} \"$@\"; }}\n{commands}", words.join(" "));
    let output =
        tokio::process::Command::new("sh").arg("-c").arg(&script).env("ETCDCTL_API", "3").output();
    let output = output.await.unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

fn lock(layout: Layout, key: &str) -> Route {
    let lock = format!("key = {key:?}, layout = {:?}", layout.name());
    Route::new(layout.name(), &format!("/{}/", layout.name()), &lock).with("max_age = \"3s\"")
}

/// Answers other than 200 to requests under a tenure for a while, from several clients at once; how
/// many there were in all.
async fn refused(
    fence: &Fencepost,
    ledger: &Ledger,
    path: &str,
    tenure: &Tenure,
    time: Duration,
) -> (Vec<String>, usize) {
    let until = Instant::now() + time;
    let client = async |_| {
        let (mut refused, mut sent) = (Vec::new(), 0);
        while Instant::now() < until {
            let answer = send(&fence.listener, ledger, Ask::post(path).under(tenure)).await;
            sent += 1;
            if answer.status != 200 {
                refused.push(format!("{} {}", answer.status, answer.text()));
            }
        }
        (refused, sent)
    };
    let outcomes = join_all((0..4).map(client)).await;
    let sent = outcomes.iter().map(|(_, sent)| sent).sum();
    (outcomes.into_iter().flat_map(|(refused, _)| refused).collect(), sent)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_refused_while_logins_end_every_few_seconds() {
    let (security, options) = secured(1);
    let cluster = Cluster::start_with(EtcdVersion::V3_5, 3, &options).await;
    enable_users(&cluster.members[0], &security, "secret-1").await;
    let (store, worker) =
        (Store::secure(&cluster.members[0], &security).await, Worker::start().await);
    // A third of them is kept fresh by a windowed read.
    let templated = Route::new("templated", "/templated/{shard}/", "key = \"/shards/t/{shard}\"");
    let routes =
        [lock(Layout::Key, "/shards/key"), lock(Layout::Mutex, "/shards/mutex"), templated];
    let config = Config::new(&cluster.endpoints(), &worker.endpoint().to_string(), &routes);
    let fence = Fencepost::serve(&config.source(&access(&security, "fencepost"))).await;
    let ledger = Ledger::default();
    let (began, mut handoffs, mut sent) = (Instant::now(), 0, 0);
    while began.elapsed() < Duration::from_secs(10) {
        let session = store.session(&format!("shard-{handoffs}")).await;
        let (layout, key, path) = [
            (Layout::Key, "/shards/key", "/key/write"),
            (Layout::Mutex, "/shards/mutex", "/mutex/write"),
            (Layout::Key, "/shards/t/7", "/templated/7/write"),
        ][handoffs % 3];
        let held = store.acquire(layout, key, &session).await;
        let (refused, count) =
            refused(&fence, &ledger, path, &held.tenure, Duration::from_millis(300)).await;
        assert_eq!(refused, [""; 0], "of {count} after {:?}: {}", began.elapsed(), fence.log());
        store.release(held).await;
        (handoffs, sent) = (handoffs + 1, sent + count);
    }
    let mut logins = 0;
    for member in &cluster.members {
        logins += member.requests_total().await.of("Authenticate");
    }
    println!("{sent} requests in {handoffs} tenures, {logins} logins (root's too), none refused");
    assert!(logins >= 10, "{logins}");
    ledger.check(&worker);
}

#[tokio::test]
async fn a_role_that_reads_the_locks_is_enough_and_a_lack_is_named() {
    let (security, options) = secured(1);
    let etcd = Etcd::start_with(EtcdVersion::V3_4, &options).await;
    enable_users(&etcd, &security, "secret-1").await;
    let (store, worker) = (Store::secure(&etcd, &security).await, Worker::start().await);
    let keys = Layout::ALL.map(|layout| (layout, format!("/shards/{}", layout.name())));
    let mut routes = keys.each_ref().map(|(layout, key)| lock(*layout, key)).to_vec();
    routes.push(Route::new("templated", "/templated/{shard}/", "key = \"/shards/t/{shard}\""));
    let config = Config::of(&etcd, &worker, &routes);
    let config = config.source(&access(&security, "fencepost"));
    let fence = Fencepost::serve(&config).await;
    let (ledger, session) = (Ledger::default(), store.session("shard-1").await);
    for (layout, key) in &keys {
        let held = store.acquire(*layout, key, &session).await;
        let ask = Ask::post(&format!("/{}/write", layout.name())).under(&held.tenure);
        let answer = send(&fence.listener, &ledger, ask).await;
        assert_eq!(answer.status, 200, "{layout:?}: {}", answer.text());
    }
    let tenure = store.hold("/shards/t/7", "shard-1").await;
    assert_eq!(
        send(&fence.listener, &ledger, Ask::post("/templated/7/write").under(&tenure)).await.status,
        200
    );
    let file = Written::new(&config.toml());
    file.ask("check --live").await.ended(0);
    fence.has_not_logged("WARN sources");

    run_in_shell(&etcd, "etcdctl role revoke-permission fencepost --prefix /shards/").await;
    run_in_shell(&etcd, "etcdctl role grant-permission fencepost read /shards/key").await;
    let printed = file.ask("check --live").await.ended(1).stdout;
    let missing = |route: &str, keys: &str| {
        let command = format!("etcdctl role grant-permission ROLE read --prefix {keys}");
        format!(
            "route {route}: user \"fencepost\" may not read --prefix {keys} in the lock store: {command}\n"
        )
    };
    for said in [
        missing("mutex", "/shards/mutex/"),
        missing("election", "/shards/election/"),
        missing("templated", "/shards/t/"),
    ] {
        assert!(printed.contains(&said), "{said} in {printed}");
    }
    assert!(!printed.contains("route key: user"), "{printed}");
    fence.until_log("may not read --prefix /shards/t/ in").await;
    fence.has_not_logged("may not read /shards/t/ in");
    ledger.check(&worker);
}

#[tokio::test]
async fn check_says_what_a_group_lacks_and_shows_its_members() {
    for version in EtcdVersion::ALL {
        let (security, options) = secured(60);
        let etcd = Etcd::start_with(version, &options).await;
        enable_users(&etcd, &security, "secret-1").await;
        let worker = Worker::start().await;
        let config = Config::of(&etcd, &worker, &[lock(Layout::Key, "/shards/key")])
            .source(&access(&security, "fencepost"))
            .section("[group]\nname = \"jobs\"\nmember_ttl = \"3s\"")
            .limit("drain_delay = \"0s\"");
        let file = Written::new(&config.toml());
        let printed = file.ask("check --live").await.ended(1).stdout;
        let members = "--prefix /fencepost/jobs/members/";
        let missing = format!(
            "user \"fencepost\" may not write {members} in the lock store: etcdctl role grant-permission ROLE readwrite {members}\n"
        );
        assert!(printed.contains(&missing), "etcd {version}: {printed}");

        run_in_shell(&etcd, grant_to_group()).await;
        let printed = file.ask("check --live").await.ended(0).stdout;
        for said in ["may write keys below /fencepost/jobs/members/", "has no members yet"] {
            assert!(printed.contains(&format!("group jobs: {said}\n")), "{said} in {printed}");
        }
        let keys = etcd.etcdctl(&["get", "--prefix", "/fencepost/", "--keys-only"]).await;
        assert_eq!(keys.trim(), "", "a check writes nothing");

        let fence = Fencepost::serve(&config).await;
        let store = Store::secure(&etcd, &security).await;
        let (ledger, tenure) = (Ledger::default(), store.hold("/shards/key", "shard-1").await);
        let ask = Ask::post("/key/write").under(&tenure);
        let answer = send(&fence.listener, &ledger, ask).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let group = fence.admin_json("/group").await;
        let member = ["member", "host", "version"].map(|field| group[field].as_str().unwrap());
        let [id, host, version] = member;
        let printed = file.ask("check --live").await.ended(0).stdout;
        let live = format!("group jobs: member {id} on {host}, version {version}: live\n");
        assert!(printed.contains(&live), "{live} in {printed}");
        ledger.check(&worker);
    }
}

#[tokio::test]
async fn passwords_and_roles_may_change_and_no_secret_is_told() {
    let (security, options) = secured(1);
    let etcd = Etcd::start_with(EtcdVersion::V3_5, &options).await;
    enable_users(&etcd, &security, "secret-1").await;
    let (store, worker) = (Store::secure(&etcd, &security).await, Worker::start().await);
    let config = Config::of(&etcd, &worker, &[lock(Layout::Key, "/shards/key")]);
    let config = config.source(&access(&security, "fencepost")).logging("trace");
    let fence = Fencepost::serve(&config).await;
    let (ledger, tenure) = (Ledger::default(), store.hold("/shards/key", "shard-1").await);
    let refused = async |seconds| {
        refused(&fence, &ledger, "/key/write", &tenure, Duration::from_secs(seconds)).await.0
    };
    assert_eq!(refused(1).await, [""; 0]);

    // Logins end in between, as they do all the time.
    replace_file(&security.directory().join("password"), "secret-2");
    assert_eq!(refused(2).await, [""; 0]);
    store.change_password("fencepost", "secret-2").await;
    assert_eq!(refused(3).await, [""; 0]);

    run_in_shell(&etcd, "etcdctl role revoke-permission fencepost --prefix /shards/").await;
    let answered = async |status| {
        let answer = send(&fence.listener, &ledger, Ask::post("/key/write").under(&tenure)).await;
        (answer.status == status).then_some(())
    };
    eventually("what cannot be read admits nobody", async || answered(503).await).await;
    let denied = "user \"fencepost\" may not read /shards/key in the lock store: etcdctl role grant-permission ROLE read /shards/key";
    fence.until_log(denied).await;
    run_in_shell(&etcd, "etcdctl role grant-permission fencepost read /shards/key").await;
    eventually("what can be read again admits its holder", async || answered(200).await).await;
    assert_eq!(refused(2).await, [""; 0]);
    fence.until_log("the lock store answers again").await;
    let log = fence.log();
    assert_eq!(
        log.lines().filter(|line| line.contains("WARN") && line.contains(denied)).count(),
        1
    );

    let config = fence.admin("GET", "/config").await.text();
    let sources = fence.admin("GET", "/sources").await.text();
    assert!(config.contains(security.directory().join("password").to_str().unwrap()), "{config}");
    assert!(!log.contains("frame=Headers"), "libraries write no frame, whatever the filter");
    // A token begins with its header, `{"alg":` in base64.
    for (place, text) in [("the log", &log), ("/config", &config), ("/sources", &sources)] {
        for secret in ["secret-1", "secret-2", "eyJhbGci"] {
            assert!(!text.contains(secret), "{place} has {secret}");
        }
    }
    ledger.check(&worker);
}

#[tokio::test]
async fn certificates_are_replaced_without_a_refusal() {
    let (security, options) = secured(2);
    let mut etcd = Etcd::start_with(EtcdVersion::V3_4, &options).await;
    enable_users(&etcd, &security, "secret-1").await;
    let (store, worker) = (Store::secure(&etcd, &security).await, Worker::start().await);
    let config = Config::of(&etcd, &worker, &[lock(Layout::Key, "/shards/key")]);
    // Whoever is not known to etcd gets in once the configuration says who is.
    let fence = Fencepost::launch(&config.clone().source(&access(&security, "nobody"))).await;
    fence.until_log("user \"nobody\" with the password in ").await;
    fence.reloads(&config.source(&access(&security, "fencepost"))).await;
    fence.wait_until_ready().await;

    let (ledger, tenure) = (Ledger::default(), store.hold("/shards/key", "shard-1").await);
    let reloads = async |outcome| {
        let series = format!(
            "fencepost_tls_reloads_total{{name=\"main\",outcome=\"{outcome}\",use=\"source\"}}"
        );
        until("the files were looked at", async || fence.metric(&series).await >= 1.0).await;
    };
    let swap = async {
        security.replace_client();
        reloads("reloaded").await;
        replace_file(&security.client().1, "no key");
        reloads("failed").await;
    };
    let ((refused, sent), ()) =
        tokio::join!(refused(&fence, &ledger, "/key/write", &tenure, Duration::from_secs(5)), swap);
    assert_eq!(refused, [""; 0], "of {sent}");
    // Connections that are made now are made with the last that was right.
    etcd.kill();
    etcd.restart().await;
    eventually("etcd is reached again", async || {
        let answer = send(&fence.listener, &ledger, Ask::post("/key/write").under(&tenure)).await;
        (answer.status == 200).then_some(())
    })
    .await;
    ledger.check(&worker);
}

#[tokio::test]
async fn an_access_that_comes_to_nothing_is_not_put_in_force() {
    let (security, options) = secured(1);
    let etcd = Etcd::start_with(EtcdVersion::V3_5, &options).await;
    enable_users(&etcd, &security, "secret-1").await;
    let (store, worker) = (Store::secure(&etcd, &security).await, Worker::start().await);
    let known = lock(Layout::Key, "/shards/key");
    let others = Route::new("others", "/others/{shard}/", r#"key = "/shards/{shard}""#);
    let routes = [known.clone(), others.clone()];
    let config = Config::of(&etcd, &worker, &routes);
    let fence = Fencepost::serve(&config.clone().source(&access(&security, "fencepost"))).await;
    let (ledger, tenure) = (Ledger::default(), store.hold("/shards/key", "shard-1").await);
    // Known already as whom the source was before, though no route has named it.
    let seen = store.hold("/shards/seen", "shard-1").await;
    assert_eq!(
        send(&fence.listener, &ledger, Ask::post("/others/seen/write").under(&seen)).await.status,
        200
    );

    // Neither for what is new, or known already, nor for what is in force.
    let config = config.limit("confirm_timeout = \"500ms\"");
    for name in ["new", "seen", "key"] {
        let new = Route::new(name, &format!("/{name}/"), &format!("key = \"/shards/{name}\""));
        let more = if name == "key" { vec![] } else { vec![new] };
        let wrong = config.clone().routes(&[more, vec![known.clone(), others.clone()]].concat());
        let answer = fence.reload(&wrong.source(&access(&security, "nobody"))).await;
        let said = answer.text();
        let is_named = said.contains("source.main: reached as this configuration says, ");
        assert!(answer.status == 422 && is_named, "{name}: {said}");
    }
    let (refused, sent) =
        refused(&fence, &ledger, "/key/write", &tenure, Duration::from_secs(4)).await;
    assert_eq!(refused, [""; 0], "of {sent}");
    ledger.check(&worker);
}

#[tokio::test]
async fn an_unreadable_lock_of_a_running_request_stops_nothing_else() {
    let (security, options) = secured(60);
    let etcd = Etcd::start_with(EtcdVersion::V3_5, &options).await;
    enable_users(&etcd, &security, "secret-1").await;
    let narrow = "etcdctl role add narrow
         etcdctl role grant-permission narrow read /shards/kept
         etcdctl user add narrow:secret-1
         etcdctl user grant-role narrow narrow";
    run_in_shell(&etcd, narrow).await;
    let (store, worker) = (Store::secure(&etcd, &security).await, Worker::start().await);
    let route = |name: &str, max_age: &str| {
        let lock = format!("key = \"/shards/{name}\"");
        Route::new(name, &format!("/{name}/"), &lock).with(&format!("max_age = {max_age:?}"))
    };
    let config = Config::of(&etcd, &worker, &[]);
    let of_all = config.clone().routes(&[route("kept", "1h"), route("gone", "1h")]);
    let fence = Fencepost::serve(&of_all.source(&access(&security, "fencepost"))).await;
    let latch = worker.holds("/gone/held");
    let (ledger, gone) = (Ledger::default(), store.hold("/shards/gone", "shard-1").await);
    let held = {
        let (listener, ledger) = (fence.listener.clone(), ledger.clone());
        tokio::spawn(
            async move { send(&listener, &ledger, Ask::post("/gone/held").under(&gone)).await },
        )
    };
    worker.wait_for(1).await;

    // Nothing is to be read for minutes: only the watch tells who holds the lock.
    let narrowed = |max_age| {
        config.clone().routes(&[route("kept", max_age)]).source(&access(&security, "narrow"))
    };
    fence.reloads(&narrowed("1h")).await;
    store.hold("/shards/kept", "shard-2").await;
    eventually("the watch goes on", async || {
        let known = fence.admin_json("/locks//shards/kept").await;
        (known["owner"].as_str() == Some("shard-2")).then_some(())
    })
    .await;
    let age = async || fence.metric("fencepost_source_age_seconds{source=\"main\"}").await;
    until("the news grow old", async || age().await > 0.5).await;
    fence.reloads(&narrowed("500ms")).await;
    until("reads go on", async || age().await < 0.3).await;
    assert!(!held.is_finished());
    latch.open();
    assert_eq!(held.await.unwrap().text(), "held");
    ledger.check(&worker);
}
