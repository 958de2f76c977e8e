//! A MariaDB server.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::database::{Server, SharedServer, is_root, run};
use crate::scratch::Scratch;

/// A running MariaDB server on loopback, from Debian. Its superuser is `root`, without a password.
#[derive(Debug)]
pub struct Mariadb(Server);

impl Mariadb {
    /// Starts one.
    pub async fn start() -> Mariadb {
        let scratch = Scratch::new();
        let mut init = Command::new("mariadb-install-db");
        init.arg("--no-defaults")
            .arg(format!("--datadir={}", scratch.path().join("data").display()));
        init.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
        init.args(as_root());
        run(init).await;
        let command = |home: &Path, address: SocketAddr| {
            let mut command = Command::new("/usr/sbin/mariadbd");
            command.arg("--no-defaults").arg(format!("--datadir={}", home.join("data").display()));
            command.arg(format!("--socket={}", home.join("socket").display()));
            command.arg(format!("--pid-file={}", home.join("pid").display()));
            command.args([
                &format!("--port={}", address.port()),
                "--bind-address=127.0.0.1",
                "--skip-name-resolve",
                "--innodb-buffer-pool-size=16M",
                "--innodb-flush-log-at-trx-commit=0",
            ]);
            command.args(as_root());
            command
        };
        Mariadb(Server::start(scratch, command, "ready for connections").await)
    }

    /// One that tests of this process share.
    pub async fn shared() -> Arc<Mariadb> {
        static SHARED: SharedServer<Mariadb> = SharedServer::new();
        SHARED.get(Mariadb::start).await
    }

    /// Where clients find it.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// What it has printed.
    pub fn log(&self) -> String {
        self.0.log()
    }
}

/// It runs as root only if that is said.
fn as_root() -> Option<&'static str> {
    is_root().then_some("--user=root")
}
