//! A network that holds a request back.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::client::{self, Answer, PATIENCE, Write};

/// A request on its way that stays on its way until it is delivered: a relay has its bytes, all of
/// them.
pub(super) struct HeldRequest {
    /// How many bytes the network has of it.
    pub(super) bytes: usize,
    delivery: oneshot::Sender<()>,
    carrier: JoinHandle<io::Result<()>>,
    sender: JoinHandle<anyhow::Result<Answer>>,
}

impl HeldRequest {
    /// Sends a write towards `target` and returns once all of it is in the network.
    pub(super) async fn send(write: Write, target: SocketAddr) -> anyhow::Result<HeldRequest> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let relay = listener.local_addr()?;
        let (delivery, delivered) = oneshot::channel();
        let (held, mut holding) = watch::channel(Vec::new());
        let carrier = tokio::task::spawn_local(carry(listener, target, held, delivered));
        // The body comes last, after the empty line that ends the head.
        let end = format!("\r\n\r\n{}", write.balance);
        let sender = tokio::task::spawn_local(async move { client::send(relay, &write).await });
        let whole = holding.wait_for(|held: &Vec<u8>| held.ends_with(end.as_bytes()));
        let whole = tokio::time::timeout(PATIENCE, whole)
            .await
            .context("a request did not reach the network in time")?;
        let bytes = whole.context("the network lost a connection")?.len();
        Ok(HeldRequest { bytes, delivery, carrier, sender })
    }

    /// Lets it go, and returns the answer that its sender gets.
    pub(super) async fn deliver(self) -> anyhow::Result<Answer> {
        let HeldRequest { delivery, carrier, sender, .. } = self;
        let _ = delivery.send(()); // If the relay has failed, the sender's error says so.
        let answer = tokio::time::timeout(PATIENCE, sender)
            .await
            .context("a delivered request was not answered in time")?;
        carrier.abort();
        answer?
    }
}

/// Takes one connection and keeps what comes until `delivered`; from then on passes everything on,
/// both ways.
async fn carry(
    listener: TcpListener,
    target: SocketAddr,
    held: watch::Sender<Vec<u8>>,
    mut delivered: oneshot::Receiver<()>,
) -> io::Result<()> {
    let (mut client, _) = listener.accept().await?;
    let mut buffer = [0; 4096];
    loop {
        tokio::select! {
            biased;
            _ = &mut delivered => break,
            count = client.read(&mut buffer) => match count? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => held.send_modify(|held| held.extend_from_slice(&buffer[..count])),
            }
        }
    }
    let mut server = TcpStream::connect(target).await?;
    let held = held.borrow().clone();
    server.write_all(&held).await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}
