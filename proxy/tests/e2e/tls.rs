//! TLS in front: clients that others wrote, certificates that change under load, clients that
//! misbehave.

mod admin;
mod clients;
mod files;
mod handshakes;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;

use fencepost_tests::{
    Authority, Connection, Endpoint, Issued, Response, Scratch, Subject, Worker, replace_file,
};
use fencepost_tls::{ClientFiles, ClientTls, IdentityFiles};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::fencepost::Fencepost;
use crate::programs::run;

/// fencepost by TLS before a worker, every route off, and the files of both sides in one directory.
struct Scene {
    fence: Fencepost,
    worker: Worker,
    authority: Authority,
    files: Scratch,
}

/// The paths of the files in a directory, as they are used in a scene.
fn paths(files: &Scratch) -> impl Fn(&str) -> PathBuf {
    let directory = files.path().to_owned();
    move |name| directory.join(name)
}

/// `tls = { … }` with the certificate of a scene and more.
fn tls(files: &Scratch, more: &str) -> String {
    let path = paths(files);
    format!(
        "tls = {{ certificate = {:?}, key = {:?}{more} }}",
        path("server.pem"),
        path("server.key")
    )
}

/// With required client certificates and a revocation list.
fn clients_required(files: &Scratch) -> String {
    let path = paths(files);
    tls(files, &format!(", client_ca = {:?}, crl = {:?}", path("ca.pem"), path("crl.pem")))
}

fn toml(listener: &str, admin: &str, limits: &str, upstream: &Endpoint) -> String {
    format!(
        "threads = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n{admin}\n[[listener]]\naddress = \"127.0.0.1:0\"\n{listener}\n\
         [limits]\n{limits}\n[[route]]\nname = \"all\"\npath = \"/\"\nupstream = \"{upstream}\"\nmode = \"off\"\n"
    )
}

impl Scene {
    async fn open(listener: impl FnOnce(&Scratch) -> String) -> Scene {
        Scene::with_limits(listener, "").await
    }

    async fn with_limits(listener: impl FnOnce(&Scratch) -> String, limits: &str) -> Scene {
        let (authority, files) = pki();
        let worker = Worker::start().await;
        let fence =
            Fencepost::launch_text(&toml(&listener(&files), "", limits, worker.endpoint())).await;
        Scene { fence, worker, authority, files }
    }

    fn path(&self, name: &str) -> String {
        paths(&self.files)(name).to_str().unwrap().to_owned()
    }

    fn address(&self) -> SocketAddr {
        let Endpoint::Tcp(address) = self.fence.listener else { panic!("a TCP listener") };
        address
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address())
    }

    async fn curl(&self, arguments: &[&str]) -> Output {
        let ca = self.path("ca.pem");
        run("curl", &[&["-sS", "--cacert", &ca], arguments].concat()).await
    }

    /// A client's certificate, written as `NAME.pem` and `NAME.key`.
    fn issue_client(&self, name: &str) -> Issued {
        let issued =
            self.authority.issue(&Subject { common_name: Some(name), ..Subject::default() });
        issued.write(self.files.path(), name);
        issued
    }

    /// A client that believes the authority and has that certificate.
    fn client(&self, name: Option<&str>, alpn: &[&[u8]]) -> Arc<ClientConfig> {
        let path = paths(&self.files);
        let identity = name.map(|name| IdentityFiles {
            certificate: path(&format!("{name}.pem")),
            key: path(&format!("{name}.key")),
        });
        ClientTls::load(ClientFiles { ca: path("ca.pem"), crl: None, identity }, alpn)
            .unwrap()
            .config()
    }

    async fn connect(&self, client: &Arc<ClientConfig>) -> std::io::Result<TlsStream<TcpStream>> {
        connect(self.address(), client).await
    }

    /// The certificate that a new connection is shown.
    async fn shown(&self) -> CertificateDer<'static> {
        let stream = self.connect(&self.client(None, &[])).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
    }

    /// How many handshakes have failed for that reason.
    async fn failures(&self, reason: &str) -> f64 {
        let (address, of) = (self.address(), "fencepost_tls_handshake_failures_total");
        self.fence
            .metric(&format!("{of}{{name=\"{address}\",reason=\"{reason}\",use=\"listener\"}}"))
            .await
    }

    async fn reloads(&self, outcome: &str) -> f64 {
        let (address, of) = (self.address(), "fencepost_tls_reloads_total");
        self.fence
            .metric(&format!("{of}{{name=\"{address}\",outcome=\"{outcome}\",use=\"listener\"}}"))
            .await
    }
}

/// An authority, its certificate `ca.pem`, its empty `crl.pem`, and the certificate of a server.
fn pki() -> (Authority, Scratch) {
    let (authority, files) = (Authority::new("test authority"), Scratch::new());
    authority.issue_for_localhost().write(files.path(), "server");
    replace_file(&files.path().join("ca.pem"), &authority.certificate());
    replace_file(&files.path().join("crl.pem"), &authority.crl(&[]));
    (authority, files)
}

async fn connect(
    address: SocketAddr,
    client: &Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    TlsConnector::from(Arc::clone(client)).connect(ServerName::from(address.ip()), stream).await
}

/// Sends `GET /` and reads the answer.
async fn get(connection: &mut Connection) -> std::io::Result<Response> {
    connection.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
    connection.response().await
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
