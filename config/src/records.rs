//! What is written down of requests: decisions in memory, an access log.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use crate::problem::Notes;
use crate::reader::Table;
use crate::setting::Setting;

/// Which decisions are kept in memory, for the admin listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decisions {
    /// How many, the newest; 0 to 100,000, by default 10,000.
    pub kept: usize,
    /// One admission in so many is among them, besides every refusal; 1 to 1,000,000, by default 100; `None`: no admission.
    pub admissions_one_in: Option<NonZeroU32>,
}

/// A line for each request that has ended, or for some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLog {
    /// Where the lines go.
    pub target: AccessLogTarget,
    /// How they look.
    pub format: AccessLogFormat,
    /// One request in so many has a line; 1 to 1,000,000, by default 1.
    pub one_in: NonZeroU32,
    /// Whether lines have the queries of targets and referers; by default not, since queries carry secrets.
    pub queries: bool,
}

/// Where the lines of an access log go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessLogTarget {
    /// To standard output.
    Stdout,
    /// To standard error, among the lines of the log.
    Stderr,
    /// To the end of a file; an absolute path.
    File(PathBuf),
}

/// How the lines of an access log look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// One JSON object a line.
    Json,
    /// The combined log format of Apache and nginx, with the verdict at its end.
    Combined,
}

/// `[decisions]`.
pub(crate) struct RawDecisions {
    kept: Setting<i64>,
    admissions_one_in: Setting<i64>,
}

impl RawDecisions {
    pub(crate) fn read(table: &mut Table<'_>) -> RawDecisions {
        RawDecisions { kept: table.integer("kept"), admissions_one_in: table.integer("admissions_one_in") }
    }

    pub(crate) fn check(self, notes: &Notes) -> Decisions {
        let RawDecisions { kept, admissions_one_in } = self;
        let kept = kept.within(notes, 0..=100_000, i64::to_string).or(10_000);
        let admissions = admissions_one_in.within(notes, 0..=1_000_000, i64::to_string).or(100);
        Decisions {
            kept: usize::try_from(kept).unwrap_or_default(),
            admissions_one_in: u32::try_from(admissions).ok().and_then(NonZeroU32::new),
        }
    }
}

/// `[access_log]`.
pub(crate) struct RawAccessLog {
    path: Setting<String>,
    format: Setting<String>,
    one_in: Setting<i64>,
    queries: Setting<bool>,
}

impl RawAccessLog {
    pub(crate) fn read(table: &mut Table<'_>) -> RawAccessLog {
        RawAccessLog {
            path: table.string("path"),
            format: table.string("format"),
            one_in: table.integer("one_in"),
            queries: table.boolean("queries"),
        }
    }

    /// The access log, if there is one.
    pub(crate) fn check(self, notes: &Notes) -> Option<AccessLog> {
        let RawAccessLog { path, format, one_in, queries } = self;
        for (place, written) in [
            (&format.place, format.is_written()),
            (&one_in.place, one_in.is_written()),
            (&queries.place, queries.is_written()),
        ] {
            if written && !path.is_written() {
                notes.warning(place, "there is no access log without a path");
            }
        }
        let target = path.parse(notes, |text| parse_target(&text)).into_value();
        let formats = [("json", AccessLogFormat::Json), ("combined", AccessLogFormat::Combined)];
        let format = format.choice(notes, &formats).or(AccessLogFormat::Json);
        let one_in = one_in.within(notes, 1..=1_000_000, i64::to_string).or(1);
        let one_in = u32::try_from(one_in).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
        let queries = queries.or(false);
        target.map(|target| AccessLog { target, format, one_in, queries })
    }
}

fn parse_target(text: &str) -> Result<AccessLogTarget, String> {
    match text {
        "stdout" => Ok(AccessLogTarget::Stdout),
        "stderr" => Ok(AccessLogTarget::Stderr),
        path if Path::new(path).is_absolute() && !path.contains(char::is_control) => {
            Ok(AccessLogTarget::File(path.into()))
        }
        other => Err(format!(r#"must be "stdout", "stderr" or the absolute path of a file, not {other:?}"#)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn read(section: &str) -> Result<Config, String> {
        let file = format!(
            r#"
            {section}
            [[listener]]
            address = "127.0.0.1:8080"
            [[route]]
            name = "a"
            path = "/"
            upstream = "http://127.0.0.1:9000"
            mode = "off"
            "#
        );
        Config::from_toml("f.toml", &file).map_err(|problems| problems.to_string())
    }

    #[test]
    fn there_is_an_access_log_only_with_a_path() {
        assert_eq!(read("").unwrap().access_log, None);
        let config = read("[access_log]\nformat = \"combined\"").unwrap();
        assert_eq!(config.access_log, None);
        let warning = config.warnings.iter().map(ToString::to_string).find(|text| text.contains("access log"));
        assert_eq!(warning.unwrap(), "f.toml:3: access_log.format: there is no access log without a path");
    }

    #[test]
    fn an_access_log_goes_to_an_output_or_a_file() {
        for (path, target) in [
            ("stdout", AccessLogTarget::Stdout),
            ("stderr", AccessLogTarget::Stderr),
            ("/var/log/a.log", AccessLogTarget::File("/var/log/a.log".into())),
        ] {
            let table = format!("[access_log]\npath = {path:?}\none_in = 100\nformat = \"combined\"\nqueries = true");
            let config = read(&table).unwrap();
            let one_in = NonZeroU32::new(100).unwrap();
            let expected = AccessLog { target, format: AccessLogFormat::Combined, one_in, queries: true };
            assert_eq!(config.access_log, Some(expected));
        }
        for path in ["a.log", "", r"/a\u0007"] {
            let problem = read(&format!("[access_log]\npath = \"{path}\"")).unwrap_err();
            assert!(problem.contains("access_log.path: must be \"stdout\""), "{problem}");
        }
    }

    #[test]
    fn no_admission_need_be_kept() {
        let decisions = read("[decisions]\nkept = 0\nadmissions_one_in = 0").unwrap().decisions;
        assert_eq!(decisions, Decisions { kept: 0, admissions_one_in: None });
        assert_eq!(read("").unwrap().decisions.admissions_one_in, NonZeroU32::new(100));
    }
}
