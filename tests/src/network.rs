//! A network namespace of a test's own, whose connection to everything else can be cut.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::geteuid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A host of its own behind a virtual cable, as a network namespace. It goes with this value.
///
/// [`cut`](Network::cut) drops all packets on the way to it and back, as a broken network does: neither side learns of it.
#[derive(Debug)]
pub struct Network {
    name: String,
    host: Ipv4Addr,
}

impl Network {
    /// Makes one. `None`, with a word on standard error, where only root may: tests that need it are skipped then.
    ///
    /// # Panics
    ///
    /// If root may not either, or `ip` and `iptables` are missing.
    pub fn make() -> Option<Network> {
        if !geteuid().is_root() {
            eprintln!("skipped: only root may make a network namespace");
            return None;
        }
        static MADE: AtomicU32 = AtomicU32::new(0);
        // Tests of several processes run at a time: each process has 64 subnets of four addresses.
        let number = ((std::process::id() % (1 << 14)) << 6) | (MADE.fetch_add(1, Ordering::Relaxed) % 64);
        let subnet = u32::from(Ipv4Addr::new(10, 192, 0, 0)) + (number << 2);
        let [ours, host] = [subnet + 1, subnet + 2].map(Ipv4Addr::from);
        let network = Network { name: format!("fence{number:x}"), host };
        let (name, peer) = (&network.name, format!("w{number:x}"));
        run(&format!("ip netns add {name}"));
        run(&format!("ip link add {name} type veth peer name {peer} netns {name}"));
        run(&format!("ip address add {ours}/30 dev {name}"));
        run(&format!("ip link set {name} up"));
        network.run(&format!("ip address add {host}/30 dev {peer}"));
        network.run(&format!("ip link set {peer} up"));
        Some(network)
    }

    /// A listener in it, on a port that the system chooses.
    pub fn listen(&self) -> TcpListener {
        let (path, address) = (format!("/run/netns/{}", self.name), SocketAddr::from((self.host, 0)));
        let bind = move || {
            let namespace = File::open(path).expect("a namespace that was made is there");
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("root may enter a namespace");
            TcpListener::bind(address).expect("its own address can be bound")
        };
        // A socket stays in the namespace that its thread was in.
        std::thread::spawn(bind).join().expect("binding does not panic")
    }

    /// Drops all packets from now on, both ways.
    pub fn cut(&self) {
        self.run("iptables -A INPUT -j DROP");
        self.run("iptables -A OUTPUT -j DROP");
    }

    /// Lets packets through again.
    pub fn heal(&self) {
        self.run("iptables -F");
    }

    /// How many bytes the kernel still has to deliver to it, over all connections of this side.
    pub fn undelivered(&self) -> u64 {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel lists its connections");
        let host = format!("{:08X}:", u32::from_ne_bytes(self.host.octets()));
        let of_connection = |line: &str| {
            let [_, _, remote, state, queues, ..] = line.split_whitespace().collect::<Vec<_>>()[..] else { return 0 };
            let unsent = queues.split(':').next().and_then(|bytes| u64::from_str_radix(bytes, 16).ok());
            const SYN_SENT: &str = "02"; // Its queue counts the SYN, and no byte.
            if remote.starts_with(&host) && state != SYN_SENT { unsent.unwrap_or(0) } else { 0 }
        };
        table.lines().map(of_connection).sum()
    }

    fn run(&self, command: &str) {
        run(&format!("ip netns exec {} {command}", self.name));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The other end of the cable, and with it ours, goes only when the last socket in the namespace does.
        run(&format!("ip link delete {}", self.name));
        run(&format!("ip netns delete {}", self.name));
    }
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let program = words.next().expect("a command has a program");
    let output = Command::new(program).args(words).output().unwrap_or_else(|error| panic!("{command}: {error}"));
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}
