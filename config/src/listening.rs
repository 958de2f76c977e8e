//! Where the proxy listens, and by what: `[[listener]]` and `[admin]`.

use crate::address::Address;
use crate::problem::Notes;
use crate::raw::whole;
use crate::reader::Table;
use crate::setting::Setting;
use crate::tls::{RawServerTls, ServerTls};

/// Where requests are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The address.
    pub address: Address,
    /// `None`: in the clear.
    pub tls: Option<ServerTls>,
}

/// Where operators look in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// The address. Off loopback, [`Admin::tls`] asks for client certificates unless [`Admin::dangerous_unprotected`].
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

/// `[[listener]]`.
pub(crate) struct RawListener {
    pub(crate) address: Setting<String>,
    pub(crate) tls: Setting<RawServerTls>,
}

impl RawListener {
    pub(crate) fn read(table: &mut Table<'_>) -> RawListener {
        RawListener { address: table.string("address"), tls: read_tls(table) }
    }
}

/// `[admin]`.
pub(crate) struct RawAdmin {
    pub(crate) listen: Setting<String>,
    tls: Setting<RawServerTls>,
    dangerous_unprotected: Setting<bool>,
}

impl RawAdmin {
    pub(crate) fn read(table: &mut Table<'_>) -> RawAdmin {
        RawAdmin {
            listen: table.string("listen"),
            tls: read_tls(table),
            dangerous_unprotected: table.boolean("dangerous_unprotected"),
        }
    }

    /// The admin listener, unless it is off.
    pub(crate) fn check(self, notes: &Notes) -> Option<Admin> {
        let RawAdmin { listen, tls, dangerous_unprotected } = self;
        let place = listen.place.clone();
        let address = listen.parse(notes, |text| match text.as_str() {
            "off" => Ok(None),
            text => Address::parse(text).map(Some),
        });
        let default = Address::parse("127.0.0.1:9901").expect("the default is an address");
        let address = address.or_if_absent(Some(default))??;
        let tls = check_tls(tls, notes)?;
        let admin = Admin { address, tls, dangerous_unprotected: dangerous_unprotected.or(false) };
        let at = &admin.address;
        if admin.is_protected() {
            return Some(admin);
        }
        if admin.dangerous_unprotected {
            let text =
                "whoever reaches it may read everything and change the configuration: dangerous_unprotected is set";
            notes.warning(&place, text);
        } else {
            notes.problem(
                &place,
                format_args!("{at} is not on this machine alone: it needs tls with client_ca, so that only those who have a certificate can ask; dangerous_unprotected = true lets anybody"),
            );
        }
        Some(admin)
    }
}

/// The listeners that are right, each with its address checked against the others and the admin listener's.
pub(crate) fn check_listeners(raw: Setting<Vec<RawListener>>, admin: &Option<Admin>, notes: &Notes) -> Vec<Listener> {
    let raw = raw.required(notes, "at least one address where requests are accepted");
    let mut listeners: Vec<Listener> = Vec::new();
    for RawListener { address, tls } in raw.unwrap_or_default() {
        let place = address.place.clone();
        let address = address.parse(notes, |text| Address::parse(&text));
        let address = address.required(notes, "the address where requests are accepted");
        let tls = check_tls(tls, notes);
        let (Some(address), Some(tls)) = (address, tls) else { continue };
        if let Some(other) = listeners.iter().find(|other| other.address.collides(&address)) {
            let by_what = if other.address == address { String::new() } else { format!(", as {}", other.address) };
            notes.problem(&place, format_args!("{address} is listened on already{by_what}"));
        } else if let Some(admin) = admin.as_ref().filter(|admin| admin.address.collides(&address)) {
            let which = if admin.address == address { String::new() } else { format!(", {}, too", admin.address) };
            notes.problem(&place, format_args!("{address} is the address of the admin listener{which}"));
        }
        listeners.push(Listener { address, tls });
    }
    listeners
}

fn read_tls(table: &mut Table<'_>) -> Setting<RawServerTls> {
    table.table("tls").map(|tls| whole(tls, RawServerTls::read))
}

/// TLS or none; `None` if something is wrong with it.
fn check_tls(raw: Setting<RawServerTls>, notes: &Notes) -> Option<Option<ServerTls>> {
    raw.map(|tls| tls.check(notes).map(Some)).or_if_absent(Some(None))?
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
        let may_ask = format!("tls = {{ {SERVER}, client_ca = \"/t/ca.pem\", client_certificates = \"optional\" }}");
        let asks_nobody = format!("tls = {{ {SERVER} }}");
        for remote in ["listen = \"10.0.0.1:9901\"", "listen = \"[::]:9901\"", "listen = \"systemd:admin\""] {
            let with = |rest: &str| read(&format!("{remote}, {rest}"));
            assert!(with(&asks).unwrap().admin.unwrap().tls.is_some());
            for open in [&may_ask, &asks_nobody] {
                let problem = with(open).unwrap_err();
                assert!(problem.contains("it needs tls with client_ca"), "{problem}");
            }
            assert!(read(remote).unwrap_err().contains("is not on this machine alone"));
            for open in ["", &may_ask, &asks_nobody] {
                let separator = if open.is_empty() { "" } else { ", " };
                let config = with(&format!("dangerous_unprotected = true{separator}{open}")).unwrap();
                let warning = config.warnings.iter().map(ToString::to_string).find(|text| text.contains("dangerous"));
                assert!(warning.unwrap().contains("admin.listen: whoever reaches it may read everything"));
            }
        }
        for local in ["listen = \"127.0.0.1:9901\"", "listen = \"[::1]:9901\"", "listen = \"unix:/run/a.sock\""] {
            assert!(read(local).unwrap().warnings.is_empty());
            assert!(read(&format!("{local}, {may_ask}")).unwrap().admin.unwrap().tls.is_some());
        }
    }

    #[test]
    fn files_of_tls_are_shown_by_their_paths() {
        let config = read(&format!("tls = {{ {SERVER}, client_ca = \"/t/ca.pem\", crl = \"/t/crl.pem\" }}")).unwrap();
        let value = |key| config.settings().find(|(table, name, _)| table.is_empty() && *name == key).unwrap().2;
        let identity = r#"certificate = "/t/a.pem", key = "/t/a.key""#;
        let clients = r#"client_ca = "/t/ca.pem", client_certificates = "required", crl = "/t/crl.pem""#;
        assert_eq!(value("admin.tls"), format!(r#"{{ {identity}, {clients}, min_version = "1.2" }}"#));
        assert_eq!(value("listener.tls"), format!(r#"[127.0.0.1:8080: {{ {identity}, min_version = "1.3" }}]"#));
    }
}
