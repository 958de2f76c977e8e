//! A member's key and what stands in it: JSON, in which later versions may have more fields.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use fencepost_policy::group::{
    Answers, Ask, MemberId, MemberRecord, MemberState, NamedTenure, SharedLock,
};
use fencepost_policy::{Layout, LockKey, Revision};
use serde::{Deserialize, Serialize};

/// The version of the format. One that is not known is not read.
const VERSION: u32 = 1;

/// What a member says of itself besides its record.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct About {
    /// The number of this write.
    pub(super) n: u64,
    /// The name of its machine.
    #[serde(default)]
    pub(super) host: String,
    /// Its version of fencepost.
    #[serde(default)]
    pub(super) version: String,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    v: u32,
    #[serde(flatten)]
    about: About,
    ttl_ms: u64,
    orphan_ms: u64,
    state: State,
    let_in: bool,
    #[serde(default)]
    asks: Vec<(u64, Named)>,
    #[serde(default)]
    heard: BTreeMap<String, Heard>,
    #[serde(default)]
    clear: Vec<Named>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    Live,
    Left { busy: Vec<Lock> },
    GivenUp { of: u64 },
}

/// Cluster, key and layout of a lock.
#[derive(Serialize, Deserialize)]
struct Lock(String, String, String);

/// A lock, and a revision of its tenure.
#[derive(Serialize, Deserialize)]
struct Named(Lock, u64);

#[derive(Serialize, Deserialize)]
struct Heard {
    through: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    open: Vec<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unfenced: Vec<u64>,
}

/// What is written.
pub(super) fn write(record: &MemberRecord, about: &About) -> Bytes {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let heard = |(id, answers): (&MemberId, &Answers)| {
        let heard = Heard {
            through: answers.through,
            open: answers.open.iter().copied().collect(),
            unfenced: answers.unfenced.iter().copied().collect(),
        };
        (id.to_string(), heard)
    };
    let wire = Wire {
        v: VERSION,
        about: about.clone(),
        ttl_ms: millis(record.member_ttl),
        orphan_ms: millis(record.orphan_timeout),
        state: match &record.state {
            MemberState::Live => State::Live,
            MemberState::Left(busy) => State::Left { busy: busy.iter().map(Lock::of).collect() },
            MemberState::GivenUp(of) => State::GivenUp { of: of.get() },
        },
        let_in: record.has_let_in,
        asks: record.asks.iter().map(|ask| (ask.number, Named::of(&ask.tenure))).collect(),
        heard: record.answers.iter().map(heard).collect(),
        clear: record.clear.iter().map(Named::of).collect(),
    };
    serde_json::to_vec(&wire).expect("names and numbers are JSON").into()
}

/// What a member has written; `None` if that cannot be read.
pub(super) fn read(value: &[u8]) -> Option<(MemberRecord, About)> {
    let wire: Wire = serde_json::from_slice(value).ok().filter(|wire: &Wire| wire.v == VERSION)?;
    let heard = |(id, heard): (String, Heard)| {
        let answers = Answers {
            through: heard.through,
            open: heard.open.into_iter().collect(),
            unfenced: heard.unfenced.into_iter().collect(),
        };
        Some((member(&id)?, answers))
    };
    let record = MemberRecord {
        member_ttl: Duration::from_millis(wire.ttl_ms),
        orphan_timeout: Duration::from_millis(wire.orphan_ms),
        state: match wire.state {
            State::Live => MemberState::Live,
            State::Left { busy } => {
                MemberState::Left(busy.iter().map(Lock::read).collect::<Option<BTreeSet<_>>>()?)
            }
            State::GivenUp { of } => MemberState::GivenUp(Revision::new(of)?),
        },
        has_let_in: wire.let_in,
        asks: wire
            .asks
            .iter()
            .map(|(number, tenure)| Some(Ask { number: *number, tenure: tenure.read()? }))
            .collect::<Option<_>>()?,
        answers: wire.heard.into_iter().map(heard).collect::<Option<_>>()?,
        clear: wire.clear.iter().map(Named::read).collect::<Option<_>>()?,
    };
    Some((record, wire.about))
}

/// The member whose key ends in that.
pub(super) fn member(id: &str) -> Option<MemberId> {
    let is_plain = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_plain { u128::from_str_radix(id, 16).ok().map(MemberId) } else { None }
}

impl Lock {
    fn of(lock: &SharedLock) -> Lock {
        Lock(
            format!("{:x}", lock.cluster),
            lock.key.as_str().to_owned(),
            lock.layout.name().to_owned(),
        )
    }

    fn read(&self) -> Option<SharedLock> {
        let Lock(cluster, key, layout) = self;
        Some(SharedLock {
            cluster: u64::from_str_radix(cluster, 16).ok()?,
            key: LockKey::new(key).ok()?,
            layout: Layout::ALL.iter().copied().find(|known| known.name() == layout)?,
        })
    }
}

impl Named {
    fn of(tenure: &NamedTenure) -> Named {
        Named(Lock::of(&tenure.lock), tenure.revision.get())
    }

    fn read(&self) -> Option<NamedTenure> {
        let Named(lock, revision) = self;
        Some(NamedTenure { lock: lock.read()?, revision: Revision::new(*revision)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenure(key: &str, revision: u64) -> NamedTenure {
        let lock =
            SharedLock { cluster: u64::MAX, key: LockKey::new(key).unwrap(), layout: Layout::Key };
        NamedTenure { lock, revision: Revision::new(revision).unwrap() }
    }

    #[test]
    fn what_was_written_is_read() {
        let answers = Answers { through: 7, open: [5].into(), unfenced: [3].into() };
        let busy = BTreeSet::from([tenure("/b", 1).lock]);
        let states =
            [MemberState::Live, MemberState::Left(busy), MemberState::GivenUp(Revision::MAX)];
        for state in states {
            let record = MemberRecord {
                member_ttl: Duration::from_secs(15),
                orphan_timeout: Duration::from_secs(30),
                state,
                has_let_in: true,
                asks: vec![Ask { number: 8, tenure: tenure("/a", 12) }],
                answers: [(MemberId(9), answers.clone())].into(),
                clear: vec![tenure("/a", 11)],
            };
            let about = About { n: 4, host: "h".to_owned(), version: "1".to_owned() };
            assert_eq!(read(&write(&record, &about)), Some((record, about)));
        }
    }

    #[test]
    fn a_later_version_may_say_more_and_another_format_is_not_read() {
        let record = r#""n":1,"ttl_ms":1,"orphan_ms":1,"state":"live","let_in":false"#;
        assert!(read(format!(r#"{{"v":1,{record},"more":[1]}}"#).as_bytes()).is_some());
        assert!(read(format!(r#"{{"v":2,{record}}}"#).as_bytes()).is_none());
        assert!(read(b"").is_none());
        assert_eq!(member("2a"), None);
        assert_eq!(member(&MemberId(42).to_string()), Some(MemberId(42)));
    }
}
