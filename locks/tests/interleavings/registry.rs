//! One lock of a key, for as long as anybody holds it.

use std::sync::Arc;

use crate::cache::trust::Trust;
use crate::world::{KEY, common, every_interleaving, track};

#[test]
fn a_lock_that_anybody_holds_is_found_again_and_never_doubled() {
    every_interleaving(|| {
        let (common, _commands) = common(Trust::new(None));
        let hold = {
            let common = Arc::clone(&common);
            move || {
                let held = track(&common, None);
                let found = common.registry.find(KEY).expect("a lock that is held is found");
                assert!(Arc::ptr_eq(&held, &found));
            }
        };
        let others = [loom::thread::spawn(hold.clone()), loom::thread::spawn(hold.clone())];
        hold();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(common.registry.len(), 0, "what nobody holds is forgotten");
    });
}
