//! A whole connection: bytes in, and a worker that sees clean messages with the admitted token, or
//! nothing.
//!
//! The proxy is the real one, with its threads and sockets, and runs as long as the process. Each
//! input is a connection of its own, from an address of its own: the worker knows by
//! `X-Forwarded-For` that a message was made by the proxy for that connection, which a request that
//! is hidden in another cannot imitate.

mod client;
mod proxy;
mod worker;

use std::sync::LazyLock;

use proxy::Proxy;

static PROXY: LazyLock<Proxy> = LazyLock::new(Proxy::start);

/// The owner and the revision that are admitted; every other token is refused.
const OWNER: &str = "shard-1";
const REVISION: &str = "2";

/// What a client sends. The last byte says in which pieces.
pub(crate) fn run(input: &[u8]) {
    let Some((pieces, bytes)) = input.split_last() else { return };
    let proxy = &*PROXY;
    let from = proxy.worker.next_client();
    let answers = client::exchange(proxy.address, from, bytes, *pieces);
    for other in worker::answered_to(&answers) {
        assert_eq!(other, from.to_string(), "a client was given the answer to another's request");
    }
    proxy.worker.check();
}
