//! Parsers of option values: text on the command line, a type afterwards.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::builder::RangedU64ValueParser;
use hyper::Uri;
use hyper::http::uri::PathAndQuery;

/// Connections, or streams of all connections: each takes some kilobytes here.
pub(crate) const CONNECTIONS_MAX: u64 = 1_000_000;
pub(crate) const LOCKS_MAX: u64 = 1_000_000;
/// Bytes of a body, which lies in memory once.
pub(crate) const BODY_MAX: u64 = 1 << 30;
const DURATION_MAX: Duration = Duration::from_secs(86_400);

pub(crate) fn up_to(max: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=max)
}

/// A value of a series, which may be 0 bytes, or a mebibyte.
pub(crate) fn up_to_a_million(text: &str) -> Result<usize> {
    let value = text.parse().ok().filter(|value| *value <= 1 << 20);
    value.context("it is a whole number up to 1048576")
}

pub(crate) fn address(text: &str) -> Result<Uri> {
    let uri: Uri = text.parse()?;
    let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
    ensure!(is_known, "only http://HOST:PORT and https://HOST:PORT are understood");
    ensure!(uri.path_and_query().is_none_or(|path| path == "/"), "the path belongs in --path");
    let authority = uri.authority().context("the host is missing")?;
    ensure!(!authority.as_str().contains('@'), "user names are not understood");
    Ok(uri)
}

/// A length of time that is not zero, like `500ms` or `1m 30s`.
pub(crate) fn duration(text: &str) -> Result<Duration> {
    let duration = duration_or_zero(text)?;
    ensure!(!duration.is_zero(), "it must be longer than 0s");
    Ok(duration)
}

pub(crate) fn duration_or_zero(text: &str) -> Result<Duration> {
    let duration = humantime::parse_duration(text)?;
    ensure!(duration <= DURATION_MAX, "it must be at most a day");
    Ok(duration)
}

pub(crate) fn seconds(text: &str) -> Result<Duration> {
    duration(&format!("{}ns", (text.parse::<f64>()? * 1e9).max(0.0) as u64))
}

pub(crate) fn owner(text: &str) -> Result<String> {
    crate::client::Token::new(text, 1).map(|token| token.owner_text().to_owned())
}

pub(crate) fn path(text: &str) -> Result<Template> {
    ensure!(text.starts_with('/'), "a path starts with \"/\"");
    let template: Template = text.parse()?;
    PathAndQuery::try_from(template.of(0))?;
    Ok(template)
}

/// A text with at most one place for the number of a lock, `{n}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Template {
    text: String,
    place: Option<usize>,
}

impl Template {
    pub(crate) fn has_number(&self) -> bool {
        self.place.is_some()
    }

    pub(crate) fn of(&self, number: usize) -> String {
        let Some(place) = self.place else { return self.text.clone() };
        let (before, after) = self.text.split_at(place);
        format!("{before}{number}{after}")
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = self.text.split_at(self.place.unwrap_or(0));
        write!(f, "{before}{}{after}", if self.has_number() { "{n}" } else { "" })
    }
}

impl FromStr for Template {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Template> {
        ensure!(!text.is_empty(), "it is empty");
        let (place, text) = (text.find("{n}"), text.replacen("{n}", "", 1));
        ensure!(!text.contains("{n}"), "{{n}} stands in it twice");
        ensure!(!text.contains(['{', '}']), "only {{n}} is replaced");
        Ok(Template { text, place })
    }
}

/// A share of all requests, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share(u64);

impl Share {
    pub(crate) const ALL: Share = Share(1_000_000);

    /// Whether the request of this number belongs to the share. The share is spread evenly.
    pub(crate) fn takes(self, number: u64) -> bool {
        let whole = |number: u64| u128::from(number) * u128::from(self.0) / 1_000_000;
        whole(number + 1) > whole(number)
    }

    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0 as f64 / 10_000.0)
    }
}

impl FromStr for Share {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Share> {
        let Some(percent) = text.strip_suffix('%') else {
            bail!("a share is written like 5% or 0.1%")
        };
        let percent: f64 = percent.parse()?;
        ensure!((0.0..=100.0).contains(&percent), "a share is from 0% to 100%");
        let share = Share((percent * 10_000.0).round() as u64);
        ensure!(!share.is_none() || percent == 0.0, "a share is a millionth (0.0001%) at least");
        Ok(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_with_two_places_fails() {
        let shards: Template = "/shards/{n}/lock".parse().unwrap();
        assert_eq!((shards.of(7).as_str(), shards.has_number()), ("/shards/7/lock", true));
        assert_eq!(shards.to_string(), "/shards/{n}/lock");
        let fixed: Template = "/lock".parse().unwrap();
        assert_eq!((fixed.of(7).as_str(), fixed.has_number()), ("/lock", false));
        for wrong in ["", "/{n}/{n}", "/{shard}/lock", "/{n", "/n}"] {
            assert!(wrong.parse::<Template>().is_err(), "{wrong}");
        }
        assert!(path("/a?b=c").is_ok() && path("/a/{n}").is_ok());
        assert!(path("a").is_err() && path("/a b").is_err() && path("").is_err());
    }

    #[test]
    fn share_takes_as_many_as_it_says_evenly() {
        for (text, of_thousand) in [("0%", 0), ("0.1%", 1), ("5%", 50), ("33.3%", 333)] {
            let share: Share = text.parse().unwrap();
            assert_eq!((0..1000).filter(|number| share.takes(*number)).count(), of_thousand);
            assert_eq!(share.to_string(), text);
        }
        let twentieth: Share = "5%".parse().unwrap();
        for start in (0..1000).step_by(20) {
            assert_eq!((start..start + 20).filter(|number| twentieth.takes(*number)).count(), 1);
        }
        for wrong in ["5", "0.05", "101%", "-1%", "%", "x%", "0.00001%"] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong}");
        }
        assert_eq!("100%".parse::<Share>().unwrap(), Share::ALL);
    }

    #[test]
    fn duration_without_a_unit_fails() {
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(duration_or_zero("0s").unwrap(), Duration::ZERO);
        assert_eq!(seconds("0.5").unwrap(), Duration::from_millis(500));
        for wrong in ["0s", "10", "", "2days"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        for wrong in ["0", "-1", "NaN", "1s", "1e9", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn address_beyond_host_and_port_fails() {
        for text in ["http://127.0.0.1:8080", "http://localhost/", "https://[::1]:8443"] {
            assert!(address(text).is_ok(), "{text}");
        }
        for text in ["127.0.0.1:8080", "ftp://127.0.0.1", "http://a/b", "http://me@a", "", "/"] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
