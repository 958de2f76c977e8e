//! A store under test, and the hand that writes to it past the store's own interface.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions, Txn, TxnOp};
use fencepost_locks::{
    EtcdAccess, EtcdOptions, EtcdStore, EtcdTls, EtcdUser, Event, KeyRange, KeyValue, LockStore,
    MemoryStore, RangeRead, RangeWatch, ReadAnswer, StoreError, Wanted, Watch, WatchNews, Write,
};
use fencepost_policy::Revision;
use fencepost_tests::{
    self as etcd, Etcd, EtcdSecurity, EtcdVersion, PATIENCE, Tokens, replace_file,
};
use fencepost_tls::{ClientFiles, ClientTls, IdentityFiles};
use tokio::time::timeout;

/// A store and its writer.
pub(crate) trait World {
    type Store: LockStore;

    /// The store under test.
    fn store(&self) -> &Self::Store;

    /// Writes all of these at one revision and returns it.
    async fn transact(&self, writes: Vec<Write>) -> Revision;

    /// Forgets the history before a revision.
    async fn compact(&self, at: Revision);

    /// Makes the store stop answering.
    async fn pause(&self);

    /// Makes it answer again.
    fn resume(&self);

    async fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Revision {
        self.transact(vec![put(key, value)]).await
    }

    async fn delete(&self, key: impl AsRef<[u8]>) -> Revision {
        self.transact(vec![delete(key)]).await
    }

    /// Puts keys of that prefix with numbers, in as few transactions as etcd allows, and returns
    /// the last revision.
    async fn put_numbered(&self, prefix: &str, count: usize) -> Revision {
        let writes: Vec<Write> =
            (0..count).map(|number| put(numbered(prefix, number), number.to_string())).collect();
        let mut revision = Revision::MIN;
        for chunk in writes.chunks(100) {
            revision = self.transact(chunk.to_vec()).await;
        }
        revision
    }

    /// Reads one range.
    async fn read(&self, range: KeyRange, wanted: Wanted) -> ReadAnswer {
        self.store().read(&[RangeRead { range, wanted }]).await.expect("the store can be read")
    }

    /// Reads a key.
    async fn get(&self, name: impl AsRef<[u8]>) -> Option<KeyValue> {
        let mut answer = self.read(key(name), Wanted::All).await;
        answer.ranges.swap_remove(0).keys.pop()
    }

    /// Watches ranges from revisions.
    async fn watch(
        &self,
        ranges: impl IntoIterator<Item = (KeyRange, Revision)>,
    ) -> <Self::Store as LockStore>::Watch {
        let ranges: Vec<RangeWatch> =
            ranges.into_iter().map(|(range, from)| RangeWatch { range, from }).collect();
        self.store().watch(&ranges).await.expect("the store can be watched")
    }
}

pub(crate) fn put(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Write {
    Write::Put { key: key.as_ref().to_vec().into(), value: value.as_ref().to_vec().into() }
}

pub(crate) fn delete(key: impl AsRef<[u8]>) -> Write {
    Write::Delete { key: key.as_ref().to_vec().into() }
}

pub(crate) fn key(name: impl AsRef<[u8]>) -> KeyRange {
    KeyRange::Key(name.as_ref().into())
}

pub(crate) fn prefix(name: impl AsRef<[u8]>) -> KeyRange {
    KeyRange::Prefix(name.as_ref().into())
}

pub(crate) fn numbered(prefix: &str, number: usize) -> String {
    format!("{prefix}{number:05}")
}

pub(crate) fn after(revision: Revision) -> Revision {
    Revision::new(revision.get() + 1).expect("there is always a next revision")
}

/// The next news of a watch, or its end. That it has caught up is left out.
pub(crate) async fn news(watch: &mut impl Watch) -> Result<WatchNews, StoreError> {
    loop {
        match watch.next().await {
            Ok(WatchNews::CaughtUp) => {}
            news => return news,
        }
    }
}

/// The next news of a watch that goes on.
pub(crate) async fn next(watch: &mut impl Watch) -> WatchNews {
    timeout(PATIENCE, news(watch)).await.expect("there is news").expect("the watch goes on")
}

/// The next events of a watch: of which range, and which.
pub(crate) async fn next_events(watch: &mut impl Watch) -> (usize, Vec<Event>) {
    match next(watch).await {
        WatchNews::Events { range, events } => (range, events),
        WatchNews::Compacted { range } => panic!("range {range} was compacted"),
        WatchNews::CaughtUp => panic!("it was left out"),
    }
}

/// Event by event, until that many came.
pub(crate) async fn collect(watch: &mut impl Watch, count: usize) -> Vec<(usize, Event)> {
    let mut collected = Vec::new();
    while collected.len() < count {
        let (range, events) = next_events(watch).await;
        collected.extend(events.into_iter().map(|event| (range, event)));
    }
    collected
}

/// Short spelling of an event: `key=value@revision`, `key deleted@revision`.
pub(crate) fn spelled(event: &Event) -> String {
    match event {
        Event::Put(written) => {
            format!("{}={}@{}", text(&written.key), text(&written.value), written.modified)
        }
        Event::Delete { key, revision } => format!("{} deleted@{revision}", text(key)),
    }
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// The store in memory.
pub(crate) struct MemoryWorld(MemoryStore);

impl MemoryWorld {
    pub(crate) fn start() -> MemoryWorld {
        MemoryWorld(MemoryStore::new())
    }
}

impl World for MemoryWorld {
    type Store = MemoryStore;

    fn store(&self) -> &MemoryStore {
        &self.0
    }

    async fn transact(&self, writes: Vec<Write>) -> Revision {
        self.0.transact(writes)
    }

    async fn compact(&self, at: Revision) {
        self.0.compact(at);
    }

    async fn pause(&self) {
        self.0.pause();
    }

    fn resume(&self) {
        self.0.resume();
    }
}

/// An etcd of one member.
pub(crate) struct EtcdWorld {
    etcd: Etcd,
    store: EtcdStore,
    writer: Client,
}

impl EtcdWorld {
    pub(crate) async fn start(version: EtcdVersion) -> EtcdWorld {
        let etcd = Etcd::start(version).await;
        let store = EtcdStore::new(&EtcdOptions {
            endpoints: vec![etcd.endpoint()],
            ..EtcdOptions::default()
        });
        let writer = writer(&[etcd.endpoint()]).await;
        EtcdWorld { etcd, store, writer }
    }

    /// With TLS, and as a user whose logins last for one or two seconds and who may read
    /// everything, but no more.
    pub(crate) async fn start_secure(version: EtcdVersion) -> EtcdWorld {
        let secure = Secure::start(version, Tokens::Jwt(Duration::from_secs(1))).await;
        secure.grant("--prefix ''").await;
        let (store, writer) = (secure.store(), secure.writer().await);
        EtcdWorld { etcd: secure.etcd, store, writer }
    }
}

/// An etcd with TLS and users; ours is `fencepost`, in a role of that name, which has no permission
/// yet.
pub(crate) struct Secure {
    pub(crate) etcd: Etcd,
    pub(crate) security: Arc<EtcdSecurity>,
    pub(crate) tls: ClientTls,
    access: Arc<EtcdAccess>,
}

impl Secure {
    /// Checks a password within a millisecond.
    pub(crate) async fn start(version: EtcdVersion, tokens: Tokens) -> Secure {
        Secure::start_costly(version, tokens, 4).await
    }

    /// Takes so long to check a password; twice as long with each step.
    pub(crate) async fn start_costly(
        version: EtcdVersion,
        tokens: Tokens,
        bcrypt_cost: u32,
    ) -> Secure {
        let security = EtcdSecurity::new(tokens);
        let arguments = vec!["--bcrypt-cost".to_owned(), bcrypt_cost.to_string()];
        let security_of_etcd = Some(Arc::clone(&security));
        let options = etcd::EtcdOptions {
            security: security_of_etcd,
            arguments,
            ..etcd::EtcdOptions::default()
        };
        let etcd = Etcd::start_with(version, &options).await;
        etcd.enable_users().await;
        for command in [
            "role add fencepost",
            "user add fencepost:secret-1",
            "user grant-role fencepost fencepost",
        ] {
            etcd.etcdctl(&command.split(' ').collect::<Vec<_>>()).await;
        }
        let tls = tls(&security);
        let password_file = security.directory().join("password");
        let user = EtcdUser::with_file("fencepost", password_file);
        let made_with = EtcdTls { client: tls.clone(), server_name: None };
        let access = Arc::new(EtcdAccess::new(Some(made_with), Some(user)));
        let secure = Secure { etcd, security, tls, access };
        secure.write_password("secret-1\n");
        secure
    }

    /// Grants the role to read these keys, as etcdctl is told them in a shell.
    pub(crate) async fn grant(&self, keys: &str) {
        let keys = keys.split(' ').map(|word| word.trim_matches('\''));
        let arguments: Vec<&str> =
            ["role", "grant-permission", "fencepost", "read"].into_iter().chain(keys).collect();
        self.etcd.etcdctl(&arguments).await;
    }

    /// Puts a password into the file from which ours is read.
    pub(crate) fn write_password(&self, password: &str) {
        replace_file(&self.security.directory().join("password"), password);
    }

    pub(crate) fn store(&self) -> EtcdStore {
        let (endpoints, access) = (vec![self.etcd.endpoint()], Arc::clone(&self.access));
        EtcdStore::new(&EtcdOptions { endpoints, cluster_id: None, access })
    }

    /// A client that may do everything.
    pub(crate) async fn writer(&self) -> Client {
        let options = self.stranger().with_user("root", "root").with_auto_token_refresh(true);
        Client::connect([self.etcd.endpoint()], Some(options)).await.expect("root can log in")
    }

    /// How a client without a user connects.
    pub(crate) fn stranger(&self) -> ConnectOptions {
        let read = |file: PathBuf| std::fs::read(file).unwrap();
        let (certificate, key) = self.security.client();
        let tls = TlsOptions::new()
            .ca_certificate(Certificate::from_pem(read(self.security.ca())))
            .identity(Identity::from_pem(read(certificate), read(key)));
        ConnectOptions::new().with_tls(tls)
    }
}

/// What connections to that etcd are made with.
pub(crate) fn tls(security: &EtcdSecurity) -> ClientTls {
    let (certificate, key) = security.client();
    let files = ClientFiles {
        ca: security.ca(),
        crl: None,
        identity: Some(IdentityFiles { certificate, key }),
    };
    ClientTls::load(files, &[b"h2"]).expect("the files can be used")
}

/// A client that writes.
pub(crate) async fn writer(endpoints: &[String]) -> Client {
    Client::connect(endpoints, None).await.expect("the client can be made")
}

/// Writes all of these at one revision and returns it.
pub(crate) async fn transact(writer: &Client, writes: Vec<Write>) -> Revision {
    let operations: Vec<TxnOp> = writes
        .into_iter()
        .map(|write| match write {
            Write::Put { key, value } => TxnOp::put(key, value, None),
            Write::Delete { key } => TxnOp::delete(key, None),
        })
        .collect();
    let written = writer
        .kv_client()
        .txn(Txn::new().and_then(operations))
        .await
        .expect("etcd can be written to");
    let revision = written.header().expect("an answer has a header").revision();
    Revision::new(revision.unsigned_abs()).expect("etcd has a revision")
}

impl World for EtcdWorld {
    type Store = EtcdStore;

    fn store(&self) -> &EtcdStore {
        &self.store
    }

    async fn transact(&self, writes: Vec<Write>) -> Revision {
        transact(&self.writer, writes).await
    }

    async fn compact(&self, at: Revision) {
        let at = i64::try_from(at.get()).expect("a revision of a test is small");
        self.writer.kv_client().compact(at, None).await.expect("etcd can be compacted");
    }

    async fn pause(&self) {
        self.etcd.pause().await;
    }

    fn resume(&self) {
        self.etcd.resume();
    }
}

/// How long a call may take before the test says that it hangs. The calls' own deadlines are
/// shorter; a busy machine adds to them.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(5);
