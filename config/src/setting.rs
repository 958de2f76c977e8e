//! One setting on its way from what is written to what it means.

use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::problem::{Notes, Place};

/// A setting, and the place to blame for it.
pub(crate) struct Setting<T> {
    pub(crate) place: Place,
    written: Written<T>,
}

enum Written<T> {
    Absent,
    /// Written, wrong, and reported: whoever comes later says nothing more about it.
    Broken,
    Value(T),
}

impl<T> Setting<T> {
    pub(crate) fn absent(place: Place) -> Setting<T> {
        Setting { place, written: Written::Absent }
    }

    pub(crate) fn broken(place: Place) -> Setting<T> {
        Setting { place, written: Written::Broken }
    }

    pub(crate) fn given(place: Place, value: T) -> Setting<T> {
        Setting { place, written: Written::Value(value) }
    }

    /// Written by hand, right or wrong.
    pub(crate) fn is_written(&self) -> bool {
        !matches!(self.written, Written::Absent)
    }

    /// The value as it stands now, if there is one.
    pub(crate) fn value(&self) -> Option<&T> {
        match &self.written {
            Written::Value(value) => Some(value),
            Written::Absent | Written::Broken => None,
        }
    }

    /// The value, if there is one.
    pub(crate) fn into_value(self) -> Option<T> {
        match self.written {
            Written::Value(value) => Some(value),
            Written::Absent | Written::Broken => None,
        }
    }

    /// The value, or what holds without one.
    pub(crate) fn or(self, default: T) -> T {
        self.into_value().unwrap_or(default)
    }

    /// The value, or what holds without one; nothing if what is written is wrong.
    pub(crate) fn or_if_absent(self, default: T) -> Option<T> {
        match self.written {
            Written::Absent => Some(default),
            Written::Broken => None,
            Written::Value(value) => Some(value),
        }
    }

    /// The value of a setting that has no default.
    pub(crate) fn required(self, notes: &Notes, what: &str) -> Option<T> {
        if !self.is_written() {
            notes.problem(&self.place, format_args!("missing: {what}"));
        }
        self.into_value()
    }

    /// Goes on with what the value means; a value that means nothing is a problem.
    pub(crate) fn parse<U, E: Display>(self, notes: &Notes, meaning: impl FnOnce(T) -> Result<U, E>) -> Setting<U> {
        let Setting { place, written } = self;
        let written = match written {
            Written::Absent => Written::Absent,
            Written::Broken => Written::Broken,
            Written::Value(value) => match meaning(value) {
                Ok(value) => Written::Value(value),
                Err(problem) => {
                    notes.problem(&place, problem);
                    Written::Broken
                }
            },
        };
        Setting { place, written }
    }

    /// Goes on with what the value means, where every value means something.
    pub(crate) fn map<U>(self, meaning: impl FnOnce(T) -> U) -> Setting<U> {
        let Setting { place, written } = self;
        let written = match written {
            Written::Absent => Written::Absent,
            Written::Broken => Written::Broken,
            Written::Value(value) => Written::Value(meaning(value)),
        };
        Setting { place, written }
    }

    /// A value outside of the range is a problem.
    pub(crate) fn within<S: Display>(
        self,
        notes: &Notes,
        range: RangeInclusive<T>,
        show: impl Fn(&T) -> S,
    ) -> Setting<T>
    where
        T: PartialOrd,
    {
        self.parse(notes, |value| {
            if range.contains(&value) {
                return Ok(value);
            }
            Err(format!("must be {} to {}, not {}", show(range.start()), show(range.end()), show(&value)))
        })
    }
}

impl Setting<String> {
    /// One of a few words.
    pub(crate) fn choice<U: Copy>(self, notes: &Notes, choices: &[(&str, U)]) -> Setting<U> {
        self.parse(notes, |word| match choices.iter().find(|(name, _)| *name == word) {
            Some((_, value)) => Ok(*value),
            None => {
                let names: Vec<String> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
                let (last, others) = names.split_last().expect("a choice has choices");
                Err(format!("must be {} or {last}, not {word:?}", others.join(", ")))
            }
        })
    }
}
