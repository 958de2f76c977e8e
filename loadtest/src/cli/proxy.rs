//! The options that say where the proxy is, of all that send requests.

use std::path::PathBuf;

use clap::Args;

use crate::target::{Address, Target};
use crate::tls::Files;

/// Where the proxy is, and how to reach it.
#[derive(Debug, Args)]
pub(crate) struct ProxyOptions {
    /// The running proxy.
    #[arg(long, value_name = "http[s]://HOST:PORT")]
    pub(crate) proxy: Address,
    /// The authorities that signed the certificate of an "https://" proxy (PEM). No other is believed.
    #[arg(long, value_name = "FILE")]
    pub(crate) proxy_ca: Option<PathBuf>,
    /// The certificate to present to it (PEM).
    #[arg(long, value_name = "FILE", requires = "proxy_key")]
    pub(crate) proxy_cert: Option<PathBuf>,
    /// Its private key (PEM).
    #[arg(long, value_name = "FILE", requires = "proxy_cert")]
    pub(crate) proxy_key: Option<PathBuf>,
}

impl ProxyOptions {
    /// What no single option shows to be wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        match (self.proxy.is_secure(), &self.proxy_ca) {
            (true, None) => {
                Err(format!("--proxy {}: no authority is believed that --proxy-ca does not name", self.proxy))
            }
            (false, ca) if ca.is_some() || self.proxy_cert.is_some() => Err(format!(
                "--proxy-ca, --proxy-cert and --proxy-key are for an https:// proxy, and --proxy is {}",
                self.proxy
            )),
            (true | false, _) => Ok(()),
        }
    }

    /// The proxy that they say.
    ///
    /// # Errors
    /// A file is not what it should be.
    pub(crate) fn target(&self) -> anyhow::Result<Target> {
        let identity = self.proxy_cert.as_deref().zip(self.proxy_key.as_deref());
        let files = self.proxy_ca.as_deref().map(|ca| Files { ca, identity });
        Target::new(&self.proxy, files.as_ref())
    }
}
