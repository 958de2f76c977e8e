//! The files that a configuration names: whether they can be used.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fencepost_config::{
    AccessLogTarget, Config, Problem, Problems, Source, SourceKind, UpstreamProtocol,
};
use fencepost_tls::{Expiry, FileRole, Flaw, Followed, TlsError, TrustEntry};
use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::etcd_access::made_user;
use crate::lock_sources::made_zookeeper_user;
use crate::{client_tls, server_tls};

/// Who is to use what a configuration names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// This process.
    Ourselves,
    /// The service, which may be another user: what this process can't read or write is worth a
    /// warning.
    Service,
}

/// Reads the TLS and password files that the configuration names, and looks whether its `state_dir`
/// and its access log can be written. Returns what has ended or soon will, what has not begun, and
/// what is not there yet. Leaves nothing behind.
///
/// # Errors
/// Every one that is of no use.
pub fn files(config: &Config, user: User) -> Result<Vec<Problem>, Problems> {
    let places = &config.places;
    let (now, mut problems, mut warnings) = (SystemTime::now(), Vec::new(), Vec::new());
    for TlsTable { key, authorities, files } in tls(config) {
        match files {
            Ok(files) => {
                let cautions = files.ends.iter().filter_map(|end| end.caution(now));
                warnings.extend(cautions.map(|caution| places.problem(&key, caution)));
            }
            Err(error) => {
                let of = match error.role {
                    FileRole::Certificate => "certificate",
                    FileRole::Key => "key",
                    FileRole::Authorities => authorities,
                    FileRole::Crl => "crl",
                };
                let is_for_us = user == User::Service && is_the_services_own(&error);
                let list = if is_for_us { &mut warnings } else { &mut problems };
                list.push(places.problem(&format!("{key}.{of}"), error));
            }
        }
    }
    warnings.extend(config.sources.iter().filter_map(|source| {
        let key = format!("source.{}.password_file", source.name);
        Some(places.problem(&key, password_caution(source)?))
    }));
    let log = config.access_log.as_ref().and_then(|log| match &log.target {
        AccessLogTarget::File(path) => Some(path.as_path()),
        AccessLogTarget::Stdout | AccessLogTarget::Stderr => None,
    });
    let looks = [
        ("state_dir", config.state_dir.as_deref().map(look_at_state_dir)),
        ("access_log.path", log.map(look_at_access_log)),
    ];
    for (key, look) in looks {
        match look {
            None | Some(Ok(())) => {}
            Some(Err(Unusable::ForUs(why))) if user == User::Service => {
                warnings.push(places.problem(key, why))
            }
            Some(Err(Unusable::ForUs(why) | Unusable::ForAnybody(why))) => {
                problems.push(places.problem(key, why))
            }
        }
    }
    Problems::none(problems).map(|()| warnings)
}

/// Whether the service may read a file that this process can't: it may be another user, and what
/// systemd hands it (`LoadCredential=`) is there while it runs.
fn is_the_services_own(error: &TlsError) -> bool {
    let is_denied = || access(&error.file, Access::READ_OK) == Err(Errno::ACCESS);
    matches!(error.flaw, Flaw::Unreadable(_))
        && (error.file.starts_with("/run/credentials") || is_denied())
}

/// What each certificate of the trust files is good for: one line each, in the order of the
/// configuration. A file that several settings name has one line, unless it is good for something
/// else under another setting.
pub fn trusted(config: &Config) -> Vec<String> {
    let (now, mut known, mut lines) = (SystemTime::now(), HashSet::new(), Vec::new());
    for TlsTable { key, authorities, files } in tls(config) {
        // An error is told by `files`.
        for entry in files.iter().flat_map(|files| files.trusted.iter()) {
            let TrustEntry { file, number, subject, .. } = entry;
            let line = format!(
                "{}: certificate {number}, {subject:?}: {}",
                file.display(),
                entry.good_for(now)
            );
            if known.insert(line.clone()) {
                lines.push(format!("{key}.{authorities}: {line}"));
            }
        }
    }
    lines
}

/// A table of TLS.
struct TlsTable {
    /// Its key.
    key: String,
    /// What the authorities are called in it.
    authorities: &'static str,
    files: Result<TlsContents, TlsError>,
}

/// What the files of a table hold.
struct TlsContents {
    /// When they begin and end.
    ends: Arc<[Expiry]>,
    trusted: Arc<[TrustEntry]>,
}

fn tls(config: &Config) -> impl Iterator<Item = TlsTable> {
    let listeners = config.listeners.iter().enumerate();
    let listeners =
        listeners.map(|(index, one)| (format!("listener[{index}].tls"), one.tls.as_ref()));
    let admin = config.admin.iter().map(|admin| ("admin.tls".to_owned(), admin.tls.as_ref()));
    let accepting = listeners.chain(admin).filter_map(|(key, tls)| {
        let files = server_tls::load(tls?);
        let files =
            files.map(|tls| TlsContents { ends: tls.expiries(), trusted: tls.trust_entries() });
        Some(TlsTable { key, authorities: "client_ca", files })
    });
    let sources = config
        .sources
        .iter()
        .filter_map(|source| Some((format!("source.{}.tls", source.name), source.kind.tls()?)));
    let workers = config.routes.iter().filter_map(|route| match &route.upstream.protocol {
        UpstreamProtocol::Tls(tls) => {
            Some((format!("route.{}.upstream_tls", route.name), &tls.files))
        }
        UpstreamProtocol::Http1 | UpstreamProtocol::H2c => None,
    });
    let connecting = sources.chain(workers).map(|(key, tls)| {
        let files = client_tls::load(tls, &[]);
        let files =
            files.map(|tls| TlsContents { ends: tls.expiries(), trusted: tls.trust_entries() });
        TlsTable { key, authorities: "ca", files }
    });
    accepting.chain(connecting)
}

/// It is read when the source logs in: until it is there, the store refuses that.
fn password_caution(source: &Source) -> Option<String> {
    let (file, outcome) = match &source.kind {
        SourceKind::Etcd { user, .. } => {
            let user = user.as_ref()?;
            (&user.password_file, made_user(user).check())
        }
        SourceKind::Zookeeper { user, .. } => {
            let user = user.as_ref()?;
            (&user.password_file, made_zookeeper_user(user).check())
        }
        SourceKind::Consul { .. }
        | SourceKind::Kubernetes { .. }
        | SourceKind::Postgres(_)
        | SourceKind::Mysql(_)
        | SourceKind::Memory => return None,
    };
    Some(format!("{}: {}", file.display(), outcome.err()?))
}

/// Why something cannot be written.
enum Unusable {
    /// By the user who runs this.
    ForUs(String),
    ForAnybody(String),
}

/// The directory is made when it is first used, with those above it that are missing.
fn look_at_state_dir(path: &Path) -> Result<(), Unusable> {
    let Some(there) = path.ancestors().find(|ancestor| ancestor.symlink_metadata().is_ok()) else {
        return Ok(());
    };
    look_at_directory(path, there)
}

/// The file is made when it is first opened, and nothing above it.
fn look_at_access_log(path: &Path) -> Result<(), Unusable> {
    let unusable = |what| Err(Unusable::ForAnybody(format!("{} is a {what}", path.display())));
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => unusable("directory"),
        Ok(metadata) if metadata.file_type().is_socket() => unusable("socket"),
        Ok(_) => may(path, path, Access::WRITE_OK),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            look_at_directory(path, path.parent().unwrap_or(path))
        }
        Err(error) => Err(Unusable::ForUs(format!("{}: {error}", path.display()))),
    }
}

/// Whether something can be made in a directory, on the way to `path`.
fn look_at_directory(path: &Path, there: &Path) -> Result<(), Unusable> {
    let unusable =
        |why: String| Unusable::ForAnybody(format!("{}: {}{why}", path.display(), there.display()));
    let metadata = there.metadata().map_err(|error| unusable(format!(": {error}")))?;
    if !metadata.is_dir() {
        return Err(unusable(" is no directory".to_owned()));
    }
    may(path, there, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK)
}

fn may(path: &Path, there: &Path, what: Access) -> Result<(), Unusable> {
    let cannot = |error| {
        format!("{}: {} cannot be written by this user: {error}", path.display(), there.display())
    };
    access(there, what).map_err(|error| Unusable::ForUs(cannot(error)))
}
