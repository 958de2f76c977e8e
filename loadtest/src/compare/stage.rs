//! What a comparison runs on: a worker, an etcd with locks in it, and the proxies in between.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hyper::StatusCode;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose, SanType,
};
use tempfile::TempDir;

use super::process::{Addresses, Process, installed};
use crate::cli::values::Template;
use crate::cli::{CompareOptions, LockOptions, PEER_CONNECTIONS_MAX, PeerName};
use crate::client::Token;
use crate::lock::{Held, Lock, acquire_all};
use crate::machine::stay_on;
use crate::report::print;

const OWNER: &str = "worker-7f3a";
const LOCK: &str = "/bench/{n}/lock";
pub(super) const PATH: &str = "/locks/{n}/job";
const RUN_MAX: Duration = Duration::from_secs(86_400);

/// All that serves while proxies are measured. It ends with this value.
pub(super) struct Stage<'a> {
    pub(super) options: &'a CompareOptions,
    cpus: Cpus,
    addresses: Addresses,
    worker: SocketAddr,
    etcd: SocketAddr,
    /// The held locks; peers compare with the token of the first one.
    held: Vec<Held>,
    started: usize,
    _processes: [Process; 2],
    /// Dropped last, because the processes write there.
    directory: TempDir,
}

pub(super) struct Cpus(Vec<usize>);

impl Cpus {
    /// So many for the measured process; all but one at most.
    fn measured(&self, count: usize) -> &[usize] {
        &self.0[..count.clamp(1, self.0.len().saturating_sub(1).max(1))]
    }

    fn others(&self) -> &[usize] {
        if self.0.len() > 1 { &self.0[1..] } else { &self.0 }
    }
}

pub(super) struct Target {
    pub(super) name: String,
    pub(super) process: Process,
    pub(super) http1: SocketAddr,
    pub(super) h2c: SocketAddr,
    pub(super) tls: SocketAddr,
    pub(super) refusal: StatusCode,
}

impl<'a> Stage<'a> {
    /// Starts a worker and an etcd in which so many locks are held.
    pub(super) async fn set(options: &'a CompareOptions, locks: usize) -> Result<Stage<'a>> {
        let directory = tempfile::Builder::new().prefix("fencepost-compare-").tempdir()?;
        let (cpus, mut addresses) = (Cpus(crate::machine::cpus()?), Addresses::new());
        ensure!(!cpus.0.is_empty(), "there is no CPU to run on");
        if cpus.0.len() == 1 {
            print("There is one CPU, which load and proxy share: figures are of little worth.\n");
        }
        // The generator is this thread; other processes on these CPUs are drawn to the first.
        stay_on(&cpus.others()[cpus.others().len() - 1..])?;
        write_certificates(directory.path(), addresses.host)?;
        let (worker, etcd, peer) = (addresses.take()?, addresses.take()?, addresses.take()?);
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", "--listen", &worker.to_string()]);
        let mut serving = Process::start("worker", command, cpus.others(), directory.path())?;
        serving.listens(worker).await?;
        let command = etcd_command(&options.etcd_binary, directory.path(), etcd, peer)?;
        let mut store = Process::start("etcd", command, cpus.others(), directory.path())?;
        store.listens(etcd).await?;
        let (held, started, _processes) = (take(etcd, locks).await?, 0, [serving, store]);
        Ok(Stage { options, cpus, addresses, worker, etcd, held, started, _processes, directory })
    }

    pub(super) fn tokens(&self, count: usize) -> impl Iterator<Item = &Token> {
        self.held.iter().take(count).map(|held| &held.token)
    }

    /// The file of the authority that signed the certificate of all targets.
    pub(super) fn authority(&self) -> PathBuf {
        self.directory.path().join("authority.pem")
    }

    /// Starts a peer; `None` if it is not installed.
    pub(super) async fn peer(&mut self, name: PeerName) -> Result<Option<Target>> {
        let CompareOptions { haproxy_binary, nginx_binary, envoy_binary, .. } = self.options;
        let (binary, template, arguments): (_, _, &[&str]) = match name {
            PeerName::Haproxy => (haproxy_binary, HAPROXY, &["-db", "-f", "@file@"]),
            PeerName::Nginx => (nginx_binary, NGINX, &["-p", "@directory@", "-c", "@file@"]),
            PeerName::Envoy => (envoy_binary, ENVOY, &ENVOY_ARGUMENTS),
        };
        let Some(binary) = installed(binary) else { return Ok(None) };
        let (name, command) = (super::name_of(name), (&*binary, arguments));
        self.start(&name, command, template, 1, StatusCode::FORBIDDEN).await.map(Some)
    }

    /// Starts fencepost with so many threads.
    pub(super) async fn fencepost(&mut self, threads: usize) -> Result<Target> {
        let command = (&*self.options.fencepost, &["serve", "-c", "@file@"][..]);
        let refusal = StatusCode::PRECONDITION_FAILED;
        self.start("fencepost", command, FENCEPOST, threads, refusal).await
    }

    /// Fills the places in the template and the arguments, and starts the program.
    async fn start(
        &mut self,
        name: &str,
        (binary, arguments): (&Path, &[&str]),
        template: &str,
        threads: usize,
        refusal: StatusCode,
    ) -> Result<Target> {
        let mut address = || self.addresses.take();
        let (http1, tls, admin) = (address()?, address()?, address()?);
        // Some programs take cleartext HTTP/2 at an address of its own.
        let h2c = if template.contains("@h2c@") { address()? } else { http1 };
        self.started += 1;
        let pem = |file| self.directory.path().join(file).display().to_string();
        let directory = self.directory.path().join(self.started.to_string());
        std::fs::create_dir(&directory)?;
        let file = directory.join("configuration.yaml");
        let token = &self.held.first().context("there is no lock")?.token;
        let values = [
            ("@http1@", http1.to_string()),
            ("@h2c@", h2c.to_string()),
            ("@tls@", tls.to_string()),
            ("@admin@", admin.to_string()),
            ("@worker@", self.worker.to_string()),
            ("@etcd@", self.etcd.to_string()),
            ("@host@", self.addresses.host.to_string()),
            ("@http1_port@", http1.port().to_string()),
            ("@tls_port@", tls.port().to_string()),
            ("@worker_port@", self.worker.port().to_string()),
            ("@owner@", token.owner_text().to_owned()),
            ("@revision@", token.revision().to_string()),
            ("@pair@", pem("pair.pem")),
            ("@certificate@", pem("certificate.pem")),
            ("@key@", pem("key.pem")),
            ("@directory@", directory.display().to_string()),
            ("@file@", file.display().to_string()),
            ("@clients@", CLIENTS_MAX.to_string()),
            ("@connections@", (2 * CLIENTS_MAX).to_string()),
            ("@threads@", threads.to_string()),
            ("@route@", self.options.fencepost_route.clone()),
        ];
        let fill = |text: &str| {
            values.iter().fold(text.to_owned(), |text, (place, value)| text.replace(place, value))
        };
        std::fs::write(&file, fill(template))?;
        let mut command = Command::new(binary);
        command.args(arguments.iter().map(|argument| fill(argument)));
        let cpus = self.cpus.measured(threads);
        let mut process = Process::start(name, command, cpus, &directory)?;
        process.listens(http1).await?;
        Ok(Target { name: name.to_owned(), process, http1, h2c, tls, refusal })
    }
}

const HAPROXY: &str = include_str!("configurations/haproxy.cfg");
const NGINX: &str = include_str!("configurations/nginx.conf");
const ENVOY: &str = include_str!("configurations/envoy.yaml");
const FENCEPOST: &str = include_str!("configurations/fencepost.toml");
const ENVOY_ARGUMENTS: [&str; 7] =
    ["-c", "@file@", "--concurrency", "1", "--disable-hot-restart", "-l", "error"];
/// Connections of clients: some more, to check whether the peer listens.
const CLIENTS_MAX: u64 = PEER_CONNECTIONS_MAX + 50;

fn etcd_command(
    binary: &Path,
    directory: &Path,
    client: SocketAddr,
    peer: SocketAddr,
) -> Result<Command> {
    let missing = || format!("there is no etcd at {}: --etcd-binary names one", binary.display());
    let mut command = Command::new(installed(binary).with_context(missing)?);
    let addresses = format!(
        "--listen-client-urls http://{client} --advertise-client-urls http://{client} \
         --listen-peer-urls http://{peer} --initial-advertise-peer-urls http://{peer} \
         --initial-cluster bench=http://{peer} --name bench --log-level error --logger zap"
    );
    command.args(addresses.split_whitespace()).arg("--data-dir").arg(directory.join("etcd"));
    Ok(command)
}

async fn take(etcd: SocketAddr, count: usize) -> Result<Vec<Held>> {
    let template: Template = LOCK.parse()?;
    let (etcd, lock) = (vec![format!("http://{etcd}")], Some(template.clone()));
    let options = LockOptions { etcd, lock, ..LockOptions::default() };
    let first = Lock::open(&options, RUN_MAX).await?;
    let locks: Vec<Lock> = (0..count).map(|number| first.named(template.of(number))).collect();
    acquire_all(&locks, OWNER).await
}

/// Writes the certificate of all targets, on P-256, and that of its authority. HAProxy wants the
/// certificate and its key in one file.
fn write_certificates(directory: &Path, host: Ipv4Addr) -> Result<()> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let mut server = CertificateParams::default();
    server.subject_alt_names = vec![SanType::IpAddress(host.into())];
    let key = KeyPair::generate()?;
    let certificate = server.signed_by(&key, &authority)?.pem();
    let key = key.serialize_pem();
    std::fs::write(directory.join("authority.pem"), authority.pem())?;
    std::fs::write(directory.join("pair.pem"), format!("{certificate}{key}"))?;
    std::fs::write(directory.join("certificate.pem"), certificate)?;
    Ok(std::fs::write(directory.join("key.pem"), key)?)
}
