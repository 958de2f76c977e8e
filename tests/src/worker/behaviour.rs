//! How the worker treats a request.

use std::fmt;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::log::Seen;
use crate::latch::Latch;

/// What the worker does with a request.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// Reads it to its end, then answers. If the body is cut, there is no answer.
    Answer(Answer),
    /// Reads it to its end, waits until the latch opens, then answers.
    Hold(Latch, Answer),
    /// Answers as soon as the head is here, and reads the body meanwhile.
    Early(Answer),
    /// Waits until the latch opens before it reads any of the body, then reads it and answers: a
    /// worker that takes no bytes.
    ReadLate(Latch, Answer),
    /// Answers 200 with the request's body as it comes, trailers included.
    Echo,
    /// Reads it to its end, then resets the connection without an answer (a unix socket is closed).
    Reset,
    /// Resets the connection as soon as the head is here.
    ResetEarly,
    /// Switches to the protocol that the request's `Upgrade` names and sends back whatever it gets
    /// then.
    UpgradeAndEcho,
}

/// An answer, and how it is delivered.
#[derive(Clone, Debug)]
pub struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) trailers: Option<HeaderMap>,
    pub(super) pace: Option<Pace>,
    pub(super) reset_before_its_end: bool,
}

/// A body given in pieces.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    pub(super) piece_bytes: usize,
    pub(super) before_each: Beat,
}

#[derive(Clone, Debug)]
pub(super) enum Beat {
    Every(Duration),
    /// The first piece goes out at once, the rest after this.
    Latch(Latch),
}

impl Answer {
    /// 200 with this body, at once, with its length.
    pub fn ok(body: impl Into<Bytes>) -> Answer {
        Answer::status(200, body)
    }

    /// An answer with this status and body, at once, with its length.
    pub fn status(status: u16, body: impl Into<Bytes>) -> Answer {
        Answer {
            status: StatusCode::from_u16(status).expect("a status code has three digits"),
            headers: HeaderMap::new(),
            body: body.into(),
            trailers: None,
            pace: None,
            reset_before_its_end: false,
        }
    }

    /// With one more header.
    pub fn header(mut self, name: &'static str, value: &'static str) -> Answer {
        self.headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        self
    }

    /// With a trailer, and so without a length. Name it in a `trailer` header for HTTP/1.1.
    pub fn trailer(mut self, name: &'static str, value: &'static str) -> Answer {
        let trailers = self.trailers.get_or_insert_default();
        trailers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        self
    }

    /// The body in pieces of so many bytes, with a pause before each; without a length.
    pub fn trickling(mut self, piece_bytes: usize, pause: Duration) -> Answer {
        self.pace = Some(Pace { piece_bytes, before_each: Beat::Every(pause) });
        self
    }

    /// The first bytes of the body at once, the others when the latch opens; without a length.
    pub fn halting_after(mut self, first_bytes: usize, latch: Latch) -> Answer {
        self.pace = Some(Pace { piece_bytes: first_bytes, before_each: Beat::Latch(latch) });
        self
    }

    /// The connection is reset after the body's bytes, before its end: the answer is never whole.
    pub fn then_reset(mut self) -> Answer {
        self.reset_before_its_end = true;
        self
    }
}

type Rule = Box<dyn Fn(&Seen) -> Option<Behaviour> + Send + Sync>;

/// The rules given so far.
#[derive(Default)]
pub(super) struct Rules(RwLock<Vec<Rule>>);

impl Rules {
    pub(super) fn add(&self, rule: impl Fn(&Seen) -> Option<Behaviour> + Send + Sync + 'static) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(rule));
    }

    pub(super) fn behaviour_for(&self, seen: &Seen) -> Behaviour {
        let rules = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let ruled = rules.iter().rev().find_map(|rule| rule(seen));
        ruled.unwrap_or_else(|| Behaviour::Answer(Answer::ok("ok")))
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rules")
    }
}
