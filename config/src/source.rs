//! `[source.NAME]`: a lock store.

use std::path::PathBuf;

use crate::address::HostPort;
use crate::problem::{Place, must_be};
use crate::reader::{Table, nearest, one_of, parse_name};
use crate::tls::{ClientTls, check_host, parse_file};

/// A lock store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its name: `[A-Za-z0-9_-]{1,64}`, a metric label.
    pub name: String,
    /// What it is.
    pub kind: SourceKind,
}

/// The kinds of lock stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceKind {
    /// An etcd cluster.
    Etcd {
        /// Its members; at least one, none twice.
        endpoints: Vec<HostPort>,
        /// The cluster that it must be; `None`: any.
        cluster_id: Option<u64>,
        /// What they are reached with; `None`: in cleartext.
        tls: Option<Box<ClientTls>>,
        /// Who logs in; `None`: nobody.
        user: Option<EtcdUser>,
    },
    /// A store in this process, for demonstrations.
    Memory,
}

/// A user of etcd. What the file holds is no part of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdUser {
    /// The name: not empty, no control characters.
    pub name: String,
    /// The file of the password; an absolute path.
    pub password_file: PathBuf,
}

/// The keys that a source of kind `memory` has not.
const ETCD_KEYS: [&str; 5] = ["endpoints", "cluster_id", "tls", "username", "password_file"];
const NO_MEMORY_KEY: &str =
    r#"a source of kind "memory" is in this process and connects to nothing: leave it out"#;

impl Source {
    /// The source, and where it is written. One with a problem is in the list all the same, so that
    /// routes can name it.
    pub(crate) fn read((name, mut t): (String, Table<'_>)) -> (Source, Place) {
        if let Err(problem) = parse_name(&name) {
            t.notes.problem(&t.place, problem);
        }
        let is_etcd = t.required("kind", r#""etcd" or "memory""#, |kind| {
            one_of(kind, &[("etcd", true), ("memory", false)])
        });
        for key in t.written(&ETCD_KEYS) {
            if is_etcd == Some(false) {
                t.problem(key, NO_MEMORY_KEY);
            }
        }
        let kind = if is_etcd == Some(true) { read_etcd(&mut t) } else { SourceKind::Memory };
        t.finish();
        (Source { name, kind }, t.place)
    }
}

const NO_TLS: &str =
    r#"missing: with https:// endpoints, at least tls = { ca = "/path" } in a file"#;
const IN_CLEARTEXT: &str = "its password and its logins go over the network as they are: use https";

fn read_etcd(t: &mut Table<'_>) -> SourceKind {
    let what = r#"a member of the etcd cluster, like "http://127.0.0.1:2379""#;
    t.require_items("endpoints", what);
    let endpoints = t.list("endpoints", HostPort::parse_endpoint);
    let cluster_id = t.text("cluster_id", parse_cluster_id);
    let tls = t.table("tls", ClientTls::read);
    let is_secure = endpoints.first().map(|(_, (secure, _))| *secure);
    for (place, (secure, HostPort { host, .. })) in &endpoints {
        if *secure && tls.as_ref().is_some_and(|tls| tls.server_name.is_none()) {
            check_host(host, place, t.notes);
        }
        if Some(*secure) != is_secure {
            let text = "must begin as the others do: all of them with http:// or all with https://";
            t.notes.problem(place, text);
        }
    }
    if is_secure == Some(false) && t.is_written("tls") {
        t.problem("tls", "means nothing with http:// endpoints: write https://, or leave it out");
    }
    if is_secure == Some(true) && !t.is_written("tls") {
        t.problem("tls", NO_TLS);
    }
    let has_user = !t.written(&["username", "password_file"]).is_empty();
    let user = has_user.then(|| EtcdUser::read(t)).flatten();
    if user.is_some() && is_secure == Some(false) {
        t.warning("username", IN_CLEARTEXT);
    }
    let endpoints = endpoints.into_iter().map(|(_, (_, endpoint))| endpoint).collect();
    SourceKind::Etcd { endpoints, cluster_id, tls: tls.map(Box::new), user }
}

/// Which of the sources has that name.
pub(crate) fn find_source(name: &str, sources: &[Source]) -> Result<usize, String> {
    sources.iter().position(|source| source.name == name).ok_or_else(|| {
        let near = nearest(name, sources.iter().map(|source| source.name.as_str()));
        let hint = near.map(|near| format!("; did you mean {near:?}?"));
        let hint = hint.unwrap_or_else(|| format!(": [source.{name}] is missing"));
        format!("there is no source {name:?}{hint}")
    })
}

impl EtcdUser {
    fn read(t: &mut Table<'_>) -> Option<EtcdUser> {
        let name = t.required("username", "whose password_file it is", parse_username);
        let file = t.required("password_file", "the file of the user's password", parse_file);
        Some(EtcdUser { name: name?, password_file: file? })
    }
}

fn parse_username(name: &str) -> Result<String, String> {
    let is_name = !name.is_empty() && !name.contains(char::is_control);
    if is_name { Ok(name.to_owned()) } else { Err(must_be("the name of a user of etcd", name)) }
}

/// The id as `etcdctl member list -w fields` and etcd's log have it.
fn parse_cluster_id(text: &str) -> Result<u64, String> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = u64::from_str_radix(text, 16).ok().filter(|_| is_digits);
    id.ok_or_else(|| {
        let must = must_be(r#"1 to 16 hexadecimal digits, like "cdf818194e3a8c32""#, text);
        // As etcdctl has it in JSON.
        let decimal = text.parse::<u64>().ok().filter(|_| is_digits);
        decimal.map_or(must.clone(), |id| format!("{must}: it is decimal, write \"{id:x}\""))
    })
}
