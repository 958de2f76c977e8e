//! Which bytes may stand where in a message head (RFC 9110, section 5; RFC 9112, section 3).

/// In a method, a field name or a token.
const TOKEN: u8 = 1;
/// In a field value: what can be seen, what is no ASCII, spaces and tabs.
const VALUE: u8 = 2;
/// In a request target. No `#`: some servers take what follows for part of the path, others do not.
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
        b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
    )
}

pub(super) fn is_token(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & TOKEN != 0
}

pub(super) fn is_value(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & VALUE != 0
}

pub(super) fn is_target(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & TARGET != 0
}

/// How many bytes a text begins with that `is` takes.
pub(super) fn run_of(text: &[u8], is: impl Fn(u8) -> bool) -> usize {
    text.iter().position(|byte| !is(*byte)).unwrap_or(text.len())
}

/// How many bytes a text begins with that may stand in a field value.
pub(super) fn run_of_value(text: &[u8]) -> usize {
    // A tab is a control byte that may stand here: from there on each byte is looked at.
    run_in_words(text, |word| below(word, b' ') | equal(word, 0x7F), is_value)
}

/// How many bytes a text begins with that may stand in a target.
pub(super) fn run_of_target(text: &[u8]) -> usize {
    run_in_words(text, |word| below(word, b'!') | equal(word, 0x7F) | equal(word, b'#'), is_target)
}

/// How many bytes a text begins with that `is` takes, looked at in words as long as `odd` finds none in one.
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
            // What is long, as cookies and tokens are, is looked at by fours, for which the compiler has instructions: a quarter of the
            // instructions of a refusal whose cookie has 4 KB.
            let (fours, _) = words.get(index..).unwrap_or_default().as_chunks::<4>();
            let has_odd = |four: &&[[u8; 8]; 4]| four.iter().fold(0, |found, word| found | odd(word)) != 0;
            index += 4 * fours.iter().take_while(|four| !has_odd(four)).count();
        }
    }
    text.len() - rest.len() + run_of(rest, is)
}

/// How many words most field values and targets have at most.
const SHORT: usize = 4;

const ONES: u64 = u64::from_le_bytes([0x01; 8]);
const HIGH: u64 = u64::from_le_bytes([0x80; 8]);

/// The highest bit of the lowest byte that is less than `least`, which is ASCII; bits above it say nothing.
fn below(word: u64, least: u8) -> u64 {
    word.wrapping_sub(ONES * u64::from(least)) & !word
}

/// The same for the lowest byte that is this one.
fn equal(word: u64, byte: u8) -> u64 {
    below(word ^ (ONES * u64::from(byte)), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_at_the_first_byte_that_may_not_stand_in_it_wherever_that_is() {
        for (odd, length) in (0..=255).flat_map(|odd| (0..40).chain([79, 110]).map(move |length| (odd, length))) {
            for (at, others) in (0..length).flat_map(|at| [(at, b'x'), (at, 0xE9), (at, b'\t')]) {
                let mut text = vec![others; length];
                text[at] = odd;
                assert_eq!(run_of_value(&text), run_of(&text, is_value), "{odd} at {at} of {length}");
                assert_eq!(run_of_target(&text), run_of(&text, is_target), "{odd} at {at} of {length}");
            }
        }
    }

    #[test]
    fn bytes_are_of_the_classes_that_the_rfcs_give_them() {
        for byte in 0..=255_u8 {
            let visible = byte.is_ascii_graphic();
            let separates = b"\"(),/:;<=>?@[\\]{}".contains(&byte);
            assert_eq!(is_token(byte), visible && !separates, "{byte}");
            assert_eq!(is_value(byte), visible || b" \t".contains(&byte) || byte >= 0x80, "{byte}");
            assert_eq!(is_target(byte), (visible || byte >= 0x80) && byte != b'#', "{byte}");
        }
    }
}
