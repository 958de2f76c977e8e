//! etcd asks who comes.

use std::sync::Arc;
use std::time::Duration;

use fencepost_holder::{Etcd, EtcdBuilder, Lock};
use fencepost_testsupport as support;
use fencepost_testsupport::{EtcdOptions, EtcdSecurity, EtcdVersion, Tokens};

use crate::store::KEY;

const SECOND: Duration = Duration::from_secs(1);

/// An etcd with users and TLS.
async fn member_with_users(version: EtcdVersion) -> (support::Etcd, Arc<EtcdSecurity>) {
    let security = EtcdSecurity::new(Tokens::Jwt(SECOND * 300));
    let options = EtcdOptions { security: Some(Arc::clone(&security)), ..EtcdOptions::default() };
    let member = support::Etcd::start_with(version, &options).await;
    member.enable_users().await;
    (member, security)
}

/// How a user gets in there.
fn login(member: &support::Etcd, security: &EtcdSecurity, user: &str, password: &str) -> EtcdBuilder {
    let (certificate, key) = security.client();
    let [ca, certificate, key] = [security.ca(), certificate, key].map(|file| std::fs::read(file).unwrap());
    Etcd::builder([member.endpoint()]).ca_pem(ca).identity_pem(certificate, key).user(user, password)
}

/// Runs etcdctl with these words.
async fn etcdctl(member: &support::Etcd, words: &str) -> String {
    member.etcdctl(&words.split(' ').collect::<Vec<_>>()).await
}

/// Its login was refused from then on, and the lock was lost though etcd would have had it renewed by anybody.
#[tokio::test]
async fn a_tenure_outlives_that_etcd_asks_nobody_to_log_in_any_more_and_that_it_does_so_again() {
    for version in EtcdVersion::ALL {
        let (mut member, security) = member_with_users(version).await;
        let etcd = login(&member, &security, "root", "root").build().unwrap();
        let tenure = Lock::builder(KEY, "a").ttl(SECOND * 10).build(&etcd).unwrap().acquire().await.unwrap();
        for command in ["disable", "enable"] {
            etcdctl(&member, &format!("auth {command}")).await;
            if command == "disable" {
                // Whoever connects shows its password.
                member.kill();
                member.restart().await;
            }
            tenure.standing().changed().await.unwrap();
            assert!(tenure.is_held(), "etcd {version}, {command}: {:?}", *tenure.standing().borrow());
        }
        tenure.release().await.unwrap();
        etcd.settled().await;
        assert_eq!(etcdctl(&member, "get /lock").await, "", "etcd {version}");
    }
}
