//! An API server of Kubernetes, with an etcd of its own.

use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::etcd::Etcd;
use crate::etcd_version::EtcdVersion;
use crate::http::Connection;
use crate::patience::eventually;
use crate::pki::Authority;
use crate::port::FreePort;
use crate::process::Process;
use crate::scratch::Scratch;

/// Name the programs.
const SERVER: &str = "FENCEPOST_KUBE_APISERVER";
const ELECTOR: &str = "FENCEPOST_LEADER_ELECTOR";

/// The Leases of the namespace `default`.
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

/// A running API server. It is killed with this value.
#[derive(Debug)]
pub struct ApiServer {
    port: FreePort,
    process: Process,
    etcd: Etcd,
    client: Arc<ClientConfig>,
    connection: Mutex<Option<Connection>>,
    scratch: Scratch,
}

/// A Lease, as its holder reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRead {
    /// Who holds it; empty: nobody.
    pub holder: String,
    /// How often it has changed hands.
    pub transitions: u64,
    /// The number of its newest write.
    pub resource_version: u64,
}

impl ApiServer {
    /// Starts one and waits until it answers. `None`, with a word about that, where there is no
    /// program.
    pub async fn start() -> Option<ApiServer> {
        let program = program(SERVER)?;
        let scratch = Scratch::new();
        let etcd = Etcd::start(EtcdVersion::V3_4).await;
        let authority = Authority::new("kubernetes");
        let (certificate, key) = authority.issue_for_localhost().write(scratch.path(), "server");
        std::fs::write(scratch.path().join("ca.pem"), authority.certificate()).unwrap();
        let tokens = "admin-token,admin,admin,system:masters\nreader-token,reader,reader\ntok,elector,elector,system:masters\n";
        std::fs::write(scratch.path().join("tokens.csv"), tokens).unwrap();
        for who in ["admin", "reader"] {
            std::fs::write(scratch.path().join(who), format!("{who}-token\n")).unwrap();
        }
        let port = FreePort::reserve();
        let mut command = Command::new(program);
        let path = |name: &Path| name.to_str().unwrap().to_owned();
        let tokens = path(&scratch.path().join("tokens.csv"));
        for (option, value) in [
            ("--etcd-servers", etcd.endpoint()),
            ("--secure-port", port.number().to_string()),
            ("--bind-address", "127.0.0.1".to_owned()),
            ("--advertise-address", "127.0.0.1".to_owned()),
            ("--tls-cert-file", path(&certificate)),
            ("--tls-private-key-file", path(&key)),
            ("--service-account-issuer", "https://kubernetes.test".to_owned()),
            ("--service-account-signing-key-file", path(&key)),
            ("--service-account-key-file", path(&certificate)),
            ("--token-auth-file", tokens),
            ("--authorization-mode", "RBAC".to_owned()),
            ("--disable-admission-plugins", "ServiceAccount,NamespaceLifecycle".to_owned()),
            ("--endpoint-reconciler-type", "none".to_owned()),
            ("--service-cluster-ip-range", "10.0.0.0/24".to_owned()),
        ] {
            command.arg(format!("{option}={value}"));
        }
        let process = Process::start(&command, &scratch.path().join("log"));
        let server = ApiServer {
            port,
            process,
            etcd,
            client: trusting(&authority),
            connection: Mutex::default(),
            scratch,
        };
        eventually("the API server is ready", async || {
            let (status, _) = server.ask("GET", "/readyz", "").await?;
            (status == 200).then_some(())
        })
        .await;
        Some(server)
    }

    /// Where it listens, by TLS.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The file of its authority's certificate.
    pub fn authority_file(&self) -> PathBuf {
        self.scratch.path().join("ca.pem")
    }

    /// The file of the token of that user: `admin` may do all, `reader` nothing before
    /// [`ApiServer::permit_reader`].
    pub fn token_file(&self, user: &str) -> PathBuf {
        self.scratch.path().join(user)
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The etcd that it keeps its objects in.
    pub fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    /// Lets `reader` get and list Leases, and nothing else.
    pub async fn permit_reader(&self) {
        let rules = json!([{
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["get", "list"]
        }]);
        let api = "rbac.authorization.k8s.io";
        let role = json!({ "metadata": { "name": "leases" }, "rules": rules });
        let binding = json!({
            "metadata": { "name": "leases" },
            "roleRef": { "apiGroup": api, "kind": "ClusterRole", "name": "leases" },
            "subjects": [{ "apiGroup": api, "kind": "User", "name": "reader" }]
        });
        for (kind, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
            let path = format!("/apis/{api}/v1/{kind}");
            let (status, answer) = self.ask("POST", &path, &object.to_string()).await.unwrap();
            assert_eq!(status, 201, "{answer}");
        }
    }

    /// Status and answer of a request by `admin`; `None` without an answer.
    pub async fn ask(&self, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
        let kept = self.connection.lock().unwrap().take();
        let mut connection = match kept {
            Some(kept) => kept,
            None => {
                let stream = TcpStream::connect(self.address()).await.ok()?;
                let name = ServerName::try_from("localhost").unwrap();
                let connector = TlsConnector::from(Arc::clone(&self.client));
                Connection::over(connector.connect(name, stream).await.ok()?)
            }
        };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer admin-token\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        connection.send(format!("{head}{body}")).await.ok()?;
        let answer = connection.final_response().await.ok()?;
        *self.connection.lock().unwrap() = Some(connection);
        Some((answer.status, serde_json::from_slice(&answer.body).unwrap_or(Value::Null)))
    }

    /// A Lease, if it exists.
    pub async fn lease(&self, name: &str) -> Option<LeaseRead> {
        let (status, lease) = self.ask("GET", &format!("{LEASES}/{name}"), "").await?;
        (status == 200).then(|| read(&lease))
    }

    /// Writes a Lease for a holder, as client-go does: it changes hands unless it was this holder's
    /// already. An empty holder releases it.
    pub async fn hold(&self, name: &str, holder: &str) -> LeaseRead {
        let before = self.ask("GET", &format!("{LEASES}/{name}"), "").await.unwrap();
        let (method, path, mut lease) = match before {
            (200, lease) => ("PUT", format!("{LEASES}/{name}"), lease),
            _ => ("POST", LEASES.to_owned(), json!({ "metadata": { "name": name } })),
        };
        let is_new = method == "POST";
        let known = lease["spec"]["holderIdentity"].as_str().unwrap_or_default() == holder;
        let transitions = lease["spec"]["leaseTransitions"].as_u64().unwrap_or_default();
        let changes = !(is_new || known || holder.is_empty());
        // A write that changes nothing gets no number.
        let version = lease["metadata"]["resourceVersion"].as_str().unwrap_or("0").to_owned();
        lease["spec"] = json!({
            "holderIdentity": holder,
            "leaseDurationSeconds": 15,
            "leaseTransitions": transitions + u64::from(changes),
            "renewTime": format!("2026-01-01T00:00:00.{version:0>6}Z")
        });
        let (status, lease) = self.ask(method, &path, &lease.to_string()).await.unwrap();
        assert!(status == 200 || status == 201, "{status}: {lease}");
        read(&lease)
    }

    /// Deletes a Lease.
    pub async fn delete_lease(&self, name: &str) {
        let (status, answer) = self.ask("DELETE", &format!("{LEASES}/{name}"), "").await.unwrap();
        assert_eq!(status, 200, "{answer}");
    }

    /// An elector on client-go for the Lease `default/orders`, under that name. `None`, with a word
    /// about that, where there is no program.
    pub fn elector(&self, name: &str, ends: &str) -> Option<Process> {
        let mut command = Command::new(program(ELECTOR)?);
        command.args([&format!("https://{}", self.address()), name, ends]);
        Some(Process::start(&command, &self.scratch.path().join(format!("elector-{name}"))))
    }
}

fn read(lease: &Value) -> LeaseRead {
    let version = lease["metadata"]["resourceVersion"].as_str();
    LeaseRead {
        holder: lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned(),
        transitions: lease["spec"]["leaseTransitions"].as_u64().unwrap_or_default(),
        resource_version: version.and_then(|version| version.parse().ok()).expect("a number"),
    }
}

fn trusting(authority: &Authority) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let pem = authority.certificate();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Arc::new(config.unwrap().with_root_certificates(roots).with_no_client_auth())
}

fn program(variable: &str) -> Option<PathBuf> {
    let program = env::var_os(variable).map(PathBuf::from);
    if program.is_none() {
        println!("skipped: {variable} names no program");
    }
    program
}
