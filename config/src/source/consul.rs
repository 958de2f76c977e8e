//! `kind = "consul"`.

use super::SourceKind;
use crate::address::HostPort;
use crate::reader::Table;
use crate::tls::{ClientTls, check_host, parse_file};

const IN_CLEARTEXT: &str = "the token goes over the network as it is: use https";

pub(super) fn read(t: &mut Table<'_>) -> Option<SourceKind> {
    let what = r#"where Consul's agent is, like "http://127.0.0.1:8500""#;
    let url = t.required("url", what, HostPort::parse_endpoint);
    let tls = t.table("tls", ClientTls::read);
    let token_file = t.text("token_file", parse_file);
    let (is_secure, address) = url?;
    if is_secure && tls.is_none() && !t.is_written("tls") {
        t.problem("tls", r#"missing: with https://, at least tls = { ca = "/path" } in a file"#);
    }
    if is_secure && tls.as_ref().is_some_and(|tls| tls.server_name.is_none()) {
        let place = t.place_of("url");
        check_host(&address.host, &place, t.notes);
    }
    if !is_secure && t.is_written("tls") {
        t.problem("tls", "means nothing with http://: write https://, or leave it out");
    }
    if !is_secure && token_file.is_some() {
        t.warning("token_file", IN_CLEARTEXT);
    }
    Some(SourceKind::Consul { address, tls: tls.map(Box::new), token_file })
}
