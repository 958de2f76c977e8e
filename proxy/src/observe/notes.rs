//! What one thread has noted since the last collection.

use std::mem;
use std::time::{Duration, Instant};

use super::{Decision, Event};

/// How much a thread may note between two collections, and of that how many decisions. What comes after that is lost, and counted. The ends
/// of what has begun come on top.
pub(super) const NOTES_MAX: usize = 8_192;

/// How many decisions a thread may note at once, after none for a while: the beginning of a flood is noted whole.
const DECISIONS_AT_ONCE: u64 = 50_000;

/// How many more in each second. It is as many as are kept by default: of a flood that lasts, more would be gone before anybody has looked.
const DECISIONS_PER_SECOND: u64 = 10_000;

/// The list of one thread. On cache lines of its own: its thread writes to it with each refusal, and those of others lie beside it.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Notes {
    events: Vec<Event>,
    /// How many of them are decisions.
    decisions: usize,
    allowance: Allowance,
    lost: u64,
}

impl Notes {
    /// Nothing has happened yet.
    pub(super) fn new(now: Instant) -> Notes {
        Notes {
            events: Vec::new(),
            decisions: 0,
            allowance: Allowance { left: DECISIONS_AT_ONCE, topped_up: now },
            lost: 0,
        }
    }

    /// Notes a decision, if there is room: without, it is not even put down.
    pub(super) fn decision(&mut self, decision: impl FnOnce() -> Box<Decision>) {
        if self.decisions < NOTES_MAX && self.allowance.take() {
            self.decisions += 1;
            self.events.push(Event::Decision(decision()));
        } else {
            self.lost += 1;
        }
    }

    /// Notes something else, and says whether there was room. Decisions take none of it.
    pub(super) fn other(&mut self, event: impl FnOnce() -> Event) -> bool {
        let has_room = self.events.len() - self.decisions < NOTES_MAX;
        if has_room {
            self.events.push(event());
        } else {
            self.lost += 1;
        }
        has_room
    }

    /// Notes the end of something, room or not.
    pub(super) fn end(&mut self, end: Event) {
        self.events.push(end);
    }

    /// Takes what was noted.
    pub(super) fn take(&mut self, now: Instant) -> Vec<Event> {
        self.allowance.top_up(now);
        self.decisions = 0;
        mem::take(&mut self.events)
    }

    /// How much was lost since the start.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }
}

/// A bucket of tokens.
#[derive(Debug)]
struct Allowance {
    left: u64,
    topped_up: Instant,
}

impl Allowance {
    fn take(&mut self) -> bool {
        let takes = self.left > 0;
        self.left -= u64::from(takes);
        takes
    }

    fn top_up(&mut self, now: Instant) {
        const EACH: Duration = Duration::from_nanos(1_000_000_000 / DECISIONS_PER_SECOND);
        let more = now.saturating_duration_since(self.topped_up).as_nanos() / EACH.as_nanos();
        let more = u64::try_from(more).unwrap_or(u64::MAX);
        match self.left.checked_add(more).filter(|left| *left < DECISIONS_AT_ONCE) {
            Some(left) => {
                self.left = left;
                self.topped_up += EACH * u32::try_from(more).expect("it is below what may be noted at once");
            }
            None => *self = Allowance { left: DECISIONS_AT_ONCE, topped_up: now },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_decisions_is_noted_whole_at_its_beginning_and_in_part_while_it_lasts() {
        let start = Instant::now();
        let mut notes = Notes::new(start);
        let mut noted = 0;
        let mut noted_until = |millis: u64| {
            for _ in 0..NOTES_MAX {
                notes.decision(|| Box::new(Decision::for_tests("flood")));
            }
            let taken = notes.take(start + Duration::from_millis(millis)).len();
            noted += taken;
            (taken, noted as u64 + notes.lost())
        };
        // 50,000 and what is added meanwhile, then a thousand in a tenth of a second.
        let expected = [8_192, 8_192, 8_192, 8_192, 8_192, 8_192, 6_848, 1_000, 1_000];
        for (tenth, expected) in (1..).zip(expected) {
            assert_eq!(noted_until(100 * tenth), (expected, tenth * NOTES_MAX as u64));
        }
        assert_eq!(noted_until(901).0, 1_000);
        assert_eq!(noted_until(902).0, 10, "who looks more often gets no more of them");
        assert_eq!(noted_until(60_000).0, 10);
        assert_eq!(noted_until(60_001).0, NOTES_MAX, "it may begin anew");
    }

    #[test]
    fn decisions_take_no_room_from_anything_else() {
        let mut notes = Notes::new(Instant::now());
        let decision = || Box::new(Decision::for_tests("flood"));
        (0..=NOTES_MAX).for_each(|_| notes.decision(decision));
        assert_eq!(notes.lost(), 1);
        assert!((0..NOTES_MAX).all(|_| notes.other(|| Event::Decision(decision()))));
        assert!(!notes.other(|| Event::Decision(decision())));
        notes.end(Event::Decision(decision()));
        assert_eq!((notes.lost(), notes.take(Instant::now()).len()), (2, 2 * NOTES_MAX + 1));
    }
}
