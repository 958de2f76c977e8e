//! Takes the fence token off a request's headers.

use fencepost_policy::{FenceToken, Rejection, Revision};
use http::header::{CONNECTION, GetAll};
use http::{HeaderMap, HeaderName, HeaderValue};

/// The headers that carry a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenHeaders {
    /// Who says it holds the lock; `Fence-Owner` unless configured.
    pub owner: HeaderName,
    /// Under which revision; `Fence-Revision` unless configured.
    pub revision: HeaderName,
    /// Which lock, where the caller may choose it; `Fence-Lock` unless configured.
    pub lock: HeaderName,
}

impl Default for TokenHeaders {
    fn default() -> TokenHeaders {
        TokenHeaders {
            owner: HeaderName::from_static("fence-owner"),
            revision: HeaderName::from_static("fence-revision"),
            lock: HeaderName::from_static("fence-lock"),
        }
    }
}

impl TokenHeaders {
    /// The token of a request.
    ///
    /// # Errors
    /// `token-missing` without an owner or a revision; `token-malformed` if one is given twice, is
    /// named in `Connection` (which would let some hop take it off), or if the revision is not the
    /// one spelling of a number.
    pub fn token(&self, headers: &HeaderMap) -> Result<FenceToken<HeaderValue>, Rejection> {
        let (mut owner, mut revision) = (None, None);
        // By one look at all of them, which costs half as much as to look for each.
        for (name, value) in headers {
            let earlier = if *name == self.owner {
                owner.replace(value)
            } else if *name == self.revision {
                revision.replace(value)
            } else {
                Some(value).filter(|_| {
                    *name == CONNECTION
                        && [&self.owner, &self.revision].iter().any(|ours| names(value, ours))
                })
            };
            if earlier.is_some() {
                return Err(Rejection::TokenMalformed);
            }
        }
        let (Some(owner), Some(revision)) = (owner, revision) else {
            return Err(Rejection::TokenMissing);
        };
        let revision = parse_revision(revision).ok_or(Rejection::TokenMalformed)?;
        Ok(FenceToken { owner: owner.clone(), revision })
    }

    /// Drops whatever a request presents.
    pub fn drop_from(&self, headers: &mut HeaderMap) {
        for name in [&self.owner, &self.revision, &self.lock] {
            headers.remove(name);
        }
    }

    /// The owner that a request presents, whatever else it says.
    ///
    /// # Errors
    /// `token-malformed` if it is given twice or named in `Connection`.
    pub fn owner<'h>(&self, headers: &'h HeaderMap) -> Result<Option<&'h HeaderValue>, Rejection> {
        only(headers, &headers.get_all(CONNECTION), &self.owner)
    }

    /// The revision that a request presents, if it can be read, whatever else it says.
    pub fn revision_alone(&self, headers: &HeaderMap) -> Option<Revision> {
        only(headers, &headers.get_all(CONNECTION), &self.revision)
            .ok()
            .flatten()
            .and_then(parse_revision)
    }

    /// What a request names its lock by: the key as it is, or percent-encoded
    /// ([`LockKey::is_presented_as`](fencepost_policy::LockKey::is_presented_as)).
    ///
    /// # Errors
    /// As for [`TokenHeaders::token`]; `lock-not-allowed` if it is not UTF-8.
    pub fn lock<'h>(&self, headers: &'h HeaderMap) -> Result<&'h str, Rejection> {
        let lock = only(headers, &headers.get_all(CONNECTION), &self.lock)?
            .ok_or(Rejection::TokenMissing)?;
        std::str::from_utf8(lock.as_bytes()).map_err(|_| Rejection::LockNotAllowed)
    }
}

fn parse_revision(written: &HeaderValue) -> Option<Revision> {
    written.to_str().ok()?.parse().ok()
}

/// The value of a header that may stand only once and must reach us as the client sent it.
fn only<'h>(
    headers: &'h HeaderMap,
    connection: &GetAll<'_, HeaderValue>,
    name: &HeaderName,
) -> Result<Option<&'h HeaderValue>, Rejection> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() || is_named(connection, name) {
        return Err(Rejection::TokenMalformed);
    }
    Ok(value)
}

fn is_named(connection: &GetAll<'_, HeaderValue>, name: &HeaderName) -> bool {
    connection.iter().any(|value| names(value, name))
}

/// Whether a value of `Connection` names that field.
fn names(connection: &HeaderValue, name: &HeaderName) -> bool {
    let mut options = connection.as_bytes().split(|byte| *byte == b',');
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(name.as_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The token as `owner@revision`, or the code of the refusal.
    fn taken(headers: &[(&str, &str)]) -> String {
        let names = TokenHeaders::default();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            );
        }
        match names.token(&map) {
            Ok(token) => {
                format!("{}@{}", String::from_utf8_lossy(token.owner.as_bytes()), token.revision)
            }
            Err(rejection) => rejection.code().to_owned(),
        }
    }

    #[test]
    fn a_token_is_an_owner_and_a_revision() {
        assert_eq!(taken(&[("Fence-Owner", "shard-1"), ("Fence-Revision", "10")]), "shard-1@10");
        assert_eq!(taken(&[("fence-owner", ""), ("fence-revision", "10")]), "@10");
        assert_eq!(taken(&[("fence-owner", "a b ü"), ("fence-revision", "10")]), "a b ü@10");
    }

    #[test]
    fn half_a_token_is_none() {
        assert_eq!(taken(&[]), "token-missing");
        assert_eq!(taken(&[("fence-owner", "shard-1")]), "token-missing");
        assert_eq!(taken(&[("fence-revision", "10")]), "token-missing");
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_malformed() {
        let good = [("fence-owner", "a"), ("fence-revision", "10")];
        for more in [
            ("fence-owner", "a"),
            ("fence-revision", "10"),
            ("fence-revision", "11"),
            ("connection", "fence-owner"),
            ("connection", "close, Fence-Revision"),
            ("connection", "close,\tfence-revision ,x"),
        ] {
            assert_eq!(taken(&[good[0], good[1], more]), "token-malformed", "{more:?}");
        }
        assert_eq!(taken(&[good[0], good[1], ("connection", "close, fence-revisions")]), "a@10");
        for revision in
            ["", "0", "01", "+1", "-1", "1,1", "1 1", "0x1", "9223372036854775808", "ü", "1e3"]
        {
            assert_eq!(
                taken(&[("fence-owner", "a"), ("fence-revision", revision)]),
                "token-malformed",
                "{revision:?}"
            );
        }
    }
}
