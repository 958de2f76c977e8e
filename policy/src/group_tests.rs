use super::*;
use crate::{Layout, LockKey};

const ME: MemberId = MemberId(1);
const OTHER: MemberId = MemberId(2);
const TIMING: Timing =
    Timing { member_ttl: Duration::from_secs(15), orphan_timeout: Duration::from_secs(30) };

fn lock(number: usize) -> SharedLock {
    let key = LockKey::new(&format!("/{number}")).unwrap();
    SharedLock { cluster: 7, key, layout: Layout::Key }
}

fn clear(number: usize) -> NamedTenure {
    NamedTenure { lock: lock(number), revision: Revision::new(1).unwrap() }
}

/// A member that has joined, and what it has written.
struct Writer {
    group: Group,
    writes: u64,
}

impl Writer {
    fn joined() -> Writer {
        let mut writer = Writer { group: Group::new(ME, TIMING), writes: 0 };
        writer.write();
        writer
    }

    fn begin(&mut self) -> Vec<NamedTenure> {
        self.group.write(Moment(0)).expect("something is due").clear
    }

    fn end(&mut self) {
        self.writes += 1;
        let revision = Revision::new(self.writes).unwrap();
        self.group.written(revision, &[ME].into());
    }

    fn write(&mut self) -> Vec<NamedTenure> {
        let clear = self.begin();
        self.end();
        clear
    }

    fn sees(&mut self, id: MemberId, revision: u64, clear: Vec<NamedTenure>) -> usize {
        let record = MemberRecord { clear, ..Group::new(id, TIMING).record() };
        let revision = Revision::new(revision).unwrap();
        self.group.see(id, revision, record, Moment(0)).len()
    }
}

#[test]
fn record_carries_its_news_and_the_last_facts() {
    let mut writer = Writer::joined();
    (0..100).for_each(|number| writer.group.tell(clear(number)));
    assert_eq!(writer.begin().len(), 100, "nobody has read them");
    writer.group.tell(clear(100));
    writer.end();
    assert_eq!(writer.begin(), (101 - CLEAR_SHOWN..=100).map(clear).collect::<Vec<_>>());
    writer.group.not_written();
    (101..180).for_each(|number| writer.group.tell(clear(number)));
    assert_eq!(writer.write(), (100..180).map(clear).collect::<Vec<_>>());
    (0..1_000).for_each(|number| writer.group.tell(clear(number)));
    assert_eq!(writer.write().len(), CLEAR_MAX);
}

#[test]
fn member_that_comes_is_told_all_facts_once() {
    let mut writer = Writer::joined();
    (0..200).for_each(|number| writer.group.tell(clear(number)));
    writer.write();
    writer.sees(OTHER, 1, Vec::new());
    assert_eq!(writer.begin().len(), 200);
    writer.group.not_written();
    assert_eq!(writer.write().len(), 200);
    writer.group.tell(clear(200));
    assert_eq!(writer.write().len(), CLEAR_SHOWN);
}

#[test]
fn facts_of_others_outlive_their_records() {
    let mut writer = Writer::joined();
    assert!(!writer.group.want(&lock(0), &(Revision::new(1).unwrap()..=Revision::MAX)));
    writer.write();
    let knows = |writer: &mut Writer, number| {
        let revision = Revision::new(1).unwrap();
        writer.group.want(&lock(number), &(revision..=revision))
    };
    assert_eq!(writer.sees(OTHER, 1, (1..=64).map(clear).collect()), 64);
    assert_eq!(writer.sees(OTHER, 2, (64..=128).map(clear).collect()), 64, "one is known");
    assert!(knows(&mut writer, 1) && knows(&mut writer, 64) && knows(&mut writer, 128));
    writer.sees(OTHER, 3, (200..200 + CLEAR_MAX - 1).map(clear).collect());
    assert!(knows(&mut writer, 128) && !knows(&mut writer, 127), "the oldest are forgotten");
}
