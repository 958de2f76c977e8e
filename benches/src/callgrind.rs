//! What callgrind has counted.

/// The instructions of one object file, by a file of callgrind's that was written without
/// compression.
///
/// Only what the object did itself counts: a C library chooses its `memcpy` by the machine, so that
/// its instructions are not the same everywhere.
pub fn instructions_of(object: &str, file: &str) -> u64 {
    let (mut is_ours, mut is_call, mut sum) = (false, false, 0);
    for line in file.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            is_ours = name == object;
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            // The line after `calls=` has what was called took: that stands where it was done.
            let count = line.split(' ').nth(1).and_then(|count| count.parse::<u64>().ok());
            if is_ours && !is_call {
                sum += count.unwrap_or(0);
            }
            is_call = false;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "version: 1\npositions: line\nevents: Ir\nsummary: 999\n\n\
        ob=/program\nfl=a.rs\nfn=main\n3 10\n+4 5\ncob=/libc\ncfi=m.c\ncfn=memcpy\ncalls=2 7\n3 300\n* 1\n\n\
        ob=/libc\nfl=m.c\nfn=memcpy\n7 300\n\n\
        ob=/program\nfl=a.rs\nfn=other\n9 20\n\ntotals: 336\n";

    #[test]
    fn what_an_object_did_itself_counts() {
        assert_eq!(instructions_of("/program", FILE), 36);
        assert_eq!(instructions_of("/libc", FILE), 300);
        assert_eq!(instructions_of("/other", FILE), 0);
    }
}
