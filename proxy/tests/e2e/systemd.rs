//! What systemd is told, and what it gives, without a systemd: a socket of the test's stands for
//! it.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost_tests::{
    Connection, Endpoint, Etcd, EtcdVersion, FreePort, Process, Scratch, Worker, eventually,
    request, until,
};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tokio::time::timeout;

use crate::fencepost::{BINARY, Config, Fencepost, Route, addresses};

/// Stands for systemd's end of `NOTIFY_SOCKET`.
struct Manager {
    told: Arc<Mutex<Vec<String>>>,
    path: String,
    _scratch: Scratch,
}

impl Manager {
    fn listen() -> Manager {
        let scratch = Scratch::new();
        let path = scratch.path().join("notify").to_str().unwrap().to_owned();
        let socket = UnixDatagram::bind(&path).unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::downgrade(&told);
        std::thread::spawn(move || {
            let mut message = [0; 4096];
            while let (Ok(length), Some(told)) = (socket.recv(&mut message), hears.upgrade()) {
                told.lock().unwrap().push(String::from_utf8_lossy(&message[..length]).into_owned());
            }
        });
        Manager { told, path, _scratch: scratch }
    }

    /// Waits until it is told something that begins so, after the first `after` messages; returns
    /// how many there are by then.
    async fn until_told(&self, begins: &str, after: usize) -> usize {
        eventually(&format!("systemd is told {begins}"), async || {
            let told = self.told.lock().unwrap();
            let found = told.iter().skip(after).position(|message| message.starts_with(begins))?;
            Some(after + found + 1)
        })
        .await
    }

    fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().clone()
    }
}

fn route(mode: &str) -> Route {
    Route::k().with(&format!("mode = {mode:?}"))
}

#[tokio::test]
async fn systemd_is_told_of_each_step_and_of_live_threads() {
    let (etcd, worker, manager) =
        (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await, Manager::listen());
    let config = Config::of(&etcd, &worker, &[route("shadow")]);
    let config = config.limit("drain_delay = \"1s\"");
    let environment = [("NOTIFY_SOCKET", manager.path.as_str()), ("WATCHDOG_USEC", "300000")];
    let mut fence = Fencepost::launch_among(&config, &environment).await;
    let ready = manager.until_told("READY=1", 0).await;
    manager.until_told("STATUS=serving, 1 lock; main up", ready - 1).await;
    let fed = manager.until_told("WATCHDOG=1", 0).await;
    manager.until_told("WATCHDOG=1", fed).await;

    let before = manager.told().len();
    std::fs::write(fence.file(), config.clone().routes(&[route("enforce")]).toml()).unwrap();
    fence.process().hang_up();
    let reloading = manager.until_told("RELOADING=1\nMONOTONIC_USEC=", before).await;
    manager.until_told("READY=1", reloading).await;
    fence.until_generation(2).await;

    let before = manager.told().len();
    std::fs::write(fence.file(), "nothing = true").unwrap();
    manager
        .until_told(
            "STATUS=serving, 1 lock; main up; the file is rejected, an earlier one in force",
            before,
        )
        .await;

    let before = manager.told().len();
    assert!(fence.terminate().await.success());
    let stopping = manager.until_told("STOPPING=1", before).await;
    manager.until_told("STATUS=draining: 0 connections, 0 requests", stopping).await;
    // A process that drains makes progress.
    manager.until_told("WATCHDOG=1", stopping).await;
}

#[tokio::test]
async fn a_silent_store_is_told_to_systemd_and_is_no_failure() {
    let (worker, manager) = (Worker::start().await, Manager::listen());
    let port = FreePort::reserve();
    let nowhere = format!("http://127.0.0.1:{}", port.number());
    let config = Config::new(&[nowhere], &worker.endpoint().to_string(), &[route("enforce")]);
    let fence = Fencepost::launch_among(&config, &[("NOTIFY_SOCKET", &manager.path)]).await;
    manager.until_told("READY=1", 0).await;
    manager.until_told("STATUS=serving, 1 lock; main does not answer", 0).await;
    assert_eq!(fence.admin("GET", "/readyz").await.status, 503);
    let told = manager.told();
    assert!(
        !told.iter().any(|message| message.starts_with("WATCHDOG")),
        "nobody asked for it: {told:?}"
    );
}

#[tokio::test]
async fn a_thread_that_hangs_is_noticed_by_the_watchdog() {
    let (manager, scratch, dead) = (Manager::listen(), Scratch::new(), FreePort::reserve());
    let dead = format!("http://{}", dead.address());
    let shadow = Route::k().with("mode = \"off\"");
    let config = Config::new(std::slice::from_ref(&dead), &dead, &[shadow]).threads(1);
    let file = scratch.path().join("fencepost.toml");
    std::fs::write(&file, config.toml()).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", BINARY, "serve", "-c"]).arg(&file);
    command
        .env("NOTIFY_SOCKET", &manager.path)
        .env("WATCHDOG_USEC", "300000")
        .stderr(Stdio::piped());
    let mut child = Killed(command.spawn().unwrap());
    let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines();
    let mut log = String::new();
    while addresses(&log).is_none() {
        log.push_str(&(lines.next().unwrap().unwrap() + "\n"));
    }
    let fed = manager.until_told("WATCHDOG=1", 0).await;
    manager.until_told("WATCHDOG=1", fed).await;

    // A debugger that attaches to one thread stops that thread alone.
    let hung = thread_named("worker-0", child.0.id());
    ptrace::attach(hung).unwrap();
    waitpid(hung, Some(WaitPidFlag::__WALL)).unwrap();
    // One that it had answered before may be under way.
    let _ = timeout(Duration::from_secs(1), manager.until_told("WATCHDOG=1", manager.told().len()))
        .await;
    let feeds =
        || manager.told().iter().filter(|message| message.starts_with("WATCHDOG=1")).count();
    let before = feeds();
    assert!(
        timeout(Duration::from_secs(1), manager.until_told("WATCHDOG=1", manager.told().len()))
            .await
            .is_err()
    );
    assert_eq!(feeds(), before, "three times what systemd would wait for");

    let told = manager.told().len();
    ptrace::detach(hung, None).unwrap();
    manager.until_told("WATCHDOG=1", told).await;
}

/// The thread of that name of a process.
fn thread_named(name: &str, process: u32) -> Pid {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let named = |path: &PathBuf| std::fs::read_to_string(path.join("comm")).unwrap().trim() == name;
    let path =
        threads.into_iter().find(named).unwrap_or_else(|| panic!("there is no thread {name}"));
    Pid::from_raw(path.file_name().unwrap().to_str().unwrap().parse().unwrap())
}

/// A child that is killed with this.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `systemd-socket-activate` passes sockets as systemd does, and starts the program when the first
/// connection is there.
#[tokio::test]
async fn a_connection_that_came_before_the_process_is_served_by_it() {
    let (etcd, worker, scratch) =
        (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await, Scratch::new());
    let (port, local) = (FreePort::reserve(), scratch.path().join("local.sock"));
    let operators = ["one.sock", "other.sock"].map(|name| scratch.path().join(name));
    let shadow = [route("shadow")];
    let config = Config::of(&etcd, &worker, &shadow).listening_on("systemd:http");
    let config = config
        .toml()
        .replace("[limits]", "[[listener]]\naddress = \"systemd:local.sock\"\n[limits]");
    let config = config.replace(
        "listen = \"127.0.0.1:0\"",
        "listen = \"systemd:operators\"\ndangerous_unprotected = true",
    );
    let file = scratch.path().join("fencepost.toml");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new("systemd-socket-activate");
    command.arg("-l").arg(port.address().to_string()).arg("-l").arg(&local);
    for operators in &operators {
        command.arg("-l").arg(operators);
    }
    command.arg("--fdname=http:local.sock:operators:operators");
    command.arg(BINARY).arg("serve").arg("-c").arg(&file);
    let process = Process::start(&command, &scratch.path().join("log"));

    let first =
        eventually("somebody listens", async || Connection::open(port.address()).await.ok()).await;
    for (endpoint, path) in
        [(Endpoint::Tcp(port.address()), "/tcp"), (Endpoint::Unix(local.clone()), "/unix")]
    {
        let answer = request(endpoint, "POST", path, &[], b"").await;
        let answer =
            answer.unwrap_or_else(|error| panic!("{path}: {error}; the log: {}", process.log()));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    for operators in operators {
        let answer = request(Endpoint::Unix(operators), "GET", "/livez", &[], b"").await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    drop(first);
    let listening = format!("listening address={}", port.address());
    until("it says where it listens", async || process.log().contains(&listening)).await;
    process.terminate();
    let mut process = process;
    assert!(process.end_of_itself().await.success(), "{}", process.log());
    assert!(local.exists(), "the file of a socket is its maker's");
}

/// The units, with the program that is tested in the place of the installed one.
fn units() -> Scratch {
    let scratch = Scratch::new();
    for name in ["fencepost.service", "fencepost.socket"] {
        let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name);
        let unit = std::fs::read_to_string(&unit)
            .unwrap_or_else(|error| panic!("{}: {error}", unit.display()));
        std::fs::write(scratch.path().join(name), unit.replace("/usr/bin/fencepost", BINARY))
            .unwrap();
    }
    scratch
}

fn systemd_analyze(arguments: &[&str], units: &Scratch, names: &[&str]) -> Output {
    let files = names.iter().map(|name| units.path().join(name));
    let output = Command::new("systemd-analyze").args(arguments).args(files).output();
    output.unwrap_or_else(|error| panic!("systemd-analyze (of systemd): {error}"))
}

#[test]
fn the_units_and_their_proposals_are_right_and_hardened() {
    let units = units();
    check_units(&units);
    let file = units.path().join("fencepost.service");
    let unit = std::fs::read_to_string(&file).unwrap();
    let proposals: Vec<&str> = unit.lines().filter_map(proposed).collect();
    for key in [
        "LoadCredential=tls.key:",
        "LoadCredential=etcd-password:",
        "SupplementaryGroups=",
        "Group=",
    ] {
        assert!(proposals.iter().any(|line| line.starts_with(key)), "{key}: {proposals:?}");
    }
    for name in ["tls.key", "etcd-password"] {
        assert!(unit.contains(&format!("\"/run/credentials/fencepost.service/{name}\"")), "{name}");
    }
    // The group may connect, and nobody else; its members see no access log and no state.
    for setting in ["UMask=0007", "StateDirectoryMode=0700", "LogsDirectoryMode=0700"] {
        assert!(unit.lines().any(|line| line == setting), "{setting}");
    }
    let whole: Vec<&str> = unit.lines().map(|line| proposed(line).unwrap_or(line)).collect();
    std::fs::write(&file, whole.join("\n")).unwrap();
    check_units(&units);
}

/// What the line proposes: a setting stands directly after its hash, a comment after a space.
fn proposed(line: &str) -> Option<&str> {
    line.strip_prefix('#').filter(|rest| rest.starts_with(char::is_uppercase))
}

fn check_units(units: &Scratch) {
    let verified =
        systemd_analyze(&["verify", "--man=no"], units, &["fencepost.service", "fencepost.socket"]);
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(verified.status.success() && said.is_empty(), "{said}");
    // From 0 (nothing is exposed) to 100.
    let hardened = ["security", "--offline=true", "--no-pager", "--threshold=15"];
    let judged = systemd_analyze(&hardened, units, &["fencepost.service"]);
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stdout));
}

/// SIGABRT reaches a stopped process only when it goes on, and its bytes in the kernel with it.
#[tokio::test]
async fn the_service_is_restarted_drained_and_killed_in_time() {
    let unit = std::fs::read_to_string(units().path().join("fencepost.service")).unwrap();
    let values =
        |key: &str| unit.lines().filter_map(|line| line.strip_prefix(key)).collect::<Vec<_>>();
    assert_eq!(values("ExecStartPre="), [""; 0], "systemd does not look at how it ends");
    let nobody = "http://127.0.0.1:1".to_owned();
    for (wrong, code, says) in [
        (route("wrong"), 64, "mode"),
        (route("shadow"), 1, "systemd passed no listening socket named \"http\""),
    ] {
        let config = Config::new(std::slice::from_ref(&nobody), &nobody, &[wrong])
            .listening_on("systemd:http");
        let (ended, said) = Fencepost::end_of(&config).await;
        assert!(ended == Some(code) && said.contains(says), "{said}");
    }
    assert_eq!(values("RestartPreventExitStatus="), ["64"]);
    assert_eq!(values("Restart="), ["on-failure"]);
    let of_the_unit = unit.split("[Service]").next().unwrap();
    assert!(of_the_unit.lines().any(|line| line == "StartLimitIntervalSec=0"), "{of_the_unit}");
    let seconds = |key: &str| values(key)[0].strip_suffix('s').unwrap().parse::<u64>().unwrap();
    let limits = fencepost_config::Limits::default();
    assert!(seconds("TimeoutStopSec=") > (limits.drain_delay + limits.drain_timeout).as_secs());
    assert_eq!(values("WatchdogSignal="), ["SIGKILL"]);
    assert!(seconds("WatchdogSec=") < 30, "the default of orphan_timeout");
}
