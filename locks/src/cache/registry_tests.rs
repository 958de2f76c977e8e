use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::{Layout, LockKey};
use tokio::sync::mpsc;

use super::common::Common;
use super::record::{LockSpec, RecordFormat};
use super::registry::{Entry, OfHash};
use super::tracked::TrackedLock;
use super::trust::Trust;

fn spec(key: &str) -> LockSpec {
    LockSpec { key: LockKey::new(key).unwrap(), format: RecordFormat::plain(Layout::Key).into() }
}

fn common() -> Arc<Common> {
    let (commands, _) = mpsc::unbounded_channel();
    Arc::new(Common::new("test", Trust::new(None), Duration::from_secs(1), None, commands))
}

#[test]
fn a_lock_whose_key_has_the_same_hash_is_another() {
    let lock = Arc::new(TrackedLock::new(spec("/b"), None, common()));
    let entry = Entry { hash: 7, lock: Arc::downgrade(&lock) };
    for (hash, key, is_it) in [(7, "/b", true), (7, "/a", false), (8, "/b", false)] {
        let mut of_hash = OfHash::<TrackedLock>::default();
        assert_eq!(of_hash.is(&entry, hash, key), is_it, "{hash} {key}");
        assert_eq!(of_hash.found.is_some(), is_it, "{hash} {key}");
    }
}

#[tokio::test]
async fn who_ends_is_forgotten_and_none_of_the_same_key() {
    let common = common();
    let make = |spec| TrackedLock::new(spec, None, Arc::clone(&common));
    let kept = common.registry.find_or_make(spec("/a"), make).unwrap();
    drop(Arc::new(make(spec("/a")))); // As one that ended while its successor was made.
    let found = common.registry.find("/a").expect("it is held");
    assert!(Arc::ptr_eq(&kept, &found));
    drop((kept, found));
    assert_eq!((common.registry.find("/a").is_none(), common.registry.len()), (true, 0));
}
