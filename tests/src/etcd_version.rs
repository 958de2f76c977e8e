//! Which etcd, and where it is on this machine.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An etcd that the tests run against. The two differ where it matters to a fence: in flags, in
/// errors, in bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EtcdVersion {
    /// 3.4, from Debian, or the binary that `FENCEPOST_ETCD_3_4` names.
    V3_4,
    /// 3.5, from `bin/install-tools`, or the binary that `FENCEPOST_ETCD_3_5` names.
    V3_5,
}

impl EtcdVersion {
    /// Both.
    pub const ALL: [EtcdVersion; 2] = [EtcdVersion::V3_4, EtcdVersion::V3_5];

    /// The server's binary; `etcdctl` lies beside it.
    pub fn binary(self) -> PathBuf {
        let binary = self.path();
        let output = Command::new(&binary).arg("--version").output().unwrap_or_else(|error| {
            panic!(
                "no etcd {self} at {} ({error}): run bin/install-tools test, or set {}",
                binary.display(),
                self.variable()
            )
        });
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            printed.contains(&format!("etcd Version: {self}.")),
            "{} is no etcd {self}; set {} to one. It says: {printed}",
            binary.display(),
            self.variable()
        );
        binary
    }

    /// The command line client of the same version.
    pub(crate) fn etcdctl(self) -> PathBuf {
        let etcdctl = self.path().with_file_name("etcdctl");
        assert!(
            etcdctl.exists(),
            "no etcdctl {self} at {}: run bin/install-tools test",
            etcdctl.display()
        );
        etcdctl
    }

    fn path(self) -> PathBuf {
        if let Some(path) = std::env::var_os(self.variable()) {
            return path.into();
        }
        match self {
            EtcdVersion::V3_4 => "/usr/bin/etcd".into(),
            EtcdVersion::V3_5 => Path::new(env!("CARGO_MANIFEST_DIR"))
                .with_file_name("target")
                .join("tools/etcd-3.5.1/etcd"),
        }
    }

    fn variable(self) -> &'static str {
        match self {
            EtcdVersion::V3_4 => "FENCEPOST_ETCD_3_4",
            EtcdVersion::V3_5 => "FENCEPOST_ETCD_3_5",
        }
    }
}

impl fmt::Display for EtcdVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EtcdVersion::V3_4 => "3.4",
            EtcdVersion::V3_5 => "3.5",
        })
    }
}
