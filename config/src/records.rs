//! What is written down of requests: decisions in memory, an access log.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use crate::problem::must_be;
use crate::reader::Table;

/// Which decisions are kept in memory, for the admin listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decisions {
    /// How many, the newest; 0 to 100,000, by default 10,000.
    pub kept: usize,
    /// One admission in so many is among them, besides every refusal; 1 to 1,000,000, by default
    /// 100; `None`: no admission.
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
    /// Whether lines have the queries of targets and referers; by default not, since queries carry
    /// secrets.
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

impl Decisions {
    pub(crate) fn read(t: &mut Table<'_>) -> Decisions {
        let kept = t.count("kept", 0..=100_000, 10_000);
        let admissions: u32 = t.count("admissions_one_in", 0..=1_000_000, 100);
        Decisions { kept, admissions_one_in: NonZeroU32::new(admissions) }
    }
}

impl AccessLog {
    /// The access log, if there is one.
    pub(crate) fn read(t: &mut Table<'_>) -> Option<AccessLog> {
        let target = t.text("path", parse_target);
        let formats = [("json", AccessLogFormat::Json), ("combined", AccessLogFormat::Combined)];
        let format = t.choice("format", &formats);
        let one_in = NonZeroU32::new(t.count("one_in", 1..=1_000_000, 1));
        let one_in = one_in.unwrap_or(NonZeroU32::MIN);
        let queries = t.flag("queries");
        for key in t.written(&["format", "one_in", "queries"]) {
            if !t.is_written("path") {
                t.warning(key, "there is no access log without a path");
            }
        }
        Some(AccessLog { target: target?, format, one_in, queries })
    }
}

fn parse_target(text: &str) -> Result<AccessLogTarget, String> {
    match text {
        "stdout" => Ok(AccessLogTarget::Stdout),
        "stderr" => Ok(AccessLogTarget::Stderr),
        path if Path::new(path).is_absolute() && !path.contains(char::is_control) => {
            Ok(AccessLogTarget::File(path.into()))
        }
        other => Err(must_be(r#""stdout", "stderr" or the absolute path of a file"#, other)),
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
        let warning = config
            .warnings
            .iter()
            .map(ToString::to_string)
            .find(|text| text.contains("access log"));
        assert_eq!(
            warning.unwrap(),
            "f.toml:3: access_log.format: there is no access log without a path"
        );
    }

    #[test]
    fn an_access_log_goes_to_an_output_or_a_file() {
        for (path, target) in [
            ("stdout", AccessLogTarget::Stdout),
            ("stderr", AccessLogTarget::Stderr),
            ("/var/log/a.log", AccessLogTarget::File("/var/log/a.log".into())),
        ] {
            let table = format!(
                "[access_log]\npath = {path:?}\none_in = 100\nformat = \"combined\"\nqueries = true"
            );
            let config = read(&table).unwrap();
            let one_in = NonZeroU32::new(100).unwrap();
            let expected =
                AccessLog { target, format: AccessLogFormat::Combined, one_in, queries: true };
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
