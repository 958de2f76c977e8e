//! What a request presents, and the two words it is made of.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::Arc;

use percent_encoding::percent_decode;

/// The store's number for a write; a later write's is larger, across all keys of the store.
///
/// From 1 to 9223372036854775807: etcd counts in signed 64-bit integers and its first revision is
/// 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(NonZeroU64);

impl Revision {
    /// The lowest revision a store can have.
    pub const MIN: Revision = Revision(NonZeroU64::MIN);
    /// The highest revision a store can have.
    pub const MAX: Revision = Revision(NonZeroU64::new(i64::MAX as u64).expect("it is not 0"));

    /// The revision of that number, if there is one.
    pub const fn new(number: u64) -> Option<Revision> {
        match NonZeroU64::new(number) {
            Some(number) if number.get() <= Revision::MAX.get() => Some(Revision(number)),
            Some(_) | None => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The revision just before, if there is one.
    pub const fn before(self) -> Option<Revision> {
        Revision::new(self.get() - 1)
    }
}

impl FromStr for Revision {
    type Err = InvalidRevision;

    /// Accepts one spelling per revision: `7`, but not `+7`, `07` or ` 7`.
    fn from_str(text: &str) -> Result<Self, InvalidRevision> {
        if !text.starts_with(|first: char| ('1'..='9').contains(&first)) {
            return Err(InvalidRevision);
        }
        text.parse().ok().and_then(Revision::new).ok_or(InvalidRevision)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// A text that is not the one spelling of a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a revision: a decimal number from 1 to 9223372036854775807 without sign, leading zero or spaces"
)]
pub struct InvalidRevision;

/// Who holds a lock, as the bytes of the lock record have it.
///
/// Two owners are the same only if their bytes are: a tenure never runs from one to the other. A
/// request presents text, so it is compared percent-decoded ([`Owner::is_presented_as`]).
///
/// Keeps up to 22 bytes in place, so that a judgement among 100,000 locks need not fetch them from
/// elsewhere in memory.
#[derive(Clone)]
pub struct Owner(Name);

#[derive(Clone)]
enum Name {
    Short { length: u8, room: [u8; SHORT_MAX] },
    Long(Arc<[u8]>),
}

/// With it an owner takes no more room than a pointer, a length and what tells them from a short
/// name.
const SHORT_MAX: usize = 22;

impl Owner {
    /// The owner of that name. The empty name is an owner like any other.
    pub fn new(name: impl AsRef<[u8]> + Into<Arc<[u8]>>) -> Owner {
        let bytes = name.as_ref();
        let mut room = [0; SHORT_MAX];
        match (u8::try_from(bytes.len()), room.get_mut(..bytes.len())) {
            (Ok(length), Some(place)) => {
                place.copy_from_slice(bytes);
                Owner(Name::Short { length, room })
            }
            _ => Owner(Name::Long(name.into())),
        }
    }

    /// The name, as the record has it.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Name::Short { length, room } => &room[..usize::from(*length)],
            Name::Long(name) => name,
        }
    }

    /// Whether a request that presents these bytes means this owner.
    ///
    /// Both are compared as they are or percent-decoded, since encoders differ in what they encode
    /// and in the case of their hex: the owner `a-ü` may be presented as `a-%C3%BC` or `a%2d%c3%bc`.
    pub fn is_presented_as(&self, presented: &[u8]) -> bool {
        self.as_bytes() == presented
            || percent_decode(self.as_bytes()).eq(percent_decode(presented))
    }
}

/// The bytes, with whatever is not visible ASCII (0x21 to 0x7e) as `%XX`, in upper-case hex.
pub fn percent_encoded(bytes: &[u8]) -> impl Iterator<Item = u8> + '_ {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    bytes.iter().flat_map(|&byte| {
        let (text, length) = if byte.is_ascii_graphic() {
            ([byte, 0, 0], 1)
        } else {
            ([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]], 3)
        };
        text.into_iter().take(length)
    })
}

impl PartialEq for Owner {
    fn eq(&self, other: &Owner) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Owner {}

impl PartialOrd for Owner {
    fn partial_cmp(&self, other: &Owner) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Owner {
    fn cmp(&self, other: &Owner) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Display for Owner {
    /// The spelling that can be presented: visible ASCII, everything else percent-encoded.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        percent_encoded(self.as_bytes())
            .try_for_each(|byte| fmt::Write::write_char(f, char::from(byte)))
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// What a request presents: who it says it is, and under which revision of the lock.
///
/// `O` is whatever the owner's bytes arrived in, so that taking a token off a request copies
/// nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceToken<O = Vec<u8>> {
    /// The claimed owner, as presented.
    pub owner: O,
    /// The claimed revision.
    pub revision: Revision,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, number: Option<u64>) {
        assert_eq!(text.parse::<Revision>().ok().map(Revision::get), number, "{text:?}");
    }

    #[test]
    fn a_revision_has_one_spelling() {
        check("1", Some(1));
        check("9223372036854775807", Some(i64::MAX as u64));
        for text in [
            "",
            "0",
            "00",
            "01",
            "+1",
            "-1",
            " 1",
            "1 ",
            "1\t",
            "1.0",
            "1e3",
            "0x1",
            "1_0",
            "１",
            "٣",
            "9223372036854775808",
            "18446744073709551616",
            "99999999999999999999999999",
        ] {
            check(text, None);
        }
    }

    #[test]
    fn every_text_of_up_to_three_bytes_is_a_revision_or_not_by_its_digits() {
        let alphabet = [b'0', b'1', b'9', b'+', b'-', b' ', b'a'];
        let mut texts: Vec<Vec<u8>> = vec![vec![]];
        for _ in 0..3 {
            let longer: Vec<Vec<u8>> = texts
                .iter()
                .flat_map(|t| alphabet.iter().map(|b| [t.as_slice(), &[*b]].concat()))
                .collect();
            texts.extend(longer);
        }
        for text in texts {
            let text = String::from_utf8(text).unwrap();
            let digits = !text.is_empty()
                && text.bytes().all(|b| b.is_ascii_digit())
                && !text.starts_with('0');
            check(&text, digits.then(|| text.parse().unwrap()));
        }
    }

    #[test]
    fn owners_are_presented_as_they_are_or_percent_encoded() {
        let presented = |name: &[u8], as_: &[u8]| Owner::new(name).is_presented_as(as_);
        assert!(presented(b"shard-1", b"shard-1"));
        assert!(!presented(b"shard-1", b"shard-2"));
        assert!(!presented(b"shard-1", b"shard-10"));
        assert!(presented(b"", b""));
        assert!(presented(b"a b", b"a b"));
        assert!(presented(b"a b", b"a%20b"));
        assert!(presented("ü".as_bytes(), b"%C3%BC"));
        assert!(presented("ü".as_bytes(), b"%c3%bc"));
        assert!(presented(b"shard-1", b"shard%2d1") && presented(b"shard-1", b"%73hard%2D1"));
        assert!(presented(b"a/b:c", b"a%2Fb%3ac") && presented(b"100%", b"100%25"));
        assert!(!presented(b"shard-1", b"shard%2d2") && !presented(b"a-b", b"a%252db"));
        assert!(
            !presented(b"a-b", b"a%2gb") && !presented(b"a", b"a%") && !presented(b"a", b"a%0")
        );
        assert!(presented(&[0, 255], b"%00%FF"));
        assert!(presented(b"100%", b"100%"));
    }

    #[test]
    fn a_short_owner_has_its_bytes_in_place_and_a_long_one_has_one_for_all_its_copies() {
        let bytes = |length: usize| (0..length).map(|at| at as u8).collect::<Vec<_>>();
        for length in 0..30 {
            let (owner, other) = (Owner::new(bytes(length)), Owner::new(bytes(length)));
            assert_eq!(owner.as_bytes(), bytes(length));
            assert_eq!(owner, other);
            let copy = owner.clone();
            let place = std::ptr::from_ref(&copy).addr();
            let in_place =
                (place..place + size_of::<Owner>()).contains(&copy.as_bytes().as_ptr().addr());
            let is_one = copy.as_bytes().as_ptr() == owner.as_bytes().as_ptr();
            assert_eq!((in_place, is_one), (length <= 22, length > 22), "{length}");
        }
        assert_eq!(size_of::<Option<Owner>>(), 24);
    }

    #[test]
    fn owners_of_one_spelling_are_still_two_owners() {
        assert_ne!(Owner::new(*b"a b"), Owner::new(*b"a%20b"));
        assert_eq!(Owner::new(*b"a b").to_string(), Owner::new(*b"a%20b").to_string());
    }
}
