//! Reads the header of the PROXY protocol, by which a proxy says whose connection it passes on, and
//! tells connections that begin otherwise than their listener expects. Of a header's further fields
//! (TLV) none is looked at: who a client is, only a handshake of our own shows.

use std::net::SocketAddr;
use std::time::Duration;

use proxy_header::{ParseConfig, ProxyHeader};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::wire::Transport;

/// How long a header may take.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest header of version 2.
const HEADER_BYTES_MAX: usize = 4 * 1024;
/// The longest header of version 1, which is a line.
const LINE_BYTES_MAX: usize = 107;

/// How version 1 begins.
const V1: &[u8] = b"PROXY ";
/// How version 2 begins.
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The shortest header of either version.
const SHORTEST: &[u8] = b"PROXY UNKNOWN\r\n";

/// Whose connection it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// The proxy's own, such as a health check.
    Own,
    /// A client's without an IP address.
    Unnamed,
    /// That client's.
    Of(SocketAddr),
}

/// Why a connection begins otherwise than its listener expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unexpected {
    /// A header of version 1.
    #[error("PROXY protocol v1 on a listener that does not expect it")]
    ProxyV1,
    /// A header of version 2.
    #[error("PROXY protocol v2 on a listener that does not expect it")]
    ProxyV2,
    /// A client that begins TLS.
    #[error("a TLS hello on a plain port")]
    TlsHello,
    /// A request, or HTTP/2's preface.
    #[error("plain HTTP on a TLS port")]
    PlainHttp,
    /// Something else than a header.
    #[error("no PROXY header on a listener with proxy_protocol = \"required\"")]
    NoHeader,
    /// It took too long.
    #[error("no whole PROXY header within 2 s")]
    LateHeader,
    /// It is too long.
    #[error("a PROXY header of more than 4 KiB")]
    LongHeader,
    /// It breaks the rules.
    #[error("a broken PROXY header")]
    BrokenHeader,
    /// The peer may not say who its client is.
    #[error(
        "a listener with proxy_protocol = \"required\", and a peer that is not in trusted_proxies"
    )]
    NotTrusted,
}

impl Unexpected {
    /// What the first bytes are of, if a port for HTTP in the clear, or by TLS, does not expect it.
    pub(super) fn of(first: &[u8], is_tls: bool) -> Option<Unexpected> {
        match first {
            _ if first.starts_with(V1) => Some(Unexpected::ProxyV1),
            _ if first.starts_with(V2) => Some(Unexpected::ProxyV2),
            [0x16, 3, ..] if !is_tls => Some(Unexpected::TlsHello),
            [b'A'..=b'Z', ..] if is_tls => Some(Unexpected::PlainHttp),
            _ => None,
        }
    }
}

/// Takes the header from a connection that has just begun, and nothing of what follows it.
///
/// # Errors
/// If no header comes, or not in time; `None` if the peer has closed without a word.
pub(super) async fn read(transport: &mut Transport) -> Result<Whose, Option<Unexpected>> {
    let read = timeout(HEADER_TIMEOUT, read_header(transport)).await;
    let header = read.map_err(|_| Some(Unexpected::LateHeader))??;
    let config = ParseConfig { include_tlvs: false, ..ParseConfig::default() };
    let whole =
        ProxyHeader::parse(&header, config).ok().filter(|(_, length)| *length == header.len());
    let (parsed, _) = whole.ok_or(Some(Unexpected::BrokenHeader))?;
    let is_own = header.starts_with(V2) && header[V2.len()] & 0xf == 0; // The command LOCAL.
    Ok(match parsed.proxied_address() {
        _ if is_own => Whose::Own,
        Some(address) => Whose::Of(address.source),
        None => Whose::Unnamed,
    })
}

async fn read_header(transport: &mut Transport) -> Result<Vec<u8>, Option<Unexpected>> {
    let mut header = vec![0; SHORTEST.len()];
    let begun = transport.read_exact(&mut header).await;
    begun.map_err(|_| (transport.bytes_moved() > 0).then_some(Unexpected::NoHeader))?;
    let broken = |_| Some(Unexpected::BrokenHeader);
    if header.starts_with(V2) {
        header.push(transport.read_u8().await.map_err(broken)?);
        let fixed = header.len();
        let length =
            fixed + usize::from(u16::from_be_bytes([header[fixed - 2], header[fixed - 1]]));
        if length > HEADER_BYTES_MAX {
            return Err(Some(Unexpected::LongHeader));
        }
        header.resize(length, 0);
        transport.read_exact(&mut header[fixed..]).await.map_err(broken)?;
    } else if header.starts_with(V1) {
        // Byte by byte: where the line ends is not known, and what follows is not ours.
        while !header.ends_with(b"\n") && header.len() < LINE_BYTES_MAX {
            header.push(transport.read_u8().await.map_err(broken)?);
        }
    } else {
        return Err(Some(Unexpected::NoHeader));
    }
    Ok(header)
}
