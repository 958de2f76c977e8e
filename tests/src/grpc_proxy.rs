//! etcd's gRPC proxy: a cache before etcd.

use std::process::Command;

use crate::{EtcdVersion, FreePort, Process, Scratch};

/// A running `etcd grpc-proxy`. It is killed with this value.
#[derive(Debug)]
pub struct GrpcProxy {
    _process: Process,
    _scratch: Scratch,
    endpoint: String,
}

impl GrpcProxy {
    /// Starts one before that endpoint. `is_leasing`: it leases keys, and answers reads of them by
    /// itself. It may not listen yet.
    pub fn start(version: EtcdVersion, endpoint: &str, is_leasing: bool) -> GrpcProxy {
        let (port, scratch) = (FreePort::reserve(), Scratch::new());
        let mut command = Command::new(version.binary());
        command.args(["grpc-proxy", "start", "--endpoints", endpoint]);
        if is_leasing {
            command.args(["--experimental-leasing-prefix", "leasing/"]);
        }
        command.args(["--listen-addr", &port.address().to_string()]).current_dir(scratch.path());
        let process = Process::start(&command, &scratch.path().join("log"));
        let endpoint = format!("http://{}", port.address());
        GrpcProxy { _process: process, _scratch: scratch, endpoint }
    }

    /// Where it listens.
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }
}
