//! Locks in MySQL and MariaDB.
//!
//! A read is one statement on the primary: the operator's query, and beside it whether the server
//! can be written to, and whether the statement is a transaction of its own. In a longer one, these
//! databases go on showing what they showed first.

use std::fmt;

use fencepost_policy::LockKey;
use mysql_async::consts::ColumnType;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts, OptsBuilder, Params, Row as MysqlRow, Value as MysqlValue};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::rows::{Column, Columns, Kind, Lapsed, Row, Value, all_unreadable, answers};
use super::{NOT_THE_PRIMARY, READ_TIMEOUT, ROWS_MAX, SqlLogin, as_subquery};
use crate::cache::LockSpec;
use crate::record_store::{RecordAnswer, RecordStore};
use crate::store::StoreError;

/// What stands in the query for the list of keys.
const LIST: &str = "(?)";

/// The most that the server may send at a time.
const PACKET_BYTES_MAX: usize = 16 << 20;

/// Each statement is a transaction of its own, also where the server's default is another one. None
/// of them writes.
const SETUP: [&str; 2] = ["SET SESSION autocommit = 1", "SET SESSION TRANSACTION READ ONLY"];

/// Which locks MySQL or MariaDB keeps, and how they are read.
#[derive(Debug, Clone)]
pub struct MysqlOptions {
    /// Where it is, and who logs in. That user has to be allowed to read what the query reads, and
    /// nothing else.
    pub login: SqlLogin,
    /// The query. Its one `(?)` becomes the list of the keys that are read, each of them bound. For
    /// each of these it returns at most one row with the columns `key`, `owner`, `revision` and
    /// `live`.
    pub query: String,
    /// What a row means whose `live` is false.
    pub lapsed: Lapsed,
}

/// A store of locks in MySQL or MariaDB.
///
/// It has one connection, in cleartext, made with the first read, and made anew when a read on it
/// has failed or was given up. It gives no hints: these databases send none.
///
/// It must be used within a tokio runtime.
pub struct MysqlStore {
    options: MysqlOptions,
    connection: Mutex<Option<Dropped<Conn>>>,
}

impl fmt::Debug for MysqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MysqlStore").field(&self.options.login).finish()
    }
}

impl MysqlStore {
    /// The store in that database. Connects when it is first read.
    pub fn new(options: MysqlOptions) -> MysqlStore {
        MysqlStore { options, connection: Mutex::new(None) }
    }

    async fn open(&self) -> Result<Dropped<Conn>, StoreError> {
        let login = &self.options.login;
        let password = login.password().await?;
        let options: Opts = OptsBuilder::default()
            .ip_or_hostname(&login.host)
            .tcp_port(login.port)
            .user(Some(&login.user))
            .pass(password)
            .db_name(Some(&login.database))
            .prefer_socket(false)
            .max_allowed_packet(Some(PACKET_BYTES_MAX))
            .setup(SETUP.to_vec())
            .into();
        let mut connecting = Dropped(Some(Conn::new(options)));
        let connection = connecting.get().await.map_err(|error| self.failure(&error))?;
        Ok(Dropped(Some(connection)))
    }

    async fn read_rows(&self, keys: &[&LockKey]) -> Result<Found, StoreError> {
        let statement = statement(&self.options.query, keys.len())?;
        let values = values(keys);
        let mut place = self.connection.lock().await;
        // Taken out: it is put back only with nothing outstanding on it.
        let mut kept = place.take();
        loop {
            let is_kept = kept.is_some();
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => self.open().await?,
            };
            match Found::read(connection.get(), &statement, values.clone()).await {
                Ok(found) => {
                    self.check_server(&found)?;
                    *place = Some(connection);
                    return Ok(found);
                }
                // The server may have closed it since the last read, which nothing has told.
                Err(error) if is_kept && error.is_fatal() => {}
                Err(error) => return Err(self.failure(&error)),
            }
        }
    }

    /// Refuses what a server says that may be behind another one.
    fn check_server(&self, found: &Found) -> Result<(), StoreError> {
        let login = &self.options.login;
        if !found.is(READ_ONLY, &["0", "OFF"]) {
            return Err(login.unavailable(NOT_THE_PRIMARY));
        }
        if !found.is(AUTOCOMMIT, &["1", "ON"]) {
            return Err(
                login.unavailable("it does not make each statement a transaction of its own")
            );
        }
        Ok(())
    }

    /// What an error says of the server.
    fn failure(&self, error: &Error) -> StoreError {
        let login = &self.options.login;
        let said = match error {
            Error::Server(said) => said,
            Error::Driver(_) | Error::Io(_) | Error::Other(_) | Error::Url(_) => {
                return login.unavailable(error);
            }
        };
        match (said.code, said.state.get(..2)) {
            (ACCESS_DENIED_TO_DATABASE, _) | (_, Some("28")) => login.not_let_in(&said.message),
            (TABLE_ACCESS_DENIED | COLUMN_ACCESS_DENIED, _) => StoreError::Refused(
                format!(
                    "{}: GRANT SELECT on what the query reads to {:?}",
                    said.message, login.user
                )
                .into(),
            ),
            (_, Some("42" | "22")) => {
                StoreError::Refused(format!("the query: {}", said.message).into())
            }
            _ => login.unavailable(&said.message),
        }
    }
}

// Codes of errors. The client library has no name for them.
const ACCESS_DENIED_TO_DATABASE: u16 = 1044;
const TABLE_ACCESS_DENIED: u16 = 1142;
const COLUMN_ACCESS_DENIED: u16 = 1143;

// Columns of the statement.
const READ_ONLY: usize = 0;
const AUTOCOMMIT: usize = 1;
const IS_ROW: usize = 2;

/// What a statement has returned.
struct Found {
    columns: Vec<Column>,
    rows: Vec<MysqlRow>,
}

impl Found {
    async fn read(
        connection: &mut Conn,
        statement: &str,
        values: Vec<MysqlValue>,
    ) -> Result<Found, Error> {
        let mut result = connection.exec_iter(statement, Params::Positional(values)).await?;
        let columns = result.columns_ref().iter().map(column).collect();
        let mut rows = Vec::new();
        while let Some(row) = result.next().await? {
            rows.push(row);
        }
        Ok(Found { columns, rows })
    }

    /// Whether a setting of the server has one of these values.
    fn is(&self, column: usize, values: &[&str]) -> bool {
        let Some(value) = self.rows.first().and_then(|row| row.as_ref(column)) else {
            return false;
        };
        match value {
            MysqlValue::Int(number) => values.contains(&&*number.to_string()),
            MysqlValue::UInt(number) => values.contains(&&*number.to_string()),
            MysqlValue::Bytes(text) => values.iter().any(|value| value.as_bytes() == text),
            MysqlValue::NULL
            | MysqlValue::Float(_)
            | MysqlValue::Double(_)
            | MysqlValue::Date(..)
            | MysqlValue::Time(..) => false,
        }
    }
}

/// The operator's query as a part of one statement. There is always a row; those of the query have
/// a `fencepost_row`.
fn statement(query: &str, keys: usize) -> Result<String, StoreError> {
    let query = as_subquery(query);
    let Some((before, after)) = query.split_once(LIST).filter(|_| query.matches('?').count() == 1)
    else {
        let problem =
            format!("the query has to have one {LIST}, for the list of keys, and no other ?");
        return Err(StoreError::Refused(problem.into()));
    };
    let list = vec!["?"; places(keys)].join(", ");
    Ok(format!(
        "SELECT fencepost.*, answer.* FROM \
         (SELECT @@read_only AS fencepost_read_only, @@autocommit AS fencepost_autocommit) AS fencepost \
         LEFT JOIN (SELECT 1 AS fencepost_row, query.* FROM (\n{before}({list}){after}\n) AS query LIMIT {}) AS answer ON TRUE",
        ROWS_MAX + 1
    ))
}

/// How many places a list of keys has: few different numbers, so that few statements are prepared.
fn places(keys: usize) -> usize {
    keys.next_power_of_two()
}

/// The keys, and the last one once more in each place that is left.
fn values(keys: &[&LockKey]) -> Vec<MysqlValue> {
    let mut values: Vec<_> = keys.iter().map(|key| MysqlValue::from(key.as_str())).collect();
    values.resize(places(keys.len()), values.last().cloned().unwrap_or(MysqlValue::NULL));
    values
}

impl RecordStore for MysqlStore {
    async fn read(&self, locks: &[&LockSpec]) -> Result<Vec<RecordAnswer>, StoreError> {
        let keys: Vec<&LockKey> = locks.iter().map(|lock| &lock.key).collect();
        let Found { columns, rows } =
            timeout(READ_TIMEOUT, self.read_rows(&keys)).await.map_err(|_| {
                self.options.login.unavailable(format_args!("no answer within {READ_TIMEOUT:?}"))
            })??;
        let (keys, lapsed) = (keys.into_iter(), self.options.lapsed);
        let columns = match Columns::find(&columns, &[Kind::Boolean, Kind::Integer], lapsed) {
            Ok(columns) => columns,
            Err(problem) => return Ok(all_unreadable(keys, LINEAGE, &problem)),
        };
        if rows.len() > ROWS_MAX {
            let problem = format!(
                "the query returns more than {ROWS_MAX} rows: it has to return those of the keys asked for, as with IN {LIST}"
            );
            return Ok(all_unreadable(keys, LINEAGE, &problem));
        }
        let is_of_query = |row: &&MysqlRow| row.as_ref(IS_ROW) != Some(&MysqlValue::NULL);
        let rows = rows.iter().filter(is_of_query).map(|row| read_row(row, &columns)).collect();
        Ok(answers(keys, rows, lapsed, LINEAGE))
    }
}

/// Nothing tells one history of these servers from another without more rights than SELECT.
const LINEAGE: u64 = 0;

/// A connection, or one that is being made. When it is given up, it is dropped on a thread that runs
/// no tasks: elsewhere the library says goodbye to the server in a task, which waits for a server
/// that has stopped as long as that is so.
struct Dropped<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Dropped<T> {
    fn get(&mut self) -> &mut T {
        self.0.as_mut().expect("it is there until this is dropped")
    }
}

impl<T: Send + 'static> Drop for Dropped<T> {
    fn drop(&mut self) {
        let inside = self.0.take();
        // Without a thread, it is dropped here and now.
        let _ =
            std::thread::Builder::new().name("mysql-close".to_owned()).spawn(move || drop(inside));
    }
}

fn column(column: &mysql_async::Column) -> Column {
    use ColumnType as T;
    let column_type = column.column_type();
    #[expect(clippy::wildcard_enum_match_arm, reason = "every other type can't be read")]
    let kind = match column_type {
        T::MYSQL_TYPE_VARCHAR
        | T::MYSQL_TYPE_VAR_STRING
        | T::MYSQL_TYPE_STRING
        | T::MYSQL_TYPE_TINY_BLOB
        | T::MYSQL_TYPE_MEDIUM_BLOB
        | T::MYSQL_TYPE_LONG_BLOB
        | T::MYSQL_TYPE_BLOB => Kind::Text,
        T::MYSQL_TYPE_TINY
        | T::MYSQL_TYPE_SHORT
        | T::MYSQL_TYPE_INT24
        | T::MYSQL_TYPE_LONG
        | T::MYSQL_TYPE_LONGLONG => Kind::Integer,
        T::MYSQL_TYPE_BIT => Kind::Boolean,
        _ => Kind::Other,
    };
    let type_name = format!("{column_type:?}").trim_start_matches("MYSQL_TYPE_").to_lowercase();
    Column { name: column.name_str().into_owned(), kind, type_name }
}

fn read_row(row: &MysqlRow, columns: &Columns) -> Row {
    let text = |column| match row.as_ref(column) {
        Some(MysqlValue::Bytes(text)) => Value::Is(text.clone()),
        Some(MysqlValue::NULL) | None => Value::Null,
        Some(_) => Value::Wrong,
    };
    let number = |column| match row.as_ref(column) {
        Some(MysqlValue::Int(number)) => Value::Is(i128::from(*number)),
        Some(MysqlValue::UInt(number)) => Value::Is(i128::from(*number)),
        Some(MysqlValue::NULL) | None => Value::Null,
        Some(_) => Value::Wrong,
    };
    Row {
        key: match text(columns.key) {
            Value::Is(key) => String::from_utf8(key).map_or(Value::Wrong, Value::Is),
            Value::Null => Value::Null,
            Value::Wrong => Value::Wrong,
        },
        owner: text(columns.owner),
        revision: number(columns.revision),
        live: columns.live.map_or(Value::Null, |live| match (number(live), text(live)) {
            (Value::Is(number), _) => Value::Is(number != 0),
            // Bits.
            (_, Value::Is(bits)) => Value::Is(bits.iter().any(|bits| *bits != 0)),
            (Value::Null, _) => Value::Null,
            (Value::Wrong, _) => Value::Wrong,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_one_place_for_the_list_of_keys() {
        let query = "SELECT * FROM l WHERE name IN (?);\n";
        let statement =
            |query: &str, keys| statement(query, keys).map_err(|error| error.to_string());
        for (keys, list) in [(0, "(?)"), (1, "(?)"), (2, "(?, ?)"), (3, "(?, ?, ?, ?)")] {
            let made = statement(query, keys).unwrap();
            assert!(
                made.contains(&format!("(\nSELECT * FROM l WHERE name IN {list}\n)")),
                "{made}"
            );
        }
        for query in ["SELECT 1", "SELECT ? IN (?)", "SELECT 1 IN (?) OR 2 IN (?)"] {
            let problem = statement(query, 1).unwrap_err();
            assert!(problem.contains("the query has to have one (?)"), "{problem}");
        }
    }
}
