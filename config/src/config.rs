//! The configuration as the rest of the program sees it: typed and checked. Reads the whole file.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use toml::de::DeTable;

use crate::check_routes::check_routes;
use crate::flags::Flags;
use crate::group::Group;
use crate::include::{Included, parse_pattern, put_together};
use crate::limits::Limits;
use crate::listening::{Admin, Listener};
use crate::places::Places;
use crate::problem::{Notes, Place, Problem, Problems, must_be};
use crate::reader::Table;
use crate::records::{AccessLog, Decisions};
use crate::route::Mode;
use crate::routes::Routes;
use crate::source::Source;
use crate::units::Unit;

/// A whole configuration, which has passed all checks.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where what must outlive a process is kept, an absolute path; `None`: nowhere.
    pub state_dir: Option<PathBuf>,
    /// How many threads serve requests; `None`: as many as the process may use.
    pub threads: Option<NonZeroUsize>,
    /// Where the admin listener is, if there is one.
    pub admin: Option<Admin>,
    /// Where requests are accepted; at least one address, none twice.
    pub listeners: Vec<Listener>,
    /// What one process takes and how long it waits.
    pub limits: Limits,
    /// Which decisions are kept for operators to look at.
    pub decisions: Decisions,
    /// Where each request that has ended gets a line, if anywhere.
    pub access_log: Option<AccessLog>,
    /// The lock stores, ordered by name.
    pub sources: Vec<Source>,
    /// The group that this process is a member of, if there is one.
    pub group: Option<Group>,
    /// The routes in the order in which they are asked; at least one.
    pub routes: Routes,
    /// What works and should be known all the same.
    pub warnings: Vec<Problem>,
    /// Where its keys are written.
    pub places: Places,
}

impl Config {
    /// Reads the text of a configuration file. The name of the file is for messages only.
    ///
    /// # Errors
    /// Everything that is wrong with the file, each with its line and key. If it is not TOML, only
    /// where it is not.
    pub fn from_toml(file_name: &str, text: &str) -> Result<Config, Problems> {
        Config::read(text, Notes::for_file(file_name, text))
    }

    /// Reads the text of a configuration file and of those that it includes, which are given in
    /// their order: see [`included_by`](crate::included_by).
    ///
    /// # Errors
    /// As for [`Config::from_toml`], each problem with the file that has it.
    pub fn from_files(
        file_name: &str,
        text: &str,
        included: &[Included],
    ) -> Result<Config, Problems> {
        if included.is_empty() {
            return Config::from_toml(file_name, text);
        }
        let (whole, files) = put_together(file_name, text, included)?;
        Config::read(&whole, Notes::for_files(files, &whole))
    }

    /// The configuration for one worker behind one lock, from the flags of the command line: one
    /// route named `default` that takes and enforces every path.
    ///
    /// # Errors
    /// Everything that is wrong with the flags, each with the flag's name.
    pub fn from_flags(flags: Flags) -> Result<Config, Problems> {
        Config::read(&flags.to_toml(), Notes::default())
    }

    fn read(text: &str, mut notes: Notes) -> Result<Config, Problems> {
        let (mut document, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            let span = error.span().unwrap_or(text.len()..text.len());
            let mut message = error.message().to_owned();
            if let Some(key) = text.get(span.clone()).filter(|_| message == "duplicate key") {
                message = format!("{message}: {key}");
            }
            notes.syntax_problem(text, span.start, &message);
        }
        notes.put_in_variables(document.get_mut());
        let read = || Config::read_table(Table::root(&notes, document.get_ref()));
        let config = errors.is_empty().then(read);
        let (warnings, places) = notes.finish()?;
        let config = config.expect("a file that is not TOML has a problem");
        Ok(Config { warnings, places, ..config })
    }

    /// The keys of the whole file.
    fn read_table(mut t: Table<'_>) -> Config {
        t.list("include", parse_pattern);
        let state_dir = t.text("state_dir", parse_state_dir);
        let threads = t.optional("threads", Unit::Count, 1..=1024);
        let admin = t.section("admin", Admin::read);
        let listeners = Listener::read_all(&mut t, admin.as_ref());
        let limits = t.section("limits", Limits::read);
        let decisions = t.section("decisions", Decisions::read);
        let access_log = t.section("access_log", AccessLog::read);
        let sources = t.named_tables("source").into_iter().map(Source::read);
        let (sources, places): (Vec<Source>, Vec<Place>) = sources.unzip();
        let routes = t.tables("route", "at least one route, which says which requests go where");
        let group = if t.is_written("group") {
            t.section("group", |t| Group::read(t, &sources))
        } else {
            None
        };
        let ways_in = (&*listeners, admin.as_ref());
        let routes = check_routes(routes, (&sources, &places), ways_in, group.as_ref());
        let enforces = routes.iter().any(|route| matches!(route.mode, Mode::Enforce(_)));
        if enforces && !t.is_written("state_dir") && !t.is_written("group") {
            t.warning("state_dir", NO_STATE_DIR);
        }
        t.finish();
        Config {
            state_dir,
            threads: threads.and_then(NonZeroUsize::new),
            admin,
            listeners,
            limits,
            decisions,
            access_log,
            sources,
            group,
            routes: Routes::new(routes),
            warnings: Vec::new(),
            places: Places::default(),
        }
    }

    /// Whether a process does the same by either. Warnings and places make no difference, nor does
    /// the order of the listeners.
    pub(crate) fn does_the_same_as(&self, other: &Config) -> bool {
        let comparable = |config: &Config| {
            let mut listeners = config.listeners.clone();
            listeners.sort_by_key(|listener| format!("{listener:?}"));
            Config { listeners, warnings: Vec::new(), places: Places::default(), ..config.clone() }
        };
        comparable(self) == comparable(other)
    }
}

const NO_STATE_DIR: &str = "without it, a start knows nothing of requests that a killed process left at the worker; set it, for example to \"/var/lib/fencepost\"";

fn parse_state_dir(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    // What a relative path means would depend on where the process was started: the next one would
    // find nothing.
    if !path.is_absolute() || text.contains(char::is_control) {
        let what = r#"the absolute path of a directory, like "/var/lib/fencepost""#;
        return Err(must_be(what, text));
    }
    Ok(path)
}
