//! The two words of a token: a revision has one spelling, and an owner is presented as itself or
//! percent-encoded.

use fencepost_policy::{Owner, Revision};

/// A name, a NUL and what is presented for it. The latter is read as a revision as well.
pub(crate) fn run(input: &[u8]) {
    let (name, presented) = match input.iter().position(|byte| *byte == 0) {
        Some(nul) => (&input[..nul], &input[nul + 1..]),
        None => (input, input),
    };
    if let Ok(text) = std::str::from_utf8(presented) {
        let number = read_digit_by_digit(presented);
        let revision = text.parse::<Revision>().ok();
        assert_eq!(revision.map(Revision::get), number, "{text:?}");
        if let Some(revision) = revision {
            assert_eq!(revision.to_string(), text, "a revision has one spelling");
        }
    }
    let owner = Owner::new(name);
    assert!(owner.is_presented_as(name), "everybody may present its own name");
    assert!(
        owner.is_presented_as(owner.to_string().as_bytes()),
        "the spelling that is shown can be presented"
    );
    assert_eq!(
        owner.is_presented_as(presented),
        decoded(name) == decoded(presented),
        "{owner} as {presented:?}"
    );
    // Otherwise a token would be worth more presented by one than by the other.
    assert_eq!(owner.is_presented_as(presented), Owner::new(presented).is_presented_as(name));
}

fn read_digit_by_digit(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 19 || text[0] == b'0' {
        return None; // The largest has 19 digits.
    }
    let mut digits = text.iter().map(|byte| byte.is_ascii_digit().then(|| u64::from(byte - b'0')));
    let number = digits.try_fold(0_u64, |number, digit| Some(number * 10 + digit?));
    number.filter(|number| *number <= i64::MAX.unsigned_abs())
}

/// Each `%XX` as the byte that it stands for.
fn decoded(mut bytes: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    while let [first, rest @ ..] = bytes {
        let hex = std::str::from_utf8(rest.get(..2).unwrap_or_default()).unwrap_or_default();
        let is_hex = hex.len() == 2 && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
        let (byte, rest) = match u8::from_str_radix(hex, 16) {
            Ok(byte) if *first == b'%' && is_hex => (byte, &rest[2..]),
            _ => (*first, rest),
        };
        decoded.push(byte);
        bytes = rest;
    }
    decoded
}
