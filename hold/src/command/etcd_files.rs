//! The files by which etcd lets a holder in. They may be replaced while it holds.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Etcd, EtcdBuilder, InvalidEtcd};
use fencepost_tls::{FileRole, IdentityFiles, TlsError};
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

impl EtcdFiles {
    /// Reads them: the cluster, reached by what they hold.
    ///
    /// # Errors
    /// Which cannot be read, and why, with the argument that names it.
    pub(super) fn read(&self) -> Result<EtcdBuilder, String> {
        let mut etcd = Etcd::builder(&self.endpoints);
        if let Some(ca) = &self.ca {
            etcd = etcd.ca_pem(read("--etcd-ca", ca)?);
        }
        if let Some(IdentityFiles { certificate, key }) = &self.identity {
            etcd = etcd.identity_pem(read("--etcd-cert", certificate)?, read("--etcd-key", key)?);
        }
        if let Some((user, file)) = &self.user {
            etcd = etcd.user(user, password(file)?);
        }
        Ok(etcd)
    }

    /// Why there is no such cluster, with the argument that says so.
    pub(super) fn in_words(&self, error: &InvalidEtcd) -> String {
        let none = PathBuf::new();
        let identity = self.identity.as_ref();
        match error {
            InvalidEtcd::NoAuthority => format!("--etcd: {error}: name its file by --etcd-ca"),
            InvalidEtcd::NoTls => format!("--etcd-ca, --etcd-cert and --etcd-key: {error}"),
            InvalidEtcd::Tls(TlsError { role, flaw, .. }) => {
                let (argument, file) = match role {
                    FileRole::Certificate => {
                        ("--etcd-cert", identity.map(|identity| &identity.certificate))
                    }
                    FileRole::Key => ("--etcd-key", identity.map(|identity| &identity.key)),
                    FileRole::Authorities | FileRole::Crl => ("--etcd-ca", self.ca.as_ref()),
                };
                format!("{argument}: {}: {flaw}", file.unwrap_or(&none).display())
            }
            InvalidEtcd::NoEndpoint
            | InvalidEtcd::Endpoint(_)
            | InvalidEtcd::Twice(_)
            | InvalidEtcd::Mixed(_) => {
                format!("--etcd: {error}")
            }
        }
    }

    /// Has the cluster reached by what they hold from then on, whenever that has changed, for as
    /// long as it is polled. `in_force` is what it is reached by.
    pub(super) async fn follow(
        &self,
        etcd: &Etcd,
        in_force: EtcdBuilder,
        console: &Console,
    ) -> Infallible {
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
            let look = tokio::task::spawn_blocking(move || {
                files.can_be_read_again().then(|| files.read())
            });
            let Ok(Some(now)) = look.await else { continue };
            // A certificate and its key are written one after the other: what two looks have found
            // counts.
            let is_settled = seen == now;
            seen = now;
            if !is_settled || followed == seen {
                continue;
            }
            followed = seen.clone();
            let renewed = match followed.clone() {
                Ok(said) => etcd.renew(said).map_err(|error| self.in_words(&error)),
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
        let identity =
            self.identity.iter().flat_map(|identity| [&identity.certificate, &identity.key]);
        self.ca.iter().chain(identity).chain(self.user.iter().map(|(_, file)| file))
    }
}

fn password(file: &Path) -> Result<String, String> {
    let text = String::from_utf8(read("--etcd-password-file", file)?);
    let text = text.map_err(|_| format!("--etcd-password-file: {} is not text", file.display()))?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

fn read(argument: &str, file: &Path) -> Result<Vec<u8>, String> {
    fencepost_tls::read_up_to(MEBIBYTES_MAX, file)
        .map_err(|error| format!("{argument}: {}: {error}", file.display()))
}
