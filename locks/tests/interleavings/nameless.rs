//! Requests that were let past and named no lock, while their route turns to enforce.

use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::PassReason;

use crate::cache::common::Common;
use crate::cache::trust::Trust;
use crate::cache::turned::Turning;
use crate::world::{common, interleavings_with_interruptions, track};

const KEYS: &str = "s/{}";

fn turn(common: &Common) {
    let turning = Turning {
        keys: KEYS.to_owned(),
        prefix: String::new(),
        names: Arc::new(|_| true),
        watched: [KEYS.to_owned()].into(),
        generation: 2,
        counts_for: Duration::from_secs(3600),
    };
    common.enforce_since(&[turning]);
}

#[test]
fn what_named_no_lock_bars_each_for_as_long_as_it_is_there() {
    for leaves in [false, true] {
        interleavings_with_interruptions(2, move || {
            let (common, _commands) = common(Trust::new(None));
            let nameless = common.nameless(KEYS);
            let mut pass = nameless.pass(PassReason::Shadow, 1);
            let turning = {
                let common = Arc::clone(&common);
                loom::thread::spawn(move || turn(&common))
            };
            let making = {
                let common = Arc::clone(&common);
                loom::thread::spawn(move || track(&common, None))
            };
            if leaves {
                pass.take().into_iter().for_each(|pass| nameless.leave_pass(pass));
            }
            turning.join().unwrap();
            let lock = making.join().unwrap();
            assert_eq!(lock.unseen_until().is_some(), pass.is_some(), "whether it bars");
            pass.into_iter().for_each(|pass| nameless.leave_pass(pass));
            assert_eq!(lock.unseen_until(), None);
        });
    }
}
