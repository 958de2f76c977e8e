//! What a comparison runs on: a worker, an etcd with a lock in it, and the proxies in between.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use hyper::StatusCode;
use tempfile::TempDir;

use super::peers::{self, Site};
use super::process::{Addresses, Process, installed};
use super::tls_files::TlsFiles;
use crate::cli::values::Template;
use crate::cli::{CompareSettings, EtcdAccess, LockSettings, TargetName};
use crate::lock::{Held, Layout, Lock, acquire_all};
use crate::tls::Files;
use crate::token::Token;

/// All that serves while proxies are measured. It ends with this value.
pub(super) struct Stage<'a> {
    settings: &'a CompareSettings,
    /// CPUs for what is measured, and for all else.
    pub(super) cpus: Cpus,
    addresses: Addresses,
    worker: SocketAddr,
    etcd: SocketAddr,
    /// The locks that are held, the first one for all that compares constants.
    held: Vec<Held>,
    started: usize,
    /// What all that speak TLS have.
    tls_files: TlsFiles,
    _worker: Process,
    _etcd: Process,
    /// Goes last: the processes write there.
    directory: TempDir,
}

/// Who runs where.
#[derive(Clone, Debug)]
pub(super) struct Cpus {
    all: Vec<usize>,
}

/// Something that is measured.
pub(super) struct Target {
    /// As it is called in tables.
    pub(super) name: String,
    pub(super) process: Process,
    /// Where it takes HTTP/1.1.
    pub(super) http1: SocketAddr,
    /// Where it takes cleartext HTTP/2.
    pub(super) h2c: SocketAddr,
    /// Where it takes both by TLS.
    pub(super) tls: SocketAddr,
    /// How it refuses.
    pub(super) refusal: StatusCode,
}

/// Who holds the locks.
const OWNER: &str = "worker-7f3a";
/// How locks are called in etcd.
const LOCK: &str = "/bench/{n}/lock";
/// How requests name their lock.
pub(super) const PATH: &str = "/locks/{n}/job";

impl Cpus {
    /// All that this process may use.
    pub(super) fn all() -> anyhow::Result<Cpus> {
        let all = crate::machine::cpus()?;
        ensure!(!all.is_empty(), "there is no CPU to run on");
        Ok(Cpus { all })
    }

    /// So many for what is measured; all but one at most.
    pub(super) fn measured(&self, count: usize) -> &[usize] {
        &self.all[..count.clamp(1, self.all.len().saturating_sub(1).max(1))]
    }

    /// All others, if there are any.
    pub(super) fn others(&self) -> &[usize] {
        if self.all.len() > 1 { &self.all[1..] } else { &self.all }
    }

    /// Whether what is measured has a CPU to itself.
    pub(super) fn are_apart(&self) -> bool {
        self.all.len() > 1
    }
}

impl<'a> Stage<'a> {
    /// Starts a worker and an etcd in which so many locks are held.
    pub(super) async fn set(settings: &'a CompareSettings, locks: usize) -> anyhow::Result<Stage<'a>> {
        let directory = tempfile::Builder::new().prefix("fencepost-compare-").tempdir()?;
        let (cpus, mut addresses) = (Cpus::all()?, Addresses::new());
        let tls_files = TlsFiles::write(directory.path(), addresses.host())?;
        let worker = addresses.take()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", "--listen", &worker.to_string()]);
        let mut worker_process = Process::start("worker", command, cpus.others(), directory.path())?;
        worker_process.listens(worker).await?;

        let (etcd, peer) = (addresses.take()?, addresses.take()?);
        let command = etcd_command(&settings.etcd_binary, directory.path(), etcd, peer)?;
        let mut etcd_process = Process::start("etcd", command, cpus.others(), directory.path())?;
        etcd_process.listens(etcd).await?;
        let held = take(etcd, locks).await?;
        Ok(Stage {
            settings,
            cpus,
            addresses,
            worker,
            etcd,
            held,
            started: 0,
            tls_files,
            _worker: worker_process,
            _etcd: etcd_process,
            directory,
        })
    }

    /// What the first so many locks are held by.
    pub(super) fn tokens(&self, count: usize) -> impl Iterator<Item = &Token> {
        self.held.iter().take(count).map(|held| &held.token)
    }

    /// What it takes to speak TLS with what is measured.
    pub(super) fn files(&self) -> Files<'_> {
        Files { ca: &self.tls_files.authority, identity: None }
    }

    /// Starts one of the others; `None` if it is not installed.
    pub(super) async fn peer(&mut self, name: TargetName) -> anyhow::Result<Option<Target>> {
        let binary = match name {
            TargetName::Haproxy => &self.settings.haproxy_binary,
            TargetName::Nginx => &self.settings.nginx_binary,
            TargetName::Envoy => &self.settings.envoy_binary,
        };
        let Some(binary) = installed(binary) else { return Ok(None) };
        let (http1, directory) = (self.addresses.take()?, self.directory_of_another()?);
        let h2c = if name == TargetName::Envoy { http1 } else { self.addresses.take()? };
        let tls = self.addresses.take()?;
        let token = self.held.first().map(|held| held.token.clone()).context("there is no lock")?;
        let files = &self.tls_files;
        let site = Site { http1, h2c, tls, worker: self.worker, token: &token, files, directory: &directory };
        let file = directory.join("configuration");
        let mut command = Command::new(binary);
        let written = match name {
            TargetName::Haproxy => {
                command.arg("-db").arg("-f").arg(&file);
                peers::haproxy(&site)
            }
            TargetName::Nginx => {
                command.arg("-p").arg(&directory).arg("-c").arg(&file);
                peers::nginx(&site)
            }
            TargetName::Envoy => {
                // Envoy tells the format by the name.
                command.arg("--config-yaml").arg(peers::envoy(&site).to_string());
                command.args(["--concurrency", "1", "--disable-hot-restart", "-l", "error"]);
                String::new()
            }
        };
        std::fs::write(&file, written)?;
        let name = super::name_of(name);
        let mut process = Process::start(&name, command, self.cpus.measured(1), &directory)?;
        process.listens(http1).await?;
        Ok(Some(Target { name, process, http1, h2c, tls, refusal: StatusCode::FORBIDDEN }))
    }

    /// Starts fencepost with so many threads.
    pub(super) async fn fencepost(&mut self, threads: usize) -> anyhow::Result<Target> {
        let (listen, tls, admin) = (self.addresses.take()?, self.addresses.take()?, self.addresses.take()?);
        let directory = self.directory_of_another()?;
        let file = directory.join("fencepost.toml");
        std::fs::write(&file, self.fencepost_file(listen, tls, admin, threads))?;
        let mut command = Command::new(&self.settings.fencepost);
        command.arg("serve").arg("-c").arg(&file);
        let mut process = Process::start("fencepost", command, self.cpus.measured(threads), &directory)?;
        process.listens(listen).await?;
        let name = "fencepost".to_owned();
        Ok(Target { name, process, http1: listen, h2c: listen, tls, refusal: StatusCode::PRECONDITION_FAILED })
    }

    fn fencepost_file(&self, listen: SocketAddr, tls: SocketAddr, admin: SocketAddr, threads: usize) -> String {
        let (etcd, worker, more) = (self.etcd, self.worker, &self.settings.fencepost_route);
        let (certificate, key_file) = (self.tls_files.certificate.display(), self.tls_files.key.display());
        let key = LOCK.replace("{n}", "{lock}");
        format!(
            "threads = {threads}\n\
             [admin]\nlisten = \"{admin}\"\n\
             [[listener]]\naddress = \"{listen}\"\n\
             [[listener]]\naddress = \"{tls}\"\n\
             tls = {{ certificate = \"{certificate}\", key = \"{key_file}\" }}\n\
             [limits]\nconnections_max = 20000\nconnections_per_client_max = 20000\ntracked_locks_max = 1000000\ndrain_delay = \"0s\"\n\
             [source.main]\nkind = \"etcd\"\nendpoints = [\"http://{etcd}\"]\n\
             [[route]]\nname = \"bench\"\npath = \"/locks/{{lock}}/\"\nupstream = \"http://{worker}\"\n\
             lock = {{ source = \"main\", key = \"{key}\", layout = \"key\" }}\n{more}\n"
        )
    }

    fn directory_of_another(&mut self) -> anyhow::Result<PathBuf> {
        self.started += 1;
        let directory = self.directory.path().join(self.started.to_string());
        std::fs::create_dir(&directory)?;
        Ok(directory)
    }
}

fn etcd_command(binary: &Path, directory: &Path, client: SocketAddr, peer: SocketAddr) -> anyhow::Result<Command> {
    let missing = || format!("there is no etcd at {}: --etcd-binary names one", binary.display());
    let mut command = Command::new(installed(binary).with_context(missing)?);
    let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
    command.args(["--name", "bench", "--log-level", "error", "--logger", "zap"]);
    command.arg("--data-dir").arg(directory.join("etcd"));
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.arg("--initial-cluster").arg(format!("bench={peer}"));
    Ok(command)
}

/// Takes so many locks.
async fn take(etcd: SocketAddr, count: usize) -> anyhow::Result<Vec<Held>> {
    let template: Template = LOCK.parse()?;
    let settings =
        LockSettings { etcd: vec![format!("http://{etcd}")], access: EtcdAccess::default(), lock: template.of(0) };
    let first = Lock::open(&settings, Layout::Key).await?.for_a_run_of(std::time::Duration::from_secs(86_400));
    let locks: Vec<Lock> = (0..count).map(|number| first.named(template.of(number))).collect();
    acquire_all(&locks, OWNER).await
}
