//! Values of options: text on the command line, a type afterwards.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{bail, ensure};
use hyper::http::uri::PathAndQuery;

/// A text with at most one place for the number of a lock, `{n}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    before: String,
    /// What follows the number; `None` if there is no place for one.
    after: Option<String>,
}

impl Template {
    /// This text for every lock, whatever stands in it.
    pub(crate) fn without_number(text: &str) -> Template {
        Template { before: text.to_owned(), after: None }
    }

    /// Whether the text differs from lock to lock.
    pub(crate) fn has_number(&self) -> bool {
        self.after.is_some()
    }

    /// The text as it was given.
    pub(crate) fn as_written(&self) -> String {
        match &self.after {
            None => self.before.clone(),
            Some(after) => format!("{}{{n}}{after}", self.before),
        }
    }

    /// The text for the lock of this number.
    pub(crate) fn of(&self, number: usize) -> String {
        match &self.after {
            None => self.before.clone(),
            Some(after) => format!("{}{number}{after}", self.before),
        }
    }
}

impl FromStr for Template {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Template> {
        ensure!(!text.is_empty(), "it is empty");
        let (before, after) = match text.split_once("{n}") {
            None => (text, None),
            Some((before, after)) => (before, Some(after.to_owned())),
        };
        ensure!(after.as_ref().is_none_or(|after| !after.contains("{n}")), "{{n}} stands in it twice");
        ensure!(
            !before.contains(['{', '}']) && after.iter().all(|after| !after.contains(['{', '}'])),
            "only {{n}} is replaced"
        );
        Ok(Template { before: before.to_owned(), after })
    }
}

/// A template that makes absolute paths.
pub(crate) fn path(text: &str) -> anyhow::Result<Template> {
    ensure!(text.starts_with('/'), "a path starts with \"/\"");
    let template: Template = text.parse()?;
    PathAndQuery::try_from(template.of(0))?;
    Ok(template)
}

/// A share of all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// So many of a million.
    millionths: u64,
}

impl Share {
    /// Whether the request of this number is one of the share: evenly spread, and in the end exactly as many as it says.
    pub(crate) fn takes(self, number: u64) -> bool {
        let whole = |number: u64| u128::from(number) * u128::from(self.millionths) / 1_000_000;
        whole(number + 1) > whole(number)
    }

    /// Whether it is none.
    pub(crate) fn is_none(self) -> bool {
        self.millionths == 0
    }
}

/// As it is written.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.millionths as f64 / 10_000.0)
    }
}

impl FromStr for Share {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Share> {
        let Some(percent) = text.strip_suffix('%') else { bail!("a share is written like 5% or 0.1%") };
        let percent: f64 = percent.parse()?;
        ensure!((0.0..=100.0).contains(&percent), "a share is from 0% to 100%");
        let millionths = (percent * 10_000.0).round() as u64;
        ensure!(millionths > 0 || percent == 0.0, "a share is a millionth (0.0001%) at least");
        Ok(Share { millionths })
    }
}

/// A length of time that is not zero, like `500ms` or `1m 30s`.
pub(crate) fn duration(text: &str) -> anyhow::Result<Duration> {
    let duration = duration_or_zero(text)?;
    ensure!(!duration.is_zero(), "it takes some time, and a day at most");
    Ok(duration)
}

/// A number of seconds, like `4` or `0.5`.
pub(crate) fn seconds(text: &str) -> anyhow::Result<Duration> {
    let seconds = Duration::try_from_secs_f64(text.parse()?)?;
    ensure!(!seconds.is_zero() && seconds <= Duration::from_secs(86_400), "it takes some time, and a day at most");
    Ok(seconds)
}

/// A length of time, like `500ms`, or `0s` for none.
pub(crate) fn duration_or_zero(text: &str) -> anyhow::Result<Duration> {
    let duration = humantime::parse_duration(text)?;
    ensure!(duration <= Duration::from_secs(86_400), "it takes a day at most");
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_has_one_place_for_a_number_or_none() {
        let shards: Template = "/shards/{n}/lock".parse().unwrap();
        assert_eq!((shards.of(7).as_str(), shards.has_number()), ("/shards/7/lock", true));
        let fixed: Template = "/lock".parse().unwrap();
        assert_eq!((fixed.of(7).as_str(), fixed.has_number()), ("/lock", false));
        for wrong in ["", "/{n}/{n}", "/{shard}/lock", "/{n", "/n}"] {
            assert!(wrong.parse::<Template>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_is_absolute() {
        assert!(path("/a?b=c").is_ok());
        assert!(path("/a/{n}").is_ok());
        for wrong in ["a", "/a b", ""] {
            assert!(path(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_share_takes_as_many_as_it_says_and_takes_them_evenly() {
        for (text, of_thousand) in [("0%", 0), ("0.1%", 1), ("5%", 50), ("33.3%", 333), ("100%", 1000)] {
            let share: Share = text.parse().unwrap();
            assert_eq!((0..1000).filter(|number| share.takes(*number)).count(), of_thousand, "{text}");
            assert_eq!(share.to_string(), text);
        }
        let twentieth: Share = "5%".parse().unwrap();
        for start in (0..1000).step_by(20) {
            assert_eq!((start..start + 20).filter(|number| twentieth.takes(*number)).count(), 1);
        }
        for wrong in ["5", "0.05", "101%", "-1%", "%", "x%"] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_duration_has_a_unit() {
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(duration_or_zero("0s").unwrap(), Duration::ZERO);
        for wrong in ["0s", "10", "", "2days"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_have_none() {
        assert_eq!(seconds("0.5").unwrap(), Duration::from_millis(500));
        for wrong in ["0", "-1", "NaN", "1s", "1e9", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
