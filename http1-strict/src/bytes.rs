//! The classes of bytes in a message head (RFC 9110, section 5; RFC 9112, section 3).

/// In a method, a field name or a token.
const TOKEN: u8 = 1;
/// In a field value: visible ASCII, spaces, tabs, and bytes above 0x7F.
const VALUE: u8 = 2;
/// In a request target as it is. Not `#`: servers disagree on whether a fragment is part of the
/// path.
const TARGET: u8 = 4;
/// In a request target percent-encoded: parsers of URIs refuse it, or disagree on it.
const ENCODED: u8 = 8;

static CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut index = 0;
    while index < 256 {
        let byte = index as u8;
        if byte.is_ascii_alphanumeric() || is_token_mark(byte) {
            classes[index] |= TOKEN;
        }
        if matches!(byte, b'\t' | b' '..=b'~' | 0x80..) {
            classes[index] |= VALUE;
        }
        if matches!(byte, b'"' | b'<' | b'>' | b'`' | 0x80..) {
            classes[index] |= ENCODED;
        } else if byte.is_ascii_graphic() && byte != b'#' {
            classes[index] |= TARGET;
        }
        index += 1;
    }
    classes
}

const fn is_token_mark(byte: u8) -> bool {
    matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}

pub(crate) fn is_token(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & TOKEN != 0
}

pub(crate) fn is_value(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & VALUE != 0
}

pub(crate) fn is_target(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & TARGET != 0
}

pub(crate) fn is_encoded_in_target(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & ENCODED != 0
}

/// The number of bytes at the start of a text for which `is` holds.
pub(crate) fn run_of(text: &[u8], is: impl Fn(u8) -> bool) -> usize {
    text.iter().position(|byte| !is(*byte)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_classes_of_the_rfcs() {
        for byte in 0..=255_u8 {
            let visible = byte.is_ascii_graphic();
            let separates = b"\"(),/:;<=>?@[\\]{}".contains(&byte);
            assert_eq!(is_token(byte), visible && !separates, "{byte}");
            assert_eq!(is_value(byte), visible || b" \t".contains(&byte) || byte >= 0x80, "{byte}");
            let is_encoded = b"\"<>`".contains(&byte) || byte >= 0x80;
            assert_eq!(is_encoded_in_target(byte), is_encoded, "{byte}");
            assert_eq!(is_target(byte), visible && byte != b'#' && !is_encoded, "{byte}");
        }
    }
}
