//! How far a run has come, on stderr: a bar on a terminal, a few plain lines elsewhere.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use crate::output::tell;

/// Tells how far a run has come.
#[derive(Debug)]
pub(crate) struct Progress {
    total: u64,
    unit: &'static str,
    display: Display,
}

#[derive(Debug)]
enum Display {
    Bar { next: Instant },
    Lines { next_percent: u64 },
}

/// How often a bar is drawn, at most.
const REDRAW: Duration = Duration::from_millis(100);
/// A plain line each so many percent.
const LINE_PERCENT: u64 = 10;
const BAR_WIDTH: u64 = 30;

impl Progress {
    /// Of `total` units, e.g. "takeovers".
    pub(crate) fn new(total: u64, unit: &'static str) -> Progress {
        let display = if stderr().is_terminal() {
            Display::Bar { next: Instant::now() }
        } else {
            Display::Lines { next_percent: LINE_PERCENT }
        };
        Progress { total, unit, display }
    }

    /// So many are done.
    pub(crate) fn done(&mut self, done: u64) {
        self.done_with(done, "");
    }

    /// So many are done, and there is something to be said of them.
    pub(crate) fn done_with(&mut self, done: u64, note: &str) {
        match &mut self.display {
            Display::Bar { next } => {
                if Instant::now() >= *next {
                    *next = Instant::now() + REDRAW;
                    self.draw(done, note);
                }
            }
            Display::Lines { next_percent } => {
                let percent = percent(done, self.total);
                if percent >= *next_percent {
                    *next_percent = (percent / LINE_PERCENT + 1) * LINE_PERCENT;
                    tell(format_args!("{done} of {} {} ({percent} %)\n", self.total, self.unit));
                }
            }
        }
    }

    /// No more of it: what is printed next has a line of its own.
    pub(crate) fn end(self, done: u64) {
        if let Display::Bar { .. } = self.display {
            self.draw(done, "");
            tell("\n");
        }
    }

    fn draw(&self, done: u64, note: &str) {
        let (bar, percent) = (bar(done, self.total), percent(done, self.total));
        tell(format_args!("\r[{bar}] {percent:3} %  {done} of {} {}  {note}", self.total, self.unit));
        // A bar that can't be shown is no reason to stop.
        let _ = stderr().flush();
    }
}

fn percent(done: u64, total: u64) -> u64 {
    (done.min(total) * 100).checked_div(total).unwrap_or(100)
}

fn bar(done: u64, total: u64) -> String {
    let full = percent(done, total) * BAR_WIDTH / 100;
    (0..BAR_WIDTH).map(|column| if column < full { '#' } else { '.' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_a_hundred_percent_and_no_more() {
        assert_eq!(percent(0, 7), 0);
        assert_eq!(percent(6, 7), 85);
        assert_eq!(percent(7, 7), 100);
        assert_eq!(percent(8, 7), 100);
        assert_eq!(percent(0, 0), 100);
    }

    #[test]
    fn a_bar_is_as_full_as_the_run() {
        assert_eq!(bar(0, 10), ".".repeat(30));
        assert_eq!(bar(5, 10), "#".repeat(15) + &".".repeat(15));
        assert_eq!(bar(10, 10), "#".repeat(30));
    }
}
