//! From what is written of a lock store to what it means.

use std::path::PathBuf;

use crate::address::HostPort;
use crate::check::{DeclaredSource, NAME_RULE, is_name};
use crate::config::{EtcdUser, Source, SourceKind};
use crate::problem::{Notes, Place};
use crate::raw::RawSource;
use crate::setting::Setting;
use crate::tls::{ClientTls, RawClientTls, check_host, parse_file};

pub(crate) fn check_source(raw: RawSource, notes: &Notes) -> Option<DeclaredSource> {
    let RawSource { name, kind, endpoints, cluster_id, tls, username, password_file } = raw;
    let place = name.place.clone();
    let name = name.into_value()?;
    let valid_name = is_name(&name);
    if !valid_name {
        notes.problem(&place, NAME_RULE);
    }
    #[derive(Clone, Copy)]
    enum Kind {
        Etcd,
        Memory,
    }
    let etcd = RawEtcd { endpoints, cluster_id, tls, username, password_file };
    let kind = kind.choice(notes, &[("etcd", Kind::Etcd), ("memory", Kind::Memory)]);
    let kind = kind.required(notes, r#""etcd" or "memory""#).and_then(|kind| match kind {
        Kind::Etcd => etcd.check(notes),
        Kind::Memory => etcd.check_absent(notes),
    });
    let source = kind.filter(|_| valid_name).map(|kind| Source { name: name.clone(), kind });
    Some(DeclaredSource { name, source, place })
}

/// What only a source of kind `etcd` has.
struct RawEtcd {
    endpoints: Setting<Vec<Setting<String>>>,
    cluster_id: Setting<String>,
    tls: Setting<RawClientTls>,
    username: Setting<String>,
    password_file: Setting<String>,
}

impl RawEtcd {
    fn check(self, notes: &Notes) -> Option<SourceKind> {
        let RawEtcd { endpoints, cluster_id, tls, username, password_file } = self;
        let cluster_id = cluster_id.parse(notes, |text| parse_cluster_id(&text));
        let names_server = tls.value().is_some_and(RawClientTls::names_server);
        let (endpoints, is_secure) = check_endpoints(endpoints, names_server, notes)?;
        let tls = check_tls(tls, is_secure, notes);
        let username_place = username.place.clone();
        let user = check_user(username, password_file, notes);
        if matches!(user, Some(Some(_))) && is_secure == Some(false) {
            notes.warning(&username_place, "its password and its logins go over the network as they are: use https");
        }
        Some(SourceKind::Etcd { endpoints, cluster_id: cluster_id.into_value(), tls: tls?.map(Box::new), user: user? })
    }

    fn check_absent(self, notes: &Notes) -> Option<SourceKind> {
        let nothing_to_connect_to =
            r#"a source of kind "memory" is in this process and connects to nothing: leave it out"#;
        let RawEtcd { endpoints, cluster_id, tls, username, password_file } = self;
        let written = [
            (&endpoints.place, endpoints.is_written()),
            (&cluster_id.place, cluster_id.is_written()),
            (&tls.place, tls.is_written()),
            (&username.place, username.is_written()),
            (&password_file.place, password_file.is_written()),
        ];
        for (place, written) in written {
            if written {
                notes.problem(place, nothing_to_connect_to);
            }
        }
        Some(SourceKind::Memory)
    }
}

/// The members, and whether they are reached over TLS; that is `None` if none of them says so. `names_server`: whether their
/// certificates are for another name than their hosts'.
fn check_endpoints(
    raw: Setting<Vec<Setting<String>>>,
    names_server: bool,
    notes: &Notes,
) -> Option<(Vec<HostPort>, Option<bool>)> {
    let list_place = raw.place.clone();
    let list = raw.required(notes, r#"the members of the etcd cluster, like ["http://127.0.0.1:2379"]"#)?;
    if list.is_empty() {
        notes
            .problem(&list_place, r#"must have at least one member of the etcd cluster, like "http://127.0.0.1:2379""#);
    }
    let mut endpoints: Vec<HostPort> = Vec::new();
    let mut is_secure = None;
    for endpoint in list {
        let place = endpoint.place.clone();
        let endpoint = endpoint.parse(notes, |text| HostPort::parse_endpoint(&text));
        let Some((secure, endpoint)) = endpoint.into_value() else {
            continue;
        };
        check_is_new(&endpoints, &endpoint, &place, notes);
        if secure && !names_server {
            check_host(&endpoint.host, &place, notes);
        }
        if *is_secure.get_or_insert(secure) != secure {
            notes.problem(&place, "must begin as the others do: all of them with http:// or all with https://");
        }
        endpoints.push(endpoint);
    }
    Some((endpoints, is_secure))
}

fn check_is_new(endpoints: &[HostPort], endpoint: &HostPort, place: &Place, notes: &Notes) {
    if endpoints.contains(endpoint) {
        notes.problem(place, format_args!("{endpoint} is in the list already"));
    }
}

/// What TLS is made of, `None` inside for cleartext.
fn check_tls(raw: Setting<RawClientTls>, is_secure: Option<bool>, notes: &Notes) -> Option<Option<ClientTls>> {
    let place = raw.place.clone();
    if is_secure == Some(false) && raw.is_written() {
        notes.problem(&place, "means nothing with http:// endpoints: write https://, or leave it out");
    }
    let tls = match is_secure {
        Some(true) => {
            raw.required(notes, r#"with https:// endpoints, at least tls = { ca = "/path" } in a file"#).map(Some)?
        }
        Some(false) | None => raw.into_value(),
    };
    match tls {
        Some(tls) => tls.check(notes).map(Some),
        None => Some(None),
    }
}

/// Who logs in, `None` inside for nobody.
fn check_user(username: Setting<String>, password_file: Setting<String>, notes: &Notes) -> Option<Option<EtcdUser>> {
    if !username.is_written() && !password_file.is_written() {
        return Some(None);
    }
    let name = username.parse(notes, parse_username).required(notes, "whose password_file it is");
    let file = password_file.parse(notes, parse_file).required(notes, "the file of the user's password");
    let (name, password_file): (String, PathBuf) = (name?, file?);
    Some(Some(EtcdUser { name, password_file }))
}

fn parse_username(name: String) -> Result<String, String> {
    if name.is_empty() || name.contains(char::is_control) {
        return Err(format!("must be the name of a user of etcd, not {name:?}"));
    }
    Ok(name)
}

/// The id as `etcdctl member list -w fields` and etcd's log have it.
fn parse_cluster_id(text: &str) -> Result<u64, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(text, 16)
        .ok()
        .filter(|_| digits)
        .ok_or_else(|| format!(r#"must be 1 to 16 hexadecimal digits, like "cdf818194e3a8c32", not {text:?}"#))
}
