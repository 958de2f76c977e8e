//! Percent-decoding without allocation, and what of a path may not mean the same to every worker.

/// Bytes with each percent-escape replaced by the byte that it stands for. What is no escape stays
/// as it is.
#[derive(Clone)]
pub(crate) struct Decoded<I>(I);

/// The bytes of a text, decoded once.
pub(crate) fn decoded(text: &str) -> Decoded<impl Iterator<Item = u8> + Clone> {
    Decoded(text.bytes())
}

impl<I: Iterator<Item = u8> + Clone> Iterator for Decoded<I> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let byte = self.0.next()?;
        if byte != b'%' {
            return Some(byte);
        }
        let mut ahead = self.0.clone();
        let mut digit = || ahead.next().and_then(hex_digit);
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Some(byte);
        };
        self.0 = ahead;
        Some(high << 4 | low)
    }
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Whether workers may disagree about which resource a path names. The reason may stand anywhere in
/// the path:
///
/// - A `%` that begins no escape: some decoders skip it, some stop there.
/// - An encoded NUL: some end the path there.
/// - A byte `0xc0` or `0xc1`, which UTF-8 never has: some take `c0 ae` for a dot and `c0 af` for a
///   slash.
/// - A component `.` or `..`, which some remove together with the component before it.
///
/// The search for such components decodes the path once, as HTTP has it, and twice, as a worker
/// behind another decoding hop sees it. It finds a component:
///
/// - between `/`, and between `\`, which some take for `/`;
/// - before `;`, from where some drop the rest of a component (`..;x=1`);
/// - before `?` and `#`, where the path ends for a worker that gets it decoded;
/// - with tabs and ends of lines in it, which URL parsers of browsers and of Node.js leave out;
/// - with blanks behind it, which Windows leaves out.
///
/// An encoded slash alone is not ambiguous: it can name something else only where dots stand beside
/// it.
pub(crate) fn is_ambiguous(path: &str) -> bool {
    if !path.bytes().any(|byte| matches!(byte, b'%' | b'.' | 0)) {
        return false;
    }
    let once = decoded(path);
    // The second decoding leaves the dots and slashes that the first one shows.
    let has_odd_byte = || once.clone().any(|byte| matches!(byte, 0 | 0xc0..=0xc1));
    has_broken_escape(path) || has_odd_byte() || has_dots(Decoded(once.clone()))
}

/// Whether some take a path for a reference to another host (RFC 3986, section 4.2: `//host/path`),
/// as `new URL(path, base)` does in Node.js, with `\` for `/`. Looked for after decoding once and
/// twice.
pub(crate) fn names_a_host(path: &str) -> bool {
    let is_read = |byte: &u8| !matches!(byte, b'\t' | b'\r' | b'\n');
    let mut start = Decoded(decoded(path)).filter(is_read);
    let mut is_slash = || matches!(start.next(), Some(b'/' | b'\\'));
    is_slash() && is_slash()
}

fn has_broken_escape(path: &str) -> bool {
    path.split('%').skip(1).any(|rest| rest.bytes().take(2).filter_map(hex_digit).count() < 2)
}

fn has_dots(path: impl Iterator<Item = u8>) -> bool {
    // How many dots the component consists of so far; `None` once it is anything else.
    let mut dots = None;
    let mut behind_blank = false;
    for byte in path.chain([b'/']) {
        dots = match byte {
            b'/' | b'\\' | b';' | b'?' | b'#' if matches!(dots, Some(1 | 2)) => return true,
            b'/' | b'\\' => Some(0),
            b'.' if !behind_blank => dots.map(|count: u8| count.saturating_add(1)),
            b' ' if matches!(dots, Some(1..)) => dots,
            b'\t' | b'\r' | b'\n' => dots,
            _ => None,
        };
        behind_blank = byte == b' ';
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_once() {
        let cases: [(&str, &[u8]); 7] = [
            ("", b""),
            ("a%2Fb", b"a/b"),
            ("%2e%2E", b".."),
            ("%252e", b"%2e"),
            ("%", b"%"),
            ("%2", b"%2"),
            ("%zz%41", b"%zzA"),
        ];
        for (text, bytes) in cases {
            assert_eq!(decoded(text).collect::<Vec<u8>>(), bytes, "{text}");
        }
    }

    #[test]
    fn what_every_worker_reads_alike_is_not_ambiguous() {
        for paths in [
            " | * | / | /a | /a/ | /a/b.c | /.a/..b/a../... | /a//b | /a;v=1 | /.well-known/fence",
            "/a/b%20c | /a/.x ./..y | /a/%2f/b | /a%2Fb | /a/%2eb | /a/%C3%A9 | /a/b..%3f | /a/...%23",
            "/100%25 | /100%2525 | /a%255cb | /a/..b%20/c | /a/...%20/c | /a/%20/c%09 | /a/%C2%AE%C3%AF",
        ] {
            paths.split(" | ").for_each(|path| assert!(!is_ambiguous(path), "{path}"));
        }
    }

    #[test]
    fn a_path_that_begins_with_two_slashes_names_a_host_to_some() {
        for path in ["//h/x", "/\\h", "/%2fh", "/%5Ch", "/%252Fh", "/\t/h", "/%09%2f", "//"] {
            assert!(names_a_host(path), "{path:?}");
        }
        for path in ["", "*", "/", "/h//x", "/h%2f", "/%20/h", "/;/h"] {
            assert!(!names_a_host(path), "{path:?}");
        }
    }

    #[test]
    fn what_workers_may_read_differently_is_ambiguous() {
        for (_what, paths) in [
            ("dots", "/. | /.. | /a/./b | /a/../b | /a/.. | /../a"),
            ("encoded dots", "/%2e | /a/%2e%2e/b | /a/.%2E/b | /a/%2e./b"),
            (
                "slashes",
                r"/a/..%2fb | /a%2f../b | /a%2f..%2Fb | /a/..\b | /a\../b | /a%5c..%5cb | /a%5C%2e%2e",
            ),
            ("parameters", "/a/..;/b | /a/..;x=1/b | /a/.;x | /a/..%3bx/b | /a/%2e%2e;/b"),
            (
                "ends",
                "/a/..%3fx | /a/..%23 | /a/.%23 | /a/..%253f | /a/%2e%2e%3Fb/c | /a/..?x | /a/..#",
            ),
            (
                "twice",
                "/a/%252e%252e/b | /a/%25%32e./b | /a/..%252fb | /a%255c..%255cb | /a/..%253b/b",
            ),
            (
                "broken",
                "/% | /a%2 | /a%2/b | /%zz | /%%2e | /a%2g | /a% | /%+1 | /a%00b | /%00 | /a\0b",
            ),
            ("left out", "/a/.%09./b | /a/%0d%2e%2e/b | /a/..%0A/b | /a/.%250a./b"),
            ("blanks", "/a/..%20/b | /a/.%20%20 | /a/.. /b"),
            ("overlong", "/a/%c0%ae%c0%ae/b | /a%C0%AFb | /a%c1%9cb"),
        ] {
            paths.split(" | ").for_each(|path| assert!(is_ambiguous(path), "{path}"));
        }
    }
}
