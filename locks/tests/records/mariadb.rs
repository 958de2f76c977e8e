//! Locks in MariaDB: the book's recipes, taken by their own statements.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencepost_locks::{Lapsed, MysqlOptions, MysqlStore, RecordFormat, SqlLogin};
use fencepost_policy::{Layout, LockKey};
use fencepost_tests::{Mariadb, PATIENCE, Relay, Scratch, replace_file, until};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder, Params};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::postgres::{problem, revision, why_not};
use crate::recipes::{query, recipe};
use crate::world::{Presented, Reader, World, ask};

/// Rows as the first recipe has them, in a database of their own. They are read by a user that may
/// do nothing else, and has a password.
pub(crate) struct MariadbLocks {
    server: Arc<Mariadb>,
    relay: Relay,
    client: Mutex<Conn>,
    options: MysqlOptions,
    scratch: Scratch,
}

static DATABASES: AtomicUsize = AtomicUsize::new(0);

async fn connect(server: &Mariadb, database: Option<&str>) -> Conn {
    let options = OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(server.address().port())
        .prefer_socket(false)
        .user(Some("root"))
        .db_name(database);
    Conn::new(options).await.unwrap()
}

/// Runs the statements of a block. None of them has a semicolon of its own.
async fn execute_each(client: &mut Conn, block: &str) {
    for statement in block.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
        client.query_drop(statement).await.unwrap();
    }
}

impl MariadbLocks {
    pub(crate) async fn start() -> MariadbLocks {
        MariadbLocks::on(Mariadb::shared().await).await
    }

    async fn on(server: Arc<Mariadb>) -> MariadbLocks {
        let name = format!("locks_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        let mut root = connect(&server, None).await;
        root.query_drop(format!("CREATE DATABASE {name}")).await.unwrap();
        let made = format!("CREATE USER {name}@'127.0.0.1' IDENTIFIED BY 'change me'");
        root.query_drop(made).await.unwrap();
        let mut client = connect(&server, Some(&name)).await;
        execute_each(&mut client, recipe("epoch mysql")).await;
        let (relay, scratch) = (Relay::start(server.address()).await, Scratch::new());
        let password_file = scratch.path().join("password");
        replace_file(&password_file, "change me\n");
        let options = MysqlOptions {
            login: SqlLogin {
                host: relay.address().ip().to_string(),
                port: relay.address().port(),
                user: name.clone(),
                password_file: Some(password_file),
                database: name,
            },
            query: query("epoch-query mysql"),
            lapsed: Lapsed::Ends,
        };
        let client = Mutex::new(client);
        let world = MariadbLocks { server, relay, client, options, scratch };
        world.grant("lock_epoch").await;
        world
    }

    async fn grant(&self, table: &str) {
        let user = &self.options.login.user;
        self.execute(&format!("GRANT SELECT ON {table} TO {user}@'127.0.0.1'"), ()).await;
    }

    /// Runs a statement, and says how many rows it has changed.
    async fn execute(&self, statement: &str, values: impl Into<Params> + Send) -> u64 {
        let mut client = self.client.lock().await;
        client.exec_drop(statement, values.into()).await.unwrap();
        client.affected_rows()
    }

    async fn number(&self, statement: &str) -> i64 {
        self.client.lock().await.query_first(statement).await.unwrap().unwrap()
    }
}

impl World for MariadbLocks {
    type Store = MysqlStore;

    fn store(&self) -> MysqlStore {
        MysqlStore::new(self.options.clone())
    }

    fn format(&self) -> RecordFormat {
        RecordFormat::plain(Layout::Key)
    }

    async fn take(&self, lock: &LockKey, owner: &str) -> Presented {
        let name = lock.as_str();
        self.execute("INSERT IGNORE INTO lock_epoch (name) VALUES (?)", (name,)).await;
        let lapse = "UPDATE lock_epoch SET until = '2000-01-01', epoch = abs(epoch) WHERE name = ?";
        self.execute(lapse, (name,)).await;
        assert_eq!(self.execute(recipe("epoch-take mysql"), (owner, name)).await, 1);
        let number = self.number("SELECT LAST_INSERT_ID()").await;
        Presented { owner: owner.to_owned(), revision: revision(number) }
    }

    async fn renew(&self, lock: &LockKey, held: &Presented) -> Presented {
        let renew = "UPDATE lock_epoch SET until = until + INTERVAL 1 SECOND WHERE name = ?";
        assert_eq!(self.execute(renew, (lock.as_str(),)).await, 1);
        held.clone()
    }

    async fn release(&self, lock: &LockKey, held: &Presented) {
        let release = "UPDATE lock_epoch SET owner = NULL WHERE name = ? AND epoch = ?";
        assert_eq!(self.execute(release, (lock.as_str(), held.revision.get())).await, 1);
    }

    async fn spoil(&self, lock: &LockKey) {
        let spoil = "UPDATE lock_epoch SET epoch = -epoch WHERE name = ?";
        assert_eq!(self.execute(spoil, (lock.as_str(),)).await, 1);
    }

    async fn stand_still(&self) {
        self.relay.freeze().await;
    }

    async fn go_on(&self) {
        self.relay.restore().await;
    }
}

/// A session that goes on in one transaction keeps showing the old holder, which is what these
/// databases do by default.
#[tokio::test]
async fn a_server_without_autocommit_shows_each_new_holder() {
    let server = Arc::new(Mariadb::start().await);
    let world = MariadbLocks::on(Arc::clone(&server)).await;
    world.execute("SET GLOBAL autocommit = 0", ()).await;
    let key = world.key("orders");
    let first = world.take(&key, "shard-1").await;
    let mut trapped = connect(&server, Some(&world.options.login.database)).await;
    let owner = "SELECT owner FROM lock_epoch";
    let seen: Option<String> = trapped.query_first(owner).await.unwrap();
    assert_eq!(seen.as_deref(), Some("shard-1"));
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    assert_eq!(ask(&lock, &first).await, "admit");
    for number in 2..10 {
        let next = world.take(&key, &format!("shard-{number}")).await;
        assert_eq!(ask(&lock, &next).await, "admit");
        assert_eq!(ask(&lock, &first).await, "stale-tenure");
    }
    let seen: Option<String> = trapped.query_first(owner).await.unwrap();
    assert_eq!(seen.as_deref(), Some("shard-1"), "the trap is one");
}

#[tokio::test]
async fn a_server_that_only_reads_is_refused() {
    let world = MariadbLocks::on(Arc::new(Mariadb::start().await)).await;
    let key = world.key("orders");
    let held = world.take(&key, "shard-1").await;
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    assert_eq!(ask(&lock, &held).await, "admit");
    world.execute("SET GLOBAL read_only = 1", ()).await;
    let why = why_not(&world).await;
    assert!(why.contains("the server is not the primary"), "{why}");
    world.execute("SET GLOBAL read_only = 0", ()).await;
    until("it is admitted again", async || ask(&lock, &held).await == "admit").await;
}

#[tokio::test]
async fn keys_are_bound_whatever_they_are() {
    let world = MariadbLocks::start().await;
    let reader = Reader::of(&world).await;
    for name in ["'); DROP TABLE lock_epoch; --", "\"?\"", "?", "\\'", "ü \u{1f512}", "%", "a\0b"]
    {
        let key = LockKey::new(name).unwrap();
        let held = world.take(&key, "it's \"me\"").await;
        assert_eq!(ask(&reader.lock(&key), &held).await, "admit", "{name:?}");
    }
}

#[tokio::test]
async fn what_the_query_returns_otherwise_is_named() {
    let mut world = MariadbLocks::start().await;
    let key = world.key("orders");
    world.take(&key, "shard-1").await;
    let has_to = "it has to return key (text), owner (text or null), revision (integer)";
    let of_keys = "FROM lock_epoch WHERE name IN (?)";
    for (columns, problem) in [
        ("name AS `key`, owner, epoch + 0.0 AS revision, 1 AS live", "\"revision\" as newdecimal"),
        ("name AS `key`, owner, epoch AS revision, 'yes' AS live", "\"live\" as var_string"),
        ("name AS `key`, owner, epoch AS revision", "no column \"live\""),
        ("name, owner, epoch AS revision, 1 AS live", "no column \"key\""),
    ] {
        world.options.query = format!("SELECT {columns} {of_keys}");
        let told = self::problem(&world, &key).await;
        assert!(told.contains(problem) && told.contains(has_to), "{told}");
        assert!(told.contains("lock locks/orders"), "{told}");
    }
    // A collation that takes one key for another.
    world.options.query =
        query("epoch-query mysql").replace("name IN", "name COLLATE utf8mb4_general_ci IN");
    let told = problem(&world, &LockKey::new("locks/Orders").unwrap()).await;
    assert!(told.contains("key \"locks/orders\", which was not asked for"), "{told}");
    world.execute("ALTER TABLE lock_epoch ADD COLUMN bits bit(1) DEFAULT b'1'", ()).await;
    world.options.query = query("epoch-query mysql").replace("until > UTC_TIMESTAMP(6)", "bits");
    let reader = Reader::of(&world).await;
    let held = world.take(&key, "shard-1").await;
    assert_eq!(ask(&reader.lock(&key), &held).await, "admit", "bits are a boolean");
}

#[tokio::test]
async fn what_is_wrong_with_the_source_is_told_in_words() {
    let mut world = MariadbLocks::start().await;
    let right = world.options.clone();
    world.options.query = "SELECT nothing FROM lock_epoch WHERE name IN (?)".to_owned();
    assert!(why_not(&world).await.contains("the query: Unknown column 'nothing'"));
    world.options.query = "DELETE FROM lock_epoch WHERE name IN (?)".to_owned();
    assert!(why_not(&world).await.contains("the query: You have an error in your SQL syntax"));
    world.options.query = "SELECT 1".to_owned();
    assert!(why_not(&world).await.contains("the query has to have one (?)"));
    world.execute("CREATE TABLE secrets (name text)", ()).await;
    world.options.query = "SELECT * FROM secrets WHERE name IN (?)".to_owned();
    let told = why_not(&world).await;
    assert!(told.contains("SELECT command denied") && told.contains("GRANT SELECT on"), "{told}");
    world.options = right.clone();
    world.options.login.database = "mysql".to_owned();
    let told = why_not(&world).await;
    assert!(told.contains("no login to the lock store: user \"locks_"), "{told}");
    world.options = right;
    replace_file(&world.scratch.path().join("password"), "wrong");
    let told = why_not(&world).await;
    assert!(told.contains("with the password in ") && told.contains("Access denied"), "{told}");
}

#[tokio::test]
async fn a_connection_that_the_server_ends_is_made_anew() {
    let world = MariadbLocks::start().await;
    let key = world.key("orders");
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    for round in 0..5 {
        let held = world.take(&key, &format!("shard-{round}")).await;
        assert_eq!(ask(&lock, &held).await, "admit");
        let user = &world.options.login.user;
        world.execute(&format!("KILL USER {user}@'127.0.0.1'"), ()).await;
    }
    assert!(world.relay.accepted() >= 5, "each had a connection of its own");
    drop(world.server);
}

/// ShedLock's own table, and the statements that it sends with `usingDbTime()`.
#[tokio::test]
async fn shedlock_with_a_fence_column_names_its_tenures() {
    let mut world = MariadbLocks::start().await;
    let table = "CREATE TABLE shedlock (name VARCHAR(64) NOT NULL, \
        lock_until TIMESTAMP(3) NOT NULL, \
        locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), \
        locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))";
    world.execute(table, ()).await;
    execute_each(&mut *world.client.lock().await, recipe("shedlock mysql")).await;
    world.grant("shedlock").await;
    world.options.query = query("shedlock-query mysql");
    let key = world.key("orders");
    let name = key.as_str();
    let insert = "INSERT IGNORE INTO shedlock (name, lock_until, locked_at, locked_by) \
        VALUES (?, TIMESTAMPADD(MICROSECOND, 3600000000, UTC_TIMESTAMP(3)), UTC_TIMESTAMP(3), ?)";
    let update = "UPDATE shedlock \
        SET lock_until = TIMESTAMPADD(MICROSECOND, 3600000000, UTC_TIMESTAMP(3)), \
        locked_at = UTC_TIMESTAMP(3), locked_by = ? WHERE name = ? AND lock_until <= UTC_TIMESTAMP(3)";
    let extend = "UPDATE shedlock \
        SET lock_until = TIMESTAMPADD(MICROSECOND, 7200000000, UTC_TIMESTAMP(3)) \
        WHERE name = ? AND locked_by = ? AND lock_until > UTC_TIMESTAMP(3)";
    let unlock = "UPDATE shedlock SET lock_until = UTC_TIMESTAMP(3) \
        WHERE name = ? AND locked_by = ?";
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    let mut before: Option<Presented> = None;
    for (number, owner) in [(1, "host-1"), (2, "host-1"), (3, "host-2"), (4, "host-1")] {
        match number {
            1 => assert_eq!(world.execute(insert, (name, owner)).await, 1),
            _ => assert_eq!(world.execute(update, (owner, name)).await, 1),
        }
        assert_eq!(world.number("SELECT fence FROM shedlock").await, number);
        let held = Presented { owner: owner.to_owned(), revision: revision(number) };
        assert_eq!(ask(&lock, &held).await, "admit", "{held:?}");
        if let Some(before) = before {
            assert_ne!(ask(&lock, &before).await, "admit", "{before:?}");
        }
        assert_eq!(world.execute(extend, (name, owner)).await, 1);
        assert_eq!(world.number("SELECT fence FROM shedlock").await, number);
        assert_eq!(ask(&lock, &held).await, "admit");
        assert_eq!(world.execute(unlock, (name, owner)).await, 1);
        lock.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
        assert_eq!(ask(&lock, &held).await, "no-owner");
        before = Some(held);
    }
}

/// Spring's own table, and the statements of its `DefaultLockRepository`.
#[tokio::test]
async fn int_lock_with_a_table_of_epochs_names_its_tenures() {
    let mut world = MariadbLocks::start().await;
    let table = "CREATE TABLE INT_LOCK (LOCK_KEY CHAR(36) NOT NULL, REGION VARCHAR(100) NOT NULL, \
        CLIENT_ID CHAR(36), CREATED_DATE DATETIME(6) NOT NULL, PRIMARY KEY (LOCK_KEY, REGION))";
    world.execute(table, ()).await;
    execute_each(&mut *world.client.lock().await, recipe("int_lock mysql")).await;
    world.grant("INT_LOCK").await;
    world.grant("fence_epoch").await;
    (world.options.query, world.options.lapsed) = (query("int_lock-query mysql"), Lapsed::Holds);
    let insert = "INSERT INTO INT_LOCK (REGION, LOCK_KEY, CLIENT_ID, CREATED_DATE) \
        VALUES ('DEFAULT', ?, ?, UTC_TIMESTAMP(6))";
    let update = "UPDATE INT_LOCK SET CLIENT_ID = ?, CREATED_DATE = UTC_TIMESTAMP(6) \
        WHERE REGION = 'DEFAULT' AND LOCK_KEY = ?";
    let delete = "DELETE FROM INT_LOCK WHERE REGION = 'DEFAULT' AND LOCK_KEY = ? AND CLIENT_ID = ?";
    let name = "6f2cb9dd-8f4b-365b-bcb4-2e662efa819c";
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&LockKey::new(name).unwrap());
    let held =
        |owner: &str, number| Presented { owner: owner.to_owned(), revision: revision(number) };
    assert_eq!(world.execute(insert, (name, "client-1")).await, 1);
    let first = held("client-1", 1);
    assert_eq!(ask(&lock, &first).await, "admit");
    assert_eq!(world.execute(update, ("client-1", name)).await, 1);
    assert_eq!(ask(&lock, &first).await, "admit", "it has renewed");
    assert_eq!(world.execute(update, ("client-2", name)).await, 1);
    let second = held("client-2", 2);
    assert_eq!(ask(&lock, &second).await, "admit");
    assert_eq!(ask(&lock, &first).await, "stale-tenure");
    assert_eq!(world.execute(delete, (name, "client-2")).await, 1);
    lock.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
    assert_eq!(ask(&lock, &second).await, "no-owner");
    assert_eq!(world.execute(insert, (name, "client-1")).await, 1);
    assert_eq!(ask(&lock, &held("client-1", 3)).await, "admit");
    assert_eq!(ask(&lock, &first).await, "replayed-tenure");
}
