//! What is made of files, and made anew when they change.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use crate::contents::{Contents, Fingerprint};
use crate::error::TlsError;
use crate::expiry::Expiry;
use crate::trust_entry::TrustEntry;

/// What a look at the files came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// They hold what they held at the last look.
    Unchanged,
    /// They hold something else, and it is in force.
    Reloaded,
    /// They hold something else that is of no use; what was in force stays. Said once: the next
    /// look says it again only if they have changed again.
    Failed(TlsError),
}

/// Something made of files that is made anew when they change.
pub trait Followed: Send + Sync {
    /// Reads the files, and puts what they hold in force if it is something else than at the last
    /// look. Blocks for as long as reading takes.
    ///
    /// A certificate whose key is not there yet is [`Look::Failed`]; it comes into force by the
    /// look that finds the key.
    fn look(&self) -> Look;

    /// When each certificate and revocation list in force begins and ends.
    fn expiries(&self) -> Arc<[Expiry]>;
}

/// What a set of files can be made into.
pub(crate) trait Recipe: Send + Sync {
    /// What rustls takes.
    type Config: Send + Sync;

    fn paths(&self) -> Vec<&Path>;

    /// Makes it. `old` is what was made last, if anything was.
    fn make(
        &self,
        contents: &Contents,
        old: Option<&Self::Config>,
    ) -> Result<Made<Self::Config>, TlsError>;
}

/// What was made of files.
pub(crate) struct Made<C> {
    pub(crate) config: Arc<C>,
    pub(crate) entries: Arc<[TrustEntry]>,
    pub(crate) expiries: Arc<[Expiry]>,
}

/// The one that is in force, and what the files held when they were last read.
pub(crate) struct Kept<R: Recipe> {
    pub(crate) recipe: R,
    made: ArcSwap<Made<R::Config>>,
    /// Locked from reading to putting in force, so that two looks at once do not put the older one
    /// in force last.
    last_read: Mutex<Fingerprint>,
}

impl<R: Recipe> Kept<R> {
    pub(crate) fn load(recipe: R) -> Result<Kept<R>, TlsError> {
        let contents = Contents::read(recipe.paths());
        let made = recipe.make(&contents, None)?;
        Ok(Kept {
            made: ArcSwap::from_pointee(made),
            last_read: Mutex::new(contents.fingerprint()),
            recipe,
        })
    }

    /// Made of what is at hand. The recipe names no paths, so a look finds no change.
    pub(crate) fn given(recipe: R, contents: &Contents) -> Result<Kept<R>, TlsError> {
        let made = ArcSwap::from_pointee(recipe.make(contents, None)?);
        let last_read = Mutex::new(Contents::read(recipe.paths()).fingerprint());
        Ok(Kept { made, last_read, recipe })
    }

    pub(crate) fn now(&self) -> Arc<Made<R::Config>> {
        self.made.load_full()
    }
}

impl<R: Recipe> Followed for Kept<R> {
    fn look(&self) -> Look {
        let mut last_read = self.last_read.lock().unwrap_or_else(PoisonError::into_inner);
        let contents = Contents::read(self.recipe.paths());
        let fingerprint = contents.fingerprint();
        if *last_read == fingerprint {
            return Look::Unchanged;
        }
        let made = self.recipe.make(&contents, Some(&self.now().config));
        *last_read = fingerprint;
        match made {
            Ok(made) => {
                self.made.store(Arc::new(made));
                Look::Reloaded
            }
            Err(error) => Look::Failed(error),
        }
    }

    fn expiries(&self) -> Arc<[Expiry]> {
        Arc::clone(&self.now().expiries)
    }
}
