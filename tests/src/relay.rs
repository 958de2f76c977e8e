//! A TCP relay that breaks on command: for faults between two sockets that are both healthy.

use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::etcd::Etcd;
use crate::port::FreePort;
use crate::thread::TaskThread;

/// Relays TCP connections to a target and back. Its address stays its own whatever happens.
///
/// Each command is in force when its call returns: not a byte passes a frozen relay after that. The
/// relay runs on a thread of its own.
#[derive(Debug)]
pub struct Relay {
    /// Ends first: its tasks use the rest.
    thread: TaskThread,
    port: FreePort,
    conditions: Arc<watch::Sender<Conditions>>,
    listening: watch::Receiver<bool>,
    accepted: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Conditions {
    line: Line,
    delay: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Open,
    Frozen,
    /// For the connection of that number alone.
    FrozenFor(usize),
    /// For the connection of that number and all later ones.
    FrozenFrom(usize),
    Cut,
}

impl Line {
    fn is_open_for(self, connection: usize) -> bool {
        match self {
            Line::Open => true,
            Line::FrozenFor(frozen) => frozen != connection,
            Line::FrozenFrom(frozen) => connection < frozen,
            Line::Frozen | Line::Cut => false,
        }
    }
}

impl Relay {
    /// Starts one that passes everything on to `target` at once.
    pub async fn start(target: SocketAddr) -> Relay {
        let thread = TaskThread::start("relay");
        // Its address must survive a cut, so it can't be one that the system may give away
        // meanwhile.
        let port = FreePort::reserve();
        let conditions =
            Arc::new(watch::Sender::new(Conditions { line: Line::Open, delay: Duration::ZERO }));
        let accepted = Arc::new(AtomicUsize::new(0));
        let (report, listening) = watch::channel(false);
        let serving =
            serve(port.address(), target, conditions.subscribe(), report, Arc::clone(&accepted));
        thread.spawn(serving);
        let relay = Relay { thread, port, conditions, listening, accepted };
        relay.until_listening(true).await;
        relay
    }

    /// Starts one between its clients and that member.
    pub async fn before(etcd: &Etcd) -> Relay {
        let address = etcd
            .endpoint()
            .trim_start_matches("http://")
            .parse()
            .expect("without TLS it is at an address");
        Relay::start(address).await
    }

    /// Where to connect instead of to the target.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// How many connections it has accepted so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Closes all connections and refuses new ones.
    pub async fn cut(&self) {
        self.change(|conditions| conditions.line = Line::Cut).await;
        self.until_listening(false).await;
    }

    /// Goes on accepting connections and bytes, and passes nothing on, not even that a side has
    /// closed.
    pub async fn freeze(&self) {
        self.change(|conditions| conditions.line = Line::Frozen).await;
        self.until_listening(true).await;
    }

    /// As [`Relay::freeze`], for the connection that was accepted as the `number`th (from 0) and no
    /// other.
    pub async fn freeze_connection(&self, number: usize) {
        self.change(move |conditions| conditions.line = Line::FrozenFor(number)).await;
        self.until_listening(true).await;
    }

    /// As [`Relay::freeze`], for the connection that is accepted as the `number`th (from 0) and all
    /// later ones.
    pub async fn freeze_from(&self, number: usize) {
        self.change(move |conditions| conditions.line = Line::FrozenFrom(number)).await;
        self.until_listening(true).await;
    }

    /// Ends a cut or a freeze: what was held back flows on.
    pub async fn restore(&self) {
        self.change(|conditions| conditions.line = Line::Open).await;
        self.until_listening(true).await;
    }

    /// Delays what arrives from now on by `delay`, each way. Throughput suffers only where more
    /// than some megabytes are under way.
    pub async fn delay(&self, delay: Duration) {
        self.change(move |conditions| conditions.delay = delay).await;
    }

    /// Changes the conditions between two steps of the tasks that obey them, never within one.
    async fn change(&self, change: impl FnOnce(&mut Conditions) + Send + 'static) {
        let conditions = Arc::clone(&self.conditions);
        let changed = self.thread.spawn(async move { conditions.send_modify(change) });
        changed.await.expect("the relay runs as long as its handle");
    }

    async fn until_listening(&self, wanted: bool) {
        let mut listening = self.listening.clone();
        listening
            .wait_for(|listening| *listening == wanted)
            .await
            .expect("the relay runs as long as its handle");
    }
}

async fn serve(
    address: SocketAddr,
    target: SocketAddr,
    mut conditions: watch::Receiver<Conditions>,
    listening: watch::Sender<bool>,
    accepted: Arc<AtomicUsize>,
) {
    loop {
        let listener = TcpListener::bind(address).await.expect("the reserved port can be bound");
        listening.send_replace(true);
        let mut connections = JoinSet::new();
        // A cut is looked at first, so that nothing is accepted after it.
        while let Some(client) = tokio::select! {
            biased;
            _ = until_line(&mut conditions, |line| line == Line::Cut) => None,
            client = listener.accept() => Some(client),
        } {
            let (client, _) = client.expect("a listener of a test accepts");
            let number = accepted.fetch_add(1, Ordering::Relaxed);
            connections.spawn(relay(client, target, number, conditions.clone()));
        }
        // A process that is being started has it, too: it ends here and now, so that the address is
        // free.
        SockRef::from(&listener).shutdown(Shutdown::Read).expect("a listener can be shut down");
        drop(listener);
        connections.shutdown().await;
        listening.send_replace(false);
        until_line(&mut conditions, |line| line != Line::Cut).await;
    }
}

/// Relays one connection until both directions have ended or one has broken.
async fn relay(
    client: TcpStream,
    target: SocketAddr,
    number: usize,
    mut conditions: watch::Receiver<Conditions>,
) {
    until_line(&mut conditions, |line| line.is_open_for(number)).await;
    // A target that refuses shows as a connection that is closed at once.
    let Ok(server) = TcpStream::connect(target).await else { return };
    if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (there, back) = (mpsc::channel(UNDER_WAY_MAX), mpsc::channel(UNDER_WAY_MAX));
    // An error ends all four: then both sides see the connection break.
    let _ = tokio::try_join!(
        take_in(from_client, there.0, conditions.clone()),
        give_out(to_server, there.1, number, conditions.clone()),
        take_in(from_server, back.0, conditions.clone()),
        give_out(to_client, back.1, number, conditions),
    );
}

/// Pieces between the two ends of one direction.
const UNDER_WAY_MAX: usize = 256;

/// Bytes, when they are due.
type Piece = (Instant, Bytes);

async fn take_in(
    mut from: OwnedReadHalf,
    pieces: mpsc::Sender<Piece>,
    conditions: watch::Receiver<Conditions>,
) -> std::io::Result<()> {
    loop {
        let mut buffer = BytesMut::with_capacity(16 * 1024);
        if from.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
        let due = Instant::now() + conditions.borrow().delay;
        // The other end is gone only after an error of its own.
        let _ = pieces.send((due, buffer.freeze())).await;
    }
}

async fn give_out(
    mut to: OwnedWriteHalf,
    mut pieces: mpsc::Receiver<Piece>,
    number: usize,
    mut conditions: watch::Receiver<Conditions>,
) -> std::io::Result<()> {
    while let Some((due, mut bytes)) = pieces.recv().await {
        sleep_until(due).await;
        while !bytes.is_empty() {
            until_line(&mut conditions, |line| line.is_open_for(number)).await;
            tokio::select! {
                biased;
                _ = until_line(&mut conditions, |line| !line.is_open_for(number)) => {}
                written = to.write(&bytes) => drop(bytes.split_to(written?)),
            }
        }
    }
    until_line(&mut conditions, |line| line.is_open_for(number)).await;
    to.shutdown().await
}

async fn until_line(conditions: &mut watch::Receiver<Conditions>, wanted: impl Fn(Line) -> bool) {
    let seen = conditions.wait_for(|conditions| wanted(conditions.line)).await;
    seen.expect("the relay's handle outlives its tasks");
}
