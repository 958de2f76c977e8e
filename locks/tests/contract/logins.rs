//! How the etcd store logs in, again and again, and what it says when it may not.

use std::time::Duration;

use etcd_client::Client;
use fencepost_locks::{EtcdStore, LockStore, RangeRead, RangeWatch, StoreError, Wanted};
use fencepost_policy::Revision;
use fencepost_tests::{EtcdVersion, PATIENCE, Tokens, eventually};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::world::{Secure, after, collect, key, news, prefix, put, transact};

every_version! {
    nothing_is_refused_or_lost_while_logins_end,
    a_login_that_was_not_used_for_its_time_is_renewed,
    however_many_find_their_login_ended_there_is_one_new_one,
    a_password_is_changed_without_a_failure_if_the_file_is_first,
    a_password_may_change_at_any_moment_of_a_login,
    a_wrong_password_is_told_once_a_second_and_a_right_one_heals,
    nothing_but_the_keys_of_a_lock_has_to_be_readable,
    what_may_not_be_read_is_named,
    roles_may_change_while_locks_are_read,
    users_may_be_turned_on_and_off,
    connections_use_the_certificate_in_its_file,
}

/// Logins that end after one to two seconds, whatever they are used for.
const BRIEF: Tokens = Tokens::Jwt(Duration::from_secs(1));

/// By when such a login has ended.
const ENDED: Duration = Duration::from_millis(2100);

async fn read(store: &EtcdStore) -> Result<Revision, StoreError> {
    let read = [RangeRead { range: key("/shards/a"), wanted: Wanted::All }];
    store.read(&read).await.map(|answer| answer.revision)
}

async fn nothing_is_refused_or_lost_while_logins_end(version: EtcdVersion) {
    let secure = Secure::start(version, BRIEF).await;
    secure.grant("--prefix /shards/").await;
    let (store, hand) = (secure.store(), secure.writer().await);
    let first = transact(&hand, vec![put("/shards/a", "0")]).await;
    // It goes on when the login ends that it was begun with, and when reads find theirs ended.
    let mut standing = store
        .watch(&[RangeWatch { range: prefix("/shards/"), from: first }])
        .await
        .expect("a watch");
    collect(&mut standing, 1).await;
    let mut next = after(first);
    let (began, mut reads, mut slowest) = (Instant::now(), 0, Duration::ZERO);
    let mut known = 0;
    while began.elapsed() < Duration::from_secs(5) {
        let asked = Instant::now();
        read(&store).await.unwrap_or_else(|error| panic!("read {reads}: {error}"));
        slowest = slowest.max(asked.elapsed());
        reads += 1;
        if reads % 50 == 0 {
            // Begun with whatever login there is on its connection, it tells what was written since
            // the last one ended.
            let ranges = [RangeWatch { range: prefix("/shards/"), from: next }];
            transact(&hand, vec![put("/shards/a", reads.to_string())]).await;
            let mut watch = store
                .watch(&ranges)
                .await
                .unwrap_or_else(|error| panic!("watch at {reads}: {error}"));
            let events = collect(&mut watch, 1).await;
            next = after(events[0].1.revision());
            known += 1;
        }
    }
    collect(&mut standing, known).await;
    let more = timeout(Duration::from_millis(50), news(&mut standing)).await;
    assert!(more.is_err(), "it has not ended: {more:?}");
    println!(
        "etcd {version}: {reads} reads and {known} watches while logins ended, the slowest read took {slowest:?}"
    );
    let logins = secure.etcd.requests_total().await.of("Authenticate");
    assert!(logins >= 4, "{logins}");
}

async fn a_login_that_was_not_used_for_its_time_is_renewed(version: EtcdVersion) {
    let renewed = async |tokens| {
        let secure = Secure::start(version, tokens).await;
        secure.grant("--prefix /shards/").await;
        let store = secure.store();
        let ranges = [RangeWatch { range: prefix("/shards/"), from: Revision::MIN }];
        read(&store).await.expect("the login is new");
        drop(store.watch(&ranges).await.expect("the login is new"));
        // etcd looks for simple tokens whose time is over once a second.
        sleep(ENDED + Duration::from_secs(1)).await;
        // On its own connection: a read would not renew that one's.
        let watched = store.watch(&ranges).await;
        assert!(watched.is_ok(), "{tokens:?}: {:?}", watched.err());
        let read = read(&store).await;
        assert!(read.is_ok(), "{tokens:?}: {read:?}");
    };
    tokio::join!(renewed(Tokens::Simple(Duration::from_secs(1))), renewed(BRIEF));
}

async fn however_many_find_their_login_ended_there_is_one_new_one(version: EtcdVersion) {
    // On a busy machine a brief login ends again before all have had its use.
    let lasts = Duration::from_secs(4);
    let secure = Secure::start(version, Tokens::Jwt(lasts)).await;
    secure.grant("--prefix /shards/").await;
    let store = secure.store();
    let logins = async || secure.etcd.requests_total().await.of("Authenticate");
    let before = logins().await;
    for round in 1..=2 {
        join_all((0..50).map(|_| async { read(&store).await.expect("nothing is refused") })).await;
        // One, or where connecting took too long so that it was done again, one more for that.
        let made = logins().await - before;
        assert!((round..5 * round).contains(&made), "{made} logins by round {round}");
        sleep(lasts + Duration::from_millis(1100)).await;
    }
}

async fn a_password_is_changed_without_a_failure_if_the_file_is_first(version: EtcdVersion) {
    let secure = Secure::start(version, BRIEF).await;
    secure.grant("--prefix /shards/").await;
    let store = secure.store();
    read(&store).await.expect("the first password is right");
    secure.write_password("secret-2");
    sleep(ENDED).await;
    read(&store).await.expect("the first password is right as long as etcd accepts no other");
    change_password(&secure, "secret-2").await;
    read(&store).await.expect("the second password is right at once");
}

/// A login that finds the new one refused tries the one before, which may be refused too by then.
async fn a_password_may_change_at_any_moment_of_a_login(version: EtcdVersion) {
    // As etcd is delivered: a login takes long enough to be met.
    let secure = Secure::start_costly(version, BRIEF, 10).await;
    secure.grant("--prefix /shards/").await;
    let store = secure.store();
    read(&store).await.expect("the first password is right");
    for round in 0..5 {
        let password = format!("secret-2{round}");
        secure.write_password(&password);
        sleep(ENDED).await;
        let root = secure.writer().await;
        let changing = async {
            sleep(Duration::from_millis(25) * round).await;
            root.auth_client()
                .user_change_password("fencepost", password)
                .await
                .expect("root may change passwords");
        };
        let reading = async {
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(600) {
                let read = read(&store).await;
                assert!(!matches!(read, Err(StoreError::NoLogin(_))), "in round {round}: {read:?}");
            }
        };
        tokio::join!(changing, reading);
    }
}

async fn change_password(secure: &Secure, password: &str) {
    let client = secure.writer().await;
    client
        .auth_client()
        .user_change_password("fencepost", password)
        .await
        .expect("root may change passwords");
}

async fn a_wrong_password_is_told_once_a_second_and_a_right_one_heals(version: EtcdVersion) {
    let secure = Secure::start(version, BRIEF).await;
    secure.grant("--prefix /shards/").await;
    let store = secure.store();
    secure.write_password("wrong-password");
    let before = secure.etcd.requests_total().await;
    let (began, mut told) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_millis(2500) {
        let why = match read(&store).await {
            Err(StoreError::NoLogin(why)) => why,
            Err(StoreError::Unavailable(_)) => continue, // It did not answer in time.
            other => panic!("that password is wrong: {other:?}"),
        };
        assert!(why.contains(r#"user "fencepost" with the password in /"#), "{why}");
        assert!(why.contains("authentication failed") && !why.contains("wrong-password"), "{why}");
        told += 1;
    }
    assert!(told > 0);
    let tried = secure.etcd.requests_total().await.since(&before).of("Authenticate");
    let most = 2 + began.elapsed().as_secs();
    assert!((2..=most).contains(&tried), "{tried}");
    std::fs::remove_file(secure.security.directory().join("password")).unwrap();
    let missing = eventually("the file is read again", async || {
        read(&store)
            .await
            .err()
            .map(|error| error.to_string())
            .filter(|error| !error.contains("authentication"))
    });
    let missing = missing.await;
    assert!(
        missing.starts_with("no login to the lock store") && missing.contains("No such file"),
        "{missing}"
    );
    secure.write_password("secret-1");
    eventually("the right password is read", async || read(&store).await.ok()).await;
}

async fn nothing_but_the_keys_of_a_lock_has_to_be_readable(version: EtcdVersion) {
    let secure = Secure::start(version, BRIEF).await;
    secure.grant("/shards/a").await;
    secure.grant("--prefix /elections/a/").await;
    let (store, hand) = (secure.store(), secure.writer().await);
    let written = transact(&hand, vec![put("/shards/a", "1"), put("/elections/a/1", "1")]).await;
    let read = |range, wanted| RangeRead { range, wanted };
    let election = || prefix("/elections/a/");
    let ranges = [read(key("/shards/a"), Wanted::All), read(election(), Wanted::Count)];
    assert_eq!(store.read(&ranges).await.expect("both may be read").revision, written);
    assert!(store.read_at(b"/shards/a", written).await.expect("so may its history").is_some());
    let watched = [key("/shards/a"), election()].map(|range| RangeWatch { range, from: written });
    collect(&mut store.watch(&watched).await.expect("both may be watched"), 2).await;
    let members = store.members().await;
    assert!(members[0].version.is_ok(), "{members:?}");
}

async fn what_may_not_be_read_is_named(version: EtcdVersion) {
    let secure = Secure::start(version, BRIEF).await;
    secure.grant("/shards/a").await;
    let store = secure.store();
    let read = async |ranges: &[_]| {
        let ranges: Vec<_> = ranges
            .iter()
            .map(|range| RangeRead { range: Clone::clone(range), wanted: Wanted::All })
            .collect();
        store.read(&ranges).await.err().map(|error| error.to_string())
    };
    let denied = |keys: &str| {
        Some(format!(
            "user \"fencepost\" may not read {keys} in the lock store: etcdctl role grant-permission ROLE read {keys}"
        ))
    };
    assert_eq!(read(&[key("/shards/b")]).await, denied("/shards/b"));
    assert_eq!(read(&[key("/shards/a"), prefix("/shards/")]).await, denied("--prefix /shards/"));
    assert_eq!(read(&[prefix("it's")]).await, denied(r"--prefix 'it'\''s'"));
    let watched =
        [key("/shards/a"), key("/shards/b")].map(|range| RangeWatch { range, from: Revision::MIN });
    let watched = store.watch(&watched).await.err().map(|error| error.to_string());
    assert_eq!(watched, denied("/shards/b"));
    // What is shown is what etcdctl has to be given.
    secure.grant("--prefix /shards/").await;
    assert_eq!(read(&[key("/shards/a"), prefix("/shards/")]).await, None);
}

async fn roles_may_change_while_locks_are_read(version: EtcdVersion) {
    let secure = Secure::start(version, Tokens::Jwt(Duration::from_secs(300))).await;
    secure.grant("--prefix /shards/").await;
    let store = secure.store();
    let mut client = secure.writer().await;
    for number in 0..5 {
        read(&store).await.expect("nothing is refused");
        client.role_add(format!("role-{number}")).await.expect("root may add roles");
        read(&store).await.expect("nothing is refused");
    }
}

async fn users_may_be_turned_on_and_off(version: EtcdVersion) {
    let secure = Secure::start(version, BRIEF).await;
    secure.grant("--prefix /shards/").await;
    let (store, mut client) = (secure.store(), secure.writer().await);
    read(&store).await.expect("the password is right");
    client.auth_disable().await.expect("root may turn users off");
    sleep(ENDED).await;
    read(&store).await.expect("nobody has to log in");
    read(&secure.store()).await.expect("nobody has to log in, on a new connection either");
    let stranger = secure.store();
    read(&stranger).await.expect("nobody has to log in");
    let mut anybody =
        Client::connect([secure.etcd.endpoint()], Some(secure.stranger())).await.unwrap();
    anybody.auth_enable().await.expect("users can be turned on");
    read(&stranger).await.expect("whoever has not logged in does so now");
    read(&store).await.expect("and whoever had");
}

async fn connections_use_the_certificate_in_its_file(version: EtcdVersion) {
    use fencepost_tests::Authority;
    use fencepost_tls::{Followed, Look};

    let mut secure = Secure::start(version, BRIEF).await;
    secure.grant("--prefix /shards/").await;
    let store = secure.store();
    read(&store).await.expect("the certificate is right");
    let tls = secure.tls.clone();
    // etcd reads its own anew for each connection; so the authority changes on both sides.
    let (certificate, key) = secure.security.client();
    let directory = secure.security.directory();
    let other = Authority::new("another");
    other.issue_for_localhost().write(directory, "client");
    assert_eq!(tls.look(), Look::Reloaded);
    read(&store).await.expect("the connection goes on with what it was made with");
    let began = Instant::now();
    let refused = read(&secure.store()).await;
    println!(
        "etcd {version}, a certificate of another authority: {refused:?} after {:?}",
        began.elapsed()
    );
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    secure.security.replace_client();
    assert_eq!(tls.look(), Look::Reloaded);
    assert!(certificate.exists() && key.exists());
    read(&secure.store()).await.expect("new connections are made with the new certificate");
    secure.etcd.kill();
    secure.etcd.restart().await;
    eventually("the store is read again", async || read(&store).await.ok()).await;
    assert!(began.elapsed() < PATIENCE);
}
