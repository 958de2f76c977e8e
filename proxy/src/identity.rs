//! Who the sender of a request has proved to be, and whether that is who the request claims to come
//! from.

use std::borrow::Cow;

use fencepost_config::{Mode, PeerIdentity, PeerNameKind};
use fencepost_policy::Rejection;
use fencepost_tls::PeerNames;
use http::{HeaderMap, HeaderValue};

use crate::request_context::RequestContext;
use crate::token::TokenHeaders;

impl RequestContext {
    /// Holds the owner that a request claims against the names of its connection's certificate,
    /// where its route wants that. From then on the request names the owner that it is judged by.
    ///
    /// # Errors
    /// As [`establish`].
    pub fn identify(&self, headers: &mut HeaderMap) -> Result<(), Rejection> {
        let route = self.route();
        match (&route.mode, &route.identity) {
            (Mode::Off, _) | (_, None) => Ok(()),
            (Mode::Enforce(_) | Mode::Shadow(_), Some(identity)) => {
                establish(identity, self.peer.as_deref(), &self.active_route().headers, headers)
            }
        }
    }
}

/// Checks the owner that a request claims against the names of a certificate. Adds the owner to a
/// request that claims none, where the route takes it from the certificate.
///
/// Depends on nothing else in the request, so that a refusal of somebody else reveals nothing of
/// the lock.
///
/// # Errors
/// - `identity-mismatch` if the names give no owner, not the claimed one, or several where the
///   route takes the owner from them.
/// - `token-malformed` if the names give an owner, but the request has it twice or names it in
///   `Connection`.
/// - `token-missing` if the names give an owner, but the request lacks the one that the route
///   requires.
pub fn establish(
    identity: &PeerIdentity,
    peer: Option<&PeerNames>,
    names: &TokenHeaders,
    headers: &mut HeaderMap,
) -> Result<(), Rejection> {
    let mut owners = owners(identity, peer);
    let first = owners.next().ok_or(Rejection::IdentityMismatch)?;
    if identity.take_owner && owners.any(|other| other != first) {
        return Err(Rejection::IdentityMismatch);
    }
    match names.owner(headers)? {
        Some(claimed) if *claimed == *first || owners.any(|other| *claimed == *other) => Ok(()),
        Some(_) => Err(Rejection::IdentityMismatch),
        None if identity.take_owner => {
            let owner = HeaderValue::from_str(&first)
                .expect("an owner that a pattern finds is visible ASCII");
            headers.insert(names.owner.clone(), owner);
            Ok(())
        }
        None => Err(Rejection::TokenMissing),
    }
}

/// The owners that these names give; one may be given more than once.
pub fn owners<'n>(
    identity: &'n PeerIdentity,
    peer: Option<&'n PeerNames>,
) -> impl Iterator<Item = Cow<'n, str>> {
    let names = peer.map_or(&[][..], |peer| match identity.pattern.kind() {
        PeerNameKind::Uri => &peer.uris,
        PeerNameKind::Dns => &peer.dns,
        PeerNameKind::CommonName => &peer.common_names,
    });
    names.iter().filter_map(|name| identity.pattern.owner_in(name))
}

#[cfg(test)]
mod tests {
    use fencepost_config::Config;
    use http::HeaderName;

    use super::*;

    const URI: &str = r#"uri = "spiffe://example.org/shard/{owner}""#;
    const DNS: &str = r#"dns = "{owner}.masters.example.org""#;
    const COMMON_NAME: &str = r#"common_name = "{owner}""#;

    fn identity(pattern: &str, take_owner: bool) -> PeerIdentity {
        let file = format!(
            r#"
            [[listener]]
            address = "127.0.0.1:8080"
            tls = {{ certificate = "/t/a.pem", key = "/t/a.key", client_ca = "/t/ca.pem" }}
            [source.main]
            kind = "memory"
            [[route]]
            name = "shards"
            path = "/"
            upstream = "http://127.0.0.1:9000"
            lock = {{ source = "main", key = "/k" }}
            identity = {{ {pattern}, take_owner = {take_owner} }}
            "#
        );
        let config =
            Config::from_toml("f.toml", &file).unwrap_or_else(|problems| panic!("{problems}"));
        config.routes[0].identity.clone().unwrap()
    }

    fn peer(uris: &[&str], dns: &[&str], common_names: &[&str]) -> PeerNames {
        let [uris, dns, common_names] = [uris, dns, common_names]
            .map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        PeerNames { uris, dns, common_names }
    }

    /// A certificate with the URIs of these shards.
    fn shards(names: &[&str]) -> PeerNames {
        let uris: Vec<String> =
            names.iter().map(|name| format!("spiffe://example.org/shard/{name}")).collect();
        PeerNames { uris, ..PeerNames::default() }
    }

    /// The owner that the request is judged by, or the code of the refusal.
    fn established(
        identity: &PeerIdentity,
        peer: Option<&PeerNames>,
        headers: &[(&str, &str)],
    ) -> String {
        let [owner, revision, lock] =
            ["fence-owner", "fence-revision", "fence-lock"].map(HeaderName::from_static);
        let names = TokenHeaders { owner, revision, lock };
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            );
        }
        match establish(identity, peer, &names, &mut map) {
            Ok(()) => names.owner(&map).unwrap().unwrap().to_str().unwrap().to_owned(),
            Err(reason) => reason.code().to_owned(),
        }
    }

    /// Expected of a route that checks the claimed owner, and of one that takes it from the
    /// certificate.
    #[track_caller]
    fn check(pattern: &str, peer: Option<&PeerNames>, claims: &[&str], expected: [&str; 2]) {
        let claims: Vec<(&str, &str)> =
            claims.iter().map(|claim| ("fence-owner", *claim)).collect();
        let established =
            [false, true].map(|take| established(&identity(pattern, take), peer, &claims));
        assert_eq!(established, expected, "{claims:?} of {peer:?} by {pattern}");
    }

    #[test]
    fn a_request_comes_from_whom_it_claims_or_is_refused() {
        let one = shards(&["shard-1"]);
        check(URI, Some(&one), &["shard-1"], ["shard-1"; 2]);
        for other in [
            "shard-2",
            "shard-10",
            "shard-",
            "Shard-1",
            "shard-1 ",
            "shard%2D1",
            "",
            "spiffe://example.org/shard/shard-1",
        ] {
            check(URI, Some(&one), &[other], ["identity-mismatch"; 2]);
        }
        check(URI, Some(&one), &[], ["token-missing", "shard-1"]);
    }

    #[test]
    fn who_has_proved_to_be_nobody_is_refused_whatever_it_claims() {
        let stranger = peer(&["spiffe://example.org/admin/shard-1"], &["shard-1"], &["shard 1"]);
        for nobody in [None, Some(&PeerNames::default()), Some(&stranger)] {
            for pattern in [URI, DNS, COMMON_NAME] {
                for claims in [&[][..], &["shard-1"], &["shard-1", "shard-1"], &[""]] {
                    check(pattern, nobody, claims, ["identity-mismatch"; 2]);
                }
            }
        }
    }

    #[test]
    fn a_certificate_may_stand_for_several_owners_unless_the_owner_is_taken_from_it() {
        let both = shards(&["shard-1", "../x", "shard-2"]);
        check(URI, Some(&both), &["shard-1"], ["shard-1", "identity-mismatch"]);
        check(URI, Some(&both), &["shard-2"], ["shard-2", "identity-mismatch"]);
        check(URI, Some(&both), &["shard-3"], ["identity-mismatch"; 2]);
        check(URI, Some(&both), &[], ["token-missing", "identity-mismatch"]);
        // Twice the same is no second owner.
        check(URI, Some(&shards(&["shard-1", "shard-1"])), &[], ["token-missing", "shard-1"]);
        let twice = peer(&[], &["shard-1.masters.example.org", "SHARD-1.Masters.example.org"], &[]);
        check(DNS, Some(&twice), &[], ["token-missing", "shard-1"]);
    }

    #[test]
    fn only_names_of_the_kind_that_the_route_looks_at_count() {
        let all = peer(&["spiffe://example.org/shard/u"], &["d.masters.example.org"], &["c"]);
        for (pattern, owner) in [(URI, "u"), (DNS, "d"), (COMMON_NAME, "c")] {
            for claimed in ["u", "d", "c"] {
                let expected = if claimed == owner { owner } else { "identity-mismatch" };
                check(pattern, Some(&all), &[claimed], [expected; 2]);
            }
        }
    }

    #[test]
    fn an_owner_of_a_dns_name_is_claimed_in_lower_case() {
        let shouting = peer(&[], &["SHARD-1.MASTERS.EXAMPLE.ORG"], &[]);
        check(DNS, Some(&shouting), &["shard-1"], ["shard-1"; 2]);
        check(DNS, Some(&shouting), &["SHARD-1"], ["identity-mismatch"; 2]);
    }

    #[test]
    fn an_owner_that_could_be_read_in_two_ways_claims_nothing() {
        let one = shards(&["shard-1"]);
        check(URI, Some(&one), &["shard-1", "shard-1"], ["token-malformed"; 2]);
        check(URI, Some(&one), &["shard-1", "shard-2"], ["token-malformed"; 2]);
        for take_owner in [false, true] {
            let identity = identity(URI, take_owner);
            for headers in [
                &[("connection", "fence-owner")][..],
                &[("fence-owner", "shard-1"), ("connection", "x, Fence-Owner")],
            ] {
                assert_eq!(
                    established(&identity, Some(&one), headers),
                    "token-malformed",
                    "{headers:?}"
                );
            }
        }
    }

    #[test]
    fn who_claims_to_be_another_is_told_the_same_whatever_the_revision() {
        let one = shards(&["shard-1"]);
        for take_owner in [false, true] {
            let identity = identity(URI, take_owner);
            for revision in [&[][..], &["10"], &["x"], &["10", "10"]] {
                let mut headers: Vec<(&str, &str)> =
                    revision.iter().map(|revision| ("fence-revision", *revision)).collect();
                headers.push(("fence-owner", "shard-2"));
                assert_eq!(
                    established(&identity, Some(&one), &headers),
                    "identity-mismatch",
                    "{headers:?}"
                );
            }
        }
    }
}
