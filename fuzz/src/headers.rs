//! Taking a token off the fields of a request.

use fencepost::token::TokenHeaders;
use fencepost_policy::{FenceToken, Rejection, Revision};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Lines of `name:value`; what can be no field of a message that was read is left out.
pub(crate) fn run(input: &[u8]) {
    let fields: Vec<(HeaderName, HeaderValue)> =
        input.split(|byte| *byte == b'\n').filter_map(field).collect();
    let mut headers = HeaderMap::new();
    for (name, value) in &fields {
        headers.append(name, value.clone());
    }
    let names = TokenHeaders {
        owner: HeaderName::from_static("fence-owner"),
        revision: HeaderName::from_static("fence-revision"),
        lock: HeaderName::from_static("fence-lock"),
    };
    let token = names.token(&headers);
    assert_eq!(
        token.as_ref().map(as_read),
        read_plainly(&fields).as_ref().map(|(owner, number)| (&owner[..], *number))
    );
    let owner = names.owner(&headers);
    if let Ok(token) = &token {
        assert_eq!(owner, Ok(Some(&token.owner)), "whoever presents a token presents its owner");
    }
    if let Ok(lock) = names.lock(&headers) {
        let named: Vec<_> = values(&fields, "fence-lock").collect();
        assert_eq!(named, [lock.as_bytes()], "a lock is named once, as it is taken");
    }
}

fn field(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let value = line[colon + 1..].trim_ascii();
    Some((HeaderName::from_bytes(&line[..colon]).ok()?, HeaderValue::from_bytes(value).ok()?))
}

fn as_read(token: &FenceToken<HeaderValue>) -> (&[u8], u64) {
    (token.owner.as_bytes(), token.revision.get())
}

/// Reads the token by the words of the contract, without our parser.
fn read_plainly(fields: &[(HeaderName, HeaderValue)]) -> Result<(Vec<u8>, u64), Rejection> {
    let once = |name: &str| {
        let all: Vec<&[u8]> = values(fields, name).collect();
        let connection =
            values(fields, "connection").flat_map(|value| value.split(|byte| *byte == b','));
        let is_named = connection
            .map(<[u8]>::trim_ascii)
            .any(|option| option.eq_ignore_ascii_case(name.as_bytes()));
        if all.len() > 1 || is_named {
            Err(Rejection::TokenMalformed)
        } else {
            Ok(all.first().copied())
        }
    };
    let (owner, revision) = (once("fence-owner")?, once("fence-revision")?);
    let (Some(owner), Some(revision)) = (owner, revision) else {
        return Err(Rejection::TokenMissing);
    };
    let number = std::str::from_utf8(revision)
        .ok()
        .and_then(|text| text.parse().ok())
        .and_then(Revision::new);
    match number {
        Some(revision_number) if revision_number.to_string().as_bytes() == revision => {
            Ok((owner.to_vec(), revision_number.get()))
        }
        _ => Err(Rejection::TokenMalformed),
    }
}

fn values<'f>(
    fields: &'f [(HeaderName, HeaderValue)],
    wanted: &str,
) -> impl Iterator<Item = &'f [u8]> {
    fields.iter().filter(move |(name, _)| name == wanted).map(|(_, value)| value.as_bytes())
}
