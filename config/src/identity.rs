//! Who may claim to be which owner: the names of a client certificate, and the owner that is in
//! them.

use std::borrow::Cow;
use std::fmt;

use fencepost_policy::Layout;

use crate::captures::is_capture;
use crate::lock::Lock;
use crate::problem::must_be;
use crate::reader::Table;

/// Where a route finds the owner that a sender has proved to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The names that it looks at, and what they look like.
    pub pattern: OwnerPattern,
    /// Whether the owner is taken from the certificate, so that a request need not name it; else a
    /// request names an owner that the certificate has to bear out.
    pub take_owner: bool,
}

impl PeerIdentity {
    /// `identity = { … }` of a route; `lock` is missing if it is wrong itself.
    pub(crate) fn read(t: &mut Table<'_>, lock: Option<&Lock>) -> Option<PeerIdentity> {
        if lock.is_some_and(|lock| lock.record.layout() == Layout::Mutex) {
            t.notes.problem(&t.place, NOT_FOR_MUTEX);
        }
        let kinds = [PeerNameKind::Uri, PeerNameKind::Dns, PeerNameKind::CommonName];
        let written = kinds.iter().filter(|kind| t.is_written(kind.name())).count();
        if written != 1 {
            let text = format!("must have one of uri, dns and common_name, not {written}");
            t.notes.problem(&t.place, text);
        }
        let read = |kind: PeerNameKind| t.text(kind.name(), |text| OwnerPattern::parse(kind, text));
        let [uri, dns, common_name] = kinds.map(read);
        let take_owner = t.flag("take_owner");
        Some(PeerIdentity { pattern: uri.or(dns).or(common_name)?, take_owner })
    }
}

const NOT_FOR_MUTEX: &str = "is not for layout = \"mutex\": there the owner is the full name of the contender's \
    own key, with the id of its lease, and no certificate names that";

/// The kinds of names in a client certificate that may name an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PeerNameKind {
    /// A URI of the subject alternative name, such as a SPIFFE id.
    Uri,
    /// A DNS name of the subject alternative name.
    Dns,
    /// A common name of the subject.
    CommonName,
}

impl PeerNameKind {
    /// The name used in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            PeerNameKind::Uri => "uri",
            PeerNameKind::Dns => "dns",
            PeerNameKind::CommonName => "common_name",
        }
    }
}

/// What the names of owners look like: a text with exactly one `{owner}`, e.g.
/// `spiffe://example.org/shard/{owner}`.
///
/// A name matches as a whole. `{owner}` stands for `[A-Za-z0-9._~-]+`, not `.` or `..`: one segment
/// of a URI, without escapes, so that there is one spelling of each owner. In a DNS name it stands
/// for `[a-z0-9_-]+`: a label, or a part of one. DNS knows no upper and lower case, so its names
/// are compared without regard to it, and the owner comes out in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerPattern {
    kind: PeerNameKind,
    written: String,
    before: String,
    after: String,
}

impl OwnerPattern {
    /// The longest pattern, in bytes.
    pub const BYTES_MAX: usize = 1024;

    pub(crate) fn parse(kind: PeerNameKind, written: &str) -> Result<OwnerPattern, String> {
        let rule = "must have exactly one {owner} and no other braces";
        let one_owner = || format!("{rule}, not be {written:?}");
        let (before, after) = written.split_once("{owner}").ok_or_else(one_owner)?;
        let (literal, most) = ([before, after].concat(), OwnerPattern::BYTES_MAX);
        if literal.contains(['{', '}']) {
            return Err(one_owner());
        }
        if written.len() > most {
            return Err(format!("has at most {most} bytes, not {}", written.len()));
        }
        let is_dns = |byte: u8| is_of_a_label(byte) || byte == b'.';
        let is_uri = || has_scheme(before) && literal.bytes().all(|byte| byte.is_ascii_graphic());
        let (is_right, what) = match kind {
            PeerNameKind::Uri => (is_uri(), A_URI),
            PeerNameKind::Dns => (literal.bytes().all(is_dns), A_DNS_NAME),
            PeerNameKind::CommonName => (!literal.contains(char::is_control), A_COMMON_NAME),
        };
        if !is_right {
            return Err(must_be(what, written));
        }
        let [before, after] = [before, after].map(|text| match kind {
            PeerNameKind::Dns => text.to_ascii_lowercase(),
            PeerNameKind::Uri | PeerNameKind::CommonName => text.to_owned(),
        });
        Ok(OwnerPattern { kind, written: written.to_owned(), before, after })
    }

    /// Which names it is for.
    pub fn kind(&self) -> PeerNameKind {
        self.kind
    }

    /// The pattern as it is written.
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// The owner that this name, of the pattern's kind, names.
    pub fn owner_in<'n>(&self, name: &'n str) -> Option<Cow<'n, str>> {
        if self.kind == PeerNameKind::Dns {
            let name = name.to_ascii_lowercase();
            let owner = self.middle_of(&name).filter(|owner| is_label(owner))?;
            return Some(Cow::Owned(owner.to_owned()));
        }
        self.middle_of(name).filter(|owner| is_capture(owner.bytes())).map(Cow::Borrowed)
    }

    /// What stands where the owner should. What is before it and what is after it share no letters.
    fn middle_of<'n>(&self, name: &'n str) -> Option<&'n str> {
        name.strip_prefix(self.before.as_str())?.strip_suffix(self.after.as_str())
    }
}

impl fmt::Display for OwnerPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

const A_URI: &str =
    r#"a URI with its scheme before {owner}, like "spiffe://example.org/shard/{owner}""#;
const A_COMMON_NAME: &str = "without control characters";
const A_DNS_NAME: &str = r#"a DNS name, like "{owner}.masters.example.org""#;

/// Whether a text begins with the scheme of a URI (RFC 3986, section 3.1).
fn has_scheme(text: &str) -> bool {
    let Some((scheme, _)) = text.split_once(':') else { return false };
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Whether a text is a label of a DNS name, or a part of one; with the underscore, which is common
/// in names of machines.
fn is_label(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_of_a_label)
}

fn is_of_a_label(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KINDS: [PeerNameKind; 3] =
        [PeerNameKind::Uri, PeerNameKind::Dns, PeerNameKind::CommonName];

    fn pattern(kind: PeerNameKind, written: &str) -> OwnerPattern {
        OwnerPattern::parse(kind, written).unwrap_or_else(|problem| panic!("{written}: {problem}"))
    }

    #[track_caller]
    fn check(pattern: &OwnerPattern, name: &str, owner: Option<&str>) {
        assert_eq!(pattern.owner_in(name).as_deref(), owner, "{name:?} against {pattern}");
    }

    #[test]
    fn an_owner_is_one_segment_of_a_uri_without_escapes() {
        let shards = pattern(PeerNameKind::Uri, "spiffe://example.org/shard/{owner}");
        for owner in ["shard-1", "1", "A.b_c~d-E", "...", "owner"] {
            check(&shards, &format!("spiffe://example.org/shard/{owner}"), Some(owner));
        }
        let beside = [
            "",
            "shard-1",
            "spiffe://example.org/shard/",
            "spiffe://example.org/shard",
            "spiffe://example.org/shard/1/",
            "spiffe://example.org/shard/1/2",
            "spiffe://example.org/shard//1",
            "spiffe://example.org/shards/1",
            "spiffe://example.org.evil/shard/1",
            "xspiffe://example.org/shard/1",
            " spiffe://example.org/shard/1",
        ];
        // URIs are compared byte for byte, and never normalised.
        let other_spellings = "\
            SPIFFE://example.org/shard/1 | spiffe://EXAMPLE.org/shard/1 | \
            spiffe://example.org:443/shard/1 | spiffe://example.org/shard/. | \
            spiffe://example.org/shard/.. | spiffe://example.org/shard/%31 | \
            spiffe://example.org/shard/a%2fb | spiffe://example.org/shard/1%00"
            .split(" | ");
        let odd = [
            "1?x", "1#x", "1;x", "a b", "1 ", "1\n", "1\0", "\0", "a@b", "a:b", "a,b", "a\\b", "*",
            "{owner}", "ü", "１",
        ];
        let odd = odd.map(|odd| format!("spiffe://example.org/shard/{odd}"));
        for name in beside.into_iter().chain(other_spellings).chain(odd.iter().map(String::as_str))
        {
            check(&shards, name, None);
        }
    }

    #[test]
    fn owner_in_a_dns_name_is_one_label_in_lower_case() {
        let masters = pattern(PeerNameKind::Dns, "{owner}.Masters.example.org");
        for (name, owner) in [
            ("shard-1.masters.example.org", "shard-1"),
            ("SHARD-1.masters.example.org", "shard-1"),
            ("shard_1.MASTERS.Example.ORG", "shard_1"),
        ] {
            check(&masters, name, Some(owner));
        }
        for name in [
            "",
            "masters.example.org",
            ".masters.example.org",
            "shard-1.masters.example.org.",
            "shard-1.masters.example.org.evil",
            "shard-1xmasters.example.org",
            "a.shard-1.masters.example.org",
            "*.masters.example.org",
            "a~b.masters.example.org",
            "shard 1.masters.example.org",
            "shard-1\0.masters.example.org",
            "ſ.masters.example.org",        // Upper-case `S`, for some.
            "\u{212a}.masters.example.org", // Lower-case `k`, for some.
        ] {
            check(&masters, name, None);
        }
        check(
            &pattern(PeerNameKind::Dns, "shard-{owner}.example.org"),
            "SHARD-7.example.org",
            Some("7"),
        );
    }

    #[test]
    fn a_common_name_may_be_the_owner_itself() {
        let owner = pattern(PeerNameKind::CommonName, "{owner}");
        check(&owner, "shard-1", Some("shard-1"));
        check(&owner, "Shard-1", Some("Shard-1"));
        for name in ["", ".", "..", "a/b", "a b", "a,b", "a\0", "ü", "a%20b", "*"] {
            check(&owner, name, None);
        }
        let with_text = pattern(PeerNameKind::CommonName, "Máster {owner} (prod)");
        check(&with_text, "Máster shard-1 (prod)", Some("shard-1"));
        check(&with_text, "Máster shard-1 (Prod)", None);
        check(&with_text, "Máster shard-1", None);
        check(&with_text, "M", None);
        check(&with_text, "Má", None);
    }

    #[test]
    fn what_is_before_the_owner_and_what_is_after_share_no_letters() {
        for kind in [PeerNameKind::Dns, PeerNameKind::CommonName] {
            let pattern = pattern(kind, "aba{owner}aba");
            check(&pattern, "aba", None);
            check(&pattern, "ababa", None);
            check(&pattern, "abaaba", None);
            check(&pattern, "ababaaba", Some("ba"));
        }
    }

    #[test]
    fn a_pattern_has_one_owner_in_a_name_of_its_kind() {
        for kind in KINDS {
            let texts = "\
                x:/ | x:{owner | x:owner} | x:{owner}{owner} | x:{owner}/{owner} | \
                x:{shard}/{owner} | x:{owner}} | x:{{owner} | x:{Owner} | ";
            for wrong in texts.split(" | ") {
                assert!(OwnerPattern::parse(kind, wrong).is_err(), "{wrong:?}");
            }
            let [longest, longer] = [1024, 1025]
                .map(|bytes| format!("x:{}{{owner}}", "a".repeat(bytes - "x:{owner}".len())));
            assert!(OwnerPattern::parse(PeerNameKind::Uri, &longest).is_ok());
            assert!(OwnerPattern::parse(kind, &longer).is_err());
        }
        let listed = "\
            {owner} | /{owner} | //example.org/{owner} | {owner}://x | 1x:{owner} | :{owner} | \
            x:/ {owner} | x:/ü{owner}";
        for wrong in listed.split(" | ") {
            assert!(OwnerPattern::parse(PeerNameKind::Uri, wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["x:{owner}", "*.{owner}", "{owner}/x", "{owner} ", "ü.{owner}"] {
            assert!(OwnerPattern::parse(PeerNameKind::Dns, wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["{owner}\n", "\0{owner}"] {
            assert!(OwnerPattern::parse(PeerNameKind::CommonName, wrong).is_err(), "{wrong:?}");
        }
    }

    /// A pattern of each kind with some literal text, and names that it is made for.
    fn patterns() -> impl Strategy<Value = OwnerPattern> {
        let uri = ("[a-z][a-z+.-]{0,4}:[!-z]{0,12}", "[!-z]{0,8}")
            .prop_map(|texts| (PeerNameKind::Uri, texts));
        let dns = ("[A-Za-z0-9._-]{0,8}", "[A-Za-z0-9._-]{0,8}")
            .prop_map(|texts| (PeerNameKind::Dns, texts));
        let common_name = ("[^\\p{C}{}]{0,8}", "[^\\p{C}{}]{0,8}")
            .prop_map(|texts| (PeerNameKind::CommonName, texts));
        prop_oneof![uri, dns, common_name]
            .prop_map(|(kind, (before, after))| pattern(kind, &format!("{before}{{owner}}{after}")))
    }

    proptest! {
        #[test]
        fn name_made_with_an_owner_gives_that_owner(pattern in patterns(), owner in "[A-Za-z0-9_-]{1,12}") {
            let name = pattern.as_str().replace("{owner}", &owner);
            let expected = if pattern.kind() == PeerNameKind::Dns { owner.to_ascii_lowercase() } else { owner };
            prop_assert_eq!(pattern.owner_in(&name), Some(Cow::Borrowed(expected.as_str())));
        }

        #[test]
        fn owner_found_in_any_name_makes_that_name_again(
            pattern in patterns(),
            middle in "[A-Za-z0-9./%~_ -]{0,6}|.{0,4}",
            before in ".{0,3}",
            after in ".{0,3}",
            exact in any::<bool>(),
        ) {
            let exactly = pattern.as_str().replace("{owner}", &middle);
            let name = if exact { exactly } else { format!("{before}{exactly}{after}") };
            if let Some(owner) = pattern.owner_in(&name) {
                let made = pattern.as_str().replace("{owner}", &owner);
                let is_dns = pattern.kind() == PeerNameKind::Dns;
                prop_assert!(if is_dns { made.eq_ignore_ascii_case(&name) } else { made == name }, "{owner} in {name:?} by {pattern}");
                let extra = if is_dns { "_-" } else { "._~-" };
                prop_assert!(!owner.is_empty() && owner.chars().all(|letter| letter.is_ascii_alphanumeric() || extra.contains(letter)));
                prop_assert!(!is_dns || !owner.contains(|letter: char| letter.is_ascii_uppercase()));
                prop_assert!(owner != "." && owner != "..");
            }
        }
    }
}
