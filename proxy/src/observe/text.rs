//! Text from outside, as operators get to see it: bounded, and nothing but text wherever it is
//! shown next.

use std::borrow::Cow;
use std::fmt::Display;

use fencepost_tls::PeerNames;
use http::Method;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use smol_str::{SmolStr, format_smolstr};

/// What is encoded of ASCII: all that is not visible.
const NOT_SHOWN: &AsciiSet = &CONTROLS.add(b' ');

/// The longest owner that is shown, in bytes.
const OWNER_MAX: usize = 256;

/// The longest method that is shown, in bytes: those that are registered have up to 17.
const METHOD_MAX: usize = 32;

/// The longest host that is shown, in bytes: names in DNS have up to 253, and a port may follow.
const HOST_MAX: usize = 260;

/// The longest path that is shown, in bytes.
const PATH_MAX: usize = 512;

/// The most of a certificate's names that is shown, in bytes.
const PEER_MAX: usize = 512;

/// An owner, as it is shown: visible ASCII as it is, everything else percent-encoded, cut with `…`
/// at 256 bytes.
pub fn shown_owner(owner: &[u8]) -> SmolStr {
    shown(owner, OWNER_MAX)
}

/// An owner among words, as it is shown; an empty one is quoted.
pub fn owner_in_words(owner: impl Display) -> String {
    let owner = owner.to_string();
    if owner.is_empty() { r#""""#.to_owned() } else { shown_owner(owner.as_bytes()).into() }
}

/// A method, as it is shown: as an owner, but cut at 32 bytes.
pub fn shown_method(method: &Method) -> SmolStr {
    shown(method.as_str().as_bytes(), METHOD_MAX)
}

/// A host, as it is shown: as an owner, but cut at 260 bytes.
pub fn shown_host(host: &str) -> SmolStr {
    shown(host.as_bytes(), HOST_MAX)
}

/// A path, as it is shown: as an owner, but cut at 512 bytes.
pub fn shown_path(path: &str) -> SmolStr {
    shown(path.as_bytes(), PATH_MAX)
}

/// The names of a certificate, as they are shown: each with its kind before it, like
/// `uri:spiffe://example.org/shard-1 cn:shard-1`, as an owner, but all of them cut at 512 bytes. No
/// name has a space then, so that none can pass for two.
pub fn shown_peer(peer: &PeerNames) -> SmolStr {
    let PeerNames { uris, dns, common_names } = peer;
    let mut text = String::new();
    for (kind, names) in [("uri:", uris), ("dns:", dns), ("cn:", common_names)] {
        for name in names {
            if text.len() >= PEER_MAX {
                break;
            }
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(kind);
            text.push_str(&shown(name.as_bytes(), PEER_MAX.saturating_sub(text.len())));
        }
    }
    text.into()
}

/// Text from outside, so that it can't be anything but text wherever it is shown next.
fn shown(bytes: &[u8], max: usize) -> SmolStr {
    let text = Cow::from(percent_encode(bytes, NOT_SHOWN));
    if text.len() <= max {
        return text.into();
    }
    // Never within an escape.
    let end = text[..max].rfind('%').filter(|at| max - at < 3).unwrap_or(max);
    format_smolstr!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_shown_encoded_and_cut() {
        assert_eq!(&*shown_owner(b"<script>"), "<script>");
        assert_eq!(&*shown_owner(b"a b\r\n\x00"), "a%20b%0D%0A%00");
        assert_eq!(&*shown_owner("\u{202e}".as_bytes()), "%E2%80%AE");
        let long = shown_owner(&[b'x'; 8 << 10]);
        assert_eq!(long.chars().count(), OWNER_MAX + 1);
        assert!(long.ends_with("x…"));
        assert_eq!(owner_in_words("x".repeat(1 << 20)), *long);
        assert_eq!([owner_in_words(""), owner_in_words("a%20b")], [r#""""#, "a%20b"]);
        // Cut between characters, never within an escape.
        let escaped = shown_owner(&[b' '; 200]);
        assert_eq!(escaped.trim_end_matches('…').len() % 3, 0);
        assert_eq!(shown_path(&"y".repeat(PATH_MAX)).len(), PATH_MAX);
    }

    #[test]
    fn the_names_of_a_certificate_are_shown_apart_and_bounded() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let uris = names(&["spiffe://a/1", "spiffe://a/2 dns:b"]);
        let peer = PeerNames { uris, dns: names(&["b.example"]), common_names: names(&["c d\n"]) };
        assert_eq!(
            &*shown_peer(&peer),
            "uri:spiffe://a/1 uri:spiffe://a/2%20dns:b dns:b.example cn:c%20d%0A"
        );
        assert_eq!(&*shown_peer(&PeerNames::default()), "");
        for length in [1, 2, 3, 100, 505, 507, 508, 509, 512, 60_000] {
            let dns = vec!["x ".repeat(length); 40];
            let shown = shown_peer(&PeerNames { dns, ..PeerNames::default() });
            assert!(shown.len() <= PEER_MAX + 16, "{length}: {}", shown.len());
            assert!(shown.ends_with('…') || length < 3, "{shown}");
        }
    }
}
