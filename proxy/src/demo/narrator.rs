//! The voice: who does what, line by line.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// How long a step stands before the next, where a person reads along. Five of them leave the demo
/// well under 20 s.
const PAUSE: Duration = Duration::from_secs(3);

/// Names are as wide as "fencepost", plus a gap.
const NAME_WIDTH: usize = 11;

/// Tells the story on standard output: with colours and pauses on a terminal, plain and at once
/// elsewhere.
pub(super) struct Narrator {
    coloured: bool,
    pause: Duration,
}

/// How a line is meant.
#[derive(Clone, Copy)]
pub(super) enum Tone {
    /// As a plain report.
    Plain,
    /// As something that went through.
    Through,
    /// As something that was kept out, or got lost.
    KeptOut,
}

const BOLD: u8 = 1;
const RED: u8 = 31;
const GREEN: u8 = 32;
const CYAN: u8 = 36;

impl Narrator {
    /// One that finds out whom it speaks to.
    pub(super) fn to_stdout() -> Narrator {
        let terminal = io::stdout().is_terminal();
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|kind| kind == "dumb");
        Narrator {
            coloured: terminal && !dumb && !is_set("NO_COLOR"),
            pause: if terminal { PAUSE } else { Duration::ZERO },
        }
    }

    /// A heading, with an empty line on both sides.
    pub(super) fn heading(&self, text: &str) -> io::Result<()> {
        self.print(&format!("\n{}\n", self.look(BOLD, text)))
    }

    /// Text that nobody in particular says.
    pub(super) fn say(&self, text: &str) -> io::Result<()> {
        self.print(&indented(text, 2))
    }

    /// As [`Narrator::say`], for what counts most.
    pub(super) fn stress(&self, tone: Tone, text: &str) -> io::Result<()> {
        self.print(&self.toned(tone, &indented(text, 2)))
    }

    /// What one of the cast does or says. Further lines of the text stand below its first.
    pub(super) fn tell(&self, who: &str, tone: Tone, text: &str) -> io::Result<()> {
        let name = self.look(CYAN, &format!("{who:<NAME_WIDTH$}"));
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        self.print(&format!("  {name}{}", self.toned(tone, first)))?;
        if rest.is_empty() { Ok(()) } else { self.print(&indented(rest, 2 + NAME_WIDTH)) }
    }

    /// Lets a person read.
    pub(super) async fn pause(&self) {
        tokio::time::sleep(self.pause).await;
    }

    fn toned(&self, tone: Tone, text: &str) -> String {
        match tone {
            Tone::Plain => text.to_owned(),
            Tone::Through => self.look(GREEN, text),
            Tone::KeptOut => self.look(RED, text),
        }
    }

    /// Text in that rendition (ECMA-48, SGR), where there are colours.
    fn look(&self, code: u8, text: &str) -> String {
        if self.coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Prints without `println!`, which panics once the reader of a pipe has left.
    fn print(&self, text: &str) -> io::Result<()> {
        writeln!(io::stdout(), "{text}")
    }
}

fn indented(text: &str, width: usize) -> String {
    let indent =
        |line: &str| if line.is_empty() { String::new() } else { format!("{:width$}{line}", "") };
    text.split('\n').map(indent).collect::<Vec<_>>().join("\n")
}
