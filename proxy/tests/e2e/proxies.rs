//! Proxies before fencepost: whom it believes, where a request comes from then, and what the worker
//! gets.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use std::process::Command;

use fencepost_tests::{
    Connection, Endpoint, EtcdVersion, FreePort, Process, Response, Scratch, Seen, eventually,
};
use serde_json::Value;
use tokio::net::{TcpSocket, TcpStream};

use crate::fencepost::{Config, Route};
use crate::observed::lines_of;
use crate::scene::{Ask, Scene};
use crate::store::Tenure;

const TRUSTED: &str = r#"trusted_proxies = ["127.0.0.1", "10.0.0.0/8", "2001:db8::/32"]"#;

/// A fencepost behind proxies, with an access log.
struct Front {
    scene: Scene,
    tenure: Tenure,
    scratch: Scratch,
}

/// What came of a request.
struct Asked {
    answer: Response,
    /// Its line in the access log.
    line: Value,
    /// What the worker got.
    seen: Seen,
}

impl Front {
    /// With these lines of its listener.
    async fn with(listener: &str) -> Front {
        Front::configured(&Route::k(), |config| config.listener(listener)).await
    }

    async fn configured(route: &Route, more: impl FnOnce(Config) -> Config) -> Front {
        let scratch = Scratch::new();
        let log = format!("[access_log]\npath = {:?}", scratch.path().join("log"));
        let routes = std::slice::from_ref(route);
        let scene =
            Scene::with(EtcdVersion::V3_5, routes, |config| more(config.section(&log))).await;
        let tenure = scene.store.hold("/k", "shard-1").await;
        Front { scene, tenure, scratch }
    }

    fn log(&self) -> PathBuf {
        self.scratch.path().join("log")
    }

    fn head(&self, fields: &str) -> String {
        let Tenure { owner, revision } = &self.tenure;
        format!(
            "GET / HTTP/1.1\r\nHost: own.example\r\nFence-Owner: {owner}\r\nFence-Revision: {revision}\r\n{fields}\r\n"
        )
    }

    /// Connects from `127.0.0.LAST`, or to a unix socket.
    async fn connect(&self, last: u8) -> Connection {
        let Endpoint::Tcp(address) = &self.scene.fence.listener else {
            return Connection::open(self.scene.fence.listener.clone()).await.unwrap();
        };
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
        Connection::over(socket.connect(*address).await.unwrap())
    }

    /// Sends these fields from `127.0.0.LAST`.
    async fn ask(&self, last: u8, fields: &str) -> Asked {
        self.ask_over(self.connect(last).await, fields).await
    }

    async fn ask_over(&self, mut connection: Connection, fields: &str) -> Asked {
        let before = lines_of(&self.log()).len();
        connection.send(self.head(fields)).await.unwrap();
        let answer = connection.final_response().await.unwrap();
        let logged = async || lines_of(&self.log()).into_iter().nth(before);
        let line = eventually("the line is written", logged).await;
        let seen = self.scene.worker.seen().pop().expect("the worker got the request");
        Asked { answer, line, seen }
    }
}

impl Asked {
    /// The client in the log, without its port.
    fn client(&self) -> String {
        let client = self.line["client"].as_str().unwrap();
        client.parse().map_or(client.to_owned(), |address: SocketAddr| address.ip().to_string())
    }

    /// What the worker got of these fields.
    fn got<const N: usize>(&self, names: [&str; N]) -> [Option<&str>; N] {
        names.map(|name| self.seen.header(name))
    }
}

const FIELDS: [&str; 4] = ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "forwarded"];

#[tokio::test]
async fn x_forwarded_of_a_trusted_proxy_is_believed() {
    let front = Front::with(TRUSTED).await;
    let own = "own.example";
    for (fields, client, [way, scheme, host]) in [
        ("", "127.0.0.1", ["127.0.0.1", "http", own]),
        (
            "X-Forwarded-For: 203.0.113.7\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: shop.example:8443\r\nForwarded: for=192.0.2.9\r\n",
            "203.0.113.7",
            ["203.0.113.7, 127.0.0.1", "https", "shop.example:8443"],
        ),
        // All lines, from the right while the hop is trusted.
        (
            "X-Forwarded-For: 192.0.2.1,203.0.113.7\r\nX-Forwarded-Proto: HTTPS\r\nX-Forwarded-For: 10.1.2.3\r\nX-Forwarded-For: 2001:db8::9\r\n",
            "203.0.113.7",
            ["192.0.2.1,203.0.113.7, 10.1.2.3, 2001:db8::9, 127.0.0.1", "https", own],
        ),
        ("X-Forwarded-For: 10.0.0.1\r\n", "10.0.0.1", ["10.0.0.1, 127.0.0.1", "http", own]),
        // Ports, brackets, addresses of IPv4 in IPv6.
        (
            "X-Forwarded-For: 203.0.113.7:4711\r\n",
            "203.0.113.7",
            ["203.0.113.7:4711, 127.0.0.1", "http", own],
        ),
        (
            "X-Forwarded-For: [2001:db9::1]:4711\r\n",
            "2001:db9::1",
            ["[2001:db9::1]:4711, 127.0.0.1", "http", own],
        ),
        (
            "X-Forwarded-For: [2001:db9::1]\r\n",
            "2001:db9::1",
            ["[2001:db9::1], 127.0.0.1", "http", own],
        ),
        (
            "X-Forwarded-For: 203.0.113.7, ::ffff:10.0.0.1\r\n",
            "203.0.113.7",
            ["203.0.113.7, ::ffff:10.0.0.1, 127.0.0.1", "http", own],
        ),
        // What has no address ends the walk.
        (
            "X-Forwarded-For: unknown\r\nX-Forwarded-Proto: wss\r\n",
            "127.0.0.1",
            ["unknown, 127.0.0.1", "https", own],
        ),
        (
            "X-Forwarded-For: 203.0.113.7, _a, 10.0.0.1\r\n",
            "10.0.0.1",
            ["203.0.113.7, _a, 10.0.0.1, 127.0.0.1", "http", own],
        ),
        (
            "X-Forwarded-For: 203.0.113.7, , 10.0.0.1\r\n",
            "10.0.0.1",
            ["203.0.113.7, , 10.0.0.1, 127.0.0.1", "http", own],
        ),
        (
            "X-Forwarded-For: 203.0.113.7, \"10.0.0.1\r\n",
            "127.0.0.1",
            ["203.0.113.7, \"10.0.0.1, 127.0.0.1", "http", own],
        ),
        (
            "X-Forwarded-For: 203.0.113.7:x y\r\n",
            "127.0.0.1",
            ["203.0.113.7:x y, 127.0.0.1", "http", own],
        ),
        (
            "X-Forwarded-For: 203.0.113.300\r\n",
            "127.0.0.1",
            ["203.0.113.300, 127.0.0.1", "http", own],
        ),
        ("X-Forwarded-For:\r\n", "127.0.0.1", ["127.0.0.1", "http", own]),
        // Of several schemes, that of the client counts.
        (
            "X-Forwarded-For: 203.0.113.7, 10.0.0.1\r\nX-Forwarded-Proto: https, http\r\n",
            "203.0.113.7",
            ["203.0.113.7, 10.0.0.1, 127.0.0.1", "https", own],
        ),
        (
            "X-Forwarded-For: 203.0.113.7\r\nX-Forwarded-Proto: https, http\r\n",
            "203.0.113.7",
            ["203.0.113.7, 127.0.0.1", "http", own],
        ),
        // What is no scheme, and no host.
        (
            "X-Forwarded-Proto: ftp\r\nX-Forwarded-Host: a/b\r\n",
            "127.0.0.1",
            ["127.0.0.1", "http", own],
        ),
    ] {
        let asked = front.ask(1, fields).await;
        assert_eq!((asked.answer.status, &*asked.client()), (200, client), "{fields}");
        assert_eq!(asked.got(FIELDS), [Some(way), Some(scheme), Some(host), None], "{fields}");
    }
    front.scene.finish().await;
}

#[tokio::test]
async fn forwarded_of_a_trusted_proxy_is_believed() {
    let front = Front::with(&format!("{TRUSTED}\nforwarded = \"rfc7239\"")).await;
    let (plain, secure) = (
        "for=127.0.0.1;host=\"own.example\";proto=http",
        "for=127.0.0.1;host=\"own.example\";proto=https",
    );
    let shop = "for=127.0.0.1;host=\"shop.example\";proto=https";
    for (said, client, added) in [
        ("for=203.0.113.7;proto=https;host=shop.example", "203.0.113.7", shop),
        ("For=\"[2001:db9::1]:4711\" ; Proto=https", "2001:db9::1", secure),
        ("for=203.0.113.7;by=_b;ext=\"a,b;for=192.0.2.1\"", "203.0.113.7", plain),
        ("for=192.0.2.1, for=203.0.113.7;proto=https, for=\"10.0.0.1:_p\"", "203.0.113.7", secure),
        ("for=203.0.113.7, for=_hidden;proto=https, for=10.0.0.1;proto=http", "10.0.0.1", secure),
        ("for=unknown;proto=https", "127.0.0.1", secure),
        ("for=203.0.113.7, proto=https", "127.0.0.1", secure),
        ("for=\"203.0.113.7, for=10.0.0.1", "127.0.0.1", plain),
        ("203.0.113.7", "127.0.0.1", plain),
        ("for=203.0.113.7;ext=\"a\\\"b\\\"\";proto=https", "203.0.113.7", secure),
    ] {
        let fields =
            format!("Forwarded: {said}\r\nX-Forwarded-For: 192.0.2.9\r\nX-Forwarded-Port: 1\r\n");
        let asked = front.ask(1, &fields).await;
        assert_eq!(asked.client(), client, "{said}");
        // Open quotes would hide what is added.
        let has_open_quotes = said.matches('"').count() % 2 == 1;
        let way = if has_open_quotes { added.to_owned() } else { format!("{said}, {added}") };
        assert_eq!(asked.got(FIELDS), [None, None, None, Some(&*way)]);
        assert_eq!(asked.got(["x-forwarded-port"]), [None]);
    }
    front.scene.finish().await;
}

#[tokio::test]
async fn forwarded_fields_of_others_are_replaced() {
    let fields = "X-Forwarded-For: 203.0.113.7\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: liar\r\nX-Forwarded-Port: 1\r\n\
                  Forwarded: for=203.0.113.7;proto=https\r\nForwarded: for=10.0.0.1\r\n";
    for (family, expected) in [
        ("x-forwarded", [Some("127.0.0.2"), Some("http"), Some("own.example"), None]),
        ("rfc7239", [None, None, None, Some("for=127.0.0.2;host=\"own.example\";proto=http")]),
    ] {
        let front = Front::with(&format!("{TRUSTED}\nforwarded = {family:?}")).await;
        let asked = front.ask(2, fields).await;
        assert_eq!(asked.client(), "127.0.0.2");
        assert_eq!(asked.got(FIELDS), expected);
        assert_eq!(asked.got(["x-forwarded-port"]), [None]);
    }
}

#[tokio::test]
async fn peer_of_a_unix_socket_is_trusted_where_a_key_says_so() {
    let fields = "X-Forwarded-For: 203.0.113.7\r\nX-Forwarded-Proto: https\r\n";
    for (line, client, scheme) in
        [("forwarded = \"x-forwarded\"", "203.0.113.7", "https"), ("", "unix", "http")]
    {
        let scratch = Scratch::new();
        let address = format!("unix:{}", scratch.path().join("s").display());
        let with = |config: Config| config.listening_on(&address).listener(line);
        let front = Front::configured(&Route::k(), with).await;
        let asked = front.ask(1, fields).await;
        assert_eq!(asked.client(), client);
        let expected = [Some("203.0.113.7"), Some(scheme), Some("own.example"), None];
        assert_eq!(asked.got(FIELDS), expected);
    }
}

#[tokio::test]
async fn no_forwarded_host_leads_past_a_route_with_a_host() {
    for family in ["x-forwarded", "rfc7239"] {
        let route = Route::k().with("host = \"own.example\"");
        let lines = format!("{TRUSTED}\nforwarded = {family:?}");
        let front = Front::configured(&route, |config| config.listener(&lines)).await;
        let fields =
            "X-Forwarded-Host: other.example\r\nForwarded: for=203.0.113.7;host=other.example\r\n";
        let asked = front.ask(1, fields).await;
        assert_eq!(asked.line["route"], "k", "the route goes by Host");
        assert!(!format!("{:?}", asked.seen.headers).contains("other.example"), "{family}");
        let refused =
            front.scene.send(Ask::post("/").header("X-Forwarded-Host", "own.example")).await;
        assert_eq!(refused.status, 404, "nor does a field lead to it");
    }
}

#[tokio::test]
async fn a_decision_names_the_client_of_a_trusted_proxy() {
    let front = Front::with(TRUSTED).await;
    for (forwarded, client) in [("203.0.113.7", "203.0.113.7"), ("2001:db9::1", "2001:db9::1")] {
        let refused = front.scene.send(Ask::post("/").header("X-Forwarded-For", forwarded)).await;
        assert_eq!(refused.status, 428);
        assert_eq!(front.scene.decision(&refused).await["client"], client);
        let found = front.scene.fence.admin_json(&format!("/decisions?client={client}")).await;
        assert_eq!(found["decisions"].as_array().map(Vec::len), Some(1), "{found}");
    }
}

#[tokio::test]
async fn trusted_proxies_have_a_limit_of_requests_per_client() {
    let front = Front::configured(&Route::k(), |config| {
        config
            .listener(TRUSTED)
            .limit("connections_per_client_max = 1\nrequests_per_client_max = 2")
    })
    .await;
    let of =
        |client: &str| Ask::post("/held").under(&front.tenure).header("X-Forwarded-For", client);
    let quick =
        |client: &str| Ask::post("/").under(&front.tenure).header("X-Forwarded-For", client);
    let latch = front.scene.worker.holds("/held");
    let held = [front.scene.start(of("203.0.113.7")), front.scene.start(of("203.0.113.7"))];
    let both = |seen: &[Seen]| seen.iter().filter(|one| one.path == "/held").count() == 2;
    front.scene.worker.wait_until("both are at the worker", both).await;
    let refused = front.scene.send(quick("203.0.113.7")).await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert!(refused.text().contains("too-many-requests"), "{}", refused.text());
    assert_eq!(front.scene.send(quick("203.0.113.8")).await.status, 200, "another client's");
    latch.open();
    for held in held {
        assert_eq!(held.await.unwrap().status, 200);
    }
    eventually("its places are free", async || {
        (front.scene.send(quick("203.0.113.7")).await.status == 200).then_some(())
    })
    .await;
    // Others have the limit of connections, and none of requests.
    let mut first = front.connect(2).await;
    first.send(front.head("")).await.unwrap();
    assert_eq!(first.response().await.unwrap().status, 200);
    assert_eq!(front.connect(2).await.rest().await.unwrap(), b"", "one too many");
}

#[tokio::test]
async fn request_id_comes_of_a_trusted_proxy_or_is_made() {
    let front = Front::with(TRUSTED).await;
    let (longest, long) = ("~".repeat(128), "~".repeat(129));
    let mut made = Vec::new();
    for (last, fields, given) in [
        (1, format!("X-Request-Id: {longest}\r\n"), Some(longest.as_str())),
        (
            1,
            "X-Request-ID: 7\r\nConnection: x-request-id\r\nX_Request_Id: 8\r\n".to_owned(),
            Some("7"),
        ),
        (1, format!("X-Request-Id: {long}\r\n"), None),
        (1, "X-Request-Id: a b\r\n".to_owned(), None),
        (1, "X-Request-Id: \u{e9}\r\n".to_owned(), None),
        (1, "X-Request-Id: 7\r\nX-Request-Id: 7\r\n".to_owned(), None),
        (1, "X-Request-Id:\r\n".to_owned(), None),
        (1, String::new(), None),
        (2, "X-Request-Id: 7\r\n".to_owned(), None),
    ] {
        let asked = front.ask(last, &fields).await;
        let [id, folded] = asked.got(["x-request-id", "x_request_id"]);
        let id = id.expect("each request has one");
        assert_eq!((asked.line["request_id"].as_str(), folded), (Some(id), None), "{fields}");
        match given {
            Some(given) => assert_eq!(id, given),
            None => made.push(id.to_owned()),
        }
    }
    let count = made.len();
    made.sort();
    made.dedup();
    assert_eq!(made.len(), count, "{made:?}");
    assert!(made.iter().all(|id| id != "7" && id != &long), "{made:?}");
    let refused = front.scene.send(Ask::post("/").header("X-Request-Id", "r-1")).await;
    assert_eq!(front.scene.decision(&refused).await["request_id"], "r-1");
    front.scene.fence.has_logged("request_id=\"r-1\"");
}

/// A header of version 2 with that command, family and rest.
fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[0x20 | command, family], &length[..], rest].concat()
}

/// Addresses of IPv4 with their ports: `192.0.2.200`, and the client before it.
fn v4(client: [u8; 4]) -> Vec<u8> {
    [&client[..], &[192, 0, 2, 200], &[0x12, 0x67][..], &[0, 80]].concat()
}

const REQUIRED: &str = "proxy_protocol = \"required\"";

#[tokio::test]
async fn proxy_protocol_names_the_client() {
    let front = Front::with(&format!("{TRUSTED}\n{REQUIRED}")).await;
    let v6 = [&[0x20, 1, 0xd, 0xb9][..], &[0; 11], &[1], &[0; 16], &[1, 2, 3, 4]].concat();
    let with_tlv =
        [v4([203, 0, 113, 7]), vec![0x20, 0, 8, 7, 0, 0, 0, 0, 1, 0, 0], vec![4, 0, 0]].concat();
    let long = [v4([203, 0, 113, 7]), [vec![4, 0xf, 0xe1], vec![0; 0xfe1]].concat()].concat();
    for (header, client, is_believed) in [
        (b"PROXY TCP4 203.0.113.7 192.0.2.200 4711 80\r\n".to_vec(), "203.0.113.7", false),
        (b"PROXY TCP6 2001:db9::1 2001:db9::2 4711 80\r\n".to_vec(), "2001:db9::1", false),
        (b"PROXY TCP4 10.0.0.1 192.0.2.200 4711 80\r\n".to_vec(), "192.0.2.77", true),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1", false),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(), "127.0.0.1", false),
        (v2(1, 0x11, &v4([203, 0, 113, 7])), "203.0.113.7", false),
        (v2(1, 0x11, &v4([10, 0, 0, 1])), "192.0.2.77", true),
        (v2(1, 0x21, &v6), "2001:db9::1", false),
        (v2(1, 0x11, &with_tlv), "203.0.113.7", false),
        (v2(1, 0x11, &long), "203.0.113.7", false),
        (v2(0, 0, b""), "192.0.2.77", true),
        (v2(0, 0x11, &v4([203, 0, 113, 7])), "192.0.2.77", true),
        (v2(1, 0, b""), "127.0.0.1", false),
        (v2(1, 0x31, &[b'/'; 216]), "127.0.0.1", false),
    ] {
        let what = String::from_utf8_lossy(&header[..header.len().min(60)]).into_owned();
        let mut connection = front.connect(1).await;
        connection.send(&header).await.unwrap();
        let fields = "X-Forwarded-For: 192.0.2.77\r\nX-Forwarded-Proto: https\r\n";
        let asked = front.ask_over(connection, fields).await;
        assert_eq!((asked.answer.status, &*asked.client()), (200, client), "{what:?}");
        let scheme = if is_believed { "https" } else { "http" };
        assert_eq!(asked.got(["x-forwarded-proto"]), [Some(scheme)], "{what:?}");
        assert_eq!(asked.line["peer"], Value::Null);
    }
    front.scene.finish().await;
}

#[tokio::test]
async fn a_connection_without_its_proxy_header_is_closed() {
    let front = Front::with(&format!("{TRUSTED}\n{REQUIRED}")).await;
    let too_long = v2(1, 0x11, &[0; 4081]);
    let (none, broken) = ("no PROXY header on a listener", "a broken PROXY header");
    for (last, bytes, why) in [
        (1, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(), none),
        (1, b"\x16\x03\x01\x02\0\x01\0\x01\0\0\0\0\0\0\0".to_vec(), none),
        (1, b"PROXY TCP4 203.0.113.7 192.0.2.200 4711\r\n".to_vec(), broken),
        (1, b"PROXY TCP4 203.0.113.300 192.0.2.200 1 2\r\n".to_vec(), broken),
        (1, [b"PROXY TCP4 ".to_vec(), vec![b'1'; 200]].concat(), broken),
        (1, v2(1, 0x11, &[0; 4]), broken),
        (1, v2(2, 0x11, &v4([203, 0, 113, 7])), broken),
        (1, too_long, "a PROXY header of more than 4 KiB"),
        (1, b"PROXY TCP4 203".to_vec(), "no whole PROXY header within 2 s"),
        (2, v2(1, 0x11, &v4([203, 0, 113, 7])), "a peer that is not in trusted_proxies"),
    ] {
        let before = front.scene.fence.log().matches(why).count();
        let mut connection = front.connect(last).await;
        // The other side may have closed by then.
        let _ = connection.send(&bytes).await;
        assert_eq!(connection.rest().await.unwrap_or_default(), b"", "{why}");
        eventually(&format!("{why:?} in the log"), async || {
            (front.scene.fence.log().matches(why).count() > before).then_some(())
        })
        .await;
    }
    drop(front.connect(1).await); // A health check.
    assert_eq!(front.scene.worker.seen().len(), 0);
}

#[tokio::test]
async fn proxy_protocols_clients_have_the_limit_of_connections() {
    let limit = "connections_per_client_max = 1";
    let lines = format!("{TRUSTED}\n{REQUIRED}");
    let front = Front::configured(&Route::k(), |config| config.listener(&lines).limit(limit)).await;
    let of = async |client: u8| {
        let mut connection = front.connect(1).await;
        connection.send(v2(1, 0x11, &v4([203, 0, 113, client]))).await.unwrap();
        connection.send(front.head("")).await.unwrap();
        (connection.response().await.map(|answer| answer.status).ok(), connection)
    };
    let (first, _kept) = of(7).await;
    assert_eq!([first, of(8).await.0], [Some(200); 2]);
    assert_eq!(of(7).await.0, None, "one too many");
    assert_eq!(front.scene.fence.metric("fencepost_connections_refused_total").await, 1.0);
}

#[tokio::test]
async fn haproxy_names_its_clients_either_way() {
    for version in ["send-proxy", "send-proxy-v2"] {
        let front = Front::with(&format!("{TRUSTED}\n{REQUIRED}")).await;
        let Endpoint::Tcp(to) = front.scene.fence.listener else { panic!("it listens on TCP") };
        let (port, scratch) = (FreePort::reserve(), Scratch::new());
        let file = scratch.path().join("haproxy.cfg");
        let text = format!(
            "defaults\n mode http\n timeout connect 5s\n timeout client 30s\n timeout server 30s\n\
             frontend in\n bind {}\n option forwardfor\n http-request set-header X-Forwarded-Proto https\n default_backend out\n\
             backend out\n server fence {to} {version}\n",
            port.address()
        );
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new("/usr/sbin/haproxy");
        command.arg("-db").arg("-f").arg(&file);
        let _haproxy = Process::start(&command, &scratch.path().join("log"));
        let connect = async |last: u8| {
            eventually("HAProxy listens", async || {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
                let stream: Option<TcpStream> = socket.connect(port.address()).await.ok();
                stream.map(Connection::over)
            })
            .await
        };
        for (last, scheme) in [(1, "https"), (9, "http")] {
            let asked = front.ask_over(connect(last).await, "").await;
            assert_eq!((asked.answer.status, asked.client()), (200, format!("127.0.0.{last}")));
            assert_eq!(asked.got(["x-forwarded-proto"]), [Some(scheme)], "{version}");
        }
    }
}
