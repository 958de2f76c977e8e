//! The files by which etcd lets a holder in. They may be replaced while it holds.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Etcd, EtcdBuilder};
use fencepost_tls::{ClientFiles, ClientTls, FileRole, IdentityFiles};
use tokio::time::{MissedTickBehavior, interval};

use super::console::Console;

/// How large each may be, as any file of TLS.
const MEBIBYTES_MAX: u64 = 64;

/// How often they are looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// Which files they are, and what goes with them.
#[derive(Debug, Clone)]
pub(super) struct EtcdFiles {
    pub(super) endpoints: Vec<String>,
    pub(super) ca: Option<PathBuf>,
    pub(super) identity: Option<IdentityFiles>,
    /// A user of etcd, and the file with the password.
    pub(super) user: Option<(String, PathBuf)>,
}

/// What they held.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Contents {
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
    password: Option<String>,
}

impl EtcdFiles {
    /// Reads them.
    ///
    /// # Errors
    /// What is wrong with the first that is of no use, with the argument that names it.
    pub(super) fn read(&self) -> Result<Contents, String> {
        self.check()?;
        let ca = self.ca.as_ref().map(|file| read("--etcd-ca", file)).transpose()?;
        let pair = |IdentityFiles { certificate, key }: &IdentityFiles| {
            Ok::<_, String>((read("--etcd-cert", certificate)?, read("--etcd-key", key)?))
        };
        let identity = self.identity.as_ref().map(pair).transpose()?;
        let password = self.user.as_ref().map(|(_, file)| password(file)).transpose()?;
        Ok(Contents { ca, identity, password })
    }

    /// Looks whether there can be TLS with them, where it is spoken. A pipe can be read only once: it is taken as it is.
    fn check(&self) -> Result<(), String> {
        let is_secure = self.endpoints.iter().any(|endpoint| endpoint.starts_with("https://"));
        let Some(ca) = self.ca.clone().filter(|_| is_secure && self.can_be_read_again()) else { return Ok(()) };
        let checked = ClientTls::load(ClientFiles { ca, crl: None, identity: self.identity.clone() }, &[]);
        checked.map(drop).map_err(|error| {
            let argument = match error.role {
                FileRole::Certificate => "--etcd-cert",
                FileRole::Key => "--etcd-key",
                FileRole::Authorities | FileRole::Crl => "--etcd-ca",
            };
            format!("{argument}: {error}")
        })
    }

    /// The cluster, reached by what they hold.
    pub(super) fn etcd(&self, contents: Contents) -> EtcdBuilder {
        let Contents { ca, identity, password } = contents;
        let mut etcd = Etcd::builder(&self.endpoints);
        if let Some(ca) = ca {
            etcd = etcd.ca_pem(ca);
        }
        if let Some((certificate, key)) = identity {
            etcd = etcd.identity_pem(certificate, key);
        }
        if let (Some((user, _)), Some(password)) = (&self.user, password) {
            etcd = etcd.user(user, password);
        }
        etcd
    }

    /// Has the cluster reached by what they hold from then on, whenever that has changed, for as long as it is polled.
    /// `in_force` is what it is reached by.
    pub(super) async fn follow(&self, etcd: &Etcd, in_force: Contents, console: &Console) -> Infallible {
        if self.paths().next().is_none() {
            return std::future::pending().await;
        }
        let mut ticks = interval(LOOK_PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut followed = Ok(in_force);
        let mut seen = followed.clone();
        loop {
            ticks.tick().await;
            let files = self.clone();
            // Reading a file may block. An error means that reading panicked.
            let look = tokio::task::spawn_blocking(move || files.can_be_read_again().then(|| files.read()));
            let Ok(Some(now)) = look.await else { continue };
            // A certificate and its key are written one after the other: what two looks have found counts.
            let is_settled = seen == now;
            seen = now;
            if !is_settled || followed == seen {
                continue;
            }
            followed = seen.clone();
            let renewed = match followed.clone() {
                Ok(contents) => etcd.renew(self.etcd(contents)).map_err(|error| format!("--etcd: {error}")),
                Err(error) => Err(error),
            };
            match renewed {
                Ok(()) => console.print_verbose(format_args!(
                    "the files for etcd have changed: connections that begin now go by them"
                )),
                Err(error) => console.print(format_args!("{error}; what was in force stays")),
            }
        }
    }

    fn can_be_read_again(&self) -> bool {
        // One that is not there may be there later.
        self.paths().all(|path| path.metadata().map_or(true, |metadata| metadata.is_file()))
    }

    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let identity = self.identity.iter().flat_map(|identity| [&identity.certificate, &identity.key]);
        self.ca.iter().chain(identity).chain(self.user.iter().map(|(_, file)| file))
    }
}

fn password(file: &Path) -> Result<String, String> {
    let text = String::from_utf8(read("--etcd-password-file", file)?);
    let text = text.map_err(|_| format!("--etcd-password-file: {} is not text", file.display()))?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

fn read(argument: &str, file: &Path) -> Result<Vec<u8>, String> {
    fencepost_tls::read_up_to(MEBIBYTES_MAX, file).map_err(|error| format!("{argument}: {}: {error}", file.display()))
}
