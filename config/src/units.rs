//! Durations and sizes, as they are written.

use std::time::Duration;

/// One number and one unit: `250ms`, `5s`, `2m`, `1h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let millis = with_unit(text, &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)])
        .ok_or_else(|| format!(r#"must be one number and one unit, like "250ms", "5s", "2m" or "1h", not {text:?}"#))?;
    Ok(Duration::from_millis(millis))
}

/// One number and one unit: `512B`, `64KiB`, `16MiB`, `1GiB`.
pub(crate) fn size(text: &str) -> Result<i64, String> {
    with_unit(text, &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)])
        .and_then(|bytes| i64::try_from(bytes).ok())
        .ok_or_else(|| {
            format!(r#"must be one number and one unit (B, KiB, MiB or GiB), like "64KiB", or an integer of bytes, not {text:?}"#)
        })
}

fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// The shortest spelling that [`duration`] reads as this.
pub(crate) fn show_duration(duration: &Duration) -> String {
    let millis = duration.as_millis();
    match millis {
        0 => r#""0s""#.to_owned(),
        _ if millis.is_multiple_of(3_600_000) => format!(r#""{}h""#, millis / 3_600_000),
        _ if millis.is_multiple_of(60_000) => format!(r#""{}m""#, millis / 60_000),
        _ if millis.is_multiple_of(1_000) => format!(r#""{}s""#, millis / 1_000),
        _ => format!(r#""{millis}ms""#),
    }
}

/// The shortest spelling that [`size`] reads as this; a negative one has none and is shown as the integer it is.
pub(crate) fn show_size(bytes: &i64) -> String {
    match *bytes {
        bytes if bytes <= 0 => bytes.to_string(),
        bytes if bytes % (1 << 30) == 0 => format!(r#""{}GiB""#, bytes >> 30),
        bytes if bytes % (1 << 20) == 0 => format!(r#""{}MiB""#, bytes >> 20),
        bytes if bytes % (1 << 10) == 0 => format!(r#""{}KiB""#, bytes >> 10),
        bytes => format!(r#""{bytes}B""#),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_duration_is_one_number_and_one_unit() {
        for (text, millis) in [("250ms", 250), ("0s", 0), ("5s", 5_000), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "s", "5 s", " 5s", "5s ", "1.5s", "-5s", "+5s", "1m30s", "5S", "5sec", "1d", "٥s"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
        assert!(duration("18446744073709551615h").is_err(), "too long to count");
        assert!(duration("18446744073709551616ms").is_err(), "too long to count");
    }

    #[test]
    fn a_size_is_one_number_and_one_unit() {
        for (text, bytes) in
            [("0B", 0), ("512B", 512), ("64KiB", 65_536), ("16MiB", 16_777_216), ("1GiB", 1_073_741_824)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "64", "KiB", "64 KiB", "64K", "64KB", "64kib", "1.5MiB", "-1B", "9223372036854775808B"] {
            assert!(size(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_as_what_it_was(millis in 0..10_000_000_u64, bytes in 1..1_i64 << 40) {
            let unquoted = |shown: String| shown.trim_matches('"').to_owned();
            let time = Duration::from_millis(millis);
            prop_assert_eq!(duration(&unquoted(show_duration(&time))), Ok(time));
            prop_assert_eq!(size(&unquoted(show_size(&bytes))), Ok(bytes));
        }
    }
}
