//! `tls = { … }`: which files TLS is made of, for a side that accepts connections and for one that connects.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::problem::{Notes, Place};
use crate::reader::Table;
use crate::setting::Setting;

/// What a listener's TLS is made of. The files themselves are not looked at here.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerTls {
    /// What the listener shows to be itself.
    pub identity: Identity,
    /// What is asked of clients; `None`: no certificate.
    pub clients: Option<ClientCertificates>,
    /// The oldest version that is spoken.
    pub min_version: TlsVersion,
}

/// As it is written, with its defaults.
impl fmt::Display for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServerTls { identity: Identity { certificate, key }, clients, min_version } = self;
        write!(f, "{{ certificate = {certificate:?}, key = {key:?}")?;
        if let Some(ClientCertificates { ca, crl, required }) = clients {
            let required = if *required { "required" } else { "optional" };
            write!(f, ", client_ca = {ca:?}, client_certificates = {required:?}")?;
            crl.iter().try_for_each(|crl| write!(f, ", crl = {crl:?}"))?;
        }
        write!(f, ", min_version = {:?} }}", min_version.name())
    }
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
    /// The name that the other side's certificate must have, in lower case; `None`: the host that is connected to.
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

impl TlsVersion {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            TlsVersion::Tls12 => "1.2",
            TlsVersion::Tls13 => "1.3",
        }
    }
}

/// `tls = { … }` of a listener.
pub(crate) struct RawServerTls {
    certificate: Setting<String>,
    key: Setting<String>,
    client_ca: Setting<String>,
    client_certificates: Setting<String>,
    crl: Setting<String>,
    min_version: Setting<String>,
}

impl RawServerTls {
    pub(crate) fn read(table: &mut Table<'_>) -> RawServerTls {
        RawServerTls {
            certificate: table.string("certificate"),
            key: table.string("key"),
            client_ca: table.string("client_ca"),
            client_certificates: table.string("client_certificates"),
            crl: table.string("crl"),
            min_version: table.string("min_version"),
        }
    }

    /// What is written; `None` if something is wrong with it.
    pub(crate) fn check(self, notes: &Notes) -> Option<ServerTls> {
        let RawServerTls { certificate, key, client_ca, client_certificates, crl, min_version } = self;
        let identity = check_identity(certificate, key, notes);
        for (place, written) in
            [(&client_certificates.place, client_certificates.is_written()), (&crl.place, crl.is_written())]
        {
            if written && !client_ca.is_written() {
                notes.problem(place, "means nothing without client_ca: no certificate is asked for");
            }
        }
        let ca = optional_file(client_ca, notes);
        let required = client_certificates.choice(notes, &[("required", true), ("optional", false)]);
        let crl = optional_file(crl, notes);
        let versions = [("1.2", TlsVersion::Tls12), ("1.3", TlsVersion::Tls13)];
        let min_version = min_version.choice(notes, &versions).or_if_absent(TlsVersion::Tls12);
        let clients = match ca? {
            Some(ca) => Some(ClientCertificates { ca, crl: crl?, required: required.or_if_absent(true)? }),
            None => None,
        };
        Some(ServerTls { identity: identity?, clients, min_version: min_version? })
    }
}

/// `tls = { … }` of a worker or a lock store.
pub(crate) struct RawClientTls {
    ca: Setting<String>,
    crl: Setting<String>,
    certificate: Setting<String>,
    key: Setting<String>,
    server_name: Setting<String>,
}

impl RawClientTls {
    pub(crate) fn read(table: &mut Table<'_>) -> RawClientTls {
        RawClientTls {
            ca: table.string("ca"),
            crl: table.string("crl"),
            certificate: table.string("certificate"),
            key: table.string("key"),
            server_name: table.string("server_name"),
        }
    }

    /// Whether the certificate has to be for another name than the host's.
    pub(crate) fn names_server(&self) -> bool {
        self.server_name.is_written()
    }

    /// What is written; `None` if something is wrong with it.
    pub(crate) fn check(self, notes: &Notes) -> Option<ClientTls> {
        let RawClientTls { ca, crl, certificate, key, server_name } = self;
        let ca = ca.parse(notes, parse_file).required(notes, "the file of the authorities that are believed");
        let crl = optional_file(crl, notes);
        let has_identity = certificate.is_written() || key.is_written();
        let identity = has_identity.then(|| check_identity(certificate, key, notes));
        let server_name = server_name.parse(notes, |name| parse_server_name(&name)).map(Some).or_if_absent(None);
        let identity = match identity {
            Some(identity) => Some(identity?),
            None => None,
        };
        Some(ClientTls { ca: ca?, crl: crl?, identity, server_name: server_name? })
    }
}

fn check_identity(certificate: Setting<String>, key: Setting<String>, notes: &Notes) -> Option<Identity> {
    let certificate = certificate.parse(notes, parse_file).required(notes, "the file of the certificate");
    let key = key.parse(notes, parse_file).required(notes, "the file of the certificate's private key");
    Some(Identity { certificate: certificate?, key: key? })
}

fn optional_file(path: Setting<String>, notes: &Notes) -> Option<Option<PathBuf>> {
    path.parse(notes, parse_file).map(Some).or_if_absent(None)
}

pub(crate) fn parse_file(text: String) -> Result<PathBuf, String> {
    let path = Path::new(&text);
    if !path.is_absolute() || text.ends_with('/') || text.contains(char::is_control) {
        return Err(format!(r#"must be the absolute path of a file, like "/etc/fencepost/tls.pem", not {text:?}"#));
    }
    Ok(path.to_owned())
}

/// A DNS name or an IP address, an IPv6 one without brackets.
fn parse_server_name(text: &str) -> Result<String, String> {
    if !is_certificate_name(text) {
        return Err(format!(r#"must be a host name or an IP address, like "worker.example", not {text:?}"#));
    }
    Ok(text.to_ascii_lowercase())
}

/// For a host whose certificate has to be for it.
pub(crate) fn check_host(host: &str, place: &Place, notes: &Notes) {
    if !is_certificate_name(host) {
        notes.problem(place, format_args!("no certificate can be for {host:?}: write another host, or server_name"));
    }
}

/// Whether a certificate can be for it: an IP address, or a DNS name by the rules that rustls goes by.
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
    use crate::problem::Problems;
    use toml::de::DeTable;

    fn read<R, T>(
        text: &str,
        read: impl FnOnce(&mut Table<'_>) -> R,
        check: impl FnOnce(R, &Notes) -> Option<T>,
    ) -> Result<T, String> {
        let notes = Notes::for_file("f.toml", text);
        let (document, _) = DeTable::parse_recoverable(text);
        let mut table = Table::root(&notes, document.get_ref());
        let raw = read(&mut table);
        table.finish();
        let checked = check(raw, &notes);
        notes.finish().map_err(|problems: Problems| problems.to_string())?;
        Ok(checked.expect("what has no problem is something"))
    }

    fn server(text: &str) -> Result<ServerTls, String> {
        read(text, RawServerTls::read, RawServerTls::check)
    }

    fn client(text: &str) -> Result<ClientTls, String> {
        read(text, RawClientTls::read, RawClientTls::check)
    }

    const PAIR: &str = "certificate = \"/t/a.pem\"\nkey = \"/t/a.key\"\n";

    fn pair() -> Identity {
        Identity { certificate: "/t/a.pem".into(), key: "/t/a.key".into() }
    }

    #[test]
    fn a_listener_needs_a_certificate_and_its_key() {
        let expected = ServerTls { identity: pair(), clients: None, min_version: TlsVersion::Tls12 };
        assert_eq!(server(PAIR), Ok(expected));
        let problem = server("certificate = \"/t/a.pem\"").unwrap_err();
        assert!(problem.contains("key: missing: the file of the certificate's private key"), "{problem}");
        let problem = server("certificate = \"a.pem\"\nkey = \"/t/\"").unwrap_err();
        assert_eq!(problem.matches("must be the absolute path of a file").count(), 2, "{problem}");
        let problem = server(&format!("{PAIR}min_version = \"1.1\"\ncipher = \"x\"")).unwrap_err();
        assert!(problem.contains(r#"min_version: must be "1.2" or "1.3", not "1.1""#), "{problem}");
        assert!(problem.contains("cipher: unknown key"), "{problem}");
    }

    #[test]
    fn whoever_names_authorities_for_clients_asks_for_certificates() {
        let clients =
            |rest: &str| server(&format!("{PAIR}client_ca = \"/t/ca.pem\"\n{rest}")).unwrap().clients.unwrap();
        assert_eq!(clients(""), ClientCertificates { ca: "/t/ca.pem".into(), crl: None, required: true });
        assert!(!clients("client_certificates = \"optional\"").required);
        assert_eq!(clients("crl = \"/t/crl.pem\"").crl, Some("/t/crl.pem".into()));
        for alone in ["crl = \"/t/crl.pem\"", "client_certificates = \"required\""] {
            let problem = server(&format!("{PAIR}{alone}")).unwrap_err();
            assert!(problem.contains("means nothing without client_ca"), "{problem}");
        }
        assert!(server(&format!("{PAIR}client_ca = \"ca.pem\"\ncrl = \"/t/crl.pem\"")).is_err());
    }

    #[test]
    fn a_connection_needs_authorities_and_may_have_an_identity_and_another_name() {
        let expected = ClientTls { ca: "/t/ca.pem".into(), crl: None, identity: None, server_name: None };
        assert_eq!(client("ca = \"/t/ca.pem\""), Ok(expected));
        let all = format!("{PAIR}ca = \"/t/ca.pem\"\ncrl = \"/t/crl.pem\"\nserver_name = \"Worker.example\"");
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
