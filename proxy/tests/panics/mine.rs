//! Mines in the log: a line that has both texts of one makes its thread panic, once.

use std::fmt::Write as _;
use std::sync::{Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

static MINES: Mutex<Vec<(&str, String)>> = Mutex::new(Vec::new());
static LAID: Once = Once::new();

/// The next line with that message that says `about` somewhere panics.
pub(crate) fn lay(message: &'static str, about: &str) {
    LAID.call_once(|| {
        tracing::subscriber::set_global_default(Mined).unwrap();
        fencepost::panics::note();
    });
    MINES.lock().unwrap().push((message, about.to_owned()));
}

/// Takes every line of the log.
struct Mined;

impl Subscriber for Mined {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("fencepost")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        let stepped_on = {
            let mut mines = MINES.lock().unwrap();
            let found = mines.iter().position(|(message, about)| {
                line.0.contains(message) && line.0.contains(about.as_str())
            });
            found.map(|index| mines.remove(index)).is_some()
        };
        if stepped_on {
            panic!("on purpose");
        }
        // Panics are told in the log now, also those of a test that fails.
        if line.0.contains("panicked: ") && !line.0.contains("on purpose") {
            eprintln!("{}", line.0);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}
