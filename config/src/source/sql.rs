//! `kind = "postgres"` and `kind = "mysql"`.

use std::path::PathBuf;

use super::SourceKind;
use crate::address::{HostPort, without_login};
use crate::problem::must_be;
use crate::reader::Table;
use crate::tls::{ClientTls, check_host, parse_file};

/// Where a database is, and who logs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlLogin {
    /// The primary.
    pub address: HostPort,
    /// Who logs in; not empty.
    pub user: String,
    /// The file of the password; `None`: without one.
    pub password_file: Option<PathBuf>,
    /// The database; not empty.
    pub database: String,
}

/// What a row means that names an owner and is not live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lapsed {
    /// `"holds"`: its owner has the lock until a row says something else.
    Holds,
    /// `"ends"`: nobody has it.
    Ends,
}

/// A PostgreSQL database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresSource {
    /// Where it is, and who logs in.
    pub login: SqlLogin,
    /// What it is reached with; `None`: in cleartext.
    pub tls: Option<ClientTls>,
    /// The query, which has `$1` in it.
    pub query: String,
    /// What a row means that is not live.
    pub lapsed: Lapsed,
    /// Whether each read waits first until a standby has confirmed a write.
    pub barrier: bool,
    /// The channel of `NOTIFY` that tells which locks have changed.
    pub channel: Option<String>,
}

/// A MySQL or MariaDB database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MysqlSource {
    /// Where it is, and who logs in.
    pub login: SqlLogin,
    /// The query, which has one `(?)` in it, and no other `?`.
    pub query: String,
    /// What a row means that is not live.
    pub lapsed: Lapsed,
}

const IN_CLEARTEXT: &str = "what it sends and the login to it go over the network as they are";

pub(super) fn read_postgres(t: &mut Table<'_>) -> Option<SourceKind> {
    let login = SqlLogin::read(t, "postgres", 5432);
    let tls = t.table("tls", ClientTls::read);
    let query = t.required("query", "the query that finds the locks", |query| match query {
        query if query.contains("$1") => Ok(query.to_owned()),
        _ => Err("must use the list of keys, as in WHERE name = ANY($1)".to_owned()),
    });
    let (lapsed, barrier) = (read_lapsed(t), t.flag("barrier"));
    let channel = t.text("channel", |name| match name {
        name if (1..=63).contains(&name.len()) => Ok(name.to_owned()),
        name => Err(must_be("the name of a channel, of 1 to 63 bytes", name)),
    });
    let (login, query) = (login?, query?);
    if tls.as_ref().is_some_and(|tls| tls.server_name.is_none()) {
        let place = t.place_of("url");
        check_host(&login.address.host, &place, t.notes);
    }
    if !t.is_written("tls") && !login.is_here() {
        t.warning("url", format_args!("{IN_CLEARTEXT}: set tls"));
    }
    let source = PostgresSource { login, tls, query, lapsed, barrier, channel };
    Some(SourceKind::Postgres(Box::new(source)))
}

pub(super) fn read_mysql(t: &mut Table<'_>) -> Option<SourceKind> {
    let login = SqlLogin::read(t, "mysql", 3306);
    let query = t.required("query", "the query that finds the locks", |query| {
        match query.contains("(?)") && query.matches('?').count() == 1 {
            true => Ok(query.to_owned()),
            false => Err(
                "must have one (?), for the list of keys, as in WHERE name IN (?), and no other ?"
                    .to_owned(),
            ),
        }
    });
    let lapsed = read_lapsed(t);
    for key in t.written(&["tls"]) {
        t.problem(key, "not offered for MySQL: put a tunnel before a server on another machine");
    }
    for key in t.written(&["barrier", "channel"]) {
        t.problem(key, r#"is for kind = "postgres": MySQL has nothing like it"#);
    }
    let (login, query) = (login?, query?);
    if !login.is_here() {
        t.warning("url", format_args!("{IN_CLEARTEXT}: put a tunnel before it"));
    }
    Some(SourceKind::Mysql(Box::new(MysqlSource { login, query, lapsed })))
}

fn read_lapsed(t: &mut Table<'_>) -> Lapsed {
    t.choice("lapsed", &[("holds", Lapsed::Holds), ("ends", Lapsed::Ends)])
}

impl SqlLogin {
    fn read(t: &mut Table<'_>, scheme: &'static str, port: u16) -> Option<SqlLogin> {
        let form = format!("{scheme}://user@127.0.0.1:{port}/database");
        let what = format!("the primary of the database, like {form:?}");
        let login = t.required("url", &what, |text| parse_url(text, scheme, port, &form));
        let password_file = t.text("password_file", parse_file);
        Some(SqlLogin { password_file, ..login? })
    }

    /// Whether what is sent there stays on this machine.
    fn is_here(&self) -> bool {
        let host = &self.address.host;
        host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    }
}

fn parse_url(text: &str, scheme: &str, port: u16, form: &str) -> Result<SqlLogin, String> {
    let wrong = || must_be(&format!("{form:?}"), &without_login(text));
    let rest = text.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://"));
    let (user, rest) = rest.and_then(|rest| rest.rsplit_once('@')).ok_or_else(wrong)?;
    if user.contains(':') {
        return Err(
            "must have no password in it: write that into a file, and password_file".to_owned()
        );
    }
    let (host, database) = rest.split_once('/').ok_or_else(wrong)?;
    if let Some((_, options)) = database.split_once('?') {
        return Err(format!("must end after the database: {options:?} would be ignored"));
    }
    let is_plain = |text: &str| {
        !text.is_empty() && !text.contains(|c: char| c.is_control() || "/#%".contains(c))
    };
    if !is_plain(user) || !is_plain(database) {
        return Err(wrong());
    }
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    let address = match has_port {
        true => HostPort::parse(host)?,
        false => HostPort::parse(&format!("{host}:{port}"))?,
    };
    let (user, database) = (user.to_owned(), database.to_owned());
    Ok(SqlLogin { address, user, password_file: None, database })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_user_a_host_and_a_database() {
        let parse = |text| parse_url(text, "mysql", 3306, "mysql://user@host/database");
        for (text, host, port) in [
            ("mysql://me@db.example/app", "db.example", 3306),
            ("mysql://me@127.0.0.1:3307/app", "127.0.0.1", 3307),
            ("mysql://me@[::1]/app", "::1", 3306),
            ("mysql://me@[::1]:1/app", "::1", 1),
        ] {
            let login = parse(text).unwrap_or_else(|problem| panic!("{text}: {problem}"));
            assert_eq!((&*login.user, &*login.database), ("me", "app"), "{text}");
            assert_eq!((&*login.address.host, login.address.port), (host, port), "{text}");
        }
        for text in [
            "mysql:me@a/app",
            "mysql://a/app",
            "mysql://me@a",
            "mysql://@a/app",
            "mysql://me@a/",
            "http://me@a/b",
        ] {
            assert!(parse(text).unwrap_err().contains("must be"), "{text}");
        }
        let problem = parse("mysql://me:secret@a/app").unwrap_err();
        assert!(problem.contains("no password") && !problem.contains("secret"), "{problem}");
    }
}
