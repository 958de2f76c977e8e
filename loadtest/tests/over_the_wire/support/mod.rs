//! The programs that the tests here start: fencepost, and the loadtest itself.

mod fencepost;
mod loadtest;
mod ratchet;

pub(crate) use fencepost::{Fencepost, fencepost_binary};
/// Asserts that there is neither a lock nor a lease in etcd.
pub(crate) async fn nothing_is_left_in(etcd: &fencepost_tests::Etcd) {
    assert_eq!(etcd.etcdctl(&["get", "--prefix", "", "--keys-only"]).await, "");
    let leases = etcd.etcdctl(&["lease", "list"]).await;
    assert!(leases.starts_with("found 0 leases"), "{leases}");
}

pub(crate) use loadtest::{ReportFile, Run, Running, loadtest};
pub(crate) use ratchet::Ratchet;
