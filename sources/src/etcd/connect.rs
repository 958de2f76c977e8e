//! Making a client of one address.

use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions, Error};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Endpoint, Uri};
use tower::service_fn;

use super::access::EtcdTls;

/// How long a connection may take to come up.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// How often a connection that carries a watch is probed. etcd closes the connections of clients that probe it more often
/// than every 5 s.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(6);

/// How long the answer to such a probe may take.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Calls that have a deadline. They are not probed: etcd holds probes of connections without streams against a client.
    Calls,
    /// Watches. A member without a leader ends such a stream: it could only go on being silent.
    Watches,
}

/// A client of one address. Nothing is sent before it is used.
pub(super) async fn client(address: &str, tls: Option<&EtcdTls>, purpose: Purpose) -> Result<Client, Error> {
    let mut options = ConnectOptions::new().with_connect_timeout(CONNECT_TIMEOUT);
    if purpose == Purpose::Watches {
        options = options
            .with_require_leader(true)
            .with_keep_alive(KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT)
            .with_keep_alive_while_idle(false);
    }
    if !address.starts_with("https://") {
        return Client::connect([address], Some(options)).await;
    }
    let tls = tls.ok_or_else(|| Error::InvalidArgs(format!("{address} takes TLS")))?;
    Client::from_channel(Channel::Tonic(secure_channel(address, tls, purpose)?), Some(options)).await
}

/// A channel over TLS of our own making: the library's knows neither files that change nor revocation. Each connection is
/// made with what the files say then.
fn secure_channel(address: &str, tls: &EtcdTls, purpose: Purpose) -> Result<tonic::transport::Channel, Error> {
    let origin: Uri = address.parse()?;
    let host = origin.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = origin.port_u16().unwrap_or(443);
    let name = tls.server_name.clone().unwrap_or_else(|| host.clone());
    let name = ServerName::try_from(name).map_err(|error| Error::InvalidArgs(format!("{address}: {error}")))?;
    let client = tls.client.clone();
    let connector = service_fn(move |_: Uri| {
        let (config, name, host) = (client.config(), name.clone(), host.clone());
        async move {
            let stream = TcpStream::connect((host.as_str(), port)).await?;
            stream.set_nodelay(true)?;
            TlsConnector::from(config).connect(name, stream).await.map(TokioIo::new)
        }
    });
    // To the channel it is cleartext. It says in each request that it is not.
    let cleartext: Uri = address.replacen("https", "http", 1).parse()?;
    let mut endpoint = Endpoint::from(cleartext).origin(origin).connect_timeout(CONNECT_TIMEOUT);
    if purpose == Purpose::Watches {
        endpoint = endpoint
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(false);
    }
    Ok(endpoint.connect_with_connector_lazy(connector))
}
