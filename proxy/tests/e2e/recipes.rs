//! The recipes of `recipes/`, each run as its page has it: its master writes, loses its lock while
//! a write is under way, and that write is refused when it arrives at last.

mod kubernetes;
mod master;
mod play;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use fencepost_tests::{Etcd, EtcdVersion, PATIENCE, Relay, Scratch, Worker, until};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::programs::{printed, python_binary, workspace};

use self::master::Master;
use self::play::Recipe;

const ANY: &str = "/shards/2/lock";

fn script(name: &str) -> Command {
    Command::new(workspace().join("recipes").join(name))
}

#[tokio::test]
async fn late_writes_under_locks_of_the_shell_are_refused() {
    let recipes =
        [("etcdctl lock", "etcdctl-lock"), ("etcdctl elect", "etcdctl-elect"), ("curl", "gateway")];
    for (recipe, name) in recipes {
        Recipe::new(recipe, ANY).play(|_| script(&format!("shell/{name}.sh"))).await;
    }
}

#[tokio::test]
async fn a_masters_work_ends_before_its_lock_moves() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    // Each call of the shell's takes 2 s: it may take 3.
    tokio::join!(
        is_ended_in_time(
            &etcd,
            script("shell/gateway.sh"),
            "/shards/1/lock",
            Duration::from_millis(1000)
        ),
        is_ended_in_time(&etcd, python_master(), "shard-2", Duration::ZERO),
    );
}

/// Etcd is that far, and away once the master is in the middle of a job.
async fn is_ended_in_time(etcd: &Etcd, command: Command, lock: &str, away: Duration) {
    let relay = Relay::before(etcd).await;
    relay.delay(away).await;
    let (mut master, job) =
        at_work(etcd, &format!("http://{}", relay.address()), command, lock).await;
    relay.freeze().await;
    is_over(job, &master).await;
    let stands = etcd.etcdctl(&["get", "--prefix", "", "--keys-only"]).await;
    assert!(
        stands.lines().any(|key| key.ends_with(lock)),
        "{lock} could be another's: {}",
        master.log()
    );
    assert!(!master.status().await.success(), "{lock}: {}", master.log());
}

#[tokio::test]
async fn ending_a_script_ends_what_its_master_has_begun() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    for (number, name) in ["shell/gateway.sh", "shell/etcdctl-elect.sh"].into_iter().enumerate() {
        let (mut master, job) =
            at_work(&etcd, &etcd.endpoint(), script(name), &format!("/shards/{number}/lock")).await;
        master.terminate();
        is_over(job, &master).await;
        assert!(!master.status().await.success(), "{name}: {}", master.log());
    }
}

#[tokio::test]
async fn who_kills_a_script_that_holds_a_lock_ends_the_lock() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    for (number, name) in ["shell/gateway.sh", "shell/etcdctl-elect.sh"].into_iter().enumerate() {
        let lock = format!("/shards/{number}/lock");
        let (master, _job) = at_work(&etcd, &etcd.endpoint(), script(name), &lock).await;
        drop(master); // SIGKILL.
        until(&format!("the lock of {name} is free"), async || {
            etcd.etcdctl(&["get", "--prefix", &lock, "--keys-only"]).await.is_empty()
        })
        .await;
    }
}

/// A master that has begun a job, which takes for ever.
async fn at_work(etcd: &Etcd, endpoint: &str, command: Command, lock: &str) -> (Master, TcpStream) {
    let worker = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = worker.local_addr().unwrap().to_string();
    let mut master = Master::start_far(command, etcd, endpoint, lock, "shard-1", &address);
    master.give("one");
    let (job, _) = timeout(PATIENCE, worker.accept()).await.expect("the master works").unwrap();
    (master, job)
}

async fn is_over(mut job: TcpStream, master: &Master) {
    // It may end with a reset.
    let over = timeout(PATIENCE, job.read_to_end(&mut Vec::new())).await;
    assert!(over.is_ok(), "the job goes on: {}", master.log());
}

#[tokio::test]
async fn late_writes_under_locks_of_the_go_client_are_refused() {
    let masters = go_masters().await;
    for (recipe, argument) in [("Go Mutex", "mutex"), ("Go Election", "election")] {
        let command = |_: &str| {
            let mut command = Command::new(&masters);
            command.arg(argument);
            command
        };
        Recipe::new(recipe, ANY).of_one_process().play(command).await;
    }
}

#[tokio::test]
async fn the_go_master_passes_its_own_test() {
    go(&["test", "-trimpath", "-count=1", "."]).await;
}

async fn go_masters() -> PathBuf {
    let (page, program) = (section("Go Mutex"), workspace().join("target/tools/go-masters"));
    let build = page
        .lines()
        .find_map(|line| line.strip_prefix("GO111MODULE=off GOPATH=/usr/share/gocode go "));
    let build = build.expect("the page says how to build it").replace("masters", &text(&program));
    go(&build.split(' ').collect::<Vec<_>>()).await;
    program
}

/// Runs Go on its recipe, with etcd's client as `bin/install-tools` has unpacked it.
async fn go(arguments: &[&str]) {
    let tools = workspace().join("target/tools");
    let set = |name: &str, value: &Path| format!("{name}={}", text(value));
    let (folder, path) = (text(&workspace().join("recipes/go")), set("GOPATH", &tools.join("go")));
    let cache = set("GOCACHE", &tools.join("go-cache"));
    printed("env", &[&["-C", &folder, "GO111MODULE=off", &path, &cache, "go"], arguments].concat())
        .await;
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_late_write_under_a_lock_of_etcd3gw_is_refused() {
    Recipe::new("Python etcd3gw", "shard-2")
        .of_one_process()
        .that_goes_by_the_clock()
        .play(|_| python_master())
        .await;
}

fn python_master() -> Command {
    let mut command = Command::new(python_binary());
    command.arg(workspace().join("recipes/python/master.py"));
    command
}

#[tokio::test]
async fn a_late_write_under_an_election_of_etcd3_for_node_is_refused() {
    Recipe::new("Node etcd3", "shard-2").of_one_process().play(|_| node_master()).await;
}

#[tokio::test]
async fn a_master_whose_lease_ends_while_it_waits_for_a_job_ends() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await);
    let address = worker.endpoint().to_string().replace("http://", "");
    let mut go = Command::new(go_masters().await);
    go.arg("mutex");
    let commands = [
        (node_master(), "shard-1"),
        (python_master(), "shard-2"),
        (go, "/shards/3/lock"),
        (script("shell/gateway.sh"), "/shards/4/lock"),
    ];
    let mut masters =
        commands.map(|(command, lock)| Master::start(command, &etcd, lock, "shard", &address));
    for master in &mut masters {
        master.give("one");
        master.until_done("one").await;
    }
    let leases = etcd.etcdctl(&["lease", "list"]).await;
    let leases: Vec<&str> = leases.lines().skip(1).collect(); // Their number is the first line.
    assert_eq!(leases.len(), masters.len(), "{leases:?}");
    for lease in leases {
        etcd.etcdctl(&["lease", "revoke", lease]).await;
    }
    for mut master in masters {
        assert!(!master.status().await.success(), "{}", master.log());
    }
}

fn node_master() -> Command {
    // Node looks for packages beside the script; once, since another test's Node may be reading it.
    static SCRIPT: LazyLock<PathBuf> = LazyLock::new(|| {
        let script = workspace().join("target/tools/node/master.js");
        std::fs::copy(workspace().join("recipes/node/master.js"), &script).unwrap_or_else(
            |error| panic!("{}: {error}: run bin/install-tools test", script.display()),
        );
        script
    });
    let mut command = Command::new("node");
    command.arg(&*SCRIPT);
    command
}

#[tokio::test]
async fn a_late_write_under_the_leader_key_of_patroni_is_refused() {
    let (page, scratch) = (section("Patroni"), Scratch::new());
    let folder = text(scratch.path());
    let installed = |path: &str| path.replace("/etc/patroni", &folder);
    let line = |begins: &str| {
        let line = page.lines().find_map(|line| line.trim_start().strip_prefix(begins));
        line.unwrap_or_else(|| panic!("the page has a line {begins}"))
    };
    let install = installed(line("install "))
        .replace("recipes/", &format!("{}/", text(&workspace().join("recipes"))));
    printed("install", &install.split(' ').collect::<Vec<_>>()).await;
    let callback = installed(line("on_role_change: "));
    let variables =
        line("Environment=").split(' ').map(|one| one.split_once('=').unwrap().0.to_owned());
    let variables: Vec<String> = variables.collect();
    let member = workspace().join("proxy/tests/clients/patroni_member.py");
    let command = |etcd: &str| {
        let mut command = Command::new(python_binary());
        // What is not given to every recipe's master, and has its value from the member.
        command
            .envs(variables.iter().filter(|name| *name == "PATRONI_NAME").map(|name| (name, "")));
        command.arg(&member).args([etcd.trim_start_matches("http://"), "main"]).arg(&callback);
        command
    };
    Recipe::new("Patroni", ANY).that_goes_on().play(command).await;

    // Without one of them it says which.
    for missing in &variables {
        let mut command = Command::new(&callback);
        command
            .args(["on_role_change", "primary", "main"])
            .envs(variables.iter().map(|name| (name, "x")));
        let output = command.env_remove(missing).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains(&format!("{missing} has to be in Patroni's environment")),
            "{missing}: {said}"
        );
    }
    assert_eq!(variables, ["ETCD", "PATRONI_NAME", "WORKER", "JOBS"]);
}

/// What `recipes/README.md` says of a recipe.
fn section(name: &str) -> String {
    let page = std::fs::read_to_string(workspace().join("recipes/README.md")).unwrap();
    let section = page.split("\n## ").find(|section| section.lines().next() == Some(name));
    section.unwrap_or_else(|| panic!("the recipe {name} has a section")).to_owned()
}

/// What the page's table says of each recipe is what these tests do.
#[test]
fn every_recipe_has_its_section_and_says_whether_it_is_run() {
    let page = std::fs::read_to_string(workspace().join("recipes/README.md")).unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| [")).collect();
    assert_eq!(rows.len(), 10);
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (name, layout, run) = (&cells[1][1..cells[1].find(']').unwrap()], cells[2], cells[6]);
        let lock = Recipe::new(name, ANY).lock().to_owned();
        assert!(
            lock.ends_with(&format!("layout = {}", layout.replace('`', "\""))),
            "{name}: {lock}"
        );
        assert_eq!(run.starts_with("yes"), name != "jetcd", "{name}: {run}");
    }
}
