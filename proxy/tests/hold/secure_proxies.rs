//! `--fence` and `--stamp` to proxies that speak TLS, and want to know who comes.

use std::time::{Duration, SystemTime};

use fencepost_tests::{Authority, Claim, Subject, Worker};

use crate::holder::Holder;
use crate::proxy::{Proxy, ProxyFiles};
use crate::stage::Stage;

fn start(stage: &Stage, owner: &str, options: &[&str], files: &[String], script: &str) -> Holder {
    let arguments: Vec<&str> =
        options.iter().copied().chain(files.iter().map(String::as_str)).collect();
    Holder::start(stage, owner, &arguments, script)
}

fn stamp(url: &str) -> String {
    format!("127.0.0.1:0={url}")
}

#[tokio::test]
async fn a_master_shows_its_certificate_to_the_proxy() {
    let (stage, worker, files) = (Stage::set().await, Worker::start().await, ProxyFiles::new());
    let proxy =
        Proxy::serve_secure(&stage, &worker, &files, &files.authority.issue_for_localhost()).await;
    files.issue_master("shard-1");
    // By name, so that the name is what is verified; and by address.
    let fence = format!("https://localhost:{}", proxy.listener.port());
    let (options, script) = (
        ["--fence", &fence, "--stamp", &stamp(&proxy.secure_url())],
        "curl -s -o /dev/null $FENCE_STAMP",
    );
    let mut holder = start(&stage, "shard-1", &options, &files.arguments(), script);
    assert_eq!(holder.code().await, 0, "{}", holder.log());
    let seen = worker.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].header("fence-owner"), Some("shard-1"));
    assert_eq!(seen[0].header("x-forwarded-proto"), Some("https"));

    let started = "touch $stage/started";
    let mut other = start(&stage, "shard-2", &["--fence", &fence], &files.arguments(), started);
    assert_eq!(other.code().await, 1);
    let said = "does not fence for this lock: refused: identity-mismatch: stop, the certificate of the connection is not for this \
        owner (it says: Stop: the owner has to be the one that the client certificate of the connection names.)\n";
    other.says(said);
    let mut nobody = start(&stage, "shard-1", &["--fence", &fence], &files.trust(), started);
    assert_eq!(nobody.code().await, 1);
    let said = format!(
        "--fence {fence}: no TLS: it refuses the certificate of --proxy-cert, or wants one: "
    );
    nobody.says(&said);
    assert!(!stage.file("started").exists());
    // Who has no door learns it from the first request.
    let status =
        r#"curl -s -o $stage/body -w '%{http_code}\n' "http://$FENCE_STAMP/" > $stage/status"#;
    let mut nobody =
        start(&stage, "shard-1", &["--stamp", &stamp(&proxy.secure_url())], &files.trust(), status);
    assert_eq!(nobody.code().await, 0);
    assert_eq!(stage.read("status"), "502\n");
    let body = stage.read("body");
    assert!(body.contains("it refuses the certificate of --proxy-cert, or wants one"), "{body}");
    let said = format!("--stamp 127.0.0.1:0={}: no TLS: it refuses", proxy.secure_url());
    assert_eq!(nobody.log().matches(&said).count(), 1, "{}", nobody.log());
    assert_eq!(worker.seen().len(), 1);
    stage.is_left_clean().await;
}

#[tokio::test]
async fn a_wrong_proxy_is_refused_before_the_command_starts() {
    let (stage, worker, files) = (Stage::set().await, Worker::start().await, ProxyFiles::new());
    files.issue_master("shard-1");
    let yesterday = SystemTime::now() - Duration::from_secs(86_400);
    let expired =
        Subject { names: &["127.0.0.1"], not_after: Some(yesterday), ..Subject::default() };
    let elsewhere = Subject { names: &["elsewhere.example"], ..Subject::default() };
    for (whose, says) in [
        (
            Authority::new("another").issue_for_localhost(),
            "its certificate is not signed by an authority of --proxy-ca: ",
        ),
        (
            files.authority.issue(&expired),
            "its certificate has expired: invalid peer certificate: certificate expired",
        ),
        (
            files.authority.issue(&elsewhere),
            "its certificate is for another name: invalid peer certificate: ",
        ),
    ] {
        let proxy = Proxy::serve_secure(&stage, &worker, &files, &whose).await;
        is_refused(&stage, &files, &proxy.secure_url(), says).await;
    }
    let in_the_clear = Proxy::serve(&stage, &worker).await;
    is_refused(&stage, &files, &in_the_clear.secure_url(), "it does not speak TLS: ").await;
    assert!(worker.seen().is_empty());
}

#[tokio::test]
async fn pinned_proxy_is_trusted_for_itself_alone() {
    let (stage, worker, files) = (Stage::set().await, Worker::start().await, ProxyFiles::new());
    files.issue_master("shard-1");
    let subject =
        Subject { common_name: Some("proxy"), names: &["127.0.0.1"], ..Subject::default() };
    for claim in [Claim::EndEntity, Claim::Nothing] {
        let pinned = Authority::claiming(claim, &subject);
        // Of the masters, the first is an authority.
        std::fs::write(files.ca(), files.authority.certificate() + &pinned.certificate()).unwrap();
        let forger = Proxy::serve_secure(&stage, &worker, &files, &pinned.issue(&subject)).await;
        let says = "its certificate is not signed by an authority of --proxy-ca: ";
        is_refused(&stage, &files, &forger.secure_url(), says).await;
        let proxy = Proxy::serve_secure(&stage, &worker, &files, &pinned.own()).await;
        let mut holder =
            start(&stage, "shard-1", &["--fence", &proxy.secure_url()], &files.arguments(), "true");
        assert_eq!(holder.code().await, 0, "{claim:?}: {}", holder.log());
    }
}

/// Both as a door and as what a command's requests go to.
async fn is_refused(stage: &Stage, files: &ProxyFiles, url: &str, says: &str) {
    for (option, value) in [("--fence", url.to_owned()), ("--stamp", stamp(url))] {
        let mut holder =
            start(stage, "shard-1", &[option, &value], &files.arguments(), "touch $stage/started");
        assert_eq!(holder.code().await, 1, "{option}");
        holder.says(&format!("{option} {value}: no TLS: {says}"));
        assert!(!stage.file("started").exists());
        stage.is_left_clean().await;
    }
}

#[tokio::test]
async fn certificates_may_be_renewed_while_a_lock_is_held() {
    let (stage, worker, files) = (Stage::set().await, Worker::start().await, ProxyFiles::new());
    let proxy =
        Proxy::serve_secure(&stage, &worker, &files, &files.authority.issue_for_localhost()).await;
    files.issue_master("shard-2");
    let script = r#"curl -s -o /dev/null -w '%{http_code}\n' "http://$FENCE_STAMP/" >> $stage/status
        until [ -e $stage/go ]; do sleep 0.02; done
        curl -s -o /dev/null -w '%{http_code}\n' "http://$FENCE_STAMP/" >> $stage/status"#;
    let mut holder = start(
        &stage,
        "shard-1",
        &["--stamp", &stamp(&proxy.secure_url())],
        &files.arguments(),
        script,
    );
    assert_eq!(stage.until_lines("status", 1).await, ["403"]);
    files.issue_master("shard-1");
    std::fs::write(stage.file("go"), "").unwrap();
    assert_eq!(holder.code().await, 0);
    assert_eq!(stage.until_lines("status", 2).await, ["403", "200"], "{}", holder.log());
}
