//! A worker behind a network that breaks: what the kernel holds for it is never delivered once
//! another tenure may be there.

use fencepost_tests::{
    Answer, Authority, Behaviour, BodyEnd, Etcd, EtcdVersion, Latch, Network, Scratch, Subject,
    Worker, WorkerTls, eventually, replace_file,
};

use crate::fencepost::{Config, Fencepost, Route};
use crate::scene::{Ask, Ledger, Line, send};
use crate::store::{Store, Tenure};

/// What is spoken with the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoken {
    Http1,
    H2c,
    Http1OverTls,
    Http2OverTls,
}

use Spoken::{H2c, Http1, Http1OverTls, Http2OverTls};

/// fencepost before a worker on a host of its own.
struct CutScene<'n> {
    fence: Fencepost,
    config: Config,
    worker: Worker,
    store: Store,
    ledger: Ledger,
    network: &'n Network,
    _etcd: Etcd,
    _scratch: Scratch,
}

impl<'n> CutScene<'n> {
    async fn open(network: &'n Network, spoken: Spoken) -> CutScene<'n> {
        network.heal();
        let (scratch, authority) = (Scratch::new(), Authority::new("the worker's"));
        let identity =
            authority.issue(&Subject { names: &["worker.internal"], ..Subject::default() });
        let ca = scratch.path().join("ca.pem");
        replace_file(&ca, &authority.certificate());
        let tls = |protocols| WorkerTls { identity: &identity, client_ca: None, protocols };
        let listener = network.listen();
        let address = listener.local_addr().unwrap();
        let (worker, upstream) = match spoken {
            Http1 => (Worker::start_on(listener, None), format!("http://{address}")),
            H2c => (Worker::start_on(listener, None), format!("h2c://{address}")),
            Http1OverTls => (
                Worker::start_on(listener, Some(&tls(&["http/1.1"]))),
                format!("https://{address}"),
            ),
            Http2OverTls => {
                (Worker::start_on(listener, Some(&tls(&["h2"]))), format!("https://{address}"))
            }
        };
        let mut routed = Route::k()
            .with("upstream_timeout = \"1s\"\norphan_timeout = \"2s\"\nhandoff_timeout = \"30s\"");
        if upstream.starts_with("https:") {
            routed = routed.with(&format!(
                "upstream_tls = {{ ca = {ca:?}, server_name = \"worker.internal\" }}"
            ));
        }
        let etcd = Etcd::start(EtcdVersion::V3_5).await;
        let config = Config::new(&[etcd.endpoint()], &upstream, &[routed])
            .limit("upstream_idle_timeout = \"1m\"")
            .threads(1)
            .remembering_in(&scratch.path().join("state"));
        let store = Store::of(&etcd).await;
        let fence = Fencepost::serve(&config).await;
        let ledger = Ledger::default();
        CutScene { fence, config, worker, store, ledger, network, _etcd: etcd, _scratch: scratch }
    }

    async fn send(&self, path: &str, tenure: &Tenure) -> u16 {
        send(&self.fence.listener, &self.ledger, Ask::post(path).under(tenure)).await.status
    }

    async fn until_delivered(&self) {
        let delivered = async || (self.network.undelivered() == 0).then_some(());
        eventually("the kernel has nothing left to deliver", delivered).await;
    }

    /// Waits until nothing of an earlier tenure counts as at the worker.
    async fn until_left(&self) {
        let left = async || {
            let described = self.fence.admin_json("/locks//k").await;
            described["gate"]["at_worker"].as_array().expect("a list").is_empty().then_some(())
        };
        eventually("the worker is free", left).await;
    }

    /// Takes the lock for `b`, and returns once its first request has been answered by a worker
    /// that is in reach again.
    async fn is_taken_over(&self) {
        let successor = self.store.hold("/k", "b").await;
        self.until_left().await;
        assert_eq!(self.network.undelivered(), 0, "of what came before");
        self.network.heal();
        assert_eq!(self.send("/r2", &successor).await, 200);
    }

    /// The paths of all that has reached the worker.
    fn arrived(&self) -> Vec<String> {
        self.worker.seen().into_iter().map(|seen| seen.path).collect()
    }
}

#[test]
fn a_request_given_up_is_never_delivered() {
    Network::run("cut_network::a_request_given_up_is_never_delivered", async |network| {
        for spoken in [Http1, H2c, Http1OverTls, Http2OverTls] {
            let scene = CutScene::open(network, spoken).await;
            let holder = scene.store.hold("/k", "a").await;
            assert_eq!(scene.send("/before", &holder).await, 200);
            scene.network.cut();
            assert_eq!(scene.send("/r1", &holder).await, 504, "{spoken:?}");
            scene.is_taken_over().await;
            assert_eq!(scene.arrived(), ["/before", "/r2"], "{spoken:?}");
        }
    });
}

#[test]
fn a_killed_process_leaves_nothing_to_deliver() {
    Network::run("cut_network::a_killed_process_leaves_nothing_to_deliver", async |network| {
        for spoken in [Http1, H2c, Http2OverTls] {
            let mut scene = CutScene::open(network, spoken).await;
            let holder = scene.store.hold("/k", "a").await;
            assert_eq!(scene.send("/before", &holder).await, 200);
            scene.network.cut();
            let mut line = Line::open(&scene.fence.listener, &scene.ledger).await;
            line.begin(Ask::post("/r1").under(&holder)).await.unwrap();
            let written = async || (scene.network.undelivered() > 0).then_some(());
            eventually("R1 is with the kernel", written).await;
            scene.fence.kill();
            assert_eq!(scene.network.undelivered(), 0, "{spoken:?}");
            scene.network.heal();
            scene.fence = Fencepost::serve(&scene.config).await;
            let successor = scene.store.hold("/k", "b").await;
            assert_eq!(scene.send("/r2", &successor).await, 200);
            assert_eq!(scene.arrived(), ["/before", "/r2"], "{spoken:?}");
        }
    });
}

#[test]
fn a_stopped_process_delivers_nothing_after_its_time() {
    Network::run(
        "cut_network::a_stopped_process_delivers_nothing_after_its_time",
        async |network| {
            for spoken in [Http1, H2c] {
                let mut scene = CutScene::open(network, spoken).await;
                let holder = scene.store.hold("/k", "a").await;
                assert_eq!(scene.send("/before", &holder).await, 200);
                scene.network.cut();
                let mut line = Line::open(&scene.fence.listener, &scene.ledger).await;
                line.begin(Ask::post("/r1").under(&holder)).await.unwrap();
                let written = async || (scene.network.undelivered() > 0).then_some(());
                eventually("R1 is with the kernel", written).await;
                scene.fence.process().pause().await;
                scene.until_delivered().await;
                scene.fence.process().resume();
                scene.is_taken_over().await;
                assert_eq!(scene.arrived(), ["/before", "/r2"], "{spoken:?}");
            }
        },
    );
}

#[test]
fn an_upload_given_up_ends_with_its_connection() {
    Network::run("cut_network::an_upload_given_up_ends_with_its_connection", async |network| {
        for spoken in [Http1, H2c, Http1OverTls] {
            let scene = CutScene::open(network, spoken).await;
            scene.worker.on("/r1", Behaviour::ReadLate(Latch::new(), Answer::ok("never")));
            let holder = scene.store.hold("/k", "a").await;
            let mut line = Line::open(&scene.fence.listener, &scene.ledger).await;
            let head = format!(
                "POST /r1 HTTP/1.1\r\nHost: test\r\nFence-Owner: a\r\nFence-Revision: {}\r\nContent-Length: 10000000\r\n\r\n",
                holder.revision
            );
            line.connection().send(head).await.unwrap();
            line.connection().send(vec![b'x'; 100_000]).await.unwrap();
            scene.worker.wait_for(1).await;
            scene.network.cut();
            line.connection().send(vec![b'x'; 100_000]).await.unwrap();
            // fencepost may have given up before the client has sent all that it takes.
            let more = async { while line.connection().send(vec![b'x'; 100_000]).await.is_ok() {} };
            let given_up = async || {
                (scene.fence.metric("fencepost_orphans{route=\"k\"}").await > 0.0).then_some(())
            };
            tokio::select! {
                () = more => {}
                () = eventually("the upload is given up", given_up) => {}
            }
            if spoken != H2c {
                assert_eq!(scene.network.undelivered(), 0, "{spoken:?}");
            }
            scene.is_taken_over().await;
            // The worker itself may never learn that its connection is gone.
            assert_ne!(scene.worker.seen()[0].body_end, Some(BodyEnd::Whole), "{spoken:?}");
            assert_eq!(scene.arrived(), ["/r1", "/r2"], "{spoken:?}");
        }
    });
}

#[test]
fn a_tunnel_that_is_cut_delivers_nothing_later() {
    Network::run("cut_network::a_tunnel_that_is_cut_delivers_nothing_later", async |network| {
        for spoken in [Http1, Http1OverTls] {
            let scene = CutScene::open(network, spoken).await;
            scene.worker.on("/tunnel", Behaviour::UpgradeAndEcho);
            let holder = scene.store.hold("/k", "a").await;
            let mut line = Line::open(&scene.fence.listener, &scene.ledger).await;
            let head = format!(
                "GET /tunnel HTTP/1.1\r\nHost: test\r\nFence-Owner: a\r\nFence-Revision: {}\r\n\
                 Connection: upgrade\r\nUpgrade: websocket\r\n\r\n",
                holder.revision
            );
            line.connection().send(head).await.unwrap();
            assert_eq!(line.connection().head().await.unwrap().status, 101);
            scene.network.cut();
            line.connection().send("a frame that comes too late").await.unwrap();
            let written = async || (scene.network.undelivered() > 0).then_some(());
            eventually("the frame is with the kernel", written).await;
            scene.is_taken_over().await;
            assert_eq!(scene.arrived(), ["/tunnel", "/r2"], "{spoken:?}");
        }
    });
}
