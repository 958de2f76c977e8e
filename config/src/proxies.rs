//! `trusted_proxies`, `forwarded` and `proxy_protocol` of a listener: which proxies before it are
//! believed, and how they name their clients.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::address::Address;
use crate::problem::must_be;
use crate::reader::Table;

/// The proxies before a listener, and how they name their clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proxies {
    /// The networks of the proxies that are trusted. The peer of a unix socket always is.
    pub trusted: Vec<IpNet>,
    /// The header fields by which they name a client.
    pub forwarded: ForwardedFields,
    /// Whether each connection begins with a header of the PROXY protocol.
    pub proxy_protocol: bool,
}

/// The header fields by which proxies name a client, its scheme and its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardedFields {
    /// `X-Forwarded-For`, `-Proto` and `-Host`.
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Rfc7239,
}

impl Proxies {
    /// `None` if no key says that there are any, or after a problem.
    pub(crate) fn read(t: &mut Table<'_>, address: Option<&Address>) -> Option<Proxies> {
        let trusted = t.list("trusted_proxies", parse_network);
        let families =
            [("x-forwarded", ForwardedFields::XForwarded), ("rfc7239", ForwardedFields::Rfc7239)];
        let forwarded = t.choice("forwarded", &families);
        let proxy_protocol = t.choice("proxy_protocol", &[("off", false), ("required", true)]);
        for (place, network) in trusted.iter().filter(|(_, network)| network.prefix_len() == 0) {
            t.notes.warning(place, format_args!("{network} is everybody: {EVERYBODY}"));
        }
        let names_trusted = t.is_written("trusted_proxies");
        let needs_trusted = [("forwarded", true), ("proxy_protocol", proxy_protocol)];
        let needing = needs_trusted.into_iter().filter(|(key, is_on)| *is_on && t.is_written(key));
        let needing: Vec<&str> = needing.map(|(key, _)| key).collect();
        let is_unix = matches!(address, Some(Address::Unix(_)));
        if !names_trusted && !is_unix {
            needing.iter().for_each(|key| t.problem(key, NEEDS_TRUSTED));
        }
        let trusted = trusted.into_iter().map(|(_, network)| network).collect();
        let has_proxies = names_trusted || is_unix && !needing.is_empty();
        has_proxies.then_some(Proxies { trusted, forwarded, proxy_protocol })
    }

    /// Whether a proxy at this address is trusted.
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted.iter().any(|network| network.contains(&address))
    }
}

const NEEDS_TRUSTED: &str = "needs trusted_proxies beside it, the networks of the proxies that are believed, like \
    [\"10.0.0.0/8\"]";
const EVERYBODY: &str = "whoever reaches the listener may say who its client is";

/// A network like `10.0.0.0/8`, or one address.
fn parse_network(text: &str) -> Result<IpNet, String> {
    let what = r#"a network like "10.0.0.0/8" or "2001:db8::/32", or an address"#;
    let network: IpNet = text
        .parse()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| must_be(what, text))?;
    if let IpNet::V6(v6) = network
        && let (Some(v4), Some(prefix)) =
            (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96))
    {
        return Err(format!("{text:?} is of IPv4: write \"{v4}/{prefix}\""));
    }
    let whole = network.trunc();
    if whole != network {
        return Err(format!("{text:?} has bits behind its prefix: write \"{whole}\""));
    }
    Ok(network)
}

#[cfg(test)]
mod tests {
    use crate::Config;

    fn read(listener: &str) -> Result<Config, String> {
        let file = format!(
            "[[listener]]\n{listener}\n[[route]]\nname = \"a\"\npath = \"/\"\nupstream = \"http://h:1\"\nmode = \"off\"\n"
        );
        Config::from_toml("f.toml", &file).map_err(|problems| problems.to_string())
    }

    const TCP: &str = "address = \"127.0.0.1:80\"\n";
    const UNIX: &str = "address = \"unix:/s\"\n";

    #[test]
    fn wrong_network_is_a_problem_that_says_what_to_write() {
        for (network, problem) in [
            (
                "10.0.0.1/8",
                "trusted_proxies[0]: \"10.0.0.1/8\" has bits behind its prefix: write \"10.0.0.0/8\"",
            ),
            ("::ffff:10.0.0.0/104", "is of IPv4: write \"10.0.0.0/8\""),
            ("::ffff:10.0.0.1", "is of IPv4: write \"10.0.0.1/32\""),
            ("10.0.0.0/33", "must be a network like"),
            ("balancer.example", "must be a network like"),
            ("", "must be a network like"),
        ] {
            let found = read(&format!("{TCP}trusted_proxies = [{network:?}]")).unwrap_err();
            assert!(
                found.starts_with("f.toml:3: listener[0].") && found.contains(problem),
                "{found}"
            );
        }
        let everybody = read(&format!("{TCP}trusted_proxies = [\"0.0.0.0/0\"]")).unwrap();
        assert!(everybody.warnings[0].to_string().contains("0.0.0.0/0 is everybody"));
    }

    #[test]
    fn over_tcp_the_other_keys_need_trusted_proxies() {
        for line in ["forwarded = \"rfc7239\"", "proxy_protocol = \"required\""] {
            let problem = read(&format!("{TCP}{line}")).unwrap_err();
            assert!(problem.contains("needs trusted_proxies beside it"), "{problem}");
            let fine = [format!("{TCP}{line}\ntrusted_proxies = []"), format!("{UNIX}{line}")];
            for listener in fine {
                assert!(read(&listener).unwrap().listeners[0].proxies.is_some(), "{listener}");
            }
        }
        for listener in [TCP, UNIX] {
            let off = format!("{listener}proxy_protocol = \"off\"");
            assert_eq!(read(&off).unwrap().listeners[0].proxies, None);
        }
    }

    #[test]
    fn address_is_trusted_in_either_spelling() {
        let file =
            format!("{TCP}trusted_proxies = [\"10.0.0.0/8\", \"2001:db8::/32\", \"192.0.2.1\"]");
        let config = read(&file).unwrap();
        let proxies = config.listeners[0].proxies.as_ref().unwrap();
        let trusts = |address: &str| proxies.trusts(address.parse().unwrap());
        for trusted in ["10.255.0.1", "::ffff:10.0.0.1", "2001:db8::1", "192.0.2.1"] {
            assert!(trusts(trusted), "{trusted}");
        }
        for other in ["11.0.0.1", "2001:db9::1", "192.0.2.2", "::ffff:192.0.2.2", "::1"] {
            assert!(!trusts(other), "{other}");
        }
    }
}
