//! The classes of bytes in a message head (RFC 9110, section 5; RFC 9112, section 3).

/// In a method, a field name or a token.
const TOKEN: u8 = 1;
/// In a field value: visible ASCII, spaces, tabs, and bytes above 0x7F.
const VALUE: u8 = 2;
/// In a request target. Not `#`: servers disagree on whether a fragment is part of the path.
const TARGET: u8 = 4;

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
        if matches!(byte, b'!'..=b'~' | 0x80..) && byte != b'#' {
            classes[index] |= TARGET;
        }
        index += 1;
    }
    classes
}

const fn is_token_mark(byte: u8) -> bool {
    matches!(
        byte,
        b'!' | b'#'
            | b'$'
            | b'%'
            | b'&'
            | b'\''
            | b'*'
            | b'+'
            | b'-'
            | b'.'
            | b'^'
            | b'_'
            | b'`'
            | b'|'
            | b'~'
    )
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

/// The number of bytes at the start of a text for which `is` holds.
pub(crate) fn run_of(text: &[u8], is: impl Fn(u8) -> bool) -> usize {
    text.iter().position(|byte| !is(*byte)).unwrap_or(text.len())
}

/// The number of bytes at the start of a text that may stand in a field value.
pub(crate) fn run_of_value(text: &[u8]) -> usize {
    // A tab counts as odd, though a value may contain it: from there on `run_of` checks each byte.
    run_in_words(text, |word| below(word, b' ') | equal(word, 0x7F), is_value)
}

/// The number of bytes at the start of a text that may stand in a target.
pub(crate) fn run_of_target(text: &[u8]) -> usize {
    run_in_words(text, |word| below(word, b'!') | equal(word, 0x7F) | equal(word, b'#'), is_target)
}

/// Like [`run_of`], eight bytes at a time. `odd` marks, by its highest bit, the first byte of a
/// word that needs `is`.
fn run_in_words(text: &[u8], odd: impl Fn(u64) -> u64, is: impl Fn(u8) -> bool) -> usize {
    let odd = |word: &[u8; 8]| odd(u64::from_le_bytes(*word)) & HIGH;
    let (words, rest) = text.as_chunks::<8>();
    let mut index = 0;
    while let Some(word) = words.get(index) {
        let found = odd(word);
        if found != 0 {
            let run = 8 * index + found.trailing_zeros() as usize / 8;
            return run + run_of(text.get(run..).unwrap_or_default(), is);
        }
        index += 1;
        if index == SHORT {
            // Long texts, such as cookies, go by four words, which the compiler turns into vector
            // instructions.
            let (fours, _) = words.get(index..).unwrap_or_default().as_chunks::<4>();
            let has_odd =
                |four: &&[[u8; 8]; 4]| four.iter().fold(0, |found, word| found | odd(word)) != 0;
            index += 4 * fours.iter().take_while(|four| !has_odd(four)).count();
        }
    }
    text.len() - rest.len() + run_of(rest, is)
}

/// The number of words that hold most field values and targets.
const SHORT: usize = 4;

const ONES: u64 = u64::from_le_bytes([0x01; 8]);
const HIGH: u64 = u64::from_le_bytes([0x80; 8]);

/// Sets the highest bit of the first byte below `least`, which is ASCII. The bits of later bytes
/// are meaningless.
fn below(word: u64, least: u8) -> u64 {
    word.wrapping_sub(ONES * u64::from(least)) & !word
}

/// Like [`below`], for the first byte that equals `byte`.
fn equal(word: u64, byte: u8) -> u64 {
    below(word ^ (ONES * u64::from(byte)), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_in_words_ends_where_the_bytewise_run_ends() {
        for (odd, length) in
            (0..=255).flat_map(|odd| (0..40).chain([79, 110]).map(move |length| (odd, length)))
        {
            for (at, others) in (0..length).flat_map(|at| [(at, b'x'), (at, 0xE9), (at, b'\t')]) {
                let mut text = vec![others; length];
                text[at] = odd;
                assert_eq!(
                    run_of_value(&text),
                    run_of(&text, is_value),
                    "{odd} at {at} of {length}"
                );
                assert_eq!(
                    run_of_target(&text),
                    run_of(&text, is_target),
                    "{odd} at {at} of {length}"
                );
            }
        }
    }

    #[test]
    fn bytes_have_the_classes_of_the_rfcs() {
        for byte in 0..=255_u8 {
            let visible = byte.is_ascii_graphic();
            let separates = b"\"(),/:;<=>?@[\\]{}".contains(&byte);
            assert_eq!(is_token(byte), visible && !separates, "{byte}");
            assert_eq!(is_value(byte), visible || b" \t".contains(&byte) || byte >= 0x80, "{byte}");
            assert_eq!(is_target(byte), (visible || byte >= 0x80) && byte != b'#', "{byte}");
        }
    }
}
