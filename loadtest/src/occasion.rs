//! What a report says of the run itself: without it, nobody knows next month what its figures are of.

use std::time::SystemTime;

use serde_json::{Value, json};

/// When a run began, and as what.
#[derive(Debug)]
pub(crate) struct Occasion {
    began: SystemTime,
    command: String,
}

impl Occasion {
    /// That of this process, now.
    pub(crate) fn of_this_run() -> Occasion {
        let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
        Occasion { began: SystemTime::now(), command: command(arguments) }
    }

    /// When it began: RFC 3339, to the second, UTC.
    pub(crate) fn began(&self) -> String {
        humantime::format_rfc3339_seconds(self.began).to_string()
    }

    /// Which program it is, and of which version.
    pub(crate) fn program(&self) -> &'static str {
        concat!("fencepost-loadtest ", env!("CARGO_PKG_VERSION"))
    }

    /// The command line, as a shell takes it.
    pub(crate) fn command(&self) -> &str {
        &self.command
    }

    /// The same for a program.
    pub(crate) fn as_json(&self) -> Value {
        json!({ "began": self.began(), "program": self.program(), "command": self.command })
    }
}

fn command(arguments: impl Iterator<Item = String>) -> String {
    arguments.fold("fencepost-loadtest".to_owned(), |line, argument| format!("{line} {}", quoted(&argument)))
}

/// An argument as a shell takes it for one.
fn quoted(argument: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,@%+".contains(letter);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_the_command_line_for_what_it_was() {
        let arguments = ["closed", "--lock", "/locks/{n}", "--owner", "it's", "", "$HOME", "--stale=5%"];
        let line = command(arguments.iter().map(|argument| (*argument).to_owned()));
        assert_eq!(line, r"fencepost-loadtest closed --lock '/locks/{n}' --owner 'it'\''s' '' '$HOME' --stale=5%");
        let script = line.replacen("fencepost-loadtest", "printf '%s\\n'", 1);
        let printed = std::process::Command::new("sh").args(["-c", &script]).output().unwrap().stdout;
        assert_eq!(String::from_utf8(printed).unwrap().lines().collect::<Vec<_>>(), arguments);
    }

    #[test]
    fn a_date_is_told_as_everybody_tells_it() {
        let began = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        let occasion = Occasion { began, command: String::new() };
        assert_eq!(occasion.began(), "2001-09-09T01:46:40Z");
    }
}
