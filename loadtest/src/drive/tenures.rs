//! Who holds each lock, for all lanes.

use std::cell::{OnceCell, Ref, RefCell};
use std::rc::Rc;
use std::time::Instant;

use super::verdict::Standing;
use crate::client::Token;

/// One tenure of one lock. Its end is noted before the release is sent to etcd.
#[derive(Debug)]
pub(crate) struct Tenure {
    token: Token,
    pub(crate) ending: OnceCell<Instant>,
    pub(crate) first_served: OnceCell<Instant>,
}

impl Tenure {
    fn new(token: Token) -> Rc<Tenure> {
        Rc::new(Tenure { token, ending: OnceCell::new(), first_served: OnceCell::new() })
    }
}

#[derive(Debug)]
pub(crate) struct Tenures(Vec<RefCell<Holders>>);

#[derive(Debug)]
struct Holders {
    present: Rc<Tenure>,
    /// The token of the tenure before.
    superseded: Option<Token>,
}

/// The token that a request presents, and what is known of its sender.
#[derive(Debug)]
pub(crate) struct Presented {
    pub(crate) lock: usize,
    pub(crate) token: Token,
    /// The tenure that held the lock when the token was chosen.
    tenure: Rc<Tenure>,
    is_superseded: bool,
}

impl Tenures {
    /// Of locks with these present tokens, each with that of the tenure before if there was one.
    pub(crate) fn new(tokens: impl IntoIterator<Item = (Token, Option<Token>)>) -> Tenures {
        let holders =
            |(token, superseded)| RefCell::new(Holders { present: Tenure::new(token), superseded });
        Tenures(tokens.into_iter().map(holders).collect())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The present token of a lock, or, if `superseded` is wanted, the one before. Until the
    /// present holder was served, a proxy may still admit the one before, so this returns none.
    pub(crate) fn presented(&self, lock: usize, superseded: bool) -> Presented {
        let holders = self.0[lock].borrow();
        let tenure = Rc::clone(&holders.present);
        let may_be_late = superseded && tenure.first_served.get().is_some();
        let former = holders.superseded.as_ref().filter(|_| may_be_late);
        let token = former.unwrap_or(&tenure.token).clone();
        Presented { lock, token, is_superseded: former.is_some(), tenure }
    }

    pub(crate) fn present(&self, lock: usize) -> Ref<'_, Tenure> {
        Ref::map(self.0[lock].borrow(), |holders| &*holders.present)
    }

    pub(crate) fn begins(&self, lock: usize, token: Token) -> Rc<Tenure> {
        let (tenure, superseded) = (Tenure::new(token), Some(self.present(lock).token.clone()));
        self.0[lock].replace(Holders { present: Rc::clone(&tenure), superseded });
        tenure
    }
}

impl Presented {
    /// The sender's relation to the lock, as of now.
    pub(crate) fn standing(&self) -> Standing {
        if self.is_superseded {
            Standing::Superseded
        } else if self.tenure.ending.get().is_some() {
            Standing::Leaving
        } else {
            Standing::Holder
        }
    }

    pub(crate) fn note_served(&self) {
        if !self.is_superseded {
            self.tenure.first_served.get_or_init(Instant::now);
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
    fn former_token_waits_for_successor() {
        let tenures = Tenures::new([(token(7), Some(token(3)))]);
        let first = tenures.presented(0, true);
        assert_eq!((first.token.revision(), first.standing()), (7, Standing::Holder));
        first.note_served();
        let second = tenures.presented(0, true);
        assert_eq!((second.token.revision(), second.standing()), (3, Standing::Superseded));
        assert_eq!(tenures.presented(0, false).token.revision(), 7);
    }

    #[test]
    fn request_in_flight_is_leaving() {
        let tenures = Tenures::new([(token(3), None)]);
        let under_way = tenures.presented(0, false);
        assert_eq!(under_way.standing(), Standing::Holder);
        tenures.present(0).ending.set(Instant::now()).unwrap();
        assert_eq!(under_way.standing(), Standing::Leaving);
        let successor = tenures.begins(0, token(7));
        assert_eq!(tenures.presented(0, true).token.revision(), 7);
        successor.first_served.set(Instant::now()).unwrap();
        assert_eq!(tenures.presented(0, true).token.revision(), 3);
        assert_eq!(tenures.presented(0, false).standing(), Standing::Holder);
    }

    #[test]
    fn late_serve_does_not_count() {
        let tenures = Tenures::new([(token(7), Some(token(3)))]);
        tenures.present(0).first_served.set(Instant::now()).unwrap();
        let late = tenures.presented(0, true);
        tenures.begins(0, token(9));
        late.note_served();
        assert_eq!(tenures.present(0).first_served.get(), None);
    }
}
