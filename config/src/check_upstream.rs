//! From what is written of a worker to what it means.

use crate::address::HostPort;
use crate::problem::Notes;
use crate::setting::Setting;
use crate::tls::{RawClientTls, check_host};
use crate::upstream::{Scheme, Upstream, UpstreamAddress, UpstreamProtocol, UpstreamTls, UpstreamUrl};

/// The worker; `None` if there is a problem with it.
pub(crate) fn check_upstream(
    upstream: Setting<String>,
    upstream_tls: Setting<RawClientTls>,
    notes: &Notes,
) -> Option<Upstream> {
    let url_place = upstream.place.clone();
    let url = upstream.parse(notes, |text| UpstreamUrl::parse(&text));
    let url = url.required(notes, r#"the worker, like "http://127.0.0.1:9000""#);
    let (place, written) = (upstream_tls.place.clone(), upstream_tls.is_written());
    // Checked in any case, so that all of its problems are said at once.
    let files = upstream_tls.into_value().map(|tls| tls.check(notes));
    let UpstreamUrl { address, scheme } = url?;
    let protocol = match scheme {
        Scheme::Http | Scheme::H2c if written => {
            notes.problem(&place, "means nothing to a worker that is spoken to in cleartext");
            return None;
        }
        Scheme::Http => UpstreamProtocol::Http1,
        Scheme::H2c => UpstreamProtocol::H2c,
        Scheme::Https if !written => {
            notes.problem(&place, MISSING);
            return None;
        }
        Scheme::Https => {
            let files = files??;
            let server_name = match (&files.server_name, &address) {
                (Some(name), _) => name.clone(),
                (None, UpstreamAddress::Tcp(HostPort { host, .. })) => {
                    check_host(host, &url_place, notes);
                    host.clone()
                }
                (None, UpstreamAddress::Unix(_)) => {
                    let place = place.child("server_name");
                    notes.problem(&place, "missing: the name in the certificate of a worker behind a unix socket");
                    return None;
                }
            };
            UpstreamProtocol::Tls(UpstreamTls { files, server_name })
        }
    };
    Some(Upstream { address, protocol })
}

const MISSING: &str = r#"missing: it says whose certificates are believed of an https upstream, as in { ca = "/etc/fencepost/worker-ca.pem" }"#;
