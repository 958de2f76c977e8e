//! Where the proxy listens, and by what: `[[listener]]` and `[admin]`.

use crate::address::Address;
use crate::proxies::Proxies;
use crate::reader::Table;
use crate::tls::ServerTls;

/// Where requests are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The address.
    pub address: Address,
    /// `None`: in the clear.
    pub tls: Option<ServerTls>,
    /// The proxies before it; `None`: it has none, and believes nobody.
    pub proxies: Option<Proxies>,
}

/// Where operators look in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// The address. Off loopback, [`Admin::tls`] asks for client certificates unless
    /// [`Admin::dangerous_unprotected`].
    pub address: Address,
    /// `None`: in the clear.
    pub tls: Option<ServerTls>,
    /// Whether anybody may ask from anywhere.
    pub dangerous_unprotected: bool,
}

impl Admin {
    /// Whether only those can ask who are on this machine or have a certificate.
    fn is_protected(&self) -> bool {
        let is_local = match &self.address {
            Address::Tcp(address) => address.ip().is_loopback(),
            Address::Unix(_) => true,
            Address::Systemd(_) => false, // Where it listens is not known beforehand.
        };
        let clients = self.tls.as_ref().and_then(|tls| tls.clients.as_ref());
        is_local || clients.is_some_and(|clients| clients.required)
    }
}

const UNPROTECTED: &str = "is not on this machine alone: it needs tls with client_ca, so that only those who \
    have a certificate can ask; dangerous_unprotected = true lets anybody";
const DANGEROUS: &str = "whoever reaches it may read everything and change the configuration: dangerous_unprotected is set";

impl Admin {
    /// The admin listener, unless it is off.
    pub(crate) fn read(t: &mut Table<'_>) -> Option<Admin> {
        let address = t.text_or("listen", "127.0.0.1:9901", |text| match text {
            "off" => Ok(None),
            text => Address::parse(text).map(Some),
        });
        let tls = t.table("tls", ServerTls::read);
        let tls_is_wrong = tls.is_none() && t.is_written("tls");
        let dangerous_unprotected = t.flag("dangerous_unprotected");
        let admin = Admin { address: address??, tls, dangerous_unprotected };
        if !admin.is_protected() && dangerous_unprotected {
            t.warning("listen", DANGEROUS);
        } else if !admin.is_protected() && !tls_is_wrong {
            t.problem("listen", format_args!("{} {UNPROTECTED}", admin.address));
        }
        Some(admin)
    }
}

impl Listener {
    /// The listeners, each with its address checked against the others and the admin listener's.
    pub(crate) fn read_all(t: &mut Table<'_>, admin: Option<&Admin>) -> Vec<Listener> {
        let what = "at least one address where requests are accepted";
        let mut listeners: Vec<Listener> = Vec::new();
        for mut t in t.tables("listener", what) {
            let what = "the address where requests are accepted";
            let address = t.required("address", what, Address::parse);
            let tls = t.table("tls", ServerTls::read);
            let proxies = Proxies::read(&mut t, address.as_ref());
            t.finish();
            let tls_is_wrong = tls.is_none() && t.is_written("tls");
            let Some(address) = address.filter(|_| !tls_is_wrong) else { continue };
            let mut others = listeners.iter().map(|other| &other.address);
            if let Some(other) = others.find(|other| other.collides(&address)) {
                let how = if *other == address { String::new() } else { format!(", as {other}") };
                t.problem("address", format_args!("{address} is listened on already{how}"));
            } else if let Some(admin) = admin.filter(|admin| admin.address.collides(&address)) {
                let at = &admin.address;
                let which = if *at == address { String::new() } else { format!(", {at}, too") };
                let text = format!("{address} is the address of the admin listener{which}");
                t.problem("address", text);
            }
            listeners.push(Listener { address, tls, proxies });
        }
        listeners
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    const SERVER: &str = r#"certificate = "/t/a.pem", key = "/t/a.key""#;

    fn read(admin: &str) -> Result<Config, String> {
        let file = format!(
            r#"
            admin = {{ {admin} }}
            [[listener]]
            address = "127.0.0.1:8080"
            tls = {{ {SERVER}, min_version = "1.3" }}
            [[route]]
            name = "a"
            path = "/"
            upstream = "http://127.0.0.1:9000"
            mode = "off"
            "#
        );
        Config::from_toml("f.toml", &file).map_err(|problems| problems.to_string())
    }

    #[test]
    fn off_loopback_the_admin_listener_asks_for_a_certificate() {
        let asks = format!("tls = {{ {SERVER}, client_ca = \"/t/ca.pem\" }}");
        let may_ask = format!(
            "tls = {{ {SERVER}, client_ca = \"/t/ca.pem\", client_certificates = \"optional\" }}"
        );
        let asks_nobody = format!("tls = {{ {SERVER} }}");
        for remote in
            ["listen = \"10.0.0.1:9901\"", "listen = \"[::]:9901\"", "listen = \"systemd:admin\""]
        {
            let with = |rest: &str| read(&format!("{remote}, {rest}"));
            assert!(with(&asks).unwrap().admin.unwrap().tls.is_some());
            for open in [&may_ask, &asks_nobody] {
                let problem = with(open).unwrap_err();
                assert!(problem.contains("it needs tls with client_ca"), "{problem}");
            }
            assert!(read(remote).unwrap_err().contains("is not on this machine alone"));
            for open in ["", &may_ask, &asks_nobody] {
                let separator = if open.is_empty() { "" } else { ", " };
                let config =
                    with(&format!("dangerous_unprotected = true{separator}{open}")).unwrap();
                let warning = config
                    .warnings
                    .iter()
                    .map(ToString::to_string)
                    .find(|text| text.contains("dangerous"));
                assert!(
                    warning
                        .unwrap()
                        .contains("admin.listen: whoever reaches it may read everything")
                );
            }
        }
        for local in [
            "listen = \"127.0.0.1:9901\"",
            "listen = \"[::1]:9901\"",
            "listen = \"unix:/run/a.sock\"",
        ] {
            assert!(read(local).unwrap().warnings.is_empty());
            assert!(read(&format!("{local}, {may_ask}")).unwrap().admin.unwrap().tls.is_some());
        }
    }

    #[test]
    fn files_of_tls_are_shown_by_their_paths() {
        let config =
            read(&format!("tls = {{ {SERVER}, client_ca = \"/t/ca.pem\", crl = \"/t/crl.pem\" }}"))
                .unwrap();
        let value = |of: &str, key: &str| {
            config
                .settings()
                .find(|(table, name, _)| *table == of && *name == key)
                .map(|found| found.2.into_owned())
        };
        for (key, path) in [
            ("tls.certificate", "/t/a.pem"),
            ("tls.client_ca", "/t/ca.pem"),
            ("tls.crl", "/t/crl.pem"),
        ] {
            assert_eq!(value("admin", key).as_deref(), Some(path));
        }
        let tls = "tls.certificate = /t/a.pem, tls.key = /t/a.key, tls.client_ca = none, tls.client_certificates = required, \
                   tls.crl = none, tls.min_version = 1.3";
        assert_eq!(value("", "listener.tls"), Some(format!("[127.0.0.1:8080: {tls}]")));
    }
}
