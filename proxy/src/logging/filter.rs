//! Which lines the log has, as operators write it: what the library would take without a word, and
//! then log nothing of ours, is refused.

use tracing_subscriber::filter::{EnvFilter, LevelFilter, ParseError};

/// A text that is no filter of the log.
#[derive(Debug, thiserror::Error)]
pub enum NoFilter {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] ParseError),
    /// It may have been meant as a level. The library would take it for the name of a module that
    /// does not exist, and log nothing.
    #[error(
        "{0:?} is no level: off, error, warn, info, debug or trace, or of a part only, like fencepost=debug"
    )]
    NoLevel(String),
    /// A name in it may be misspelt. `off` is the filter that logs nothing.
    #[error(
        "{0:?} has nothing of fencepost's own logged: it takes a level, like info,{0}, or fencepost=info"
    )]
    Silent(String),
}

/// Reads a filter.
///
/// # Errors
/// If the text is invalid. Also if it hides every line of ours, but is not `off`.
pub(super) fn parse(text: &str) -> Result<EnvFilter, NoFilter> {
    // Untrimmed, the library takes " info" for the name of a module, too.
    let directives: Vec<&str> =
        text.split(',').map(str::trim).filter(|directive| !directive.is_empty()).collect();
    let mut is_of_ours = false;
    for directive in &directives {
        let Some(end) = directive.find(['=', '[']) else {
            let level = directive.parse::<LevelFilter>();
            level.map_err(|_| NoFilter::NoLevel((*directive).to_owned()))?;
            is_of_ours = true;
            continue;
        };
        let name = directive[..end].split("::").next().unwrap_or_default();
        is_of_ours |= name.is_empty() || name == "fencepost" || name.starts_with("fencepost_");
    }
    match directives.join(",") {
        text if text.is_empty() => Err(NoFilter::NoLevel(text)),
        text if !is_of_ours => Err(NoFilter::Silent(text)),
        text => Ok(EnvFilter::try_new(text)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_what_is_logged_of_ours_is_a_filter() {
        for text in [
            "info",
            "INFO",
            "off",
            " info, fencepost=debug,",
            "fencepost=off",
            "fencepost::gate=trace",
            "fencepost_locks=debug",
            "warn,hyper=info,h2::codec=debug",
            "fencepost[{lock}]=debug",
            "[{reason}]=info",
        ] {
            assert!(parse(text).is_ok(), "{text}");
        }
    }

    /// They were taken, and nothing was logged from then on.
    #[test]
    fn a_slip_that_would_silence_the_log_is_no_filter() {
        for (text, says) in [
            ("info fencepost=debug", "nothing of fencepost's own logged"),
            ("fencepost =info", "nothing of fencepost's own logged"),
            ("fencpost=debug", "nothing of fencepost's own logged"),
            ("hyper=debug,h2=info", "like info,hyper=debug,h2=info,"),
            ("warning", "is no level"),
            ("fencepost", "is no level"),
            (" , ", "is no level"),
            ("fencepost=loud", "level filter"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
