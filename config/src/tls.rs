//! `tls = { … }`: which files TLS is made of, for a side that accepts connections and for one that
//! connects.

use std::path::{Path, PathBuf};

use crate::problem::{Notes, Place, must_be};
use crate::reader::Table;

/// What a listener's TLS is made of. The files themselves are not looked at here.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerTls {
    /// What the listener shows to be itself.
    pub identity: Identity,
    /// What it shows instead to clients that ask for one of their names.
    pub more: Vec<Identity>,
    /// What is asked of clients; `None`: no certificate.
    pub clients: Option<ClientCertificates>,
    /// The oldest version that is spoken.
    pub min_version: TlsVersion,
}

/// What a listener asks of its clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientCertificates {
    /// The authorities that are believed; an absolute path.
    pub ca: PathBuf,
    /// What these have revoked, an absolute path; `None`: nothing.
    pub crl: Option<PathBuf>,
    /// Whether a client without a certificate is refused.
    pub required: bool,
}

/// What a connection to a worker or a lock store is made of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientTls {
    /// The authorities that are believed; an absolute path.
    pub ca: PathBuf,
    /// What these have revoked, an absolute path; `None`: nothing.
    pub crl: Option<PathBuf>,
    /// What we show to be ourselves; `None`: nothing.
    pub identity: Option<Identity>,
    /// The name that the other side's certificate must have, in lower case; `None`: the host that
    /// is connected to.
    pub server_name: Option<String>,
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The certificate and those that lead to its authority; an absolute path.
    pub certificate: PathBuf,
    /// Its private key; an absolute path.
    pub key: PathBuf,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TlsVersion {
    /// `"1.2"`.
    Tls12,
    /// `"1.3"`.
    Tls13,
}

impl ServerTls {
    /// `tls = { … }` of a listener.
    pub(crate) fn read(t: &mut Table<'_>) -> Option<ServerTls> {
        let identity = Identity::read(t);
        let more = t.inner_tables("more_certificates", Identity::read);
        let ca = t.text("client_ca", parse_file);
        let required = t.choice("client_certificates", &[("required", true), ("optional", false)]);
        let crl = t.text("crl", parse_file);
        for key in t.written(&["client_certificates", "crl"]) {
            if !t.is_written("client_ca") {
                t.problem(key, "means nothing without client_ca: no certificate is asked for");
            }
        }
        let versions = [("1.2", TlsVersion::Tls12), ("1.3", TlsVersion::Tls13)];
        let min_version = t.choice("min_version", &versions);
        let clients = ca.map(|ca| ClientCertificates { ca, crl, required });
        Some(ServerTls { identity: identity?, more, clients, min_version })
    }
}

impl ClientTls {
    /// `tls = { … }` of a lock store, `upstream_tls = { … }` of a route.
    pub(crate) fn read(t: &mut Table<'_>) -> Option<ClientTls> {
        let ca = t.required("ca", "the file of the authorities that are believed", parse_file);
        let crl = t.text("crl", parse_file);
        let has_identity = !t.written(&["certificate", "key"]).is_empty();
        let identity = has_identity.then(|| Identity::read(t)).flatten();
        let server_name = t.text("server_name", parse_server_name);
        Some(ClientTls { ca: ca?, crl, identity, server_name })
    }
}

impl Identity {
    fn read(t: &mut Table<'_>) -> Option<Identity> {
        let certificate = t.required("certificate", "the file of the certificate", parse_file);
        let key = t.required("key", "the file of the certificate's private key", parse_file);
        Some(Identity { certificate: certificate?, key: key? })
    }
}

pub(crate) fn parse_file(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    if !path.is_absolute() || text.ends_with('/') || text.contains(char::is_control) {
        return Err(must_be(r#"the absolute path of a file, like "/etc/fencepost/tls.pem""#, text));
    }
    Ok(path.to_owned())
}

/// A DNS name or an IP address, an IPv6 one without brackets.
fn parse_server_name(text: &str) -> Result<String, String> {
    if !is_certificate_name(text) {
        return Err(must_be(r#"a host name or an IP address, like "worker.example""#, text));
    }
    Ok(text.to_ascii_lowercase())
}

/// For a host whose certificate has to be for it.
pub(crate) fn check_host(host: &str, place: &Place, notes: &Notes) {
    if !is_certificate_name(host) {
        let hint = "write another host, or server_name";
        notes.problem(place, format_args!("no certificate can be for {host:?}: {hint}"));
    }
}

/// Whether a certificate can be for it: an IP address, or a DNS name by the rules that rustls goes
/// by.
fn is_certificate_name(text: &str) -> bool {
    if text.parse::<std::net::IpAddr>().is_ok() {
        return true;
    }
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let mut labels = text.strip_suffix('.').unwrap_or(text).split('.');
    // A last label of digits only would be a part of an address.
    let is_last = |label: &str| !label.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= 253 && labels.clone().all(is_label) && labels.next_back().is_some_and(is_last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use toml::de::DeTable;

    fn read<T>(text: &str, read: impl FnOnce(&mut Table<'_>) -> Option<T>) -> Result<T, String> {
        let text = format!("[tls]\n{text}");
        let notes = Notes::for_file("f.toml", &text);
        let (document, _) = DeTable::parse_recoverable(&text);
        let read = Table::root(&notes, document.get_ref()).table("tls", read);
        notes.finish().map_err(|problems| problems.to_string())?;
        Ok(read.expect("a table without problems is right"))
    }

    fn server(text: &str) -> Result<ServerTls, String> {
        read(text, ServerTls::read)
    }

    fn client(text: &str) -> Result<ClientTls, String> {
        read(text, ClientTls::read)
    }

    const PAIR: &str = "certificate = \"/t/a.pem\"\nkey = \"/t/a.key\"\n";

    fn pair() -> Identity {
        Identity { certificate: "/t/a.pem".into(), key: "/t/a.key".into() }
    }

    #[test]
    fn a_listener_needs_a_certificate_and_its_key() {
        let expected = ServerTls {
            identity: pair(),
            more: vec![],
            clients: None,
            min_version: TlsVersion::Tls12,
        };
        assert_eq!(server(PAIR), Ok(expected));
        let problem = server("certificate = \"/t/a.pem\"").unwrap_err();
        assert!(
            problem.contains("key: missing: the file of the certificate's private key"),
            "{problem}"
        );
        let problem = server("certificate = \"a.pem\"\nkey = \"/t/\"").unwrap_err();
        assert_eq!(problem.matches("must be the absolute path of a file").count(), 2, "{problem}");
        let problem = server(&format!("{PAIR}min_version = \"1.1\"\ncipher = \"x\"")).unwrap_err();
        assert!(problem.contains(r#"min_version: must be "1.2" or "1.3", not "1.1""#), "{problem}");
        assert!(problem.contains("cipher: unknown key"), "{problem}");
    }

    #[test]
    fn each_further_certificate_has_its_key() {
        let more = |tables: &str| server(&format!("{PAIR}more_certificates = {tables}"));
        let pairs = more(r#"[{ certificate = "/t/b.pem", key = "/t/b.key" }]"#).unwrap().more;
        let expected = Identity { certificate: "/t/b.pem".into(), key: "/t/b.key".into() };
        assert_eq!(pairs, [expected]);
        for (tables, problem) in [
            (r#"[{ certificate = "/t/b.pem" }]"#, "more_certificates[0].key: missing"),
            (r#"["/t/b.pem"]"#, "more_certificates[0]: must be a table, not a string"),
            (r#"[{ certificate = "/b", key = "/b", name = "b" }]"#, "name: unknown key"),
            (r#"{ certificate = "/b", key = "/b" }"#, "must be a list of tables"),
        ] {
            let found = more(tables).unwrap_err();
            assert!(found.contains(problem), "{found}");
        }
    }

    #[test]
    fn whoever_names_authorities_for_clients_asks_for_certificates() {
        let clients = |rest: &str| {
            server(&format!("{PAIR}client_ca = \"/t/ca.pem\"\n{rest}")).unwrap().clients.unwrap()
        };
        assert_eq!(
            clients(""),
            ClientCertificates { ca: "/t/ca.pem".into(), crl: None, required: true }
        );
        assert!(!clients("client_certificates = \"optional\"").required);
        assert_eq!(clients("crl = \"/t/crl.pem\"").crl, Some("/t/crl.pem".into()));
        for alone in ["crl = \"/t/crl.pem\"", "client_certificates = \"required\""] {
            let problem = server(&format!("{PAIR}{alone}")).unwrap_err();
            assert!(problem.contains("means nothing without client_ca"), "{problem}");
        }
        assert!(server(&format!("{PAIR}client_ca = \"ca.pem\"\ncrl = \"/t/crl.pem\"")).is_err());
    }

    #[test]
    fn client_tls_needs_only_authorities() {
        let expected =
            ClientTls { ca: "/t/ca.pem".into(), crl: None, identity: None, server_name: None };
        assert_eq!(client("ca = \"/t/ca.pem\""), Ok(expected));
        let all = format!(
            "{PAIR}ca = \"/t/ca.pem\"\ncrl = \"/t/crl.pem\"\nserver_name = \"Worker.example\""
        );
        let expected = ClientTls {
            ca: "/t/ca.pem".into(),
            crl: Some("/t/crl.pem".into()),
            identity: Some(pair()),
            server_name: Some("worker.example".to_owned()),
        };
        assert_eq!(client(&all), Ok(expected));
        assert!(client("").unwrap_err().contains("ca: missing"));
        let problem = client("ca = \"/t/ca.pem\"\nkey = \"/t/a.key\"").unwrap_err();
        assert!(problem.contains("certificate: missing"), "{problem}");
        for (name, valid) in [
            ("::1", true),
            ("127.0.0.1", true),
            ("a.", true),
            ("[::1]", false),
            ("a b", false),
            ("a-.b", false),
            ("", false),
        ] {
            let read = client(&format!("ca = \"/t/ca.pem\"\nserver_name = {name:?}"));
            assert_eq!(read.is_ok(), valid, "{name}: {read:?}");
        }
    }
}
