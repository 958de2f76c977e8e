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
pub(super) fn run_of(text: &[u8], is: fn(u8) -> bool) -> usize {
    text.iter().position(|byte| !is(*byte)).unwrap_or(text.len())
}

/// How many bytes a text begins with that may stand in a field value, eight at a time.
pub(super) fn run_of_value(text: &[u8]) -> usize {
    let (words, rest) = text.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let odd = control_bytes(u64::from_le_bytes(*word));
        if odd != 0 {
            // A tab is a control byte that may stand here, so the byte is looked at once more.
            let run = 8 * index + odd.trailing_zeros() as usize / 8;
            return run + run_of(text.get(run..).unwrap_or_default(), is_value);
        }
    }
    text.len() - rest.len() + run_of(rest, is_value)
}

/// A bit in the lowest byte below 0x20 or equal to 0x7F; bits above that one say nothing.
fn control_bytes(word: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    let below = word.wrapping_sub(ONES * 0x20) & !word;
    let flipped = word ^ (ONES * 0x7F);
    let deleted = flipped.wrapping_sub(ONES) & !flipped;
    (below | deleted) & HIGH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_a_value_ends_at_the_first_byte_that_may_not_stand_in_one_wherever_it_is() {
        for odd in 0..=255 {
            for length in 0..40 {
                for at in 0..length {
                    let mut text = vec![b'\t'; length];
                    text[..at].fill(0xE9);
                    text[at] = odd;
                    let expected = if is_value(odd) { length } else { at };
                    assert_eq!(run_of_value(&text), expected, "{odd} at {at} of {length}");
                    text.fill(b'x');
                    text[at] = odd;
                    assert_eq!(run_of_value(&text), expected, "{odd} at {at} of {length}");
                }
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
