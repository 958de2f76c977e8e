//! What a tracked lock takes of memory: a process may have a million of them.

use super::cache_view::Published;
use super::tracked::TrackedLock;

/// The counts in front of what an `Arc` points to.
const COUNTS: usize = 2 * size_of::<usize>();

#[test]
fn a_tracked_lock_takes_room_for_what_is_known_of_it_and_little_for_what_is_rare() {
    let lock = COUNTS + size_of::<TrackedLock>();
    assert!(lock <= 640, "{lock} bytes");
    let published = COUNTS + size_of::<Published>();
    assert!(published <= 128, "{published} bytes");
}

/// The gate's lines have a test of their own, in its crate.
#[test]
fn what_a_request_looks_at_of_a_lock_beside_its_gate_takes_two_lines_of_memory() {
    let before_gate = COUNTS + TrackedLock::BEFORE_GATE;
    assert!(before_gate <= 2 * 64, "{before_gate} bytes");
}
