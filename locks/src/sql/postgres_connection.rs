//! A connection to PostgreSQL: one statement after the other, each in a transaction of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, CancelToken, Client, Config, Connection, Error, NoTls, Row};

use super::postgres::PostgresTls;
use super::postgres_tls::Connector;
use super::{NOT_THE_PRIMARY, SqlLogin};
use crate::first_to_connect::first_to_connect;
use crate::store::StoreError;

/// How long an address may be silent before the next one is tried beside it.
const SILENCE_MAX: Duration = Duration::from_millis(100);

/// How long the barrier may take: as long as the standbys need to write it down.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(1);

/// How long it may take to call off a barrier.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// A write that is over when the standbys have it, and nothing but that. A standby can't write.
const BARRIER: &str = "SELECT CASE WHEN pg_is_in_recovery() THEN NULL \
    ELSE pg_logical_emit_message(true, 'fencepost', '')::text END IS NULL, \
    current_setting('synchronous_standby_names'), current_setting('synchronous_commit')";

/// Whether this user may read which history of the server it is.
const HAS_LINEAGE: &str = "SELECT coalesce(has_function_privilege(\
    to_regprocedure('pg_control_system()')::oid, 'EXECUTE'), false)";

/// What happens on a connection beside the answers to its statements.
pub(super) trait Aside: Send + 'static {
    /// A message on a channel that is listened to.
    fn notified(&self, payload: &str);
}

/// A connection. It is closed with this value, whatever is under way on it.
pub(super) struct PostgresConnection {
    client: Client,
    /// Whether the server has warned of something since this was last looked at.
    has_warned: Arc<AtomicBool>,
    address: SocketAddr,
    tls: Option<PostgresTls>,
    /// Waits for answers as long as there may be one, which can be for ever.
    task: AbortHandle,
}

impl Drop for PostgresConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl PostgresConnection {
    /// Connects and logs in.
    pub(super) async fn open(
        login: &SqlLogin,
        tls: Option<&PostgresTls>,
        aside: impl Aside,
    ) -> Result<PostgresConnection, StoreError> {
        let mut config = Config::new();
        config.user(&login.user).dbname(&login.database).application_name("fencepost");
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        if let Some(password) = login.password().await? {
            config.password(password);
        }
        let addresses = lookup_host((login.host.as_str(), login.port))
            .await
            .map_err(|error| login.unavailable(error))?;
        let stream = first_to_connect(addresses, SILENCE_MAX, || Some(()), |_| Ok(()))
            .await
            .map_err(|error| login.unavailable(error))?;
        let prepared = stream.set_nodelay(true).and_then(|()| stream.peer_addr());
        let address = prepared.map_err(|error| login.unavailable(error))?;
        let has_warned = Arc::new(AtomicBool::new(false));
        let warned = Arc::clone(&has_warned);
        let (client, task) = match tls {
            None => {
                let connected = config.connect_raw(stream, NoTls).await;
                let (client, connection) = connected.map_err(|error| failure(login, &error))?;
                (client, tokio::spawn(follow(connection, warned, aside)))
            }
            Some(tls) => {
                let connector = tls.for_host(&login.host).connector()?;
                let connected = config.connect_raw(stream, connector).await;
                let (client, connection) = connected.map_err(|error| failure(login, &error))?;
                (client, tokio::spawn(follow(connection, warned, aside)))
            }
        };
        let tls = tls.map(|tls| tls.for_host(&login.host));
        Ok(PostgresConnection { client, has_warned, address, tls, task: task.abort_handle() })
    }

    /// Whether the server has closed it.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Has messages on a channel told aside.
    pub(super) async fn listen(&self, login: &SqlLogin, channel: &str) -> Result<(), StoreError> {
        let listen = format!("LISTEN \"{}\"", channel.replace('"', "\"\""));
        self.client.batch_execute(&listen).await.map_err(|error| failure(login, &error))
    }

    /// Whether this user may read which history of the server it is.
    pub(super) async fn has_lineage(&self, login: &SqlLogin) -> Result<bool, StoreError> {
        let row = self.client.query_typed_one(HAS_LINEAGE, &[]).await;
        row.and_then(|row| row.try_get(0)).map_err(|error| failure(login, &error))
    }

    /// Runs a statement with a list of keys for its one parameter.
    pub(super) async fn query(
        &self,
        login: &SqlLogin,
        statement: &str,
        keys: &[&str],
    ) -> Result<Vec<Row>, StoreError> {
        let rows = self.client.query_typed(statement, &[(&keys, Type::TEXT_ARRAY)]).await;
        rows.map_err(|error| failure(login, &error))
    }

    /// Completes when standbys have a write that began now. A primary that has lost its standbys to
    /// another one never gets there.
    pub(super) async fn barrier(&self, login: &SqlLogin) -> Result<(), StoreError> {
        self.has_warned.store(false, Ordering::Relaxed);
        let mut write = CallOff(Some((self.client.cancel_token(), self.address, self.tls.clone())));
        let written = timeout(BARRIER_TIMEOUT, self.client.query_typed_one(BARRIER, &[])).await;
        let Ok(written) = written else {
            write.call_off().await;
            return Err(login.unavailable(format_args!(
                "no standby has confirmed the barrier within {BARRIER_TIMEOUT:?}: this is not the primary any more, or its standbys \
                 are away"
            )));
        };
        write.is_over();
        let row = written.map_err(|error| failure(login, &error))?;
        let read = |column| row.try_get::<_, &str>(column).map_err(|error| failure(login, &error));
        if row.try_get(0).map_err(|error| failure(login, &error))? {
            return Err(login.unavailable(NOT_THE_PRIMARY));
        }
        let (standbys, commit) = (read(1)?, read(2)?);
        if standbys.is_empty() || ["off", "local"].contains(&commit) {
            return Err(StoreError::Refused(
                format!(
                    "barrier = true needs synchronous replication, and there is none (synchronous_standby_names is {standbys:?}, \
                     synchronous_commit is {commit:?}): set it up for user {:?}, or leave barrier out",
                    login.user
                )
                .into(),
            ));
        }
        // Somebody has called off the wait for the standbys, and it is committed all the same.
        if self.has_warned.load(Ordering::Relaxed) {
            return Err(
                login.unavailable("the barrier was called off before a standby confirmed it")
            );
        }
        Ok(())
    }
}

/// Calls off a write that waits for standbys: otherwise it would keep its place at the server for as
/// long as they are away, and every further one another.
struct CallOff(Option<(CancelToken, SocketAddr, Option<PostgresTls>)>);

impl CallOff {
    /// Nothing is left to call off.
    fn is_over(&mut self) {
        self.0 = None;
    }

    async fn call_off(&mut self) {
        if let Some((token, address, tls)) = self.0.take() {
            // Where that fails, the server has ended the write, or can't be reached.
            let _ = timeout(CANCEL_TIMEOUT, cancel(token, address, tls)).await;
        }
    }
}

impl Drop for CallOff {
    fn drop(&mut self) {
        if let Some((token, address, tls)) = self.0.take() {
            tokio::spawn(timeout(CANCEL_TIMEOUT, cancel(token, address, tls)));
        }
    }
}

async fn cancel(token: CancelToken, address: SocketAddr, tls: Option<PostgresTls>) -> Option<()> {
    let stream = TcpStream::connect(address).await.ok()?;
    match tls.map(|tls| tls.connector()).transpose().ok()? {
        None => token.cancel_query_raw(stream, NoTls).await.ok(),
        Some(connector) => token.cancel_query_raw(stream, connector).await.ok(),
    }
}

impl PostgresTls {
    /// With the name that the certificate must have.
    fn for_host(&self, host: &str) -> PostgresTls {
        let name = self.server_name.clone().unwrap_or_else(|| host.to_owned());
        PostgresTls { client: self.client.clone(), server_name: Some(name) }
    }

    /// As its files say now.
    fn connector(&self) -> Result<Connector, StoreError> {
        let name = self.server_name.clone().unwrap_or_default();
        let name = ServerName::try_from(name.clone()).map_err(|_| {
            StoreError::Refused(format!("no certificate can be for {name:?}").into())
        })?;
        Ok(Connector { config: self.client.config(), name })
    }
}

/// Drives a connection until it ends. What happens aside is told before the answer after it.
async fn follow<S, T>(
    mut connection: Connection<S, T>,
    has_warned: Arc<AtomicBool>,
    aside: impl Aside,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
        match message {
            AsyncMessage::Notice(_) => has_warned.store(true, Ordering::Relaxed),
            AsyncMessage::Notification(message) => aside.notified(message.payload()),
            _ => {}
        }
    }
}

/// What an error says of the server.
fn failure(login: &SqlLogin, error: &Error) -> StoreError {
    let Some(said) = error.as_db_error() else {
        let mut words = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            let more = error.to_string();
            if !words.contains(&more) {
                words = format!("{words}: {more}");
            }
            cause = error.source();
        }
        return login.unavailable(words);
    };
    let (code, message) = (said.code(), said.message());
    match &code.code()[..2] {
        "28" => login.not_let_in(message),
        _ if *code == SqlState::INSUFFICIENT_PRIVILEGE => StoreError::Refused(
            format!("{message}: GRANT SELECT on what the query reads to {:?}", login.user).into(),
        ),
        // What is wrong with the query, the database, or a value that the query converts.
        "42" | "22" | "3D" | "0A" => StoreError::Refused(format!("the query: {message}").into()),
        _ => login.unavailable(message),
    }
}
