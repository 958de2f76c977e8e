//! The options that say how etcd lets us in, of all that take locks.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

/// How etcd lets us in: by TLS, as a user, or just so.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct EtcdAccess {
    /// The authorities that signed the certificates of an etcd at "https://" (PEM). No other is believed.
    #[arg(long, value_name = "FILE", requires = "etcd")]
    pub(crate) etcd_ca: Option<PathBuf>,
    /// The certificate to present to it (PEM).
    #[arg(long, value_name = "FILE", requires_all = ["etcd_key", "etcd_ca"])]
    pub(crate) etcd_cert: Option<PathBuf>,
    /// Its private key (PEM).
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    pub(crate) etcd_key: Option<PathBuf>,
    /// Log in as this user of etcd.
    #[arg(long, value_name = "NAME", requires_all = ["etcd_password_file", "etcd"])]
    pub(crate) etcd_user: Option<String>,
    /// The file with that user's password; an end of line at its end does not count.
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    pub(crate) etcd_password_file: Option<PathBuf>,
}

impl EtcdAccess {
    /// How a client is to connect.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn options(&self) -> anyhow::Result<ConnectOptions> {
        let mut options = ConnectOptions::new();
        if let Some(ca) = &self.etcd_ca {
            let tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read("--etcd-ca", ca)?));
            options = options.with_tls(match self.etcd_cert.as_deref().zip(self.etcd_key.as_deref()) {
                Some((certificate, key)) => {
                    tls.identity(Identity::from_pem(read("--etcd-cert", certificate)?, read("--etcd-key", key)?))
                }
                None => tls,
            });
        }
        if let Some((name, password)) = self.user()? {
            options = options.with_user(name, password);
        }
        Ok(options)
    }

    /// Whom to log in, with the password.
    ///
    /// # Errors
    /// The file cannot be read, or has no text.
    pub(crate) fn user(&self) -> anyhow::Result<Option<(String, String)>> {
        let Some((name, file)) = self.etcd_user.as_deref().zip(self.etcd_password_file.as_deref()) else {
            return Ok(None);
        };
        let text = String::from_utf8(read("--etcd-password-file", file)?);
        let text = text.ok().with_context(|| format!("--etcd-password-file: {} is not text", file.display()))?;
        let password = text.strip_suffix('\n').map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
        Ok(Some((name.to_owned(), password.to_owned())))
    }
}

fn read(option: &str, file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("{option}: {} cannot be read", file.display()))
}
