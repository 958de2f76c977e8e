//! Locks in PostgreSQL: the book's recipes, taken by their own statements.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencepost_locks::{
    Lapsed, PostgresOptions, PostgresStore, PostgresTls, RecordFormat, SqlLogin, Unconfirmed,
};
use fencepost_policy::{Layout, LockKey, Owner, Revision};
use fencepost_tests::{Authority, PATIENCE, Postgres, Relay, Scratch, replace_file, until};
use fencepost_tls::{ClientFiles, ClientTls};
use tokio::time::Instant;
use tokio_postgres::{Client, NoTls};

use crate::recipes::{query, recipe};
use crate::world::{Presented, Reader, World, ask};

/// Rows as the first recipe has them, in a database of their own. They are read by a role that may
/// do nothing else, and has a password.
pub(crate) struct PostgresLocks {
    pub(crate) server: Arc<Postgres>,
    relay: Relay,
    pub(crate) client: Client,
    pub(crate) options: PostgresOptions,
    /// What is read, and the file of the password.
    scratch: Scratch,
}

static DATABASES: AtomicUsize = AtomicUsize::new(0);

pub(crate) async fn connect(server: &Postgres, database: &str) -> Client {
    let address = server.address();
    let (host, port) = (address.ip(), address.port());
    let at = format!("host={host} port={port} user=postgres dbname={database}");
    let mut config: tokio_postgres::Config = at.parse().unwrap();
    config.ssl_mode(tokio_postgres::config::SslMode::Disable);
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (client, connection) = config.connect_raw(stream, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl PostgresLocks {
    pub(crate) async fn start() -> PostgresLocks {
        PostgresLocks::on(Postgres::shared().await).await
    }

    pub(crate) async fn on(server: Arc<Postgres>) -> PostgresLocks {
        let name = format!("locks_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        let sql = connect(&server, "postgres").await;
        sql.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let client = connect(&server, &name).await;
        client.batch_execute(recipe("epoch postgres")).await.unwrap();
        let role = recipe("role postgres").replace("fencepost", &name);
        client.batch_execute(&role).await.unwrap();
        client.batch_execute(&format!("GRANT with_password TO {name}")).await.unwrap();
        let (relay, scratch) = (Relay::start(server.address()).await, Scratch::new());
        let options = PostgresOptions {
            login: SqlLogin {
                host: relay.address().ip().to_string(),
                port: relay.address().port(),
                user: name.clone(),
                password_file: Some(password_file(&scratch)),
                database: name,
            },
            tls: None,
            query: query("epoch-query postgres"),
            lapsed: Lapsed::Ends,
            barrier: false,
            channel: None,
        };
        replace_file(&password_file(&scratch), "change me\n");
        PostgresLocks { server, relay, client, options, scratch }
    }

    /// The query of another recipe, and the right to read what it reads.
    async fn reads(&mut self, tables: &str, lapsed: Lapsed, text: String) {
        let grant = format!("GRANT SELECT ON {tables} TO {}", self.options.login.user);
        self.client.batch_execute(&grant).await.unwrap();
        (self.options.query, self.options.lapsed) = (text, lapsed);
    }

    async fn execute(
        &self,
        statement: &str,
        values: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) {
        let changed = self.client.execute(statement, values).await.unwrap();
        assert_eq!(changed, 1, "{statement} {values:?}");
    }

    async fn number(&self, statement: &str) -> i64 {
        self.client.query_one(statement, &[]).await.unwrap().get(0)
    }
}

fn password_file(scratch: &Scratch) -> PathBuf {
    scratch.path().join("password")
}

/// Takes a lock by the first recipe, also from another holder.
pub(crate) async fn take(client: &Client, lock: &LockKey, owner: &str) -> Presented {
    let lock = lock.as_str();
    let made = "INSERT INTO lock_epoch (name) VALUES ($1) ON CONFLICT DO NOTHING";
    client.execute(made, &[&lock]).await.unwrap();
    let lapse = "UPDATE lock_epoch SET until = '-infinity', epoch = abs(epoch) WHERE name = $1";
    client.execute(lapse, &[&lock]).await.unwrap();
    let taken = client.query_one(recipe("epoch-take postgres"), &[&lock, &owner]).await.unwrap();
    Presented { owner: owner.to_owned(), revision: revision(taken.get(0)) }
}

pub(crate) fn revision(number: i64) -> Revision {
    Revision::new(number.try_into().unwrap()).unwrap()
}

fn number(held: &Presented) -> i64 {
    held.revision.get().try_into().unwrap()
}

impl World for PostgresLocks {
    type Store = PostgresStore;

    fn store(&self) -> PostgresStore {
        PostgresStore::new(self.options.clone())
    }

    fn format(&self) -> RecordFormat {
        RecordFormat::plain(Layout::Key)
    }

    async fn take(&self, lock: &LockKey, owner: &str) -> Presented {
        take(&self.client, lock, owner).await
    }

    async fn renew(&self, lock: &LockKey, held: &Presented) -> Presented {
        let values = (lock.as_str(), &*held.owner, number(held));
        self.execute(recipe("epoch-renew postgres"), &[&values.0, &values.1, &values.2]).await;
        held.clone()
    }

    async fn release(&self, lock: &LockKey, held: &Presented) {
        let values = (lock.as_str(), &*held.owner, number(held));
        self.execute(recipe("epoch-release postgres"), &[&values.0, &values.1, &values.2]).await;
    }

    async fn spoil(&self, lock: &LockKey) {
        self.execute("UPDATE lock_epoch SET epoch = -epoch WHERE name = $1", &[&lock.as_str()])
            .await;
    }

    async fn stand_still(&self) {
        self.relay.freeze().await;
    }

    async fn go_on(&self) {
        self.relay.restore().await;
    }
}

/// Why a source cannot read a lock.
pub(crate) async fn why_not<W: World<Store: Send>>(world: &W) -> String {
    let reader = Reader::of(world).await;
    let lock = reader.lock(&world.key("orders"));
    match lock.confirm(Instant::now(), Instant::now() + PATIENCE).await {
        Err(Unconfirmed::Store(error)) => error.to_string(),
        other => panic!("{other:?}: {:?}", lock.describe(Instant::now())),
    }
}

/// What is wrong with a lock that was read.
pub(crate) async fn problem<W: World<Store: Send>>(world: &W, key: &LockKey) -> String {
    let reader = Reader::of(world).await;
    let lock = reader.lock(key);
    lock.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
    lock.describe(Instant::now()).problem.expect("something is wrong").to_string()
}

#[tokio::test]
async fn a_lock_that_has_lapsed_is_free_where_that_ends_it() {
    let mut world = PostgresLocks::start().await;
    let key = world.key("orders");
    let held = world.take(&key, "shard-1").await;
    world.execute("UPDATE lock_epoch SET until = now() WHERE name = $1", &[&key.as_str()]).await;
    let reader = Reader::of(&world).await;
    assert_eq!(ask(&reader.lock(&key), &held).await, "no-owner");
    world.options.lapsed = Lapsed::Holds;
    let reader = Reader::of(&world).await;
    assert_eq!(ask(&reader.lock(&key), &held).await, "admit");
}

#[tokio::test]
async fn keys_are_bound_whatever_they_are() {
    let world = PostgresLocks::start().await;
    let reader = Reader::of(&world).await;
    for name in ["'); DROP TABLE lock_epoch; --", "\"$1\"", "{a,b}", "\\'", "ü \u{1f512}", "%", " "]
    {
        let key = LockKey::new(name).unwrap();
        let held = world.take(&key, "it's \"me\"").await;
        assert_eq!(ask(&reader.lock(&key), &held).await, "admit", "{name:?}");
    }
    // PostgreSQL's texts have no NUL. So no row can be of that lock.
    let nul = reader.lock(&LockKey::new("a\0b").unwrap());
    let outcome = nul.confirm(Instant::now(), Instant::now() + PATIENCE).await;
    assert!(matches!(outcome, Err(Unconfirmed::Store(_))), "{outcome:?}");
    let held = world.take(&world.key("orders"), "shard-1").await;
    assert_eq!(ask(&reader.lock(&world.key("orders")), &held).await, "admit");
}

#[tokio::test]
async fn what_the_query_returns_otherwise_is_named() {
    let mut world = PostgresLocks::start().await;
    let key = world.key("orders");
    world.take(&key, "shard-1").await;
    let has_to = "it has to return key (text), owner (text or null), revision (integer)";
    let of_keys = "FROM lock_epoch WHERE name = ANY($1)";
    let all = "SELECT name AS key, owner, epoch AS revision, true AS live";
    for (query, problem) in [
        (
            format!(
                "SELECT name AS key, owner, epoch::numeric AS revision, true AS live {of_keys}"
            ),
            "the query returns \"revision\" as numeric",
        ),
        (format!("SELECT name AS key, owner, epoch AS revision {of_keys}"), "no column \"live\""),
        (
            format!("SELECT name AS key, owner, epoch, 1 AS live {of_keys}; "),
            "no column \"revision\"",
        ),
        (
            format!("SELECT name AS key, owner, epoch AS revision, 1 AS live {of_keys}"),
            "returns \"live\" as int4",
        ),
        (format!("SELECT owner, {} {of_keys}", &all[7..]), "returns the column \"owner\" twice"),
    ] {
        world.options.query = query;
        let told = self::problem(&world, &key).await;
        assert!(told.contains(problem) && told.contains(has_to), "{told}");
        assert!(told.contains("lock locks/orders"), "{told}");
    }
    world.options.query = format!("{all} {of_keys} UNION ALL {all} {of_keys} -- twice");
    assert!(problem(&world, &key).await.contains("lock locks/orders has 2 rows"));
    world.options.query = format!("{all} FROM lock_epoch, generate_series(1, 2000)");
    assert!(problem(&world, &key).await.contains("returns more than 1024 rows"));
    world.options.query = format!("{} FROM lock_epoch", all.replace("name", "upper(name)"));
    let told = problem(&world, &key).await;
    assert!(told.contains("key \"LOCKS/ORDERS\", which was not asked for"), "{told}");
}

#[tokio::test]
async fn what_is_wrong_with_the_source_is_told_in_words() {
    let mut world = PostgresLocks::start().await;
    let right = world.options.clone();
    world.options.query = "SELECT nothing AS key FROM lock_epoch".to_owned();
    assert!(why_not(&world).await.contains("the query: column \"nothing\" does not exist"));
    world.options.query = "SELECT FROM WHERE".to_owned();
    assert!(why_not(&world).await.contains("the query: syntax error"));
    world.options.query = "DELETE FROM lock_epoch".to_owned();
    assert!(why_not(&world).await.contains("the query: syntax error"));
    let stranger = "CREATE TABLE secrets (key text)";
    world.client.batch_execute(stranger).await.unwrap();
    world.options.query = "SELECT * FROM secrets".to_owned();
    let told = why_not(&world).await;
    assert!(told.contains("permission denied for table secrets: GRANT SELECT on"), "{told}");
    world.options = right.clone();
    world.options.login.database = "none".to_owned();
    assert!(why_not(&world).await.contains("database \"none\" does not exist"));
    world.options = right.clone();
    let told = |world: &PostgresLocks| {
        format!("user {:?} with the password in ", world.options.login.user)
    };
    replace_file(&password_file(&world.scratch), "wrong");
    let why = why_not(&world).await;
    assert!(why.contains(&told(&world)) && why.contains("password authentication failed"), "{why}");
    replace_file(&password_file(&world.scratch), "");
    let why = why_not(&world).await;
    assert!(why.contains(&told(&world)) && why.contains("can't be read: it is empty"), "{why}");
    world.options.barrier = true;
    replace_file(&password_file(&world.scratch), "change me");
    let why = why_not(&world).await;
    assert!(why.contains("barrier = true needs synchronous replication"), "{why}");
}

#[tokio::test]
async fn a_notification_has_its_lock_read_at_once() {
    let mut world = PostgresLocks::start().await;
    world.client.batch_execute(recipe("notify postgres")).await.unwrap();
    world.options.channel = Some("locks".to_owned());
    let (key, other) = (world.key("orders"), world.key("others"));
    let held = world.take(&key, "shard-1").await;
    let reader = Reader::of(&world).await;
    let (lock, _) = (reader.lock(&key), reader.lock(&other));
    assert_eq!(ask(&lock, &held).await, "admit");
    until("the source has started", async || reader.source.ready()).await;
    for number in 2..20 {
        let next = world.take(&key, &format!("shard-{number}")).await;
        until("the takeover is known, though nobody asks", async || {
            let holder = lock.describe(Instant::now()).holder;
            holder.is_some_and(|(owner, ..)| owner == Owner::new(next.owner.as_bytes()))
        })
        .await;
    }
}

#[tokio::test]
async fn a_pool_of_connections_that_the_server_ends_is_made_anew() {
    let world = PostgresLocks::start().await;
    let key = world.key("orders");
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    for round in 0..5 {
        let held = world.take(&key, &format!("shard-{round}")).await;
        until("it is admitted", async || ask(&lock, &held).await == "admit").await;
        let end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
            WHERE usename = $1 AND pid <> pg_backend_pid()";
        let user = &world.options.login.user;
        assert_eq!(world.client.query(end, &[user]).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn tls_believes_its_authority_alone() {
    let (authority, another) = (Authority::new("one"), Authority::new("another"));
    let issued = authority.issue_for_localhost();
    let server = Arc::new(Postgres::start_with(&[], Some(&issued)).await);
    let mut world = PostgresLocks::on(server).await;
    let key = world.key("orders");
    let held = world.take(&key, "shard-1").await;
    let tls = |authority: &Authority| {
        let ca = world.scratch.path().join("ca.pem");
        replace_file(&ca, &authority.certificate());
        let files = ClientFiles { ca, crl: None, identity: None };
        Some(PostgresTls { client: ClientTls::load(files, &[]).unwrap(), server_name: None })
    };
    let (right, wrong) = (tls(&authority), tls(&another));
    world.options.tls = right.clone();
    let reader = Reader::of(&world).await;
    assert_eq!(ask(&reader.lock(&key), &held).await, "admit");
    let encrypted = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
        WHERE ssl AND application_name = 'fencepost'";
    assert_eq!(world.number(encrypted).await, 1);
    world.options.tls = wrong;
    let why = why_not(&world).await;
    assert!(why.contains("certificate"), "{why}");
    let mut plain = PostgresLocks::start().await;
    plain.options.tls = right;
    let why = why_not(&plain).await;
    assert!(why.contains("server does not support TLS"), "{why}");
}

/// ShedLock's own table, and the statements that it sends with `usingDbTime()`.
mod shedlock {
    pub(super) const TABLE: &str = "CREATE TABLE shedlock (name VARCHAR(64) NOT NULL, \
        lock_until TIMESTAMP NOT NULL, locked_at TIMESTAMP NOT NULL, \
        locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))";
    pub(super) const LOCK: &str = "INSERT INTO shedlock (name, lock_until, locked_at, locked_by) \
        VALUES ($1, timezone('utc', CURRENT_TIMESTAMP) + interval '1 hour', \
        timezone('utc', CURRENT_TIMESTAMP), $2) ON CONFLICT (name) DO UPDATE \
        SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + interval '1 hour', \
        locked_at = timezone('utc', CURRENT_TIMESTAMP), locked_by = $2 \
        WHERE shedlock.lock_until <= timezone('utc', CURRENT_TIMESTAMP)";
    pub(super) const EXTEND: &str = "UPDATE shedlock \
        SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + interval '2 hours' \
        WHERE name = $1 AND locked_by = $2 AND lock_until > timezone('utc', CURRENT_TIMESTAMP)";
    pub(super) const UNLOCK: &str = "UPDATE shedlock \
        SET lock_until = timezone('utc', CURRENT_TIMESTAMP) WHERE name = $1 AND locked_by = $2";
}

#[tokio::test]
async fn shedlock_with_a_fence_column_names_its_tenures() {
    let mut world = PostgresLocks::start().await;
    world.client.batch_execute(shedlock::TABLE).await.unwrap();
    world.client.batch_execute(recipe("shedlock postgres")).await.unwrap();
    world.reads("shedlock", Lapsed::Ends, query("shedlock-query postgres")).await;
    let key = world.key("orders");
    let name = key.as_str();
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    let mut before = None;
    for (number, owner) in [(1, "host-1"), (2, "host-1"), (3, "host-2"), (4, "host-1")] {
        world.execute(shedlock::LOCK, &[&name, &owner]).await;
        let fence = format!("SELECT fence FROM shedlock WHERE name = '{name}'");
        assert_eq!(world.number(&fence).await, number);
        let held = Presented { owner: owner.to_owned(), revision: revision(number) };
        assert_eq!(ask(&lock, &held).await, "admit", "{held:?}");
        if let Some(before) = before {
            assert_ne!(ask(&lock, &before).await, "admit", "{before:?}");
        }
        world.execute(shedlock::EXTEND, &[&name, &owner]).await;
        assert_eq!(world.number(&fence).await, number);
        assert_eq!(ask(&lock, &held).await, "admit");
        world.execute(shedlock::UNLOCK, &[&name, &owner]).await;
        lock.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
        assert_eq!(ask(&lock, &held).await, "no-owner");
        before = Some(held);
    }
}

/// Spring's own table, and the statements of its `DefaultLockRepository`.
mod int_lock {
    pub(super) const TABLE: &str = "CREATE TABLE int_lock (lock_key CHAR(36) NOT NULL, \
        region VARCHAR(100) NOT NULL, client_id CHAR(36), created_date TIMESTAMP NOT NULL, \
        PRIMARY KEY (lock_key, region))";
    pub(super) const INSERT: &str = "INSERT INTO int_lock (region, lock_key, client_id, \
        created_date) VALUES ('DEFAULT', $1, $2, now())";
    /// Of what is one's own, or has lapsed.
    pub(super) const UPDATE: &str = "UPDATE int_lock SET client_id = $2, created_date = now() \
        WHERE region = 'DEFAULT' AND lock_key = $1";
    pub(super) const DELETE: &str = "DELETE FROM int_lock \
        WHERE region = 'DEFAULT' AND lock_key = $1 AND client_id = $2";
}

#[tokio::test]
async fn int_lock_with_a_table_of_epochs_names_its_tenures() {
    let mut world = PostgresLocks::start().await;
    world.client.batch_execute(int_lock::TABLE).await.unwrap();
    world.client.batch_execute(recipe("int_lock postgres")).await.unwrap();
    let text = query("int_lock-query postgres");
    world.reads("int_lock, fence_epoch", Lapsed::Holds, text).await;
    let name = "6f2cb9dd-8f4b-365b-bcb4-2e662efa819c";
    let clients = ["2f9a1b53-6c6e-4d3c-9a57-1d9be1a0c001", "2f9a1b53-6c6e-4d3c-9a57-1d9be1a0c002"];
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&LockKey::new(name).unwrap());
    let held =
        |owner: &str, number| Presented { owner: owner.to_owned(), revision: revision(number) };
    world.execute(int_lock::INSERT, &[&name, &clients[0]]).await;
    let first = held(clients[0], 1);
    assert_eq!(ask(&lock, &first).await, "admit");
    world.execute(int_lock::UPDATE, &[&name, &clients[0]]).await;
    assert_eq!(ask(&lock, &first).await, "admit", "it has renewed");
    world.execute(int_lock::UPDATE, &[&name, &clients[1]]).await;
    let second = held(clients[1], 2);
    assert_eq!(ask(&lock, &second).await, "admit");
    assert_eq!(ask(&lock, &first).await, "stale-tenure");
    world.execute(int_lock::DELETE, &[&name, &clients[1]]).await;
    lock.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
    assert_eq!(ask(&lock, &second).await, "no-owner");
    world.execute(int_lock::INSERT, &[&name, &clients[0]]).await;
    assert_eq!(ask(&lock, &held(clients[0], 3)).await, "admit");
    assert_eq!(ask(&lock, &first).await, "replayed-tenure");
}
