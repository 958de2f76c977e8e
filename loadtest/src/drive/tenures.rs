//! Who holds each lock, for all threads that send.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use super::verdict::Standing;
use crate::token::Token;

/// One tenure of one lock.
#[derive(Debug)]
pub(crate) struct Tenure {
    token: Token,
    ending: OnceLock<Instant>,
    first_served: OnceLock<Instant>,
}

impl Tenure {
    /// One that begins now.
    pub(crate) fn new(token: Token) -> Arc<Tenure> {
        Arc::new(Tenure { token, ending: OnceLock::new(), first_served: OnceLock::new() })
    }

    /// It is about to be given up: say so before etcd is told.
    pub(crate) fn note_ending(&self) {
        self.ending.get_or_init(Instant::now);
    }

    /// Since when it has been.
    pub(crate) fn ending(&self) -> Option<Instant> {
        self.ending.get().copied()
    }

    /// A request of it was served.
    pub(crate) fn note_served(&self) {
        self.first_served.get_or_init(Instant::now);
    }

    /// When a request of it was served for the first time.
    pub(crate) fn first_served(&self) -> Option<Instant> {
        self.first_served.get().copied()
    }
}

/// The tenures of all locks.
#[derive(Debug)]
pub(crate) struct Tenures {
    locks: Box<[Mutex<Places>]>,
}

#[derive(Debug)]
struct Places {
    present: Arc<Tenure>,
    /// What the tenure before presented.
    superseded: Option<Token>,
}

/// What a request presents.
#[derive(Debug)]
pub(crate) struct Presented {
    /// The number of its lock.
    pub(crate) lock: usize,
    pub(crate) token: Token,
    /// The tenure that held the lock when this was chosen.
    tenure: Arc<Tenure>,
    is_superseded: bool,
}

impl Tenures {
    /// Of locks whose present tokens are these, each with that of the tenure before if there was one.
    pub(crate) fn new(tokens: impl IntoIterator<Item = (Token, Option<Token>)>) -> Tenures {
        let places = tokens
            .into_iter()
            .map(|(token, superseded)| Mutex::new(Places { present: Tenure::new(token), superseded }));
        Tenures { locks: places.collect() }
    }

    /// How many locks there are.
    pub(crate) fn count(&self) -> usize {
        self.locks.len()
    }

    /// What a request for that lock presents: the present token, or if `superseded` is wanted the one before. There is no such
    /// one before a request of the present tenure has been served: until then, nobody promises that it is refused.
    pub(crate) fn presented(&self, lock: usize, superseded: bool) -> Presented {
        let places = self.places(lock);
        let tenure = Arc::clone(&places.present);
        let former = places.superseded.as_ref().filter(|_| superseded && tenure.first_served().is_some());
        let token = former.unwrap_or(&tenure.token).clone();
        Presented { lock, token, is_superseded: former.is_some(), tenure }
    }

    /// The present tenure of a lock.
    pub(crate) fn present(&self, lock: usize) -> Arc<Tenure> {
        Arc::clone(&self.places(lock).present)
    }

    /// A tenure has followed another.
    pub(crate) fn begins(&self, lock: usize, token: Token) -> Arc<Tenure> {
        let mut places = self.places(lock);
        let tenure = Tenure::new(token);
        let ended = std::mem::replace(&mut places.present, Arc::clone(&tenure));
        places.superseded = Some(ended.token.clone());
        tenure
    }

    fn places(&self, lock: usize) -> std::sync::MutexGuard<'_, Places> {
        self.locks[lock].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Presented {
    /// What the sender was to the lock, now that the answer is here.
    pub(crate) fn standing(&self) -> Standing {
        if self.is_superseded {
            Standing::Superseded
        } else if self.tenure.ending().is_some() {
            Standing::Leaving
        } else {
            Standing::Holder
        }
    }

    /// The request was served.
    pub(crate) fn note_served(&self) {
        if !self.is_superseded {
            self.tenure.note_served();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(revision: i64) -> Token {
        Token::new("a", revision).unwrap()
    }

    #[test]
    fn a_former_token_is_presented_only_after_its_successor_was_served() {
        let tenures = Tenures::new([(token(7), Some(token(3)))]);
        let first = tenures.presented(0, true);
        assert_eq!((first.token.revision(), first.standing()), (7, Standing::Holder));
        first.note_served();
        let second = tenures.presented(0, true);
        assert_eq!((second.token.revision(), second.standing()), (3, Standing::Superseded));
        assert_eq!(tenures.presented(0, false).token.revision(), 7);
    }

    #[test]
    fn a_request_under_way_when_its_tenure_is_given_up_is_neither_right_nor_wrong() {
        let tenures = Tenures::new([(token(3), None)]);
        let under_way = tenures.presented(0, false);
        assert_eq!(under_way.standing(), Standing::Holder);
        tenures.present(0).note_ending();
        assert_eq!(under_way.standing(), Standing::Leaving);
        let successor = tenures.begins(0, token(7));
        assert_eq!(tenures.presented(0, true).token.revision(), 7, "the successor was not served yet");
        successor.note_served();
        assert_eq!(tenures.presented(0, true).token.revision(), 3);
        assert_eq!(tenures.presented(0, false).standing(), Standing::Holder);
    }

    #[test]
    fn a_superseded_request_that_is_served_does_not_count_for_the_present_tenure() {
        let tenures = Tenures::new([(token(7), Some(token(3)))]);
        tenures.present(0).note_served();
        let late = tenures.presented(0, true);
        tenures.begins(0, token(9));
        late.note_served();
        assert_eq!(tenures.present(0).first_served(), None);
    }
}
