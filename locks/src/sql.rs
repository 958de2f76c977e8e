//! Locks in the tables of an SQL database, found by a query of the operator's.
//!
//! - `rows` says what a row of the query means, for every database alike.
//! - `postgres` and `mysql` ask the query. They run it as a part of one statement of their own,
//!   which also says whether the server is the primary.
//!
//! Nothing here writes to a table, and nothing decides by a clock: what has lapsed is the query's
//! matter.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_connection;
#[cfg(feature = "postgres")]
mod postgres_tls;
mod rows;

use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "mysql")]
pub use self::mysql::{MysqlOptions, MysqlStore};
#[cfg(feature = "postgres")]
pub use self::postgres::{PostgresOptions, PostgresStore, PostgresTls};
pub use self::rows::Lapsed;
use crate::secret;
use crate::store::StoreError;

/// How long a read may take, with connecting and logging in.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// The most rows that a read takes: a query that does not use its list of keys returns the table.
const ROWS_MAX: usize = 1024;

const NOT_THE_PRIMARY: &str = "the server is not the primary, and may be behind it: let the url lead to the primary, also \
    after a fail-over";

/// Where a database is, and who logs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlLogin {
    /// The host of the primary: a name or an IP address, an IPv6 one without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Who logs in.
    pub user: String,
    /// The file of the password: UTF-8, up to 4 KiB, without the one line's end after it. It is
    /// read at each login. `None`: the server asks for none.
    pub password_file: Option<PathBuf>,
    /// The database.
    pub database: String,
}

impl SqlLogin {
    /// The password to log in with now.
    async fn password(&self) -> Result<Option<String>, StoreError> {
        let Some(path) = &self.password_file else { return Ok(None) };
        let read = secret::read(path).await;
        read.map(Some).map_err(|error| self.not_let_in(&format!("it can't be read: {error}")))
    }

    /// The error where this user is not let in.
    fn not_let_in(&self, why: &str) -> StoreError {
        let SqlLogin { user, password_file, .. } = self;
        let with = match password_file {
            None => "without a password".to_owned(),
            Some(path) => format!("with the password in {}", path.display()),
        };
        StoreError::NoLogin(format!("user {user:?} {with}: {why}").into())
    }

    /// The error where it can't be reached, or not in time.
    fn unavailable(&self, why: impl std::fmt::Display) -> StoreError {
        StoreError::Unavailable(format!("{}:{}: {why}", self.host, self.port).into())
    }
}

/// The operator's query as it stands in a statement: without the semicolon at its end.
fn as_subquery(query: &str) -> &str {
    let query = query.trim_end();
    query.strip_suffix(';').unwrap_or(query).trim_end()
}
