//! Making a client of one address.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions, Error};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::lookup_host;
use tokio_rustls::TlsConnector;
use tonic::transport::{Endpoint, Uri};
use tower::service_fn;

use super::access::EtcdTls;
use crate::first_to_connect::first_to_connect;

/// How long a connection may take to come up. A call that needs it waits no longer than for an
/// answer, while the connection goes on: with TLS 1.2 it takes three round trips.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long one address of a name may say nothing until the next is tried as well: the least that
/// RFC 8305 (section 8) recommends, since the others, TLS and an answer have to come in time too.
const SILENCE_MAX: Duration = Duration::from_millis(100);

/// How often a connection that carries a watch is probed. etcd closes the connections of clients
/// that probe it more often than every 5 s.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(6);

/// How long the answer to such a probe may take.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Calls that have a deadline. They are not probed: etcd holds probes of connections without
    /// streams against a client.
    Calls,
    /// Watches. A member without a leader ends such a stream: it could only go on being silent.
    Watches,
}

/// Connects to one address.
pub(super) async fn connect(
    address: &str,
    tls: Option<&EtcdTls>,
    purpose: Purpose,
) -> Result<Client, Error> {
    let options = ConnectOptions::new().with_require_leader(purpose == Purpose::Watches);
    let channel = channel(address, tls, purpose, look_up).await?;
    Client::from_channel(Channel::Tonic(channel), Some(options)).await
}

async fn look_up(host: String, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok(lookup_host((host, port)).await?.collect())
}

/// A channel of our own making: the library's knows neither files that change nor revocation, and
/// connects with the first call, for as long as somebody waits for that. Each connection is made
/// with what the files say then, to an address that the name has then.
async fn channel<F>(
    address: &str,
    tls: Option<&EtcdTls>,
    purpose: Purpose,
    look_up: impl Fn(String, u16) -> F + Send + 'static,
) -> Result<tonic::transport::Channel, Error>
where
    F: Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
{
    let origin: Uri = address.parse()?;
    let is_secure = origin.scheme_str() == Some("https");
    let host = origin.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = origin.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
    let name = host.clone();
    let reach = move || {
        let found = look_up(host.clone(), port);
        async move {
            let stream =
                first_to_connect(found.await?, SILENCE_MAX, || Some(()), |_| Ok(())).await?;
            stream.set_nodelay(true)?;
            io::Result::Ok(stream)
        }
    };
    // To the channel it is cleartext either way. It says in each request what it is.
    let cleartext: Uri =
        if is_secure { address.replacen("https", "http", 1).parse()? } else { origin.clone() };
    let mut endpoint = Endpoint::from(cleartext)
        .origin(origin)
        .connect_timeout(CONNECT_TIMEOUT)
        // A call that is given up resets its stream, and h2 remembers 50 of those, for a second.
        // An answer that comes later counts as an error of etcd, and the count never falls: at
        // 1,024, after days, h2 would end the connection and every call on it.
        .http2_max_local_error_reset_streams(None);
    if purpose == Purpose::Watches {
        endpoint = endpoint
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(false);
    }
    if !is_secure {
        let connector = service_fn(move |_: Uri| {
            let reached = reach();
            async move { reached.await.map(TokioIo::new) }
        });
        return Ok(endpoint.connect_with_connector(connector).await?);
    }
    let tls = tls.ok_or_else(|| Error::InvalidArgs(format!("{address} takes TLS")))?;
    let name = tls.server_name.clone().unwrap_or(name);
    let name = ServerName::try_from(name)
        .map_err(|error| Error::InvalidArgs(format!("{address}: {error}")))?;
    let client = tls.client.clone();
    let connector = service_fn(move |_: Uri| {
        let (config, name, reached) = (client.config(), name.clone(), reach());
        async move { TlsConnector::from(config).connect(name, reached.await?).await.map(TokioIo::new) }
    });
    Ok(endpoint.connect_with_connector(connector).await?)
}

#[cfg(test)]
mod tests {
    use fencepost_tests::{Etcd, EtcdOptions, EtcdSecurity, EtcdVersion, Tokens};
    use fencepost_tls::{ClientFiles, ClientTls, IdentityFiles};

    use fencepost_tests::Relay;
    use futures_util::future::join_all;
    use tokio::time::timeout;

    use super::*;
    use crate::first_to_connect::tests::silent;

    /// All calls on a connection failed as `too_many_internal_resets`, twice in 24,000 handoffs.
    #[tokio::test]
    async fn calls_outlive_thousands_that_were_given_up() {
        let etcd = Etcd::start(EtcdVersion::V3_5).await;
        let relay = Relay::before(&etcd).await;
        let address = format!("http://{}", relay.address());
        let client = connect(&address, None, Purpose::Calls).await.unwrap();
        let get = async || client.kv_client().get("none", None).await;
        get().await.unwrap();
        relay.delay(Duration::from_millis(250)).await;
        for round in 0..5 {
            // etcd has answered, and the answers are on their way.
            let given_up = (0..600).map(|_| timeout(Duration::from_millis(450), get()));
            let (answered, _) = tokio::join!(get(), join_all(given_up));
            assert!(answered.is_ok(), "round {round}: {answered:?}");
        }
        assert_eq!(relay.accepted(), 1, "one connection had all calls");
    }

    /// One that dropped what was sent to it, as where IPv6 is broken or a member is down, kept etcd
    /// from being reached at all.
    #[tokio::test]
    async fn etcd_by_tls_is_reached_beside_silent_addresses() {
        let security = EtcdSecurity::new(Tokens::Simple(Duration::from_secs(300)));
        let options = EtcdOptions { security: Some(security.clone()), ..EtcdOptions::default() };
        let etcd = Etcd::start_with(EtcdVersion::V3_5, &options).await;
        let (certificate, key) = security.client();
        let files = ClientFiles {
            ca: security.ca(),
            crl: None,
            identity: Some(IdentityFiles { certificate, key }),
        };
        let tls = EtcdTls { client: ClientTls::load(files, &[b"h2"]).unwrap(), server_name: None };
        let works: SocketAddr = etcd.endpoint().trim_start_matches("https://").parse().unwrap();
        let (_one, first) = silent().await;
        let (_other, second) = silent().await;
        let look_up = move |host: String, port| async move {
            assert_eq!((host.as_str(), port), ("localhost", works.port()));
            Ok(vec![first, second, works])
        };
        let address = format!("https://localhost:{}", works.port());
        let channel = channel(&address, Some(&tls), Purpose::Calls, look_up).await.unwrap();
        let client = Client::from_channel(Channel::Tonic(channel), None).await.unwrap();
        client.kv_client().get("none", None).await.unwrap();
    }
}
