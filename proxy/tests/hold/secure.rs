//! An etcd that wants TLS, and to know who comes.

use std::sync::Arc;
use std::time::Duration;

use fencepost_testsupport::{Etcd, EtcdOptions, EtcdSecurity, EtcdVersion, Scratch, Tokens, eventually};

use crate::holder::Holder;
use crate::stage::LOCK;

/// What `hold` is told of an etcd with TLS, and of a user who may use the locks and nothing else.
async fn arguments(etcd: &Etcd, security: &EtcdSecurity) -> Vec<String> {
    let password = security.directory().join("master-password");
    std::fs::write(&password, "secret\n").unwrap();
    etcd.etcdctl(&["role", "add", "masters"]).await;
    etcd.etcdctl(&["role", "grant-permission", "masters", "readwrite", "--prefix", "/shards/"]).await;
    etcd.etcdctl(&["user", "add", "master:secret"]).await;
    etcd.etcdctl(&["user", "grant-role", "master", "masters"]).await;
    let (certificate, key) = security.client();
    let files = [("--etcd-ca", security.ca()), ("--etcd-cert", certificate), ("--etcd-key", key)];
    let files = files.into_iter().chain([("--etcd-password-file", password)]);
    let words = files.flat_map(|(flag, file)| [flag.to_owned(), file.display().to_string()]);
    words.chain(["--etcd-user", "master", "--ttl", "6s", "--queue", "--verbose"].map(str::to_owned)).collect()
}

/// Logins end after two seconds: whoever holds a lock has to log in again and again.
#[tokio::test]
async fn a_lock_in_an_etcd_with_tls_and_users_is_taken_kept_waited_for_and_given_back() {
    for version in EtcdVersion::ALL {
        let security = EtcdSecurity::new(Tokens::Jwt(Duration::from_secs(2)));
        let options = EtcdOptions { security: Some(Arc::clone(&security)), ..EtcdOptions::default() };
        let etcd = Etcd::start_with(version, &options).await;
        etcd.enable_users().await;
        let (arguments, scratch) = (arguments(&etcd, &security).await, Scratch::new());
        let start = |owner: &str| {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let script = "echo $FENCE_REVISION >> $stage/$FENCE_OWNER; until [ -e $stage/go ]; do sleep 0.02; done";
            Holder::start_at(&etcd.endpoint(), scratch.path(), owner, &arguments, script)
        };
        let runs = async |owner: &str, times: usize| {
            eventually(&format!("{owner} runs"), async || {
                let text = std::fs::read_to_string(scratch.path().join(owner)).unwrap_or_default();
                (text.lines().count() == times).then_some(())
            })
            .await;
        };
        let mut first = start("a");
        runs("a", 1).await;
        let mut second = start("b");
        second.until_log("waiting for").await;
        // More than a time to live, in which each login has ended at least twice.
        tokio::time::sleep(Duration::from_secs(7)).await;
        assert_eq!(etcd.etcdctl(&["get", LOCK, "--print-value-only"]).await, "a", "etcd {version}: {}", first.log());
        assert!(!first.log().contains("lost the lock"), "etcd {version}: {}", first.log());

        etcd.etcdctl(&["del", LOCK]).await;
        runs("b", 1).await;
        first.until_log("the key was deleted").await;
        std::fs::write(scratch.path().join("go"), "").unwrap();
        assert_eq!([second.code().await, first.code().await], [0, 0]);
        assert_eq!(etcd.etcdctl(&["get", "--prefix", "/"]).await, "");
        assert_eq!(etcd.etcdctl(&["lease", "list"]).await, "found 0 leases");
    }
}
