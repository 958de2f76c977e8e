//! What the request in question presents, and what its sender has proved.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use fencepost_config::{PeerIdentity, Route};
use fencepost_policy::{FenceToken, Rejection};
use fencepost_tls::PeerNames;
use http::{HeaderMap, HeaderValue};
use smol_str::SmolStr;

use crate::cli::Question;
use crate::identity::{establish, owners};
use crate::observe::text::owner_in_words;
use crate::observe::text::shown_peer;
use crate::routes::token_headers;
use crate::token::TokenHeaders;

/// What the request in question presents.
#[derive(Debug, Clone)]
pub(super) struct Presented {
    /// Whom it claims to come from, or comes from, if that is clear.
    pub(super) owner: Option<String>,
    pub(super) revision: String,
    /// What its sender has proved to be, where the route wants that.
    pub(super) proof: Option<Proof>,
    pub(super) token: Result<FenceToken<HeaderValue>, Rejection>,
}

impl Presented {
    /// What a request presents that is as the question says.
    ///
    /// # Errors
    /// What the question has to say.
    pub(super) fn of(question: Question, route: &Route) -> Result<Presented, String> {
        let Question { owner, revision, peer_uri, peer_dns, peer_cn, route: _, lock: _, json: _ } =
            question;
        // Blanks around it are no part of a value (RFC 9110, section 5.5).
        let trimmed = |value: String| value.trim_matches([' ', '\t']).to_owned();
        let (owner, revision) = (owner.map(trimmed), trimmed(revision));
        let identity = route.identity.as_ref().filter(|_| route.mode.lock().is_some());
        if owner.is_none() && !identity.is_some_and(|identity| identity.take_owner) {
            return Err("--owner: say whom the request claims to come from".to_owned());
        }
        let peer = PeerNames { uris: peer_uri, dns: peer_dns, common_names: peer_cn };
        let peer = Some(peer).filter(|peer| *peer != PeerNames::default());
        let names = token_headers(route);
        let mut headers = HeaderMap::new();
        let token = written(&names, owner.as_deref(), &revision, &mut headers).and_then(|()| {
            identity.map_or(Ok(()), |identity| {
                establish(identity, peer.as_ref(), &names, &mut headers)
            })?;
            names.token(&headers)
        });
        let taken = names
            .owner(&headers)
            .ok()
            .flatten()
            .map(|owner| String::from_utf8_lossy(owner.as_bytes()).into_owned());
        let proof = identity.map(|identity| Proof::of(identity, peer.as_ref()));
        Ok(Presented { owner: owner.or(taken), revision, proof, token })
    }
}

/// What the names of a certificate prove.
#[derive(Debug, Clone)]
pub(super) struct Proof {
    /// `None` if there was no certificate.
    pub(super) names: Option<SmolStr>,
    pattern: String,
    pub(super) owners: BTreeSet<String>,
}

impl Proof {
    fn of(identity: &PeerIdentity, peer: Option<&PeerNames>) -> Proof {
        Proof {
            names: peer.map(shown_peer),
            pattern: format!(
                "{} = {:?}",
                identity.pattern.kind().name(),
                identity.pattern.as_str()
            ),
            owners: owners(identity, peer).map(Cow::into_owned).collect(),
        }
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Proof { names, pattern, owners } = self;
        let Some(names) = names else {
            return write!(
                f,
                "The sender has no certificate (--peer-uri, --peer-dns and --peer-cn say which names one has)."
            );
        };
        if owners.is_empty() {
            return write!(f, "The sender's certificate, {names}, names no owner: {pattern}.");
        }
        let owners: Vec<String> = owners.iter().map(owner_in_words).collect();
        write!(f, "The sender's certificate, {names}, names {}: {pattern}.", owners.join(" and "))
    }
}

/// Writes headers as the request would have them.
fn written(
    names: &TokenHeaders,
    owner: Option<&str>,
    revision: &str,
    headers: &mut HeaderMap,
) -> Result<(), Rejection> {
    for (name, value) in [(&names.owner, owner), (&names.revision, Some(revision))] {
        let Some(value) = value else { continue };
        let value =
            HeaderValue::from_bytes(value.as_bytes()).map_err(|_| Rejection::TokenMalformed)?;
        headers.insert(name.clone(), value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fencepost_config::Config;

    use super::*;

    const FILE: &str = r#"
        [[listener]]
        address = "127.0.0.1:8080"
        tls = { certificate = "/t/a.pem", key = "/t/a.key", client_ca = "/t/ca.pem" }
        [source.main]
        kind = "memory"
        [[route]]
        name = "checked"
        path = "/checked/"
        upstream = "http://127.0.0.1:9000"
        lock = { source = "main", key = "/k" }
        identity = { common_name = "{owner}" }
        [[route]]
        name = "taken"
        path = "/taken/"
        upstream = "http://127.0.0.1:9000"
        lock = { source = "main", key = "/k" }
        identity = { common_name = "{owner}", take_owner = true }
        [[route]]
        name = "open"
        path = "/"
        upstream = "http://127.0.0.1:9000"
        lock = { source = "main", key = "/k" }
    "#;

    /// The token as `owner@revision`, or the code of the refusal, or what is wrong with the
    /// question; and the proof.
    fn presented(
        route: &str,
        owner: Option<&str>,
        revision: &str,
        common_names: &[&str],
    ) -> (String, String) {
        let config =
            Config::from_toml("f.toml", FILE).unwrap_or_else(|problems| panic!("{problems}"));
        let route = config.routes.iter().find(|one| one.name == route).unwrap();
        let question = Question {
            route: None,
            owner: owner.map(str::to_owned),
            revision: revision.to_owned(),
            lock: None,
            peer_uri: Vec::new(),
            peer_dns: Vec::new(),
            peer_cn: common_names.iter().map(|name| (*name).to_owned()).collect(),
            json: false,
        };
        let presented = match Presented::of(question, route) {
            Ok(presented) => presented,
            Err(problem) => return (problem, String::new()),
        };
        let token = match &presented.token {
            Ok(token) => format!("{}@{}", token.owner.to_str().unwrap(), token.revision),
            Err(reason) => reason.code().to_owned(),
        };
        (token, presented.proof.map(|proof| proof.to_string()).unwrap_or_default())
    }

    #[test]
    fn a_question_is_judged_as_a_request_that_says_the_same() {
        for (route, owner, revision, common_names, expected) in [
            ("open", Some("a"), "7", &[][..], "a@7"),
            ("open", Some("a"), "7", &["b"], "a@7"),
            ("open", Some("a"), "07", &[], "token-malformed"),
            ("open", Some("a\n"), "7", &[], "token-malformed"),
            ("open", Some(" a b\t"), "\t7 ", &[], "a b@7"),
            ("open", None, "7", &["a"], "--owner: say whom the request claims to come from"),
            ("checked", Some("a"), "7", &["a"], "a@7"),
            ("checked", Some("a"), "7", &["b", "a"], "a@7"),
            ("checked", Some("a"), "07", &["b"], "identity-mismatch"),
            ("checked", Some("a"), "7", &[], "identity-mismatch"),
            ("checked", None, "7", &["a"], "--owner: say whom the request claims to come from"),
            ("taken", None, "7", &["a"], "a@7"),
            ("taken", Some("a"), "7", &["a"], "a@7"),
            ("taken", Some("a"), "7", &["a", "b"], "identity-mismatch"),
            ("taken", None, "7", &[], "identity-mismatch"),
        ] {
            assert_eq!(
                presented(route, owner, revision, common_names).0,
                expected,
                "{route} {owner:?} {common_names:?}"
            );
        }
    }

    #[test]
    fn what_a_certificate_proves_is_said() {
        let proof = |common_names: &[&str]| presented("checked", Some("a"), "7", common_names).1;
        assert_eq!(
            proof(&["b", "a", "a/b"]),
            "The sender's certificate, cn:b cn:a cn:a/b, names a and b: common_name = \"{owner}\"."
        );
        assert_eq!(
            proof(&["a b"]),
            "The sender's certificate, cn:a%20b, names no owner: common_name = \"{owner}\"."
        );
        assert!(proof(&[]).starts_with("The sender has no certificate ("));
        assert_eq!(presented("open", Some("a"), "7", &["b"]).1, "");
    }
}
