//! What is counted.

use std::hint::black_box;
use std::sync::Arc;

use fencepost_config::Config;
use fencepost_policy::{
    FenceToken, Gate, Holding, Known, Layout, Moment, News, Owner, Revision, Snapshot, Tenure,
    judge,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::token::TokenHeaders;

/// A step that each request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// A token of the holder is judged by fresh news.
    JudgeHolder,
    /// A token of a tenure that has ended is judged.
    JudgeStale,
    /// A request of the holder enters the gate and leaves it, with nothing else there.
    GatePass,
    /// A request of the holder enters and leaves the gate while others of its tenure are at the
    /// worker.
    GatePassAmongOthers,
    /// The token is taken off the headers of a request.
    Token,
    /// The route of a path is found, and its capture.
    Route,
}

impl Case {
    /// All there are.
    pub const ALL: [Case; 6] = [
        Case::JudgeHolder,
        Case::JudgeStale,
        Case::GatePass,
        Case::GatePassAmongOthers,
        Case::Token,
        Case::Route,
    ];

    /// Its name in `instructions.toml`.
    pub fn name(self) -> &'static str {
        match self {
            Case::JudgeHolder => "judge-holder",
            Case::JudgeStale => "judge-stale",
            Case::GatePass => "gate-pass",
            Case::GatePassAmongOthers => "gate-pass-among-others",
            Case::Token => "token",
            Case::Route => "route",
        }
    }

    /// The case of that name.
    pub fn named(name: &str) -> Option<Case> {
        Case::ALL.into_iter().find(|case| case.name() == name)
    }

    /// Takes the step so many times.
    pub fn run(self, times: u64) {
        match self {
            Case::JudgeHolder => judge_it(times, HOLDS, "Admit"),
            Case::JudgeStale => judge_it(times, HOLDS - 1, "Reject(StaleTenure)"),
            Case::GatePass => pass_gate(times, 0),
            Case::GatePassAmongOthers => pass_gate(times, 3),
            Case::Token => take_token(times),
            Case::Route => find_route(times),
        }
    }
}

/// The revision under which the lock is held.
const HOLDS: u64 = 1_234_567;
const OWNER: &str = "worker-7f3a";

fn revision(number: u64) -> Revision {
    Revision::new(number).expect("a number from 1 is a revision")
}

fn token(number: u64) -> FenceToken<HeaderValue> {
    FenceToken { owner: HeaderValue::from_static(OWNER), revision: revision(number) }
}

fn snapshot() -> Snapshot {
    let tenure = Tenure {
        owner: Owner::new(OWNER.as_bytes()),
        first: revision(HOLDS),
        last: revision(HOLDS),
    };
    let as_of = revision(HOLDS + 1000);
    Snapshot {
        layout: Layout::Key,
        as_of: Some(as_of),
        holding: Holding::Held(tenure),
        waiters: Arc::from([]),
    }
}

fn judge_it(times: u64, presented: u64, expected: &str) {
    let (snapshot, other) = (
        snapshot(),
        FenceToken { owner: HeaderValue::from_static("worker-0000"), ..token(presented) },
    );
    let token = if presented == HOLDS { token(presented) } else { other };
    let known = Known::new(Some(&snapshot), News::Fresh);
    assert_eq!(format!("{:?}", judge(&token, known)), expected);
    for _ in 0..times {
        black_box(judge(black_box(&token), black_box(known)));
    }
}

fn pass_gate(times: u64, others: usize) {
    let (snapshot, token, now) = (snapshot(), token(HOLDS), Moment(1));
    let (mut gate, known) = (Gate::default(), Known::new(Some(&snapshot), News::Fresh));
    gate.learn(&snapshot);
    let there: Vec<_> = (0..others).map(|_| gate.enter(&token, known, now)).collect();
    for _ in 0..times {
        let entry = gate.enter(black_box(&token), black_box(known), black_box(now));
        let Ok(admission) = entry else { panic!("the holder does not enter: {entry:?}") };
        black_box(gate.leave(black_box(admission)));
    }
    assert!(there.iter().all(|entry| entry.is_ok()));
}

fn take_token(times: u64) {
    let fence = ["fence-owner", "fence-revision", "fence-lock"].map(HeaderName::from_static);
    let [owner, revision, lock] = fence;
    let names = TokenHeaders { owner, revision, lock };
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("host", "shards.example"),
        ("user-agent", "client/1.0"),
        ("accept", "*/*"),
        ("content-type", "application/json"),
        ("content-length", "17"),
        ("fence-owner", OWNER),
        ("fence-revision", "1234567"),
        ("connection", "keep-alive"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    assert_eq!(names.token(&headers).ok(), Some(token(HOLDS)));
    for _ in 0..times {
        black_box(names.token(black_box(&headers)).is_ok());
    }
}

fn find_route(times: u64) {
    let file = "[[listener]]\naddress = \"127.0.0.1:8080\"\n\
        [source.main]\nkind = \"etcd\"\nendpoints = [\"http://127.0.0.1:2379\"]\n\
        [[route]]\nname = \"other\"\npath = \"/other/\"\nupstream = \"http://127.0.0.1:9000\"\n\
        lock = { source = \"main\", key = \"/other\", layout = \"key\" }\n\
        [[route]]\nname = \"shards\"\npath = \"/shards/{shard}/\"\nupstream = \"http://127.0.0.1:9000\"\n\
        lock = { source = \"main\", key = \"/shards/{shard}/lock\", layout = \"key\" }\n";
    let config = Config::from_toml("case", file).unwrap_or_else(|problems| panic!("{problems}"));
    for _ in 0..times {
        black_box(config.route(black_box(Some("shards.example")), black_box("/shards/17/jobs/42")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_runs_and_is_found_by_its_name() {
        for case in Case::ALL {
            case.run(2);
            assert_eq!(Case::named(case.name()), Some(case));
        }
        assert_eq!(Case::named("other"), None);
    }
}
