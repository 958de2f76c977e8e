//! What a request presents.

use std::fmt;

use anyhow::{Context, ensure};
use hyper::header::HeaderValue;

/// Names the holder of a lock.
pub(crate) const OWNER: &str = "fence-owner";
/// Names the tenure.
pub(crate) const REVISION: &str = "fence-revision";

/// A fence token, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    owner: HeaderValue,
    revision: i64,
}

impl Token {
    /// Of this owner and revision.
    ///
    /// # Errors
    ///
    /// If the owner is not visible ASCII, which is all that is sent here.
    pub(crate) fn new(owner: &str, revision: i64) -> anyhow::Result<Token> {
        ensure!(
            !owner.is_empty() && owner.bytes().all(|byte| byte.is_ascii_graphic()),
            "the owner {owner:?} is not visible ASCII"
        );
        let owner = HeaderValue::try_from(owner).context("the owner cannot be sent")?;
        Ok(Token { owner, revision })
    }

    /// The owner, as a header's value.
    pub(crate) fn owner(&self) -> &HeaderValue {
        &self.owner
    }

    /// The owner, as text.
    pub(crate) fn owner_text(&self) -> &str {
        self.owner.to_str().expect("an owner is visible ASCII")
    }

    /// The revision.
    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.owner_text(), self.revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_visible_ascii() {
        assert_eq!(Token::new("/lock/694d", 7).unwrap().to_string(), "(/lock/694d, 7)");
        for owner in ["", "a b", "a\n", "ä"] {
            assert!(Token::new(owner, 7).is_err(), "{owner:?}");
        }
    }
}
