//! The server: worker threads, and the steps in which it ends.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{Request, Response};
use tokio::runtime::LocalOptions;
use tokio::sync::{mpsc, oneshot, watch};
use tower::Service;

use super::accept::{Accepted, ThreadHandle, accept_loop};
use super::answer::AnswerBody;
use super::client::ClientAddress;
use super::connection_limiter::ConnectionLimiter;
use super::limits::{Closing, Limits};
use super::listener::{ListenAddress, Listener};
use super::request_body::ClientBody;
use super::serve_connection::serve_connection;
use super::thread::{OnUnreadHead, Stage, Thread, UnreadHead};
use crate::wire::Background;

/// What a worker thread's service is made from.
#[derive(Clone)]
pub struct ThreadContext {
    /// The thread's number, from 0.
    pub index: usize,
    /// Runs what outlives its request; the thread ends after it.
    pub background: Background,
}

/// What one worker thread does with what it is asked for.
pub struct ThreadService<S> {
    pub(super) service: S,
    pub(super) on_unread_head: OnUnreadHead,
}

impl<S> ThreadService<S> {
    /// Answers requests by `service`.
    pub fn new(service: S) -> ThreadService<S> {
        ThreadService { service, on_unread_head: Box::new(|_, _| Response::default()) }
    }

    /// Calls `tell` for requests that the service never sees, because their heads could not be
    /// read. It returns the answer.
    pub fn on_unread_head(
        mut self,
        tell: impl Fn(ClientAddress, UnreadHead) -> Response<Bytes> + 'static,
    ) -> ThreadService<S> {
        self.on_unread_head = Box::new(tell);
        self
    }
}

/// A running server. Dropping it cuts whatever is under way.
pub struct Server {
    addresses: Vec<ListenAddress>,
    stage: watch::Sender<Stage>,
    connections: OpenConnections,
    cut: Arc<AtomicUsize>,
    /// Completes for each thread that ends, by a panic too.
    threads: FuturesUnordered<oneshot::Receiver<Infallible>>,
}

/// Counts a server's client connections.
#[derive(Clone)]
pub struct OpenConnections {
    loads: Arc<[Arc<AtomicUsize>]>,
    limiter: Arc<ConnectionLimiter>,
}

impl OpenConnections {
    /// How many are open now.
    pub fn count(&self) -> usize {
        self.loads.iter().map(|load| load.load(Ordering::Relaxed)).sum()
    }

    /// How many a limit has ended so far.
    pub fn closed(&self, closing: Closing) -> u64 {
        self.limiter.closed(closing)
    }

    /// How many were closed as soon as they were accepted, their client having too many.
    pub fn refused(&self) -> u64 {
        self.limiter.refused()
    }
}

/// Makes ready to serve `listeners` on `threads` worker threads, each with a service of its own.
/// Nobody is accepted before it [`begins`](Server::begin).
///
/// # Errors
///
/// If the system gives us no thread or no event queue.
pub fn serve<F, S, B>(
    listeners: Vec<Listener>,
    threads: NonZeroUsize,
    limits: Limits,
    make_service: F,
) -> io::Result<Server>
where
    F: Fn(ThreadContext) -> ThreadService<S> + Send + Clone + 'static,
    S: Service<Box<Request<ClientBody>>, Response = Response<B>, Error = Infallible>
        + Clone
        + 'static,
    B: AnswerBody + Unpin,
{
    let (stage, stage_seen) = watch::channel(Stage::Ready);
    let limiter = ConnectionLimiter::new(&limits);
    let loads: Vec<Arc<AtomicUsize>> = (0..threads.get()).map(|_| Arc::default()).collect();
    let mut server = Server {
        addresses: listeners.iter().map(|listener| listener.address().clone()).collect(),
        stage,
        connections: OpenConnections { loads: loads.clone().into(), limiter: Arc::clone(&limiter) },
        cut: Arc::new(AtomicUsize::new(0)),
        threads: FuturesUnordered::new(),
    };
    let mut workers = Vec::new();
    let mut starts = Vec::new();
    for (index, load) in loads.into_iter().enumerate() {
        let (connections, accepted) = mpsc::unbounded_channel();
        workers.push(ThreadHandle { load, connections });
        let (limiter, cut) = (Arc::clone(&limiter), Arc::clone(&server.cut));
        let worker = WorkerThread { accepted, limiter, stage: stage_seen.clone(), cut };
        starts.push((index, worker, limits, make_service.clone()));
    }
    let accepting = async move {
        let loops = listeners
            .into_iter()
            .map(|one| accept_loop(one, workers.clone(), limiter.clone(), stage_seen.clone()));
        for ended in futures_util::future::join_all(loops).await {
            if let Err(error) = ended {
                tracing::error!(%error, "a listener cannot be watched");
            }
        }
    };
    // A single worker thread accepts by itself: a hop to another thread would cost a wake-up per
    // connection.
    let mut accepting = Some(accepting);
    let accepts_itself = threads.get() == 1;
    for (index, worker, limits, make_service) in starts {
        let accepting = if accepts_itself { accepting.take() } else { None };
        server.spawn(&format!("worker-{index}"), move || {
            worker.run(index, limits, make_service, accepting)
        })?;
    }
    if let Some(accepting) = accepting {
        server.spawn("accept", move || accepting)?;
    }
    Ok(server)
}

impl Server {
    fn spawn<W: Future<Output = ()>>(
        &mut self,
        name: &str,
        work: impl FnOnce() -> W + Send + 'static,
    ) -> io::Result<()> {
        let (end, ended) = oneshot::channel();
        let (tell, made) = std::sync::mpsc::channel();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            // What runs on a local runtime need not be `Send`, and is woken without a lock.
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = match builder.enable_all().build_local(LocalOptions::default()) {
                Ok(runtime) => runtime,
                Err(error) => return drop(tell.send(Err(error))),
            };
            drop(tell.send(Ok(()))); // The caller waits for it.
            let _end = end; // Dropped by a panic, too.
            runtime.block_on(work());
            // Drops all tasks before the end is reported, and leaves blocking calls to themselves:
            // the lookup of a worker's name may take half a minute.
            runtime.shutdown_background();
        })?;
        made.recv()
            .unwrap_or_else(|_| Err(io::Error::other("the thread has ended before it began")))?;
        self.threads.push(ended);
        Ok(())
    }

    /// Serves from now on.
    pub fn begin(&self) {
        self.move_to(Stage::Serving);
    }

    /// The addresses served, with the ports that the system chose.
    pub fn addresses(&self) -> &[ListenAddress] {
        &self.addresses
    }

    /// Counts the client connections that are open.
    pub fn connections(&self) -> OpenConnections {
        self.connections.clone()
    }

    /// Client connections that are open now, for each worker thread.
    pub fn connections_by_thread(&self) -> Vec<usize> {
        self.connections.loads.iter().map(|load| load.load(Ordering::Relaxed)).collect()
    }

    /// Goes on serving, but asks every client to go elsewhere with its next request (`Connection:
    /// close`, GOAWAY).
    pub fn leave(&self) {
        self.move_to(Stage::Leaving);
    }

    /// Waits until a thread ends that should not have.
    pub async fn failed(&mut self) {
        self.threads.next().await;
    }

    /// Accepts nothing more, lets what is under way finish for as long as `grace`, and cuts the
    /// rest. Returns how many connections and detached requests that were.
    pub async fn shutdown(mut self, grace: Duration) -> usize {
        self.close();
        let _ = tokio::time::timeout(grace, self.ended()).await; // Cutting nothing is no harm.
        self.cut().await
    }

    /// Accepts nothing more.
    pub fn close(&self) {
        self.move_to(Stage::Closing);
    }

    /// Cuts whatever is under way. Returns how many connections and detached requests that were.
    pub async fn cut(mut self) -> usize {
        self.move_to(Stage::Cut);
        self.ended().await;
        self.cut.load(Ordering::Relaxed)
    }

    /// Waits until everything has ended, after [`Server::close`].
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn ended(&mut self) {
        while self.threads.next().await.is_some() {}
    }

    fn move_to(&self, stage: Stage) {
        self.stage.send_if_modified(|present| {
            let further = *present < stage;
            *present = stage.max(*present);
            further
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.move_to(Stage::Cut);
    }
}

struct WorkerThread {
    accepted: mpsc::UnboundedReceiver<Box<Accepted>>,
    limiter: Arc<ConnectionLimiter>,
    stage: watch::Receiver<Stage>,
    cut: Arc<AtomicUsize>,
}

impl WorkerThread {
    async fn run<F, S, B>(
        mut self,
        index: usize,
        limits: Limits,
        make_service: F,
        accepting: Option<impl Future<Output = ()> + 'static>,
    ) where
        F: Fn(ThreadContext) -> ThreadService<S>,
        S: Service<Box<Request<ClientBody>>, Response = Response<B>, Error = Infallible>
            + Clone
            + 'static,
        B: AnswerBody + Unpin,
    {
        // Without it the thread is of no use: if it panics, so does the thread, and that is
        // noticed.
        let accepts = async {
            if let Some(accepting) = accepting {
                let accepts = tokio::task::spawn_local(accepting);
                accepts.await.unwrap_or_else(|error| resume_unwind(error.into_panic()));
            }
            pending::<Infallible>().await
        };
        let mut accepts = pin!(accepts);
        let background = Background::default();
        let context = ThreadContext { index, background: background.clone() };
        let ThreadService { service, on_unread_head } = make_service(context);
        let thread = Thread::new(limits, background.clone(), on_unread_head);
        let mut accepting = true;
        loop {
            tokio::select! {
                accepted = self.accepted.recv(), if accepting => match accepted {
                    Some(accepted) => background.spawn(serve_connection(accepted, service.clone(), Rc::clone(&thread))),
                    None => accepting = false,
                },
                changed = self.stage.changed() => {
                    let stage = if changed.is_ok() { *self.stage.borrow_and_update() } else { Stage::Cut };
                    thread.move_to(stage);
                    self.limiter.idle.wake_all();
                    if stage == Stage::Cut {
                        self.cut.fetch_add(background.running(), Ordering::Relaxed);
                        return; // The thread's runtime drops its tasks.
                    }
                }
                () = background.idle(), if !accepting => return,
                never = &mut accepts => match never {},
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use fencepost_tests::PATIENCE;
    use tokio::task::spawn_blocking;
    use tokio::time::timeout;
    use tower::service_fn;

    use super::*;
    use crate::admin::AdminBody;

    /// The lookup of a worker's name kept a process from ending, whatever signals came.
    #[tokio::test]
    async fn server_ends_though_a_blocking_call_of_its_thread_goes_on() {
        let listener = Listener::bind(&ListenAddress::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
        let (begins, begun) = mpsc::channel();
        let (_ends, blocks) = mpsc::channel::<()>();
        let blocks = Arc::new(Mutex::new(blocks));
        let make_service = move |_| {
            let (begins, blocks) = (begins.clone(), Arc::clone(&blocks));
            let work = spawn_blocking(move || (begins.send(()), blocks.lock().unwrap().recv()));
            drop(work); // It goes on.
            ThreadService::new(service_fn(|_: Box<Request<ClientBody>>| {
                pending::<Result<Response<AdminBody>, Infallible>>()
            }))
        };
        let server =
            serve(vec![listener], NonZeroUsize::MIN, Limits::default(), make_service).unwrap();
        begun.recv().unwrap();
        assert!(timeout(PATIENCE, server.cut()).await.is_ok(), "it is waited for");
    }
}
