//! HTTP/2 clients and workers that do exactly what they are told, stream by stream.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// An HTTP/2 client's connection.
pub(crate) struct Http2Client {
    sender: SendRequest<Bytes>,
}

impl Http2Client {
    pub(crate) async fn connect(address: SocketAddr) -> Http2Client {
        let stream = TcpStream::connect(address).await.unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        Http2Client { sender }
    }

    /// Sends a request's head. Its body follows through the stream that is returned.
    pub(crate) async fn begin(
        &mut self,
        request: Request<()>,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        self.sender = self.sender.clone().ready().await.unwrap();
        self.sender.send_request(request, false).unwrap()
    }

    pub(crate) async fn send(&mut self, request: Request<()>) -> ResponseFuture {
        self.sender = self.sender.clone().ready().await.unwrap();
        self.sender.send_request(request, true).unwrap().0
    }
}

/// What a worker gets: a request, and the means to answer it.
pub(crate) type Exchange = (Request<RecvStream>, SendResponse<Bytes>);

/// An HTTP/2 worker whose requests are taken one by one.
pub(crate) struct Http2Worker {
    pub(crate) address: SocketAddr,
    requests: mpsc::UnboundedReceiver<Exchange>,
    connections: Arc<AtomicUsize>,
}

impl Http2Worker {
    pub(crate) async fn start() -> Http2Worker {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = mpsc::unbounded_channel();
        let connections = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&connections);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                let sender = sender.clone();
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    while let Some(Ok(exchange)) = connection.accept().await {
                        if sender.send(exchange).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Http2Worker { address, requests, connections }
    }

    /// How many connections were opened.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) async fn next(&mut self) -> Exchange {
        tokio::time::timeout(super::PATIENCE, self.requests.recv())
            .await
            .expect("a request comes")
            .unwrap()
    }
}

/// Reads a body and its trailers to the end.
pub(crate) async fn read(mut body: RecvStream) -> Result<(Vec<u8>, Option<HeaderMap>), h2::Error> {
    let mut bytes = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        bytes.extend_from_slice(&piece);
    }
    Ok((bytes, body.trailers().await?))
}

/// So many bytes of a body, in however many pieces they come.
pub(crate) async fn some(body: &mut RecvStream, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let piece = body.data().await.expect("it goes on").unwrap();
        body.flow_control().release_capacity(piece.len()).unwrap();
        bytes.extend_from_slice(&piece);
    }
    bytes
}
