//! `kind = "kubernetes"`.

use super::SourceKind;
use crate::address::HostPort;
use crate::reader::Table;
use crate::tls::{ClientTls, check_host, parse_file};

const BESIDE_URL: &str =
    "is for a server that url names: in a pod, its own certificate authority and token are used";

pub(super) fn read(t: &mut Table<'_>) -> Option<SourceKind> {
    let url = t.text("url", HostPort::parse_endpoint);
    let tls = t.table("tls", ClientTls::read);
    let token_file = t.text("token_file", parse_file);
    if !t.is_written("url") {
        for key in t.written(&["tls", "token_file"]) {
            t.problem(key, BESIDE_URL);
        }
        return Some(SourceKind::Kubernetes { address: None, tls: None, token_file: None });
    }
    let (is_secure, address) = url?;
    if !is_secure {
        t.problem("url", "must begin with https://: an API server takes nothing else");
    }
    if !t.is_written("tls") {
        t.problem("tls", r#"missing: at least tls = { ca = "/path" } in a file"#);
    }
    if tls.as_ref().is_some_and(|tls| tls.server_name.is_none()) {
        check_host(&address.host, &t.place_of("url"), t.notes);
    }
    Some(SourceKind::Kubernetes { address: Some(address), tls: tls.map(Box::new), token_file })
}
