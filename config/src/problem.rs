//! What is wrong with a configuration, and where.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::places::Places;

/// One thing that is wrong, or in a list of warnings worth knowing, with the place where it is written.
///
/// Shown as `file:line: key: text`, or as `--flag: text` if it was written on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    place: Place,
    text: String,
}

impl Problem {
    pub(crate) fn new(place: &Place, text: impl fmt::Display) -> Problem {
        Problem { place: place.clone(), text: text.to_string() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place.origin {
            Origin::File { name, line, column: None } => write!(f, "{name}:{line}: ")?,
            Origin::File { name, line, column: Some(column) } => write!(f, "{name}:{line}:{column}: ")?,
            Origin::CommandLine => {}
        }
        if !self.place.key.is_empty() {
            write!(f, "{}: ", self.place.key)?;
        }
        f.write_str(&self.text)
    }
}

/// Everything that is wrong with a configuration, in the order of its lines. Shown one to a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// All of these, if there are any.
    ///
    /// # Errors
    /// The problems.
    pub fn none(mut problems: Vec<Problem>) -> Result<(), Problems> {
        problems.sort_by_key(|problem| problem.place.line());
        if problems.is_empty() { Ok(()) } else { Err(Problems(problems)) }
    }

    /// The problems one by one; there is at least one.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Where a setting is written, or where it would be if it were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    origin: Origin,
    key: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    File { name: Arc<str>, line: usize, column: Option<usize> },
    CommandLine,
}

impl Place {
    /// The place of a flag of the command line, e.g. `--listen`.
    pub(crate) fn flag(flag: &str) -> Place {
        Place { origin: Origin::CommandLine, key: flag.to_owned() }
    }

    /// The place of a key that is not written, in the table that stands here.
    pub(crate) fn child(&self, key: &str) -> Place {
        Place { origin: self.origin.clone(), key: self.child_key(key) }
    }

    /// The full name of a key in the table that stands here. What it has of control characters is escaped: it is shown in a line, and on
    /// terminals.
    pub(crate) fn child_key(&self, key: &str) -> String {
        let key = key.escape_debug();
        if self.key.is_empty() { key.to_string() } else { format!("{}.{key}", self.key) }
    }

    /// The full name of the key, e.g. `source.main.kind`.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The same line under another key.
    pub(crate) fn renamed(&self, key: String) -> Place {
        Place { origin: self.origin.clone(), key }
    }

    /// How a problem elsewhere points to this place: ` (line 7)`, or nothing on the command line.
    pub(crate) fn reference(&self) -> String {
        match &self.origin {
            Origin::File { line, .. } => format!(" (line {line})"),
            Origin::CommandLine => String::new(),
        }
    }

    fn line(&self) -> usize {
        match &self.origin {
            Origin::File { line, .. } => *line,
            Origin::CommandLine => 0,
        }
    }
}

/// What was noticed while one configuration was read and checked.
pub(crate) struct Notes {
    file: Arc<str>,
    /// Where each line of the file begins.
    line_starts: Vec<usize>,
    places: RefCell<HashMap<String, Place>>,
    problems: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<Problem>>,
}

impl Notes {
    pub(crate) fn for_file(name: &str, text: &str) -> Notes {
        let after_newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Notes {
            file: name.into(),
            line_starts: std::iter::once(0).chain(after_newlines).collect(),
            places: RefCell::default(),
            problems: RefCell::default(),
            warnings: RefCell::default(),
        }
    }

    pub(crate) fn for_flags() -> Notes {
        Notes::for_file("", "")
    }

    /// Something is wrong at this place.
    pub(crate) fn problem(&self, place: &Place, text: impl fmt::Display) {
        self.problems.borrow_mut().push(Problem::new(place, text));
    }

    /// Something at this place works, and its user should know what it means.
    pub(crate) fn warning(&self, place: &Place, text: impl fmt::Display) {
        self.warnings.borrow_mut().push(Problem::new(place, text));
    }

    /// The file is not TOML at this offset.
    pub(crate) fn syntax_problem(&self, text: &str, offset: usize, message: &str) {
        let line = self.line_of(offset);
        let before = text.get(self.line_starts[line - 1]..offset).unwrap_or_default();
        let column = Some(before.chars().count() + 1);
        let origin = Origin::File { name: Arc::clone(&self.file), line, column };
        self.problem(&Place { origin, key: String::new() }, message);
    }

    /// The place of a key that is written at this offset of the file.
    pub(crate) fn place(&self, offset: usize, key: String) -> Place {
        let line = self.line_of(offset);
        let place = Place { origin: Origin::File { name: Arc::clone(&self.file), line, column: None }, key };
        self.places.borrow_mut().insert(place.key.clone(), place.clone());
        place
    }

    fn line_of(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }

    /// The warnings and where each key is, if nothing is wrong.
    pub(crate) fn finish(self) -> Result<(Vec<Problem>, Places), Problems> {
        Problems::none(self.problems.into_inner())?;
        let mut warnings = self.warnings.into_inner();
        warnings.sort_by_key(|warning| warning.place.line());
        Ok((warnings, Places::new(self.places.into_inner())))
    }
}
