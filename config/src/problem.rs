//! Problems and warnings, each with its place. Collects all of them, so that a user is told
//! everything at once.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::flags::flag_of;
use crate::places::{Places, WrittenTable};
use crate::variables::{Variables, Written};

/// An error, or in a list of warnings a warning, with the place where it is written.
///
/// Shown as `file:line: key: text`, or as `--flag: text` if it was written on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// With the line there. `None`: the command line.
    file: Option<(Arc<str>, usize)>,
    column: Option<usize>,
    place: Place,
    text: String,
}

impl Problem {
    pub(crate) fn new(files: &Files, place: &Place, text: impl fmt::Display) -> Problem {
        let file = files.find(place.line);
        Problem { file, column: None, place: place.clone(), text: text.to_string() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { file, column, place: Place { line: _, key }, text } = self;
        match (file, column) {
            (None, _) => write!(f, "{}: ", flag_of(key))?,
            (Some((file, line)), None) => write!(f, "{file}:{line}: ")?,
            (Some((file, line)), Some(column)) => write!(f, "{file}:{line}:{column}: ")?,
        }
        if file.is_some() && !key.is_empty() {
            write!(f, "{key}: ")?;
        }
        f.write_str(text)
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
        problems.sort_by_key(|problem| problem.place.line);
        if problems.is_empty() { Ok(()) } else { Err(Problems(problems)) }
    }

    /// The problems one by one; there is at least one.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(Problem::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Problems {}

/// Where a key is written, or where it would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// 0 on the command line. A file with others that it includes is counted through, as one.
    pub(crate) line: usize,
    /// The full name of the key, e.g. `source.main.kind`, without control characters: it is shown
    /// in a line, and on terminals.
    pub(crate) key: String,
}

impl Place {
    /// A key of the table here.
    pub(crate) fn child(&self, line: usize, key: &str) -> Place {
        let dot = if self.key.is_empty() { "" } else { "." };
        Place { line, key: format!("{}{dot}{}", self.key, key.escape_debug()) }
    }

    /// How a problem elsewhere points to this place: ` (line 7)`, ` (other.toml:7)` where there are
    /// several files, or nothing on the command line.
    pub(crate) fn reference(&self, notes: &Notes) -> String {
        match notes.files.find(self.line) {
            Some((file, line)) if notes.files.0.len() > 1 => format!(" ({file}:{line})"),
            Some((_, line)) => format!(" (line {line})"),
            None => String::new(),
        }
    }
}

/// Which lines are whose, where a file includes others. None on the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Files(Vec<Part>);

/// Lines of one file that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    /// The first of them, counted through.
    first: usize,
    file: Arc<str>,
    /// The number of the first in its file.
    line: usize,
}

impl Files {
    pub(crate) fn add(&mut self, first: usize, file: &str, line: usize) {
        self.0.push(Part { first, file: file.into(), line });
    }

    /// The file that has a line, and the line's number there.
    fn find(&self, line: usize) -> Option<(Arc<str>, usize)> {
        let part = self.0.iter().rfind(|part| part.first <= line).or(self.0.first())?;
        Some((Arc::clone(&part.file), part.line + line.saturating_sub(part.first)))
    }
}

/// That a text must be something else.
pub(crate) fn must_be(what: &str, text: &str) -> String {
    format!("must be {what}, not {text:?}")
}

/// What was noticed while one configuration was read and checked. The default is for the command
/// line.
#[derive(Default)]
pub(crate) struct Notes {
    files: Files,
    /// Where each line of the file begins; empty for the command line.
    line_starts: Vec<usize>,
    /// What of the file stands for variables of the environment.
    variables: Variables,
    noted: RefCell<Noted>,
}

#[derive(Default)]
struct Noted {
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    tables: Vec<WrittenTable>,
}

impl Notes {
    pub(crate) fn for_file(name: &str, text: &str) -> Notes {
        let mut files = Files::default();
        files.add(1, name, 1);
        Notes::for_files(files, text)
    }

    /// For the text of several files.
    pub(crate) fn for_files(files: Files, text: &str) -> Notes {
        let newlines = text.match_indices('\n').map(|(at, _)| at + 1);
        let line_starts = std::iter::once(0).chain(newlines).collect();
        Notes { files, line_starts, ..Notes::default() }
    }

    /// The key here is wrong.
    pub(crate) fn problem(&self, place: &Place, text: impl fmt::Display) {
        let problem = Problem::new(&self.files, place, self.hide(text));
        self.noted.borrow_mut().problems.push(problem);
    }

    /// The key here works, and its user should know what it means.
    pub(crate) fn warning(&self, place: &Place, text: impl fmt::Display) {
        let warning = Problem::new(&self.files, place, self.hide(text));
        self.noted.borrow_mut().warnings.push(warning);
    }

    fn hide(&self, text: impl fmt::Display) -> String {
        self.variables.hidden.hide(text.to_string()).into_owned()
    }

    /// The variable that a value of the file stands for.
    pub(crate) fn variable(&self, value: &Spanned<DeValue<'_>>) -> Option<&Written> {
        self.variables.at(value.span().start)
    }

    /// Puts variables of the environment into a file. A command line has none.
    pub(crate) fn put_in_variables(&mut self, document: &mut DeTable<'_>) {
        if !self.files.0.is_empty() {
            let environment = |name: &str| std::env::var(name).ok();
            self.variables = Variables::put_in(document, &environment);
        }
    }

    /// The file is not TOML at this offset.
    pub(crate) fn syntax_problem(&self, text: &str, offset: usize, message: &str) {
        let line = self.line_of(offset);
        let before = text.get(self.line_starts[line - 1]..offset).unwrap_or_default();
        let problem = Problem::new(&self.files, &Place { line, key: String::new() }, message);
        let column = Some(before.chars().count() + 1);
        self.noted.borrow_mut().problems.push(Problem { column, ..problem });
    }

    pub(crate) fn line_of(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }

    /// How many problems there are so far.
    pub(crate) fn problem_count(&self) -> usize {
        self.noted.borrow().problems.len()
    }

    /// Changes what is recorded of the tables.
    pub(crate) fn record<T>(&self, change: impl FnOnce(&mut Vec<WrittenTable>) -> T) -> T {
        change(&mut self.noted.borrow_mut().tables)
    }

    /// The warnings and where each key is, if nothing is wrong.
    pub(crate) fn finish(self) -> Result<(Vec<Problem>, Places), Problems> {
        let Noted { problems, mut warnings, tables } = self.noted.into_inner();
        Problems::none(problems)?;
        warnings.sort_by_key(|warning| warning.place.line);
        let hidden = Arc::new(self.variables.hidden);
        Ok((warnings, Places { files: self.files, tables: Arc::new(tables), hidden }))
    }
}
