//! What `fencepost hold` can be asked to do.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Etcd, EtcdUser, InvalidEtcd, InvalidLock, Lock};
use clap::{ArgGroup, Args};
use fencepost_tls::{ClientFiles, FileRole, IdentityFiles};

use super::console::Console;
use super::exit::{self, Exit, with_causes};
use super::header_names::HeaderNames;
use super::proxy_address::ProxyAddress;
use super::proxy_link::ProxyTls;
use super::stamp::StampRule;

/// How long etcd may take to answer a call before the command gives up the lock.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// How long etcd may take to answer with `--try`.
pub(super) const TRY_WITHIN: Duration = Duration::from_secs(3);

/// Hold a lock, and run a command under it.
#[derive(Debug, Clone, Args)]
// Those by which anything is sent to proxies.
#[command(group = ArgGroup::new("sends").args(["fence", "stamp"]).multiple(true))]
pub struct HoldSettings {
    /// A member of the etcd cluster, e.g. "http://127.0.0.1:2379"; may be given several times, or
    /// separated by commas.
    #[arg(long, value_name = "URL", required = true, value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// The key of the lock: created when it is taken (fencepost's layout "key"), removed when it is
    /// given back.
    #[arg(long, value_name = "KEY")]
    pub lock: String,
    /// In whose name: what the command's requests say in Fence-Owner; not empty, 4 KiB at most.
    #[arg(long, value_name = "NAME")]
    pub owner: String,
    /// For how long the lock stays taken after its holder was last heard of, in whole seconds.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    pub ttl: Duration,
    /// Wait in line, in the order of arrival. Those who don't may come first when the lock gets
    /// free.
    #[arg(long)]
    pub queue: bool,
    /// Don't wait: if the lock is held, exit at once (with --conflict-exit-code).
    #[arg(long, conflicts_with = "queue")]
    pub r#try: bool,
    /// Exit when the lock is lost, with 76, instead of taking it again and running the command
    /// again.
    #[arg(long)]
    pub once: bool,
    /// How long the command has between SIGTERM and SIGKILL; when the lock is lost, a fifth of the
    /// ttl at most.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = humantime::parse_duration)]
    pub grace: Duration,
    /// Leave the command in the terminal's foreground, so that it may read from it. Signals are
    /// then passed on to the command alone, not to what it has started, and SIGINT and SIGQUIT not
    /// at all: they come from the terminal. If this process is killed with -9, what the command had
    /// started outlives it if its parent had ended before.
    #[arg(long)]
    pub foreground: bool,
    /// Before the command starts, have this proxy wait until nothing of an earlier holder can reach
    /// the worker any more. Leave it out while the routes of the lock only watch (mode = "shadow"):
    /// the proxy refuses then, and the command is not started.
    #[arg(long, value_name = "URL")]
    pub fence: Option<ProxyAddress>,
    /// Take the command's requests at this loopback address and send them to that proxy with the
    /// tenure's headers, for as long as the tenure lasts; may be given several times. The
    /// addresses, with the ports that the system chose for port 0, are in FENCE_STAMP. Whatever
    /// reaches the address speaks in the owner's name: with port 0 it is another in each tenure,
    /// and nothing that an earlier command left behind knows it.
    #[arg(long, value_name = "ADDRESS=URL", value_parser = StampRule::parse)]
    pub stamp: Vec<StampRule>,
    /// The exit code of --try when the lock is held.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = exit::CONFLICT)]
    pub conflict_exit_code: u8,
    /// Say each step.
    #[arg(short, long)]
    pub verbose: bool,
    /// The authority that signed the certificates of etcd, or these certificates (PEM): for
    /// "https://" endpoints. No other is believed. This file and those below may be replaced at any
    /// time: connections and logins that begin then go by what they hold.
    #[arg(long, value_name = "FILE", help_heading = "How to reach etcd")]
    pub etcd_ca: Option<PathBuf>,
    /// The certificate to present to etcd (PEM).
    #[arg(long, value_name = "FILE", requires = "etcd_key", help_heading = "How to reach etcd")]
    pub etcd_cert: Option<PathBuf>,
    /// Its private key (PEM).
    #[arg(long, value_name = "FILE", requires = "etcd_cert", help_heading = "How to reach etcd")]
    pub etcd_key: Option<PathBuf>,
    /// The name that the certificates of etcd must have, if it is not the host of the endpoint, e.g.
    /// "etcd.example" where endpoints are addresses or a tunnel.
    #[arg(long, value_name = "NAME", requires = "etcd_ca", help_heading = "How to reach etcd")]
    pub etcd_server_name: Option<String>,
    /// The user of etcd to log in as.
    #[arg(
        long,
        value_name = "NAME",
        requires = "etcd_password_file",
        help_heading = "How to reach etcd"
    )]
    pub etcd_user: Option<String>,
    /// The file with that user's password; an end of line at its end does not count.
    #[arg(long, value_name = "FILE", requires = "etcd_user", help_heading = "How to reach etcd")]
    pub etcd_password_file: Option<PathBuf>,
    /// The authorities that signed the certificates of the proxies of --fence and --stamp, or these
    /// certificates (PEM): for "https://" ones. No other is believed.
    #[arg(long, value_name = "FILE", help_heading = "How to reach proxies")]
    pub proxy_ca: Option<PathBuf>,
    /// The certificate to present to these proxies (PEM). Like the others of these files, it may be
    /// replaced at any time.
    #[arg(
        long,
        value_name = "FILE",
        requires = "proxy_key",
        help_heading = "How to reach proxies"
    )]
    pub proxy_cert: Option<PathBuf>,
    /// Its private key (PEM).
    #[arg(
        long,
        value_name = "FILE",
        requires = "proxy_cert",
        help_heading = "How to reach proxies"
    )]
    pub proxy_key: Option<PathBuf>,
    /// In which headers these proxies find the tenure.
    #[command(flatten)]
    pub header_names: HeaderNames,
    /// The command, and its arguments. Run hold as the user that the command becomes, or as root:
    /// one that runs as another user (by sudo, say) cannot be ended, and may run on beside the next
    /// holder's.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl HoldSettings {
    /// The cluster that is meant.
    pub(super) fn etcd(&self, console: &Console) -> Result<Etcd, Exit> {
        let is_open = self.etcd.iter().any(|endpoint| endpoint.starts_with("http://"));
        let mut etcd = Etcd::builder(&self.etcd);
        let identity = identity_files(&self.etcd_cert, &self.etcd_key);
        if let Some(ca) = self.etcd_ca.clone() {
            etcd = etcd.tls(ClientFiles { ca, crl: None, identity });
        } else if is_open && identity.is_some() {
            return Err(in_words(&InvalidEtcd::NoTls));
        }
        if let Some(name) = &self.etcd_server_name {
            etcd = etcd.server_name(name);
        }
        if let Some((name, file)) = self.etcd_user.as_ref().zip(self.etcd_password_file.as_ref()) {
            let user = EtcdUser::with_file(name, file);
            user.check().map_err(|error| {
                Exit::usage(format!("--etcd-password-file: {}: {error}", file.display()))
            })?;
            if is_open {
                console.print(format_args!(
                    "--etcd-user: the password goes over the network as it is: use https"
                ));
            }
            etcd = etcd.user(user);
        }
        etcd.build().map_err(|error| in_words(&error))
    }

    /// The lock that is meant.
    pub(super) fn lock(&self, etcd: &Etcd) -> Result<Lock, Exit> {
        let answer_within = if self.r#try { TRY_WITHIN } else { ANSWER_WITHIN };
        let lock = Lock::builder(&self.lock, &self.owner)
            .ttl(self.ttl)
            .queue(self.queue)
            .answer_within(answer_within);
        lock.build(etcd).map_err(|error| {
            let option = match &error {
                InvalidLock::Key(_) => "--lock",
                InvalidLock::Owner(_) => "--owner",
                InvalidLock::Ttl(_) => "--ttl",
            };
            Exit::usage(format!("{option}: {}", with_causes(&error)))
        })
    }

    /// No address of --stamp is there twice: the second listener would wait for the first. With
    /// port 0 each has its own.
    pub(super) fn check_addresses(&self) -> Result<(), Exit> {
        for (place, StampRule { listen, .. }) in self.stamp.iter().enumerate() {
            if listen.port() != 0
                && self.stamp[..place].iter().any(|earlier| earlier.listen == *listen)
            {
                return Err(Exit::usage(format!("--stamp: {listen} is there twice")));
            }
        }
        Ok(())
    }

    /// TLS with the proxies, if any of them speaks it.
    pub(super) fn proxy_tls(&self, console: &Console) -> Result<Option<ProxyTls>, Exit> {
        let fence = self.fence.iter().map(|proxy| ("--fence", proxy));
        let mut proxies = fence.chain(self.stamp.iter().map(|rule| ("--stamp", &rule.to)));
        let secure = proxies.find(|(_, proxy)| proxy.server_name().is_some());
        let ca = match (secure, &self.proxy_ca) {
            (Some(_), Some(ca)) => ca.clone(),
            (Some((option, proxy)), None) => {
                let why = format!(
                    "{option} {proxy}: no authority is believed that --proxy-ca does not name"
                );
                return Err(Exit::usage(why));
            }
            (None, None) if self.proxy_cert.is_none() => return Ok(None),
            (None, _) => {
                let why = "--proxy-ca, --proxy-cert and --proxy-key: neither --fence nor --stamp names an https:// proxy";
                return Err(Exit::usage(why.to_owned()));
            }
        };
        let identity = identity_files(&self.proxy_cert, &self.proxy_key);
        let tls = ProxyTls::load(ClientFiles { ca, crl: None, identity }, console.clone());
        tls.map(Some)
            .map_err(|error| Exit::usage(format!("--proxy-{}: {error}", option_of(error.role))))
    }

    /// How long the command has between SIGTERM and SIGKILL when its tenure, of this time to live,
    /// is over. The first comes at three quarters of it, so the second comes before the lock can
    /// have run out.
    pub(super) fn grace_when_lost(&self, ttl: Duration) -> Duration {
        self.grace.min(ttl / 5)
    }
}

fn identity_files(certificate: &Option<PathBuf>, key: &Option<PathBuf>) -> Option<IdentityFiles> {
    let (certificate, key) = certificate.clone().zip(key.clone())?;
    Some(IdentityFiles { certificate, key })
}

/// What the option that names a file ends with.
fn option_of(role: FileRole) -> &'static str {
    match role {
        FileRole::Certificate => "cert",
        FileRole::Key => "key",
        FileRole::Authorities | FileRole::Crl => "ca",
    }
}

/// Why there is no such etcd, with the option that says so.
fn in_words(error: &InvalidEtcd) -> Exit {
    Exit::usage(match error {
        InvalidEtcd::NoAuthority => format!("--etcd: {error}: name its file by --etcd-ca"),
        InvalidEtcd::NoTls => format!("--etcd-ca, --etcd-cert and --etcd-key: {error}"),
        InvalidEtcd::ServerName(_) => format!("--etcd-server-name: {error}"),
        InvalidEtcd::Tls(error) => format!("--etcd-{}: {error}", option_of(error.role)),
        InvalidEtcd::NoEndpoint
        | InvalidEtcd::Endpoint(_)
        | InvalidEtcd::UnixSocket(_)
        | InvalidEtcd::Zone(_)
        | InvalidEtcd::Twice(_)
        | InvalidEtcd::Mixed(_) => format!("--etcd: {error}"),
    })
}
