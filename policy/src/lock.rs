//! Which lock guards a request, and how its record is laid out.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use smol_str::SmolStr;

use crate::token::percent_encoded;

/// Names the lock that guards a request, e.g. `/shards/2/lock`.
///
/// Keeps up to 23 bytes in place, so that a search among 100,000 keys need not fetch their text
/// from elsewhere in memory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockKey(SmolStr);

impl LockKey {
    /// The longest lock key, in bytes.
    pub const BYTES_MAX: usize = 1024;

    /// The lock of that name.
    ///
    /// # Errors
    /// The empty name and names over [`LockKey::BYTES_MAX`] bytes name no lock.
    pub fn new(name: &str) -> Result<LockKey, InvalidLockKey> {
        match name.len() {
            0 => Err(InvalidLockKey::Empty),
            1..=LockKey::BYTES_MAX => Ok(LockKey(name.into())),
            _ => Err(InvalidLockKey::TooLong),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a request that presents this means this lock: the name as it is, or with what is not
    /// visible ASCII percent-encoded ([`percent_encoded`]).
    ///
    /// Other than owners, the lock `a%20b` is not presented as `a b`: that is another lock's own
    /// name.
    pub fn is_presented_as(&self, presented: &str) -> bool {
        self.as_str() == presented
            || percent_encoded(self.as_str().as_bytes()).eq(presented.bytes())
    }
}

/// The name's bytes; those of a long one in the same place.
impl From<&LockKey> for Arc<[u8]> {
    fn from(key: &LockKey) -> Arc<[u8]> {
        Arc::<str>::from(key.0.clone()).into()
    }
}

impl Borrow<str> for LockKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}

/// A text that names no lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLockKey {
    /// Nothing.
    #[error("a lock key cannot be empty")]
    Empty,
    /// More than [`LockKey::BYTES_MAX`] bytes.
    #[error("a lock key has at most {} bytes", LockKey::BYTES_MAX)]
    TooLong,
}

/// How a record in the store becomes a tenure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layout {
    /// One key whose value names the owner.
    Key,
    /// etcd's Election: the oldest key below `key + "/"` leads, its value names the owner.
    Election,
    /// etcd's Mutex: the oldest key below `key + "/"` holds the lock, and its own full name is the
    /// owner.
    Mutex,
}

impl Layout {
    /// Every layout there is.
    pub const ALL: [Layout; 3] = [Layout::Key, Layout::Election, Layout::Mutex];

    /// The name used in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::Key => "key",
            Layout::Election => "election",
            Layout::Mutex => "mutex",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_presented_as_it_is_or_percent_encoded() {
        let presented = |key: &str, as_: &str| LockKey::new(key).unwrap().is_presented_as(as_);
        assert!(presented("/k", "/k"));
        assert!(!presented("/k", "/k/"));
        assert!(presented("/ü x/lock", "/ü x/lock"));
        assert!(presented("/ü x/lock", "/%C3%BC%20x/lock"));
        assert!(!presented("/ü x/lock", "/%c3%bc%20x/lock"));
        assert!(!presented("/ü x/lock", "/ü%20x/lock"), "half of it is no spelling");
        assert!(presented("/a%20b", "/a%20b"));
        assert!(!presented("/a%20b", "/a b"), "that is another lock");
        assert!(!presented("/k", "/%6B"));
    }

    #[test]
    fn a_short_key_has_its_text_in_place_and_a_long_one_has_one_for_all_its_copies() {
        let [short, long] = [23, 24].map(|bytes| LockKey::new(&"k".repeat(bytes)).unwrap());
        let text_of = |key: &LockKey| key.as_str().as_ptr().addr();
        let place = std::ptr::from_ref(&short).addr();
        assert!((place..place + size_of::<LockKey>()).contains(&text_of(&short)));
        assert_eq!(text_of(&long.clone()), text_of(&long));
        assert_eq!(Arc::<[u8]>::from(&long).as_ptr().addr(), text_of(&long));
        assert_eq!(*Arc::<[u8]>::from(&short), *short.as_str().as_bytes());
    }

    #[test]
    fn a_lock_key_has_1_to_1024_bytes() {
        assert_eq!(LockKey::new(""), Err(InvalidLockKey::Empty));
        assert!(LockKey::new(&"k".repeat(1024)).is_ok());
        assert_eq!(LockKey::new(&"k".repeat(1025)), Err(InvalidLockKey::TooLong));
    }
}
