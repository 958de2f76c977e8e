//! Whether the files are of use that a configuration brings into use.

use std::collections::HashSet;
use std::time::Duration;

use fencepost_config::{
    ClientTls, Config, EtcdUser, Route, Routes, Source, SourceKind, UpstreamProtocol,
};
use fencepost_tls::ClientFiles;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::check::{self, User};
use crate::client_tls;

/// How long files may take to be read. A file system that does not answer makes others wait for
/// ever.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the files that `new` has made anew, where signals need not wait for it. What is at hand
/// then is read again when it is made.
///
/// # Errors
/// Every one that is of no use, with its line and key.
pub(super) async fn first_looks(old: &Config, new: &Config) -> Result<(), Vec<String>> {
    let made_anew = made_anew(old, new);
    let unread = |why: String| {
        vec![
            new.places
                .problem("", format!("the files that it names could not be read{why}"))
                .to_string(),
        ]
    };
    // Not one after the other: while one configuration waits for its files, the next may name
    // others.
    let looks = spawn_blocking(move || check::files(&made_anew, User::Ourselves));
    match timeout(READ_TIMEOUT, looks).await {
        Ok(Ok(Ok(_warnings))) => Ok(()), // Whoever uses them warns.
        Ok(Ok(Err(problems))) => Err(problems.iter().map(ToString::to_string).collect()),
        Ok(Err(panic)) => Err(unread(format!(": {panic}"))),
        Err(_) => Err(unread(format!(" within {READ_TIMEOUT:?}"))),
    }
}

/// `new` with only what is made anew of files. What goes on does so whatever its files hold by now.
fn made_anew(old: &Config, new: &Config) -> Config {
    let goes_on = |source: &Source| {
        old.sources.iter().any(|other| other.name == source.name && access(other) == access(source))
    };
    let made: HashSet<Option<ClientFiles>> = old.routes.iter().map(worker_files).collect();
    Config {
        listeners: Vec::new(),
        admin: None,
        state_dir: None,
        sources: new.sources.iter().filter(|source| !goes_on(source)).cloned().collect(),
        routes: Routes::new(
            new.routes
                .iter()
                .filter(|route| !made.contains(&worker_files(route)))
                .cloned()
                .collect(),
        ),
        ..new.clone()
    }
}

fn access(source: &Source) -> Option<(Option<&ClientTls>, Option<&EtcdUser>)> {
    match &source.kind {
        SourceKind::Etcd { tls, user, .. } => Some((tls.as_deref(), user.as_ref())),
        SourceKind::Consul { .. }
        | SourceKind::Kubernetes { .. }
        | SourceKind::Zookeeper { .. }
        | SourceKind::Postgres(_)
        | SourceKind::Mysql(_)
        | SourceKind::Memory => None,
    }
}

fn worker_files(route: &Route) -> Option<ClientFiles> {
    match &route.upstream.protocol {
        UpstreamProtocol::Tls(tls) => Some(client_tls::files(&tls.files)),
        UpstreamProtocol::Http1 | UpstreamProtocol::H2c => None,
    }
}
