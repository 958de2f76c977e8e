//! A network of a test's own, which can be cut.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::process::Command;

use rustix::process::geteuid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Two hosts with a cable between them, as network namespaces: the test and its processes run on
/// one, and this is the other.
///
/// [`cut`](Network::cut) drops all packets on the way to it and back, as a broken network does:
/// neither side learns of it. Nothing of the machine's own network changes, so that other tests
/// notice nothing.
#[derive(Debug)]
pub struct Network {
    other: String,
}

/// The test's own host, the other one, and the names of their ends of the cable.
const OURS: Ipv4Addr = Ipv4Addr::new(10, 192, 0, 1);
const OTHERS: Ipv4Addr = Ipv4Addr::new(10, 192, 0, 2);

/// Names the other namespace to the process that runs in the first.
const VARIABLE: &str = "FENCEPOST_TEST_NETWORK";

impl Network {
    /// Runs a test in a network of its own: it starts the test's binary again there, for this test
    /// alone. `name` is the test's name as `cargo test` prints it. Where only root may make a
    /// namespace, the test is skipped with a word on standard error.
    pub fn run(name: &str, test: impl AsyncFnOnce(&Network)) {
        if let Ok(other) = std::env::var(VARIABLE) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("the system gives a runtime").block_on(test(&Network { other }));
            return;
        }
        if !geteuid().is_root() {
            eprintln!("skipped: only root may make a network namespace");
            return;
        }
        let hosts = Hosts::make(name);
        let binary = std::env::current_exe().expect("a test has a binary");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "ip", "netns", "exec", &hosts.test]).arg(binary);
        command.args(["--exact", name, "--nocapture"]).env(VARIABLE, &hosts.worker);
        let output = command.output().expect("setpriv (util-linux) can be started");
        let [out, errors] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        let has_run = out.contains("test result: ok. 1 passed");
        assert!(output.status.success() && has_run, "in a network of its own:\n{out}\n{errors}");
    }

    /// A listener on the other host, on a port that the system chooses.
    pub fn listen(&self) -> TcpListener {
        let path = format!("/run/netns/{}", self.other);
        let bind = move || {
            let namespace = File::open(path).expect("a namespace that was made is there");
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("root may enter a namespace");
            TcpListener::bind(SocketAddr::from((OTHERS, 0))).expect("its own address can be bound")
        };
        // A socket stays in the namespace that its thread was in.
        std::thread::spawn(bind).join().expect("binding does not panic")
    }

    /// Drops all packets from now on, both ways.
    pub fn cut(&self) {
        run(&format!("ip netns exec {} iptables -A INPUT -j DROP", self.other));
        run(&format!("ip netns exec {} iptables -A OUTPUT -j DROP", self.other));
    }

    /// Lets packets through again.
    pub fn heal(&self) {
        run(&format!("ip netns exec {} iptables -F", self.other));
    }

    /// How many bytes the kernel still has to deliver to the other host, over all connections.
    pub fn undelivered(&self) -> u64 {
        let table =
            std::fs::read_to_string("/proc/net/tcp").expect("the kernel lists its connections");
        let other = format!("{:08X}:", u32::from_ne_bytes(OTHERS.octets()));
        let of_connection = |line: &str| {
            let [_, _, remote, state, queues, ..] = line.split_whitespace().collect::<Vec<_>>()[..]
            else {
                return 0;
            };
            let unsent =
                queues.split(':').next().and_then(|bytes| u64::from_str_radix(bytes, 16).ok());
            const SYN_SENT: &str = "02"; // Its queue counts the SYN, and no byte.
            if remote.starts_with(&other) && state != SYN_SENT { unsent.unwrap_or(0) } else { 0 }
        };
        table.lines().map(of_connection).sum()
    }
}

/// The namespaces of the two hosts. They go with this value.
struct Hosts {
    test: String,
    worker: String,
}

impl Hosts {
    fn make(name: &str) -> Hosts {
        let unique = format!("{}-{}", std::process::id(), name.rsplit("::").next().unwrap_or(name));
        let hosts = Hosts { test: format!("test-{unique}"), worker: format!("worker-{unique}") };
        let Hosts { test, worker } = &hosts;
        run(&format!("ip netns add {test}"));
        run(&format!("ip netns add {worker}"));
        run(&format!("ip -n {test} link add cable type veth peer name cable netns {worker}"));
        for (namespace, address) in [(test, OURS), (worker, OTHERS)] {
            run(&format!("ip -n {namespace} address add {address}/30 dev cable"));
            run(&format!("ip -n {namespace} link set cable up"));
            run(&format!("ip -n {namespace} link set lo up"));
        }
        hosts
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        run(&format!("ip netns delete {}", self.test));
        run(&format!("ip netns delete {}", self.worker));
    }
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let program = words.next().expect("a command has a program");
    let output = Command::new(program)
        .args(words)
        .output()
        .unwrap_or_else(|error| panic!("{command}: {error}"));
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}
