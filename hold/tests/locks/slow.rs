//! An etcd with TLS and users at the end of a slow line.

use std::sync::Arc;
use std::time::Duration;

use fencepost_hold::{Etcd, Lock, Over};
use fencepost_tests::{self as support, EtcdOptions, EtcdSecurity, EtcdVersion, Relay, Tokens};

use crate::store::{KEY, over};
use crate::users::login;

/// How long anything takes from one end of the line to the other. Connecting by TLS and logging in
/// is three ways there and back.
const DELAY: Duration = Duration::from_millis(180);

/// Long enough for a busy machine to renew in time. An attempt to renew may take a second, as with
/// any longer than six seconds.
const TTL: Duration = Duration::from_secs(15);

/// An etcd with a user who may use the lock, and the line to it.
struct Far {
    member: support::Etcd,
    relay: Relay,
    etcd: Etcd,
}

impl Far {
    async fn start(version: EtcdVersion, tokens: Tokens) -> Far {
        let security = EtcdSecurity::new(tokens);
        let options =
            EtcdOptions { security: Some(Arc::clone(&security)), ..EtcdOptions::default() };
        let member = support::Etcd::start_with(version, &options).await;
        member.enable_users().await;
        member.etcdctl(&["role", "add", "masters"]).await;
        member
            .etcdctl(&["role", "grant-permission", "masters", "readwrite", "--prefix", KEY])
            .await;
        member.etcdctl(&["user", "add", "master:secret"]).await;
        member.etcdctl(&["user", "grant-role", "master", "masters"]).await;
        let relay =
            Relay::start(member.endpoint().trim_start_matches("https://").parse().unwrap()).await;
        let endpoint = format!("https://{}", relay.address());
        let etcd = login(endpoint, &security, "master", "secret").build().unwrap();
        Far { member, relay, etcd }
    }

    fn lock(&self) -> Lock {
        Lock::builder(KEY, "a").ttl(TTL).build(&self.etcd).unwrap()
    }
}

/// On this line, a new connection that can be used takes longer than an attempt to renew may.
#[tokio::test]
async fn a_tenure_outlives_slow_reconnects() {
    for version in EtcdVersion::ALL {
        let far = Far::start(version, Tokens::Simple(Duration::from_secs(300))).await;
        let tenure = far.lock().acquire().await.unwrap();
        far.relay.delay(DELAY).await;
        far.relay.cut().await;
        far.relay.restore().await;
        let mut standing = tenure.standing();
        standing.changed().await.unwrap();
        assert!(tenure.is_held(), "etcd {version}: {:?}", *standing.borrow());
        // It is watched again, too.
        far.member.etcdctl(&["del", KEY]).await;
        assert_eq!(over(&tenure).await, Over::KeyDeleted, "etcd {version}");
        assert_eq!(tenure.release().await, Ok(()));
    }
}

/// By the time that a renewal learns that it has to log in, and has done so, its own is over.
#[tokio::test]
async fn a_tenure_outlives_a_slowly_renewed_login() {
    for version in EtcdVersion::ALL {
        let far = Far::start(version, Tokens::Jwt(Duration::from_secs(3))).await;
        let tenure = far.lock().acquire().await.unwrap();
        far.relay.delay(DELAY).await;
        let mut standing = tenure.standing();
        standing.changed().await.unwrap();
        assert!(tenure.is_held(), "etcd {version}: {:?}", *standing.borrow());
        tenure.release().await.unwrap();
    }
}

/// A change of a user or a role ends such logins at once, and etcd reports that with an error of
/// its own.
#[tokio::test]
async fn a_tenure_outlives_a_change_of_roles_that_ends_its_login() {
    for version in EtcdVersion::ALL {
        let far = Far::start(version, Tokens::Jwt(Duration::from_secs(300))).await;
        let tenure = far.lock().acquire().await.unwrap();
        let mut standing = tenure.standing();
        standing.changed().await.unwrap();
        far.member.etcdctl(&["role", "add", "another"]).await;
        standing.changed().await.unwrap();
        assert!(tenure.is_held(), "etcd {version}: {:?}", *standing.borrow());
        tenure.release().await.unwrap();
    }
}
