//! Workers behind TLS, and what becomes of their certificates and ours.

use std::fs;

use fencepost_tests::{
    Authority, Etcd, EtcdVersion, Scratch, Subject, Worker, WorkerTls, replace_file,
};
use http::Version;

use crate::cli::Written;
use crate::fencepost::{Config, Fencepost, Route};
use crate::scene::{Ask, Caller, Ledger, Line, send};
use crate::store::{Store, Tenure};

const BOTH: &[&str] = &["h2", "http/1.1"];

/// A worker that asks for a certificate, and the files of both sides.
struct Tls {
    authority: Authority,
    worker: Worker,
    scratch: Scratch,
}

impl Tls {
    async fn start(protocols: &[&str]) -> Tls {
        let authority = Authority::new("the workers'");
        let identity =
            authority.issue(&Subject { names: &["worker.internal"], ..Subject::default() });
        let (ca, scratch) = (authority.certificate(), Scratch::new());
        let worker =
            Worker::start_tls(&WorkerTls { identity: &identity, client_ca: Some(&ca), protocols })
                .await;
        let tls = Tls { authority, worker, scratch };
        replace_file(&tls.scratch.path().join("ca.pem"), &ca);
        tls.issue_ours(&tls.authority);
        tls
    }

    fn issue_ours(&self, authority: &Authority) {
        let ours =
            authority.issue(&Subject { common_name: Some("fencepost"), ..Subject::default() });
        ours.write(self.scratch.path(), "ours");
    }

    /// The worker shows another certificate from now on.
    fn change(&self, authority: &Authority, protocols: &[&str]) {
        let identity =
            authority.issue(&Subject { names: &["worker.internal"], ..Subject::default() });
        let ca = self.authority.certificate();
        self.worker.change_tls(&WorkerTls { identity: &identity, client_ca: Some(&ca), protocols });
    }

    fn route(&self) -> Route {
        self.route_showing("ours")
    }

    /// A route to it on which this certificate is ours.
    fn route_showing(&self, ours: &str) -> Route {
        let path = |name: &str| self.scratch.path().join(name).display().to_string();
        Route::k().with(&format!(
            "upstream_tls = {{ ca = {:?}, certificate = {:?}, key = {:?}, server_name = \"worker.internal\" }}",
            path("ca.pem"),
            path(&format!("{ours}.pem")),
            path(&format!("{ours}.key"))
        ))
    }

    fn config(&self, etcd: &Etcd) -> Config {
        Config::new(&[etcd.endpoint()], &self.worker.https(), &[self.route()])
    }
}

async fn ask(fence: &Fencepost, ledger: &Ledger, tenure: &Tenure) -> u16 {
    send(&fence.listener, ledger, Ask::post("/").under(tenure)).await.status
}

#[tokio::test]
async fn a_worker_behind_tls_gets_the_holders_requests_only() {
    for (protocols, version) in [(BOTH, Version::HTTP_2), (&["http/1.1"], Version::HTTP_11)] {
        let etcd = Etcd::start(EtcdVersion::V3_5).await;
        let (store, tls, ledger) =
            (Store::of(&etcd).await, Tls::start(protocols).await, Ledger::default());
        let zombie = store.hold("/k", "shard-1").await;
        let fence = Fencepost::serve(&tls.config(&etcd)).await;
        assert_eq!(ask(&fence, &ledger, &zombie).await, 200);
        let holder = store.hold("/k", "shard-2").await;
        assert_eq!(ask(&fence, &ledger, &holder).await, 200);
        assert_eq!(ask(&fence, &ledger, &zombie).await, 412);
        assert!(tls.worker.seen().iter().all(|seen| seen.version == version));
        ledger.check(&tls.worker);
        let shown = fence.admin_json("/config").await.to_string();
        assert!(shown.contains("ours.key") && !shown.contains("PRIVATE KEY"), "{shown}");
    }
}

#[tokio::test]
async fn certificates_change_under_load_without_a_failure() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let (store, tls, ledger) = (Store::of(&etcd).await, Tls::start(BOTH).await, Ledger::default());
    let holder = store.hold("/k", "shard-1").await;
    let fence = Fencepost::serve(&tls.config(&etcd)).await;
    let mut callers = Vec::new();
    for _ in 0..4 {
        let line = Line::open(&fence.listener, &ledger).await;
        callers.push(Caller::start(line, Ask::post("/").under(&holder)));
    }
    let reloads = r#"fencepost_tls_reloads_total{name="k",outcome="reloaded",use="upstream"}"#;
    let mut authorities = tls.authority.certificate();
    for (round, protocols) in [BOTH, &["http/1.1"], BOTH].into_iter().enumerate() {
        callers[0].until_sent(20).await;
        // Whoever changes authorities lets both be believed for a while.
        let next = Authority::new("the next workers'");
        authorities.push_str(&next.certificate());
        replace_file(&tls.scratch.path().join("ca.pem"), &authorities);
        tls.issue_ours(&tls.authority);
        assert_eq!(fence.admin("POST", "/reload").await.status, 200);
        tls.change(&next, protocols);
        callers[0].until_sent(20).await;
        // So that connections begin by which the worker shows what it has now.
        tls.issue_ours(&tls.authority);
        assert_eq!(fence.admin("POST", "/reload").await.status, 200);
        callers[0].until_sent(20).await;
        assert!(fence.metric(reloads).await >= 2.0 * (round + 1) as f64);
    }
    for caller in callers {
        assert!(caller.stop().await.iter().all(|status| *status == 200));
    }
    ledger.check(&tls.worker);
    for version in [Version::HTTP_11, Version::HTTP_2] {
        assert!(tls.worker.seen().iter().any(|seen| seen.version == version), "{version:?}");
    }
    // What is of no use changes nothing.
    fs::write(tls.scratch.path().join("ours.key"), "no key").unwrap();
    fence.admin("POST", "/reload").await;
    fence.until_log("what was in force stays").await;
    assert_eq!(ask(&fence, &ledger, &holder).await, 200);
}

#[tokio::test]
async fn an_impostor_of_a_worker_gets_nothing_and_is_named() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let (store, tls, ledger) = (Store::of(&etcd).await, Tls::start(BOTH).await, Ledger::default());
    let holder = store.hold("/k", "shard-1").await;
    let config = tls.config(&etcd);
    let file = Written::new(&config.toml());
    let checks = async |code, says: &str| {
        let said = file.ask("check --live").await.ended(code).stdout;
        assert!(said.contains(says), "{said}");
    };
    checks(0, &format!("worker {}: accepts connections, picks HTTP/2", tls.worker.https())).await;
    tls.change(&tls.authority, &["http/1.1"]);
    checks(0, "accepts connections, picks HTTP/1.1").await;

    tls.change(&Authority::new("others"), BOTH);
    let says = "its certificate is not signed by an authority of upstream_tls.ca";
    checks(1, says).await;
    let fence = Fencepost::serve(&config).await;
    let answer = send(&fence.listener, &ledger, Ask::post("/").under(&holder)).await;
    assert_eq!(
        (answer.status, answer.text().contains(r#""forwarded":false"#)),
        (502, true),
        "{}",
        answer.text()
    );
    fence.until_log(says).await;
    assert_eq!(
        fence.admin_json("/locks//k").await["gate"]["at_worker"].as_array().map(Vec::len),
        Some(0)
    );

    // Ours is refused, and by TLS 1.3 that is said late.
    tls.change(&tls.authority, BOTH);
    tls.issue_ours(&Authority::new("others"));
    assert_eq!(fence.admin("POST", "/reload").await.status, 200);
    let says = "it refuses our certificate";
    checks(1, says).await;
    let answer = send(&fence.listener, &ledger, Ask::post("/").under(&holder)).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    fence.until_log(says).await;
    assert!(tls.worker.seen().is_empty());
}
