//! In which headers a tenure stands on the requests that `hold` sends.

use crate::{StampLayer, Tenure};
use clap::Args;
use fencepost_config::{folds_alike, parse_token_header};
use http::HeaderName;

/// The names of the headers that carry the tenure, for `--fence` and `--stamp`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct HeaderNames {
    /// The header with the owner, where the routes of the lock have an owner_header of their own.
    #[arg(long, value_name = "NAME", default_value = "Fence-Owner", value_parser = parse_token_header, requires = "sends", help_heading = "How to reach proxies")]
    pub owner_header: HeaderName,
    /// The header with the revision, as the routes' revision_header.
    #[arg(long, value_name = "NAME", default_value = "Fence-Revision", value_parser = parse_token_header, requires = "sends", help_heading = "How to reach proxies")]
    pub revision_header: HeaderName,
    /// The header with the key of the lock, as the routes' lock_header.
    #[arg(long, value_name = "NAME", default_value = "Fence-Lock", value_parser = parse_token_header, requires = "sends", help_heading = "How to reach proxies")]
    pub lock_header: HeaderName,
}

impl HeaderNames {
    /// Looks whether they differ, as the configuration of a proxy wants it too.
    ///
    /// # Errors
    /// Which two of them do not.
    pub(super) fn check(&self) -> Result<(), String> {
        let HeaderNames { owner_header, revision_header, lock_header } = self;
        for (later, name, earlier, other) in [
            ("--revision-header", revision_header, "--owner-header", owner_header),
            ("--lock-header", lock_header, "--owner-header", owner_header),
            ("--lock-header", lock_header, "--revision-header", revision_header),
        ] {
            if folds_alike(name.as_str(), other.as_str()) {
                return Err(format!(
                    "{later}: {name:?} is {earlier}, {other:?}, or is to a worker that folds names"
                ));
            }
        }
        Ok(())
    }

    /// What puts a tenure on requests.
    pub(super) fn stamp(&self, tenure: &Tenure) -> StampLayer {
        let HeaderNames { owner_header, revision_header, lock_header } = self;
        let stamp = tenure.stamp().named(owner_header.clone(), revision_header.clone());
        stamp.with_lock_in(lock_header.clone())
    }
}
