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
    /// `None`: the command line.
    file: Option<Arc<str>>,
    column: Option<usize>,
    place: Place,
    text: String,
}

impl Problem {
    pub(crate) fn new(file: &Option<Arc<str>>, place: &Place, text: impl fmt::Display) -> Problem {
        Problem { file: file.clone(), column: None, place: place.clone(), text: text.to_string() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { file, column, place: Place { line, key }, text } = self;
        match (file, column) {
            (None, _) => write!(f, "{}: ", flag_of(key))?,
            (Some(file), None) => write!(f, "{file}:{line}: ")?,
            (Some(file), Some(column)) => write!(f, "{file}:{line}:{column}: ")?,
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
    /// 0 on the command line.
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

    /// How a problem elsewhere points to this place: ` (line 7)`, or nothing on the command line.
    pub(crate) fn reference(&self) -> String {
        if self.line == 0 { String::new() } else { format!(" (line {})", self.line) }
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
    /// `None`: the command line.
    file: Option<Arc<str>>,
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
        let newlines = text.match_indices('\n').map(|(at, _)| at + 1);
        let line_starts = std::iter::once(0).chain(newlines).collect();
        Notes { file: Some(name.into()), line_starts, ..Notes::default() }
    }

    /// The key here is wrong.
    pub(crate) fn problem(&self, place: &Place, text: impl fmt::Display) {
        let problem = Problem::new(&self.file, place, self.hide(text));
        self.noted.borrow_mut().problems.push(problem);
    }

    /// The key here works, and its user should know what it means.
    pub(crate) fn warning(&self, place: &Place, text: impl fmt::Display) {
        let warning = Problem::new(&self.file, place, self.hide(text));
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
        if self.file.is_some() {
            let environment = |name: &str| std::env::var(name).ok();
            self.variables = Variables::put_in(document, &environment);
        }
    }

    /// The file is not TOML at this offset.
    pub(crate) fn syntax_problem(&self, text: &str, offset: usize, message: &str) {
        let line = self.line_of(offset);
        let before = text.get(self.line_starts[line - 1]..offset).unwrap_or_default();
        let problem = Problem::new(&self.file, &Place { line, key: String::new() }, message);
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
        Ok((warnings, Places { file: self.file, tables: Arc::new(tables), hidden }))
    }
}
