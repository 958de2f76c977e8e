//! An etcd that wants TLS, and to know who comes.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fencepost_tests::{
    Authority, Etcd, EtcdOptions, EtcdSecurity, EtcdVersion, Scratch, Subject, Tokens, Worker,
    eventually, until,
};
use tokio::io::AsyncWriteExt as _;

use crate::holder::Holder;
use crate::stage::LOCK;

/// Each cluster had a holder of the lock, at once and under one revision.
#[tokio::test]
async fn endpoints_of_two_clusters_give_no_lock() {
    for version in EtcdVersion::ALL {
        let both = [Etcd::start(version).await, Etcd::start(version).await];
        let endpoints = both.each_ref().map(Etcd::endpoint).join(",");
        for arguments in [&[][..], &["--queue"], &["--try"]] {
            let mut holder = Holder::at(&endpoints, "a", arguments, &["true"]);
            assert_eq!(holder.code().await, 1, "{}", holder.log());
            holder.says("the endpoints belong to different clusters (http://127.0.0.1:");
            holder.says("): name the endpoints of one cluster\n");
        }
        for etcd in &both {
            assert_eq!(etcd.etcdctl(&["get", "--prefix", "/"]).await, "");
            assert_eq!(etcd.etcdctl(&["lease", "list"]).await, "found 0 leases");
        }
    }
}

/// Endpoints are often addresses, or tunnels, and the certificates of a service have its name.
#[tokio::test]
async fn etcd_certificate_of_another_name_is_trusted_by_option() {
    let security = EtcdSecurity::new(Tokens::Jwt(Duration::from_secs(300)));
    let names = &["etcd.example"];
    let subject = Subject { common_name: Some("etcd"), names, ..Subject::default() };
    security.authority.issue(&subject).write(security.directory(), "server");
    let options = EtcdOptions { security: Some(Arc::clone(&security)), ..EtcdOptions::default() };
    let etcd = Etcd::start_with(EtcdVersion::V3_5, &options).await;
    let (certificate, key) = security.client();
    let [ca, certificate, key] =
        [security.ca(), certificate, key].map(|file| file.display().to_string());
    let files = ["--try", "--etcd-ca", &ca, "--etcd-cert", &certificate, "--etcd-key", &key];
    for (name, code) in [(None, 1), (Some("etcd.example"), 0), (Some("other.example"), 1)] {
        let name = name.map(|name| ["--etcd-server-name", name]);
        let arguments = [&files[..], name.as_ref().map_or(&[], |name| &name[..])].concat();
        let mut holder = Holder::at(&etcd.endpoint(), "a", &arguments, &["true"]);
        assert_eq!(holder.code().await, code, "{name:?}: {}", holder.log());
    }
}

/// They were "broken pipe", "InvalidContentType" and "CertificateRequired".
#[tokio::test]
async fn a_wrong_way_to_etcd_is_told_in_words() {
    let security = EtcdSecurity::new(Tokens::Jwt(Duration::from_secs(300)));
    let options = EtcdOptions { security: Some(Arc::clone(&security)), ..EtcdOptions::default() };
    let (secure, plain) =
        (Etcd::start_with(EtcdVersion::V3_5, &options).await, Etcd::start(EtcdVersion::V3_5).await);
    let web = Worker::start().await;
    let other = security.directory().join("other.pem");
    std::fs::write(&other, Authority::new("another").certificate()).unwrap();
    let [ca, other] = [security.ca(), other].map(|file| file.display().to_string());
    let in_the_clear = secure.endpoint().replace("https", "http");
    let by_tls = plain.endpoint().replace("http", "https");
    let scheme =
        "it does not speak HTTP/2 in the clear, as etcd does: if it takes TLS, write https:// (";
    for (etcd, ca, says) in [
        (in_the_clear, None, scheme),
        (web.endpoint().to_string(), None, "it speaks HTTP, but is no etcd ("),
        (
            by_tls,
            Some(&ca),
            "it closed the connection in the handshake of TLS: if it takes none, write http://",
        ),
        (secure.endpoint(), Some(&ca), "no TLS: it refuses our certificate, or wants one ("),
        (
            secure.endpoint(),
            Some(&other),
            "no TLS: its certificate is not signed by an authority of the file of authorities for etcd (",
        ),
    ] {
        let ca = ca.map(|ca| ["--etcd-ca", ca]);
        let arguments = [&["--try"][..], ca.as_ref().map_or(&[], |ca| &ca[..])].concat();
        let mut holder = Holder::at(&etcd, "a", &arguments, &["true"]);
        assert_eq!(holder.code().await, 1, "{etcd}");
        holder.says(says);
    }
}

#[tokio::test]
async fn a_longer_lease_than_asked_for_is_told() {
    // Half as long again as the time after which a member stands for election.
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let mut holder = Holder::at(&etcd.endpoint(), "a", &["--ttl", "1s"], &["true"]);
    assert_eq!(holder.code().await, 0);
    holder.says("--ttl: etcd grants 2s instead of 1s: ");
    let mut holder = Holder::at(&etcd.endpoint(), "a", &["--ttl", "2s"], &["true"]);
    assert_eq!((holder.code().await, holder.log().as_str()), (0, ""));
}

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
