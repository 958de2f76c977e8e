//! Locks in PostgreSQL.
//!
//! A read is one statement on the primary: the operator's query, and beside it whether the server
//! is one that only follows another. The statement names no transaction, so it sees what is
//! committed when it begins.

use std::fmt;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_policy::LockKey;
use fencepost_tls::ClientTls;
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;
use tokio_postgres::Row as PostgresRow;
use tokio_postgres::types::Type;

use super::postgres_connection::{Aside, PostgresConnection};
use super::rows::{Column, Columns, Kind, Lapsed, Row, Value, all_unreadable, answers};
use super::{NOT_THE_PRIMARY, READ_TIMEOUT, ROWS_MAX, SqlLogin, as_subquery};
use crate::cache::LockSpec;
use crate::record_store::{Hint, RecordAnswer, RecordStore};
use crate::store::StoreError;

/// How many hints are kept until they are asked for. Beyond that, every lock is one.
const HINTS_MAX: usize = 1024;

/// Which locks PostgreSQL keeps, and how they are read.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// Where it is, and who logs in. That user has to be allowed to read what the query reads, and
    /// nothing else.
    pub login: SqlLogin,
    /// What connections are made with; `None`: cleartext.
    pub tls: Option<PostgresTls>,
    /// The query. Its `$1` is the list of the keys that are read, a `text[]`. For each of these it
    /// returns at most one row with the columns `key`, `owner`, `revision` and `live`.
    pub query: String,
    /// What a row means whose `live` is false.
    pub lapsed: Lapsed,
    /// Whether a read waits first until a standby has confirmed a write: a primary that another one
    /// has replaced does not answer then. It needs synchronous replication.
    pub barrier: bool,
    /// The channel of `NOTIFY` that tells which lock has changed: its payload is a lock's key, or
    /// empty for all.
    pub channel: Option<String>,
}

/// What TLS connections are made with.
#[derive(Debug, Clone)]
pub struct PostgresTls {
    /// As what its files say when a connection is made; no ALPN.
    pub client: ClientTls,
    /// The name that the server's certificate must have; `None`: the host that is connected to.
    pub server_name: Option<String>,
}

/// A store of locks in PostgreSQL.
///
/// It has one connection, made with the first read, and made anew when a read on it has failed or
/// was given up: what was outstanding there is never taken for an answer.
///
/// It must be used within a tokio runtime.
pub struct PostgresStore {
    options: PostgresOptions,
    connection: Mutex<Option<PostgresConnection>>,
    /// Whether the statement asks which history of the server it is. It stays as it was found
    /// first: another answer would be taken for another history.
    has_lineage: OnceLock<bool>,
    hints: Mutex<mpsc::Receiver<Hint>>,
    hinting: Hinting,
}

/// The side that gives hints.
#[derive(Debug, Clone)]
struct Hinting {
    keys: mpsc::Sender<Hint>,
    /// Some had no room.
    is_over: Arc<AtomicBool>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresStore").field(&self.options.login).finish()
    }
}

impl PostgresStore {
    /// The store in that database. Connects when it is first read.
    pub fn new(options: PostgresOptions) -> PostgresStore {
        let (keys, hints) = mpsc::channel(HINTS_MAX);
        PostgresStore {
            options,
            connection: Mutex::new(None),
            has_lineage: OnceLock::new(),
            hints: Mutex::new(hints),
            hinting: Hinting { keys, is_over: Arc::default() },
        }
    }

    async fn open(&self) -> Result<PostgresConnection, StoreError> {
        let PostgresOptions { login, tls, channel, .. } = &self.options;
        let connection =
            PostgresConnection::open(login, tls.as_ref(), self.hinting.clone()).await?;
        if self.has_lineage.get().is_none() {
            let has_lineage = connection.has_lineage(login).await?;
            self.has_lineage.get_or_init(|| has_lineage);
        }
        if let Some(channel) = channel {
            connection.listen(login, channel).await?;
            self.hinting.hint(Hint::All); // What was told meanwhile is lost.
        }
        Ok(connection)
    }

    async fn read_rows(&self, keys: &[&LockKey]) -> Result<Vec<PostgresRow>, StoreError> {
        let PostgresOptions { login, query, barrier, .. } = &self.options;
        let mut place = self.connection.lock().await;
        // Taken out: it is put back only with nothing outstanding on it.
        let connection = match place.take() {
            Some(connection) if !connection.is_closed() => connection,
            Some(_) | None => self.open().await?,
        };
        if *barrier {
            connection.barrier(login).await?;
        }
        let has_lineage = self.has_lineage.get().copied().unwrap_or(false);
        let keys: Vec<&str> = keys.iter().map(|key| key.as_str()).collect();
        let rows = connection.query(login, &statement(query, has_lineage), &keys).await?;
        let is_standby = rows.first().map(|row| row.try_get("fencepost_recovery"));
        if !matches!(is_standby, Some(Ok(false))) {
            return Err(login.unavailable(NOT_THE_PRIMARY));
        }
        *place = Some(connection);
        Ok(rows)
    }
}

/// The operator's query as a part of one statement. There is always a row; those of the query have
/// a `fencepost_row`.
fn statement(query: &str, has_lineage: bool) -> String {
    let lineage = if has_lineage {
        "(SELECT system_identifier FROM pg_control_system())"
    } else {
        "0::bigint"
    };
    format!(
        "SELECT fencepost.*, answer.* FROM \
         (SELECT pg_is_in_recovery() AS fencepost_recovery, {lineage} AS fencepost_lineage) AS fencepost \
         LEFT JOIN (SELECT true AS fencepost_row, query.* FROM (\n{}\n) AS query LIMIT {}) AS answer ON true",
        as_subquery(query),
        ROWS_MAX + 1
    )
}

impl RecordStore for PostgresStore {
    async fn read(&self, locks: &[&LockSpec]) -> Result<Vec<RecordAnswer>, StoreError> {
        let keys: Vec<&LockKey> = locks.iter().map(|lock| &lock.key).collect();
        let rows = timeout(READ_TIMEOUT, self.read_rows(&keys)).await.map_err(|_| {
            self.options.login.unavailable(format_args!("no answer within {READ_TIMEOUT:?}"))
        })??;
        let Some(first) = rows.first() else { return Ok(Vec::new()) };
        let lineage = first.try_get::<_, i64>("fencepost_lineage").unwrap_or_default();
        let (keys, lineage) = (keys.into_iter(), lineage.cast_unsigned());
        let lapsed = self.options.lapsed;
        let found: Vec<Column> = first.columns().iter().map(column).collect();
        let columns = match Columns::find(&found, &[Kind::Boolean], lapsed) {
            Ok(columns) => columns,
            Err(problem) => return Ok(all_unreadable(keys, lineage, &problem)),
        };
        if rows.len() > ROWS_MAX {
            let problem = format!(
                "the query returns more than {ROWS_MAX} rows: it has to return those of the keys asked for, as with = ANY($1)"
            );
            return Ok(all_unreadable(keys, lineage, &problem));
        }
        let is_of_query =
            |row: &&PostgresRow| matches!(row.try_get("fencepost_row"), Ok(Some(true)));
        let rows = rows.iter().filter(is_of_query).map(|row| read_row(row, &columns)).collect();
        Ok(answers(keys, rows, lapsed, lineage))
    }

    async fn hint(&self) -> Hint {
        let mut hints = self.hints.lock().await;
        let hint = hints.recv().await.expect("this store has a sender");
        if self.hinting.is_over.swap(false, Ordering::Relaxed) { Hint::All } else { hint }
    }
}

impl Hinting {
    fn hint(&self, hint: Hint) {
        if self.keys.try_send(hint).is_err() {
            self.is_over.store(true, Ordering::Relaxed);
        }
    }
}

impl Aside for Hinting {
    fn notified(&self, payload: &str) {
        self.hint(LockKey::new(payload).map_or(Hint::All, Hint::Lock));
    }
}

fn column(column: &tokio_postgres::Column) -> Column {
    let kind = match *column.type_() {
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME => Kind::Text,
        Type::INT2 | Type::INT4 | Type::INT8 => Kind::Integer,
        Type::BOOL => Kind::Boolean,
        _ => Kind::Other,
    };
    Column { name: column.name().to_owned(), kind, type_name: column.type_().name().to_owned() }
}

fn read_row(row: &PostgresRow, columns: &Columns) -> Row {
    Row {
        key: text(row, columns.key),
        owner: match text(row, columns.owner) {
            Value::Null => Value::Null,
            Value::Is(owner) => Value::Is(owner.into_bytes()),
            Value::Wrong => Value::Wrong,
        },
        revision: match *row.columns()[columns.revision].type_() {
            Type::INT2 => value(row.try_get(columns.revision), |number: i16| number.into()),
            Type::INT4 => value(row.try_get(columns.revision), |number: i32| number.into()),
            _ => value(row.try_get(columns.revision), |number: i64| number.into()),
        },
        live: columns.live.map_or(Value::Null, |live| value(row.try_get(live), |live: bool| live)),
    }
}

/// A text. The blanks at the end of a `char(n)` are no part of it.
fn text(row: &PostgresRow, column: usize) -> Value<String> {
    let is_padded = *row.columns()[column].type_() == Type::BPCHAR;
    value(row.try_get(column), |text: &str| match is_padded {
        true => text.trim_end_matches(' ').to_owned(),
        false => text.to_owned(),
    })
}

fn value<T, V>(
    read: Result<Option<T>, tokio_postgres::Error>,
    convert: impl FnOnce(T) -> V,
) -> Value<V> {
    match read {
        Ok(Some(value)) => Value::Is(convert(value)),
        Ok(None) => Value::Null,
        Err(_) => Value::Wrong,
    }
}
