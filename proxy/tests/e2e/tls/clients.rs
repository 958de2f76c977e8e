//! Who is served, by which protocols, and with which certificate.

use std::sync::Arc;

use fencepost_tests::{Authority, Behaviour, Connection, Issued, Subject, replace_file};
use rustls::HandshakeKind;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

use super::{Scene, clients_required, get, paths, text, tls};
use crate::programs::run;

#[tokio::test]
async fn curl_is_answered_by_both_versions_of_tls_and_of_http() {
    let scene = Scene::open(|files| tls(files, "")).await;
    for version in [&["--tlsv1.2", "--tls-max", "1.2"][..], &["--tlsv1.3"]] {
        for (http, spoken) in [("--http1.1", "1.1"), ("--http2", "2"), ("--no-alpn", "1.1")] {
            let url = scene.url("/");
            let asked = [http, "-o", "/dev/null", "-w", "%{http_code} %{http_version}", &url];
            let output = scene.curl(&[version, &asked].concat()).await;
            assert_eq!(text(&output), format!("200 {spoken}"), "{version:?}");
        }
    }
    for seen in scene.worker.wait_for(6).await {
        assert_eq!(seen.headers["x-forwarded-proto"], "https");
    }
}

/// openssl's `s_client`, whatever came of it.
async fn s_client(scene: &Scene, version: &str) -> String {
    let (address, ca) = (scene.address().to_string(), scene.path("ca.pem"));
    let lenient = "ALL:@SECLEVEL=0"; // Debian's own rules would not even offer the old ones.
    let arguments =
        ["s_client", "-connect", &address, "-CAfile", &ca, version, "-cipher", lenient, "-brief"];
    text(&run("openssl", &arguments).await)
}

#[tokio::test]
async fn old_versions_of_tls_are_refused() {
    let scene = Scene::open(|files| tls(files, "")).await;
    for old in ["-tls1", "-tls1_1"] {
        let said = s_client(&scene, old).await;
        assert!(
            said.contains("SSL alert number") && !said.contains("Protocol version:"),
            "{old}: {said}"
        );
    }
    let said = s_client(&scene, "-tls1_2").await;
    assert!(said.contains("Protocol version: TLSv1.2") && said.contains("ECDHE"), "{said}");
    assert_eq!(scene.failures("protocol").await, 2.0);

    let strict = Scene::open(|files| tls(files, ", min_version = \"1.3\"")).await;
    let said = s_client(&strict, "-tls1_2").await;
    assert!(said.contains("alert protocol version"), "{said}");
    let output = strict.curl(&["--tlsv1.3", &strict.url("/")]).await;
    assert!(output.status.success(), "{}", text(&output));
}

#[tokio::test]
async fn a_certificate_is_demanded_where_it_is_required() {
    let stranger = Authority::new("another authority")
        .issue(&Subject { common_name: Some("a"), ..Subject::default() });
    for (mode, without_is_served) in [("required", false), ("optional", true)] {
        let scene = Scene::open(|files| {
            let ca = paths(files)("ca.pem");
            tls(files, &format!(", client_ca = {ca:?}, client_certificates = {mode:?}"))
        });
        let scene = scene.await;
        scene.issue_client("shard-1");
        stranger.write(scene.files.path(), "stranger");
        let url = scene.url("/");
        for version in ["1.2", "1.3"] {
            let asked = ["--tls-max", version, "-o", "/dev/null", "-w", "%{http_code}", &url];
            let output = scene.curl(&asked).await;
            assert_eq!(
                output.status.success(),
                without_is_served,
                "{mode} {version}: {}",
                text(&output)
            );
            for (name, served) in [("shard-1", true), ("stranger", false)] {
                let [pem, key] = ["pem", "key"].map(|kind| scene.path(&format!("{name}.{kind}")));
                let shown = ["--cert", &pem, "--key", &key];
                let output = scene.curl(&[&shown, &asked[..]].concat()).await;
                let succeeds = output.status.success();
                assert_eq!(succeeds, served, "{mode} {version} {name}: {}", text(&output));
                // An alert that says so, and no connection that is just lost.
                assert!(served || text(&output).contains("unknown ca"), "{}", text(&output));
            }
        }
        let expected = if without_is_served { 2.0 } else { 4.0 };
        assert_eq!(scene.failures("certificate").await, expected, "{mode}");
    }
}

#[tokio::test]
async fn a_revoked_client_is_refused_although_it_was_served() {
    let scene = Scene::open(clients_required).await;
    let gone = scene.issue_client("gone");
    scene.issue_client("stays");
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        replace_crl(&scene, &[]).await;
        let (gone_client, stays_client) =
            (pinned(&scene, "gone", version), pinned(&scene, "stays", version));
        for client in [&gone_client, &stays_client] {
            for _ in 0..2 {
                let stream = scene.connect(client).await.unwrap();
                assert_eq!(stream.get_ref().1.handshake_kind(), Some(HandshakeKind::Full));
                let mut connection = Connection::over(stream);
                assert_eq!(get(&mut connection).await.unwrap().status, 200);
            }
        }
        replace_crl(&scene, &[&gone]).await;
        let served = async |client| match scene.connect(client).await {
            Ok(stream) => get(&mut Connection::over(stream)).await.is_ok(),
            Err(_) => false,
        };
        assert!(!served(&gone_client).await);
        assert!(served(&stays_client).await);
    }
}

async fn replace_crl(scene: &Scene, revoked: &[&Issued]) {
    replace_file(&paths(&scene.files)("crl.pem"), &scene.authority.crl(revoked));
    scene.fence.admin("POST", "/reload").await;
}

/// A client that speaks one version only, and keeps its sessions whatever becomes of its files.
fn pinned(
    scene: &Scene,
    name: &str,
    version: &'static SupportedProtocolVersion,
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(scene.path("ca.pem")).unwrap()).unwrap();
    let chain = vec![CertificateDer::from_pem_file(scene.path(&format!("{name}.pem"))).unwrap()];
    let key = PrivateKeyDer::from_pem_file(scene.path(&format!("{name}.key"))).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
    Arc::new(builder.with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap())
}

#[tokio::test]
async fn a_websocket_over_tls_passes_bytes_until_both_sides_end() {
    let scene = Scene::open(|files| tls(files, "")).await;
    scene.worker.on("/", Behaviour::UpgradeAndEcho);
    let mut client =
        Connection::over(scene.connect(&scene.client(None, &[b"http/1.1"])).await.unwrap());
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{upgrade}")).await.unwrap();
    assert_eq!(client.head().await.unwrap().status, 101);
    client.send("small").await.unwrap();
    assert_eq!(client.receive(5).await.unwrap(), b"small");
    let large = vec![b'x'; 100_000];
    client.send(&large).await.unwrap();
    // The client has ended its side, and still hears what the worker says.
    client.finish_sending().await.unwrap();
    assert_eq!(client.rest().await.unwrap(), large);
}

#[tokio::test]
async fn large_bodies_pass_both_ways_by_both_versions_of_http() {
    let scene = Scene::open(|files| tls(files, "")).await;
    scene.worker.on("/echo", Behaviour::Echo);
    let body: Vec<u8> = (0..5_000_000_u32).map(|index| index.to_be_bytes()[3] ^ 0x5a).collect();
    std::fs::write(scene.path("body"), &body).unwrap();
    let (url, upload, back) = (scene.url("/echo"), scene.path("body"), scene.path("back"));
    for http in ["--http1.1", "--http2"] {
        let output = scene.curl(&[http, "-T", &upload, "-o", &back, &url]).await;
        assert!(output.status.success(), "{http}: {}", text(&output));
        assert!(std::fs::read(&back).unwrap() == body, "{http}: something else came back");
    }
}
