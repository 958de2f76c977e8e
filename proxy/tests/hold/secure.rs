//! An etcd that wants TLS, and to know who comes.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fencepost_tests::{
    Etcd, EtcdOptions, EtcdSecurity, EtcdVersion, Scratch, Subject, Tokens, eventually, until,
};
use tokio::io::AsyncWriteExt as _;

use crate::holder::Holder;
use crate::stage::LOCK;

/// Where those who wait in line for it have their entries.
const QUEUE: &str = "/shards/2/lock.queue/";

/// The arguments of `hold` for an etcd with TLS, and for a user who may use the locks and nothing
/// else.
async fn arguments(
    etcd: &Etcd,
    security: &EtcdSecurity,
    client: (PathBuf, PathBuf),
    ttl: &str,
) -> Vec<String> {
    let password = security.directory().join("master-password");
    std::fs::write(&password, "secret\n").unwrap();
    let page = include_str!("../../../docs/etcd.md");
    let commands = page
        .split("```sh\n")
        .find(|block| block.starts_with("etcdctl role add masters\n"))
        .unwrap();
    for command in commands.split("```").next().unwrap().lines() {
        etcd.etcdctl(&command.split_whitespace().skip(1).collect::<Vec<_>>()).await;
    }
    etcd.etcdctl(&["user", "add", "master:secret"]).await;
    etcd.etcdctl(&["user", "grant-role", "master", "masters"]).await;
    let (certificate, key) = client;
    let files = [("--etcd-ca", security.ca()), ("--etcd-cert", certificate), ("--etcd-key", key)];
    let files = files.into_iter().chain([("--etcd-password-file", password)]);
    let words = files.flat_map(|(flag, file)| [flag.to_owned(), file.display().to_string()]);
    words
        .chain(["--etcd-user", "master", "--ttl", ttl, "--queue", "--verbose"].map(str::to_owned))
        .collect()
}

#[tokio::test]
async fn a_lock_in_an_etcd_with_tls_and_users_is_held() {
    for version in EtcdVersion::ALL {
        let security = EtcdSecurity::new(Tokens::Jwt(Duration::from_secs(2)));
        let options =
            EtcdOptions { security: Some(Arc::clone(&security)), ..EtcdOptions::default() };
        let etcd = Etcd::start_with(version, &options).await;
        etcd.enable_users().await;
        let (arguments, scratch) =
            (arguments(&etcd, &security, security.client(), "6s").await, Scratch::new());
        let start = |owner: &str| {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let script = "echo $FENCE_REVISION >> $stage/$FENCE_OWNER; until [ -e $stage/go ]; do sleep 0.02; done";
            Holder::start_at(&etcd.endpoint(), scratch.path(), owner, &arguments, script)
        };
        // Of what is denied, the keys are named, and what allows them: those of the queue are
        // nowhere in what was asked for.
        for (denied, keys) in
            [(&["--prefix", QUEUE][..], &format!("--prefix {QUEUE}")), (&[LOCK], &LOCK.to_owned())]
        {
            etcd.etcdctl(&[&["role", "revoke-permission", "masters"], denied].concat()).await;
            let mut holder = start("nobody");
            assert_eq!(holder.code().await, 1, "{}", holder.log());
            let said = format!(
                "user \"master\" may not read and write {keys} in etcd: etcdctl role grant-permission ROLE readwrite {keys}"
            );
            holder.says(&said);
            etcd.etcdctl(&[&["role", "grant-permission", "masters", "readwrite"], denied].concat())
                .await;
        }
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
        assert_eq!(
            etcd.etcdctl(&["get", LOCK, "--print-value-only"]).await,
            "a",
            "etcd {version}: {}",
            first.log()
        );
        first.does_not_say("lost the lock");

        etcd.etcdctl(&["del", LOCK]).await;
        runs("b", 1).await;
        first.until_log("the key was deleted").await;
        std::fs::write(scratch.path().join("go"), "").unwrap();
        assert_eq!([second.code().await, first.code().await], [0, 0]);
        assert_eq!(etcd.etcdctl(&["get", "--prefix", "/"]).await, "");
        assert_eq!(etcd.etcdctl(&["lease", "list"]).await, "found 0 leases");
    }
}

#[tokio::test]
async fn who_does_not_log_in_where_etcd_wants_that_is_told_how_to() {
    for version in EtcdVersion::ALL {
        let etcd = Etcd::start_with(version, &EtcdOptions::default()).await;
        for command in
            ["user add root:root", "role add root", "user grant-role root root", "auth enable"]
        {
            etcd.etcdctl(&command.split(' ').collect::<Vec<_>>()).await;
        }
        for arguments in [&[][..], &["--queue"], &["--try"]] {
            let mut holder = Holder::at(&etcd.endpoint(), "a", arguments, &["true"]);
            assert_eq!(holder.code().await, 1, "etcd {version}: {}", holder.log());
            let said = "fencepost hold: the lock cannot be taken: etcd wants a user to log in: give --etcd-user and --etcd-password-file\n";
            assert_eq!(holder.log(), said, "etcd {version}, {arguments:?}");
        }
    }
}

#[tokio::test]
async fn a_holders_login_files_may_be_replaced_while_it_holds() {
    let security = EtcdSecurity::new(Tokens::Jwt(Duration::from_secs(2)));
    let options = EtcdOptions { security: Some(Arc::clone(&security)), ..EtcdOptions::default() };
    let mut etcd = Etcd::start_with(EtcdVersion::V3_5, &options).await;
    etcd.enable_users().await;
    let ours =
        |not_after| Subject { common_name: Some("a holder"), not_after, ..Subject::default() };
    let files = security.authority.issue(&ours(None)).write(security.directory(), "ours");
    let (arguments, scratch) = (arguments(&etcd, &security, files, "1m").await, Scratch::new());
    let end = SystemTime::now() + Duration::from_secs(10);
    security.authority.issue(&ours(Some(end))).write(security.directory(), "ours");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let script = "echo > $stage/runs; until [ -e $stage/go ]; do sleep 0.02; done";
    let mut holder = Holder::start_at(&etcd.endpoint(), scratch.path(), "a", &arguments, script);
    until("it runs", async || scratch.path().join("runs").exists()).await;

    // First the file, then etcd: a login that comes in between is tried again.
    std::fs::write(security.directory().join("master-password"), "another\n").unwrap();
    let mut passwd = etcd.etcdctl_command();
    let mut passwd = passwd
        .args(["user", "passwd", "master", "--interactive=false"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    passwd.stdin.take().unwrap().write_all(b"another\n").await.unwrap();
    assert!(passwd.wait().await.unwrap().success());

    security.authority.issue(&ours(None)).write(security.directory(), "ours");
    holder.until_log("the files for etcd have changed").await;
    until("the former certificate has ended", async || SystemTime::now() > end).await;
    etcd.kill();
    etcd.restart().await;

    std::fs::write(security.directory().join("ours.key"), "no key").unwrap();
    holder
        .until_log(
            "ours.key: is not PEM: nothing in it begins with -----BEGIN; what was in force stays",
        )
        .await;
    // To give it back it has to connect and to log in.
    std::fs::write(scratch.path().join("go"), "").unwrap();
    assert_eq!(holder.code().await, 0, "{}", holder.log());
    holder.does_not_say("lost the lock");
    assert_eq!(etcd.etcdctl(&["get", "--prefix", "/"]).await, "", "{}", holder.log());
}
