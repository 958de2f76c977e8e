//! A PostgreSQL server.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::database::{NOBODY, Server, SharedServer, give_away, is_root, run};
use crate::pki::Issued;
use crate::scratch::Scratch;

/// A running PostgreSQL server on loopback, from Debian, or from the folder of binaries that
/// `FENCEPOST_POSTGRES` names. Its superuser is `postgres`, without a password. Members of the role
/// `with_password` need theirs.
#[derive(Debug)]
pub struct Postgres(Server);

impl Postgres {
    /// Starts one.
    pub async fn start() -> Postgres {
        Postgres::start_with(&[], None).await
    }

    /// Starts one with further settings (`name=value`), and with TLS for all who want it.
    pub async fn start_with(settings: &[&str], tls: Option<&Issued>) -> Postgres {
        let scratch = Scratch::new();
        give_away(scratch.path());
        let data = scratch.path().join("data");
        let mut init = program("initdb");
        init.arg("-D").arg(&data).args(["-U", "postgres", "--auth=trust", "--no-sync"]);
        init.args(["--encoding=UTF8", "--locale=C"]);
        run(init).await;
        let access = data.join("pg_hba.conf");
        let trusting = std::fs::read_to_string(&access).expect("initdb has made the file");
        let asking = "host all +with_password 127.0.0.1/32 scram-sha-256\n";
        std::fs::write(&access, asking.to_owned() + &trusting).expect("it can be written");
        let mut settings: Vec<String> =
            settings.iter().map(|setting| (*setting).to_owned()).collect();
        if let Some(issued) = tls {
            let (certificate, key) = issued.write(scratch.path(), "server");
            std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600))
                .expect("a file's mode can be set");
            [&certificate, &key].into_iter().for_each(|file| give_away(file));
            settings.push("ssl=on".to_owned());
            settings.push(format!("ssl_cert_file={}", certificate.display()));
            settings.push(format!("ssl_key_file={}", key.display()));
        }
        let ready = "database system is ready to accept connections";
        let postgres = Postgres::launch(scratch, settings, ready).await;
        postgres.query("CREATE ROLE with_password").await;
        postgres
    }

    /// One that tests of this process share.
    pub async fn shared() -> Arc<Postgres> {
        static SHARED: SharedServer<Postgres> = SharedServer::new();
        SHARED.get(Postgres::start).await
    }

    /// Starts a standby of this server, which follows it under that name.
    pub async fn start_standby(&self, name: &str) -> Postgres {
        let scratch = Scratch::new();
        give_away(scratch.path());
        let mut copy = program("pg_basebackup");
        let source = format!("{} application_name={name}", self.conninfo());
        copy.args(["--dbname", &source, "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]);
        copy.arg("--pgdata").arg(scratch.path().join("data"));
        run(copy).await;
        let ready = "database system is ready to accept read-only connections";
        Postgres::launch(scratch, vec!["hot_standby=on".to_owned()], ready).await
    }

    async fn launch(scratch: Scratch, settings: Vec<String>, ready: &str) -> Postgres {
        let command = |home: &Path, address: SocketAddr| {
            let mut command = program("postgres");
            command.arg("-D").arg(home.join("data"));
            command.args(["-p", &address.port().to_string(), "-h", "127.0.0.1", "-k", ""]);
            for setting in ["fsync=off", "max_connections=50"] {
                command.args(["-c", setting]);
            }
            settings.iter().for_each(|setting| _ = command.args(["-c", setting]));
            command
        };
        Postgres(Server::start(scratch, command, ready).await)
    }

    /// Where clients find it.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// What it has printed.
    pub fn log(&self) -> String {
        self.0.log()
    }

    /// Runs SQL as the superuser, by `psql`: for what has to be done once.
    pub async fn query(&self, sql: &str) {
        let mut psql = program("psql");
        let options = ["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1"];
        psql.args(options).args(["--dbname", &self.conninfo(), "--command", sql]);
        run(psql).await;
    }

    /// Writes a configuration file's setting anew, which is in force when this returns.
    pub async fn set(&self, name: &str, value: &str) {
        self.query(&format!("ALTER SYSTEM SET {name} = '{value}'")).await;
        self.query("SELECT pg_reload_conf()").await;
    }

    fn conninfo(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.address().port())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.0.quit();
    }
}

/// A program of PostgreSQL's, which do not run as root.
fn program(name: &str) -> Command {
    let path = binaries().join(name);
    if !is_root() {
        return Command::new(path);
    }
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={NOBODY}")).arg(format!("--regid={NOBODY}"));
    // Another user's process is not killed with its parent unless that is said again.
    command.args(["--clear-groups", "--pdeathsig", "KILL", "--"]).arg(path);
    command.current_dir("/");
    command
}

fn binaries() -> PathBuf {
    let binaries = std::env::var_os("FENCEPOST_POSTGRES")
        .map_or_else(|| PathBuf::from("/usr/lib/postgresql/15/bin"), PathBuf::from);
    assert!(
        binaries.join("postgres").exists(),
        "no PostgreSQL at {}: run bin/install-tools test, or set FENCEPOST_POSTGRES",
        binaries.display()
    );
    binaries
}
