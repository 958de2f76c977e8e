//! `kind = "etcd"`.

use std::path::PathBuf;

use super::SourceKind;
use crate::address::HostPort;
use crate::problem::must_be;
use crate::reader::Table;
use crate::tls::{ClientTls, check_host, parse_file};

/// A user of etcd. What the file holds is no part of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdUser {
    /// The name: not empty, no control characters.
    pub name: String,
    /// The file of the password; an absolute path.
    pub password_file: PathBuf,
}

/// The keys of such a source.
pub(super) const KEYS: [&str; 5] = ["endpoints", "cluster_id", "tls", "username", "password_file"];

const NO_TLS: &str =
    r#"missing: with https:// endpoints, at least tls = { ca = "/path" } in a file"#;
const IN_CLEARTEXT: &str = "its password and its logins go over the network as they are: use https";

pub(super) fn read(t: &mut Table<'_>) -> Option<SourceKind> {
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
    Some(SourceKind::Etcd { endpoints, cluster_id, tls: tls.map(Box::new), user })
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
