//! How the etcd of a source lets us in: what the configuration says, and what is made of it.

use std::sync::Arc;

use fencepost_config as config;
use fencepost_config::{HostPort, SourceKind};
use fencepost_locks::{EtcdAccess, EtcdTls, EtcdUser};
use fencepost_tls::TlsError;

use crate::client_tls;
use crate::metrics::TlsUse;
use crate::tls_files::TlsFiles;

/// How etcd lets us in. What is made for one configuration is kept for later ones that say the
/// same, with its connections.
#[derive(Clone)]
pub(crate) struct Access {
    tls: Option<Box<config::ClientTls>>,
    user: Option<config::EtcdUser>,
    pub(crate) made: Arc<EtcdAccess>,
}

impl Access {
    /// Reads the files of TLS, which are followed from then on under the source's name. `None` for
    /// a source that is reached in no such way.
    ///
    /// # Errors
    /// What is wrong with the first file that is of no use.
    pub(crate) fn new(
        source: &config::Source,
        files: &TlsFiles,
    ) -> Result<Option<Access>, TlsError> {
        let SourceKind::Etcd { tls, user, .. } = &source.kind else { return Ok(None) };
        let made_tls = tls.as_deref().map(make_tls).transpose()?;
        if let Some(EtcdTls { client, .. }) = &made_tls {
            files.follow(TlsUse::Source, &source.name, &client.followed());
        }
        let made = Arc::new(EtcdAccess::new(made_tls, user.as_ref().map(made_user)));
        Ok(Some(Access { tls: tls.clone(), user: user.clone(), made }))
    }

    /// Whether it is what the configuration says.
    pub(crate) fn is_of(&self, kind: &SourceKind) -> bool {
        match kind {
            SourceKind::Etcd { tls, user, .. } => self.tls == *tls && self.user == *user,
            SourceKind::Consul { .. }
            | SourceKind::Kubernetes { .. }
            | SourceKind::Zookeeper { .. }
            | SourceKind::Postgres(_)
            | SourceKind::Mysql(_)
            | SourceKind::Memory => false,
        }
    }

    /// The addresses of members that are reached in this way.
    pub(crate) fn urls(&self, endpoints: &[HostPort]) -> Vec<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        endpoints.iter().map(|endpoint| format!("{scheme}://{endpoint}")).collect()
    }
}

fn make_tls(tls: &config::ClientTls) -> Result<EtcdTls, TlsError> {
    let client = client_tls::load(tls, &[b"h2"])?;
    Ok(EtcdTls { client, server_name: tls.server_name.clone() })
}

/// The user that a source logs in as.
pub(crate) fn made_user(config::EtcdUser { name, password_file }: &config::EtcdUser) -> EtcdUser {
    EtcdUser::with_file(name, password_file)
}
