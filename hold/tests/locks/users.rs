//! etcd asks who comes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fencepost_hold::{
    AcquireError, ClientFiles, Etcd, EtcdBuilder, EtcdUser, IdentityFiles, Lock, Tenure,
};
use fencepost_tests as support;
use fencepost_tests::{
    EtcdOptions, EtcdSecurity, EtcdVersion, PATIENCE, Tokens, eventually, replace_file,
};
use tokio::task::JoinHandle;

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

/// How a user gets in there, with the password that is written down from now on.
pub(crate) fn login(
    endpoint: String,
    security: &EtcdSecurity,
    user: &str,
    password: &str,
) -> EtcdBuilder {
    let (certificate, key) = security.client();
    let identity = Some(IdentityFiles { certificate, key });
    let files = ClientFiles { ca: security.ca(), crl: None, identity };
    let password_file = write_password(security, password);
    Etcd::builder([endpoint]).tls(files).user(EtcdUser::with_file(user, password_file))
}

fn write_password(security: &EtcdSecurity, password: &str) -> PathBuf {
    let file = security.directory().join("password-of-holder");
    replace_file(&file, password);
    file
}

/// Runs etcdctl with these words.
async fn etcdctl(member: &support::Etcd, words: &str) -> String {
    member.etcdctl(&words.split(' ').collect::<Vec<_>>()).await
}

/// The user `master`, with the password `secret`, who may use the lock; somebody else holds it.
async fn add_master(member: &support::Etcd) {
    for words in [
        "role add masters",
        "role grant-permission masters readwrite /lock",
        "user add master:secret",
        "user grant-role master masters",
        "put /lock somebody",
    ] {
        etcdctl(member, words).await;
    }
}

/// Gives `master` another password.
async fn change_password(member: &support::Etcd, password: &str) {
    etcdctl(member, "user delete master").await;
    etcdctl(member, &format!("user add master:{password}")).await;
    etcdctl(member, "user grant-role master masters").await;
}

/// Has somebody wait for the lock.
async fn wait(
    member: &support::Etcd,
    etcd: &Etcd,
    ttl: Duration,
) -> JoinHandle<Result<Tenure, AcquireError>> {
    let lock = Lock::builder(KEY, "a").ttl(ttl).build(etcd).unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("it waits", async || (member.requests_total().await.of("Watch") >= 1).then_some(()))
        .await;
    waiting
}

/// It waited for ever, also when the lock had long been free, and said nothing.
#[tokio::test]
async fn who_waits_and_is_let_in_no_more_is_told_so() {
    for (words, why) in [
        (
            "role revoke-permission masters /lock",
            "user \"master\" may not read and write /lock in etcd",
        ),
        ("user delete master", "authentication failed, invalid user ID or password"),
    ] {
        let (member, security) = member_with_users(EtcdVersion::V3_5).await;
        add_master(&member).await;
        let etcd = login(member.endpoint(), &security, "master", "secret").build().unwrap();
        let waiting = wait(&member, &etcd, SECOND * 3).await;
        etcdctl(&member, words).await;
        let told = tokio::time::timeout(PATIENCE, waiting).await.expect("it is told").unwrap();
        let Err(AcquireError::Store(told)) = told else { panic!("{words}: {told:?}") };
        assert!(told.to_string().contains(why), "{words}: {told}");
    }
}

#[tokio::test]
async fn who_waits_outlasts_that_etcd_knows_another_password_already() {
    let (member, security) = member_with_users(EtcdVersion::V3_5).await;
    add_master(&member).await;
    let etcd = login(member.endpoint(), &security, "master", "secret").build().unwrap();
    let waiting = wait(&member, &etcd, SECOND * 18).await;
    // Logins of before are of no use from now on.
    change_password(&member, "another").await;
    let logins = async || member.requests_total().await.of("Authenticate");
    let before = logins().await;
    // One refused look is enough. The third, two thirds of the time to live later, would end the
    // wait.
    eventually("a login is refused", async || (logins().await > before).then_some(())).await;
    write_password(&security, "another");
    etcdctl(&member, "del /lock").await;
    let tenure =
        tokio::time::timeout(PATIENCE, waiting).await.expect("it has the lock").unwrap().unwrap();
    tenure.release().await.unwrap();
}

/// A tenure survives a new connection while etcd refuses its login.
#[tokio::test]
async fn a_tenure_outlives_a_password_that_etcd_does_not_know_yet() {
    for version in EtcdVersion::ALL {
        let (mut member, security) = member_with_users(version).await;
        add_master(&member).await;
        etcdctl(&member, "del /lock").await;
        let etcd = login(member.endpoint(), &security, "master", "secret").build().unwrap();
        let tenure =
            Lock::builder(KEY, "a").ttl(SECOND * 10).build(&etcd).unwrap().acquire().await.unwrap();
        write_password(&security, "another");
        for known in ["secret", "another"] {
            if known == "another" {
                change_password(&member, known).await;
            }
            // Whoever connects shows its password.
            member.kill();
            let mut standing = tenure.standing();
            member.restart().await;
            standing.changed().await.unwrap();
            assert!(tenure.is_held(), "etcd {version}, {known}: {:?}", *tenure.standing().borrow());
        }
        tenure.release().await.unwrap();
        etcd.settled().await;
        assert_eq!(etcdctl(&member, "get /lock").await, "", "etcd {version}");
    }
}

/// While logins are switched off, etcd refuses them but lets anybody renew a lease, so the refusal
/// must not end the tenure.
#[tokio::test]
async fn a_tenure_outlives_logins_switched_off_and_on() {
    for version in EtcdVersion::ALL {
        let (mut member, security) = member_with_users(version).await;
        let etcd = login(member.endpoint(), &security, "root", "root").build().unwrap();
        let tenure =
            Lock::builder(KEY, "a").ttl(SECOND * 10).build(&etcd).unwrap().acquire().await.unwrap();
        for command in ["disable", "enable"] {
            etcdctl(&member, &format!("auth {command}")).await;
            if command == "disable" {
                // Whoever connects shows its password.
                member.kill();
            }
            let mut standing = tenure.standing();
            if command == "disable" {
                member.restart().await;
            }
            standing.changed().await.unwrap();
            assert!(
                tenure.is_held(),
                "etcd {version}, {command}: {:?}",
                *tenure.standing().borrow()
            );
        }
        tenure.release().await.unwrap();
        etcd.settled().await;
        assert_eq!(etcdctl(&member, "get /lock").await, "", "etcd {version}");
    }
}
