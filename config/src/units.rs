//! Counts, sizes and durations, as they are written.

use std::ops::RangeInclusive;

use toml::de::DeValue;

use crate::problem::must_be;

/// What an integer counts. A duration is one of milliseconds, a size one of bytes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Unit {
    /// An integer.
    Count,
    /// One number and one unit (`512B`, `64KiB`, `16MiB`, `1GiB`), or an integer.
    Size,
    /// One number and one unit (`250ms`, `5s`, `2m`, `1h`).
    Time,
}

pub(crate) const SECOND: i64 = 1_000;
pub(crate) const MINUTE: i64 = 60 * SECOND;
pub(crate) const HOUR: i64 = 60 * MINUTE;

const TIMES: [(&str, i64); 4] = [("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", 1)];
const TIME: &str = r#"one number and one unit, like "250ms", "5s", "2m" or "1h""#;
const SIZES: [(&str, i64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
const SIZE: &str =
    r#"one number and one unit (B, KiB, MiB or GiB), like "64KiB", or an integer of bytes"#;

impl Unit {
    /// How a value must look.
    pub(crate) fn expected(self) -> &'static str {
        match self {
            Unit::Count => "an integer",
            Unit::Size => r#"a size, like "64KiB", or an integer of bytes"#,
            Unit::Time => r#"a duration, like "250ms", "5s", "2m" or "1h""#,
        }
    }

    /// What a value means; `None` if it is of another type.
    pub(crate) fn read(self, value: &DeValue<'_>) -> Option<Result<i64, String>> {
        match (value, self) {
            (DeValue::Integer(integer), Unit::Count | Unit::Size) => {
                let number = i64::from_str_radix(integer.as_str(), integer.radix());
                Some(number.map_err(|_| format!("{integer} does not fit into 64 bits")))
            }
            (DeValue::String(text), Unit::Size) => Some(with_unit(text, &SIZES, SIZE)),
            (DeValue::String(text), Unit::Time) => Some(with_unit(text, &TIMES, TIME)),
            _ => None,
        }
    }

    /// The number, if it is in the range.
    pub(crate) fn check(self, number: i64, range: RangeInclusive<i64>) -> Result<i64, String> {
        if range.contains(&number) {
            return Ok(number);
        }
        let (least, most) = (self.show(*range.start()), self.show(*range.end()));
        Err(format!("must be {least} to {most}, not {}", self.show(number)))
    }

    /// The shortest spelling that reads as this. A negative number has none, and is shown as the
    /// integer it is.
    pub(crate) fn show(self, number: i64) -> String {
        let units = match self {
            Unit::Time if number == 0 => return r#""0s""#.to_owned(),
            Unit::Time => &TIMES,
            Unit::Size if number > 0 => &SIZES,
            Unit::Size | Unit::Count => return number.to_string(),
        };
        let fits = |(_, factor): &&(&str, i64)| number % factor == 0;
        let (unit, factor) = units.iter().find(fits).expect("the last factor is 1");
        format!(r#""{}{unit}""#, number / factor)
    }
}

fn with_unit(text: &str, units: &[(&str, i64)], what: &str) -> Result<i64, String> {
    let number = || {
        let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit())?);
        let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
        number.parse::<i64>().ok()?.checked_mul(*factor)
    };
    number().ok_or_else(|| must_be(what, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(unit: Unit, text: &str) -> Option<i64> {
        unit.read(&DeValue::String(text.into())).unwrap().ok()
    }

    #[test]
    fn duration_is_one_number_and_one_unit() {
        for (text, millis) in
            [("250ms", 250), ("0s", 0), ("5s", 5_000), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(read(Unit::Time, text), Some(millis), "{text}");
        }
        let too_long = ["18446744073709551615h", "18446744073709551616ms", "9223372036854775807s"];
        let odd = [
            "", "5", "s", "5 s", " 5s", "5s ", "1.5s", "-5s", "+5s", "1m30s", "5S", "5sec", "1d",
            "٥s",
        ];
        for text in odd.into_iter().chain(too_long) {
            assert_eq!(read(Unit::Time, text), None, "{text:?}");
        }
    }

    #[test]
    fn size_is_one_number_and_one_unit() {
        for (text, bytes) in [
            ("0B", 0),
            ("512B", 512),
            ("64KiB", 65_536),
            ("16MiB", 16_777_216),
            ("1GiB", 1_073_741_824),
        ] {
            assert_eq!(read(Unit::Size, text), Some(bytes), "{text}");
        }
        let texts = "\
            64 | KiB | 64 KiB | 64K | 64KB | 64kib | 1.5MiB | -1B | 9223372036854775808B | ";
        for text in texts.split(" | ") {
            assert_eq!(read(Unit::Size, text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn shown_quantity_reads_as_itself(millis in 0..10_000_000_i64, bytes in 1..1_i64 << 40) {
            for (unit, number) in [(Unit::Time, millis), (Unit::Size, bytes)] {
                prop_assert_eq!(read(unit, unit.show(number).trim_matches('"')), Some(number));
            }
        }
    }
}
