//! What `fencepost hold` says, on standard error: the command has the rest.

use std::fmt::Arguments;
use std::io::Write;

/// Whoever is heard.
#[derive(Debug, Clone, Copy)]
pub(super) struct Voice {
    verbose: bool,
}

impl Voice {
    pub(super) fn new(verbose: bool) -> Voice {
        Voice { verbose }
    }

    /// Says what must be said.
    pub(super) fn say(self, what: Arguments<'_>) {
        // Nowhere to say that nothing can be said. As one write, so that lines of several processes stay whole.
        let _ = std::io::stderr().write_all(format!("fencepost hold: {what}\n").as_bytes());
    }

    /// Says what only some want to hear.
    pub(super) fn step(self, what: Arguments<'_>) {
        if self.verbose {
            self.say(what);
        }
    }
}
