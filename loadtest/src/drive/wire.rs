//! A connection to the proxy, or a share of one: it has one request under way at a time.

mod http1;
mod http2;

use std::rc::Rc;

use self::http1::Http1;
use self::http2::{Http2, Multiplexed};
use super::plan::Plan;
use super::tenures::Presented;
use crate::answer::Answer;
use crate::client::Protocol;

/// What sends a request and waits for its answer.
pub(crate) enum Wire {
    Http1(Box<Http1>),
    Http2(Http2),
}

impl Wire {
    /// Opens a connection: one wire with HTTP/1.1, as many as there are to be streams with HTTP/2.
    pub(crate) async fn open(plan: &Rc<Plan>) -> anyhow::Result<Vec<Wire>> {
        match plan.protocol {
            Protocol::Http1 => Ok(vec![Wire::Http1(Box::new(Http1::open(plan).await?))]),
            Protocol::Http2 => {
                let connection = Multiplexed::open(plan).await?;
                Ok((0..plan.streams).map(|_| Wire::Http2(Http2::on(&connection))).collect())
            }
        }
    }

    /// Sends a request and reads its answer to the end. A connection that was closed meanwhile, or has had its number of requests,
    /// is opened again first.
    pub(crate) async fn exchange(&mut self, presented: &Presented) -> anyhow::Result<Answer> {
        match self {
            Wire::Http1(connection) => connection.exchange(presented).await,
            Wire::Http2(stream) => stream.exchange(presented).await,
        }
    }
}
