//! Which lines the log has, as operators write it: what the library would take without a word, and
//! then log nothing, is refused.

use tracing_subscriber::filter::{EnvFilter, LevelFilter, ParseError};

/// What of this project logs anything.
const OURS: [&str; 4] = ["fencepost", "fencepost_fence", "fencepost_hold", "fencepost_locks"];

/// What else does in this process.
const LIBRARIES: [&str; 4] = ["h2", "hyper_util", "tonic", "tower"];

/// A filter of the log.
pub(super) struct Filter {
    pub(super) filter: EnvFilter,
    /// Names in it under which nothing is logged, here and now.
    pub(super) unknown: Vec<String>,
}

/// A text that is no filter of the log.
#[derive(Debug, thiserror::Error)]
pub enum NoFilter {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] ParseError),
    /// It may have been meant for a level. The library takes it for the name of a module, of which
    /// there is none, and logs nothing.
    #[error(
        "{0:?} is no level: off, error, warn, info, debug or trace, or of a part only, like fencepost=debug"
    )]
    NoLevel(String),
    /// It has a blank or a `;` within, say, where the library looks for the name of a module.
    #[error("{0:?} names no part: commas stand between what is logged, like info,fencepost=debug")]
    NoPart(String),
    /// It may have a slip in a name. Who wants silence says `off`.
    #[error(
        "{0:?} has nothing of fencepost's own logged: it takes a level, like info,{0}, or fencepost=info"
    )]
    Silent(String),
}

impl Filter {
    /// Reads one.
    ///
    /// # Errors
    /// If it is none, or no line of ours could ever be logged by it, though it does not say so.
    pub(super) fn parse(text: &str) -> Result<Filter, NoFilter> {
        // Untrimmed, the library takes " info" for the name of a module, too.
        let directives: Vec<&str> =
            text.split(',').map(str::trim).filter(|directive| !directive.is_empty()).collect();
        if directives.is_empty() {
            return Err(NoFilter::NoLevel(text.to_owned()));
        }
        let parts =
            directives.iter().map(|directive| part(directive)).collect::<Result<Vec<_>, _>>()?;
        let text = directives.join(",");
        let filter = EnvFilter::try_new(&text)?;
        if !parts.iter().any(|part| is_of(part, &OURS)) {
            return Err(NoFilter::Silent(text));
        }
        let unknown = parts.iter().filter(|part| !is_of(part, &OURS) && !is_of(part, &LIBRARIES));
        Ok(Filter { filter, unknown: unknown.map(|part| (*part).to_owned()).collect() })
    }
}

/// Of what a directive tells the level: the beginning of a module's path, which is empty where that
/// is everything.
fn part(directive: &str) -> Result<&str, NoFilter> {
    let Some(end) = directive.find(['=', '[']) else {
        let level = directive.parse::<LevelFilter>();
        return level.map(|_| "").map_err(|_| NoFilter::NoLevel(directive.to_owned()));
    };
    let part = &directive[..end];
    let is_path = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:".contains(&byte));
    if is_path { Ok(part) } else { Err(NoFilter::NoPart(directive.to_owned())) }
}

/// Whether one of these crates may log what a part means.
fn is_of(part: &str, crates: &[&str]) -> bool {
    crates.iter().any(|name| {
        name.starts_with(part)
            || part.strip_prefix(name).is_some_and(|module| module.starts_with("::"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names under which nothing is logged, or what is wrong.
    fn check(text: &str) -> Result<Vec<String>, String> {
        Filter::parse(text).map(|filter| filter.unknown).map_err(|error| error.to_string())
    }

    #[test]
    fn what_says_what_is_logged_of_ours_is_a_filter() {
        for text in [
            "info",
            "INFO",
            "off",
            " info, fencepost=debug,",
            "fencepost=debug",
            "fencepost=off",
            "fencepost::gate=trace",
            "fencepost_locks=debug",
            "warn,hyper=info,hyper_util=debug,h2::codec=debug,tonic=off,tower=info",
            "off,h2=info",
            "fencepost[{lock}]=debug",
            "[{reason}]=info",
        ] {
            assert_eq!(check(text), Ok(Vec::new()), "{text}");
        }
    }

    #[test]
    fn a_name_under_which_nothing_is_logged_is_told() {
        for (text, unknown) in [
            ("info,fencpost=debug", &["fencpost"][..]),
            ("info,fencepost_gate=debug,rustls=warn", &["fencepost_gate", "rustls"]),
            ("fencepost=info,fencpost[{lock}]=debug", &["fencpost"]),
        ] {
            assert_eq!(check(text).unwrap(), unknown, "{text}");
        }
    }

    /// They were taken, and nothing was logged from then on.
    #[test]
    fn a_slip_that_would_silence_the_log_is_no_filter() {
        for (text, says) in [
            ("info fencepost=debug", "names no part"),
            ("warn;fencepost=info", "names no part"),
            ("fencepost =info", "names no part"),
            ("info,fence-post=debug", "names no part"),
            ("fencpost=debug", "nothing of fencepost's own logged"),
            ("nosuch=debug", "nothing of fencepost's own logged"),
            ("fencepostt=off", "nothing of fencepost's own logged"),
            ("hyper=debug,h2=info", "like info,hyper=debug,h2=info,"),
            ("warning", "is no level"),
            ("fencepost", "is no level"),
            ("info;fencepost", "is no level"),
            (" , ", "is no level"),
            ("fencepost=loud", "level filter"),
        ] {
            assert!(
                check(text).is_err_and(|error| error.contains(says)),
                "{text}: {:?}",
                check(text)
            );
        }
    }

    #[test]
    fn whatever_may_log_here_is_known() {
        let lock = include_str!("../../../Cargo.lock");
        let packages =
            lock.split("[[package]]").filter(|package| package.contains("\n \"tracing\""));
        for package in packages {
            let name = package.split('"').nth(1).unwrap().replace('-', "_");
            let is_known = OURS.contains(&&*name) || LIBRARIES.contains(&&*name);
            assert!(
                is_known || ["loom", "tracing_subscriber"].contains(&&*name),
                "{name} may log, and is not known"
            );
        }
    }
}
