//! The workers of a configuration, as the upstream side knows them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_config::{Config, Limits, UpstreamProtocol, UpstreamTls};
use fencepost_tls::{ClientFiles, ClientTls, TlsError};
use rustls::pki_types::ServerName;

use crate::client_tls;
use crate::metrics::TlsUse;
use crate::server::Protocol;
use crate::tls_files::TlsFiles;
use crate::upstream::{self, ConnectionQuota, Speaks, UPSTREAM_PROTOCOLS, Upstream};

/// Why TLS to a worker can't be had.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamsError {
    /// A file of it is of no use.
    #[error("no TLS to {upstream}")]
    Files {
        /// The worker.
        upstream: String,
        /// What is wrong with which file.
        source: TlsError,
    },
    /// No certificate can be for the name of the worker.
    #[error("no TLS to {upstream}: {server_name:?} is not a name that a certificate can be for")]
    ServerName {
        /// The worker.
        upstream: String,
        /// Its name.
        server_name: String,
    },
}

/// What the connections to workers are made of, for the configuration that is in force. The next
/// one goes on with what stays.
pub struct Identities {
    files: TlsFiles,
    quota: ConnectionQuota,
    in_force: Mutex<Vec<Identity>>,
}

/// What the connections to the worker of a route are made of, and of those after it that have the
/// same.
#[derive(Clone)]
pub struct Identity {
    route: String,
    files: ClientFiles,
    made: ClientTls,
}

impl Identities {
    /// None yet. Their files are followed by `files`, once they are in force; all connections
    /// together are as many as `quota` has.
    pub fn new(files: TlsFiles, quota: ConnectionQuota) -> Identities {
        Identities { files, quota, in_force: Mutex::default() }
    }

    /// The worker of each route, in the order of the routes, and what the connections to them are
    /// made of.
    ///
    /// # Errors
    /// If TLS to one of them can't be had.
    pub fn upstreams(
        &self,
        config: &Config,
    ) -> Result<(Vec<Upstream>, Vec<Identity>), UpstreamsError> {
        let in_force = self.in_force();
        let mut used: Vec<Identity> = Vec::new();
        let unacknowledged_max = unacknowledged_max(config);
        let upstreams = config.routes.iter().map(|route| {
            let limits = (&config.limits, unacknowledged_max[&route.upstream]);
            upstream(&route.upstream, limits, &self.quota, |files| {
                if let Some(shared) = used.iter().find(|identity| identity.files == files) {
                    return Ok(shared.made.clone());
                }
                // Whatever its route was called: connections that are kept go on with it.
                let known = in_force
                    .iter()
                    .find(|known| known.files == files)
                    .map(|known| known.made.clone());
                let made =
                    known.map_or_else(|| ClientTls::load(files.clone(), UPSTREAM_PROTOCOLS), Ok)?;
                used.push(Identity { route: route.name.clone(), files, made: made.clone() });
                Ok(made)
            })
        });
        let upstreams = upstreams.collect::<Result<_, _>>()?;
        Ok((upstreams, used))
    }

    /// Their configuration is in force: follows the files that are new, and those of a route that
    /// is called otherwise under its present name. Those that no route has any more are followed
    /// until the last connection that is made of them has ended.
    pub fn put_in_force(&self, used: &[Identity]) {
        let mut in_force = self.in_force();
        let has = |all: &[Identity], one: &Identity| {
            all.iter().any(|other| (&other.route, &other.files) == (&one.route, &one.files))
        };
        for one in used.iter().filter(|one| !has(&in_force, one)) {
            self.files.follow(TlsUse::Upstream, &one.route, &one.made.followed());
        }
        let goes_on = |one: &Identity| used.iter().any(|other| other.files == one.files);
        for renamed in in_force.iter().filter(|one| goes_on(one) && !has(used, one)) {
            self.files.unfollow(TlsUse::Upstream, &renamed.route, &renamed.made.followed());
        }
        *in_force = used.to_vec();
    }

    fn in_force(&self) -> MutexGuard<'_, Vec<Identity>> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long what was written to each worker may go unacknowledged: half of the shortest
/// `orphan_timeout` of its routes, which share its connections. So the kernel delivers nothing in
/// the second half of the time for which a request counts as an orphan.
fn unacknowledged_max(config: &Config) -> HashMap<&fencepost_config::Upstream, Duration> {
    const MIN: Duration = Duration::from_millis(500); // Below that, a segment that is lost once loses its connection.
    let mut found = HashMap::new();
    for route in config.routes.iter() {
        let half = (route.orphan_timeout / 2).max(MIN);
        found
            .entry(&route.upstream)
            .and_modify(|least: &mut Duration| *least = half.min(*least))
            .or_insert(half);
    }
    found
}

fn upstream(
    configured: &fencepost_config::Upstream,
    (limits, unacknowledged_max): (&Limits, Duration),
    quota: &ConnectionQuota,
    identity: impl FnOnce(ClientFiles) -> Result<ClientTls, TlsError>,
) -> Result<Upstream, UpstreamsError> {
    let speaks = match &configured.protocol {
        UpstreamProtocol::Http1 => Speaks::Cleartext(Protocol::Http1),
        UpstreamProtocol::H2c => Speaks::Cleartext(Protocol::Http2),
        UpstreamProtocol::Tls(tls) => Speaks::Tls(upstream_tls(tls, configured, identity)?),
    };
    Ok(Upstream {
        connections_max: limits.upstream_connections_max,
        connect_retries: limits.connect_retries,
        headers_max: limits.upstream_headers_max,
        keepalive: configured.keepalive,
        connection_age_max: configured.connection_age_max,
        quota: quota.clone(),
        idle_timeout: limits.upstream_idle_timeout,
        unacknowledged_max,
        ..Upstream::new(configured.address.clone(), speaks)
    })
}

fn upstream_tls(
    tls: &UpstreamTls,
    configured: &fencepost_config::Upstream,
    identity: impl FnOnce(ClientFiles) -> Result<ClientTls, TlsError>,
) -> Result<upstream::UpstreamTls, UpstreamsError> {
    let UpstreamTls { files, server_name } = tls;
    let upstream = || configured.to_string();
    let identity = identity(client_tls::files(files))
        .map_err(|source| UpstreamsError::Files { upstream: upstream(), source })?;
    let server_name = ServerName::try_from(server_name.clone()).map_err(|_| {
        UpstreamsError::ServerName { upstream: upstream(), server_name: server_name.clone() }
    })?;
    Ok(upstream::UpstreamTls { identity, server_name })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `check` calls right is to serve.
    #[test]
    fn the_names_that_a_configuration_takes_are_those_that_a_certificate_can_be_for() {
        let long = |labels: usize| vec!["a".repeat(62); labels].join(".");
        let edges = [
            "a".repeat(63),
            "a".repeat(64),
            format!("{}.a", long(4)),
            format!("{}.aa.", long(4)),
            long(4) + "aa",
        ];
        let plain = [
            "localhost",
            "worker.example",
            "worker.example.",
            "_x",
            "A-b",
            "a--b",
            "1.a",
            "1-2",
            "a.1-2",
            "0x7f",
        ];
        let odd = [
            "",
            ".",
            "..",
            ".a",
            "a..b",
            "a..",
            "-a",
            "a-",
            "worker-.example",
            "-w.example",
            "-",
            "a.-",
            "a.b-.",
        ];
        let foreign = ["a b", "a/b", "a:1", "*.a", "wörker", "a@b", "[::1]", "%41"];
        let digits = [
            "1",
            "1.",
            "a.1",
            "a.1.",
            "1.2.3",
            "1.2.3.4",
            "1.2.3.4.",
            "1.2.3.04",
            "256.1.1.1",
            "1.2.3.4.5",
        ];
        let ipv6 = ["::1", "::", "2001:DB8::1", "::ffff:1.2.3.4", "fe80::1%eth0", "1::2::3", ":::"];
        let names = edges
            .iter()
            .map(String::as_str)
            .chain(plain)
            .chain(odd)
            .chain(foreign)
            .chain(digits)
            .chain(ipv6);
        for name in names {
            let can_be = ServerName::try_from(name).is_ok();
            let named = config("127.0.0.1", "127.0.0.1", &format!(", server_name = {name:?}"));
            assert_eq!(named.is_ok(), can_be, "{name:?}: {named:?}");
            let host = if name.contains(':') { format!("[{name}]") } else { name.to_owned() };
            for read in [config(&host, "127.0.0.1", ""), config("127.0.0.1", &host, "")] {
                assert_eq!(read.is_ok(), can_be, "{host:?}: {read:?}");
            }
        }
    }

    fn config(worker: &str, etcd: &str, more: &str) -> Result<Config, String> {
        let tls = format!("tls = {{ ca = \"/ca.pem\"{more} }}");
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[source.main]\nkind = \"etcd\"\nendpoints = [\"https://{etcd}:2379\"]\n{tls}\n\
             [[route]]\nname = \"all\"\npath = \"/\"\nupstream = \"https://{worker}:9000\"\nupstream_{tls}\n\
             lock = {{ source = \"main\", key = \"/k\" }}\n"
        );
        Config::from_toml("f.toml", &text).map_err(|problems| problems.to_string())
    }
}
