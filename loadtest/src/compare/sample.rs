//! One measurement of one target.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use hyper::{Method, Uri};
use serde::Serialize;

use super::stage::{PATH, Stage, Target};
use crate::cli::CompareOptions;
use crate::cli::values::Share;
use crate::client::{self, Protocol, Token, client_files};
use crate::drive::{Latencies, Plan, Tenures, drive, touch};
use crate::machine::memory_of_tree;
use crate::stop::Stop;
use crate::worker::ASKS_FOR_BYTES;

const TOUCH_TIMEOUT: Duration = Duration::from_secs(10);
const SETTLE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    pub(super) connections: usize,
    /// With HTTP/2: requests at a time on each connection.
    pub(super) streams: Option<usize>,
    pub(super) is_secure: bool,
    pub(super) requests_per_connection: Option<u64>,
    pub(super) body_bytes: usize,
    pub(super) is_chunked: bool,
    /// The length of the worker's responses; `None` leaves it to the worker.
    pub(super) answer_bytes: Option<usize>,
    pub(super) locks: usize,
    pub(super) is_stale: bool,
    pub(super) warm_up: Duration,
    pub(super) length: Duration,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Sample {
    /// CPU time of the target for each answer, in microseconds.
    pub(super) cpu_micros_per_request: f64,
    /// The target's share of its CPUs: 1 for one whole CPU.
    pub(super) busy: f64,
    pub(super) requests_per_second: f64,
    pub(super) p50_seconds: f64,
    pub(super) p99_seconds: f64,
    /// Answers that were wrong or missing.
    pub(super) wrong: u64,
    /// Whether the generator, or its machine, had too little time.
    pub(super) generator_was_disturbed: bool,
    pub(super) memory_bytes: u64,
}

pub(super) type Row = (String, Vec<Sample>);

#[derive(Clone, Copy, Debug)]
pub(super) struct IdleSample {
    pub(super) start: u64,
    pub(super) per_connection: f64,
}

impl Load {
    pub(super) fn get(options: &CompareOptions) -> Load {
        let (connections, warm_up, length) =
            (options.connections, options.warm_up, options.seconds);
        Load { connections, warm_up, length, locks: 1, ..Load::default() }
    }

    fn plan(&self, target: &Target, stage: &Stage<'_>) -> Result<Plan> {
        let address: Uri = match (self.is_secure, self.streams) {
            (true, _) => format!("https://{}", target.tls),
            (false, Some(_)) => format!("http://{}", target.h2c),
            (false, None) => format!("http://{}", target.http1),
        }
        .parse()?;
        let protocol = if self.streams.is_some() { Protocol::Http2 } else { Protocol::Http1 };
        let files = client_files(&stage.authority(), None);
        let query = self.answer_bytes.map(|bytes| format!("{ASKS_FOR_BYTES}{bytes}"));
        Ok(Plan {
            connections: self.connections,
            streams: self.streams.unwrap_or(1),
            requests_per_connection: self.requests_per_connection,
            method: if self.body_bytes == 0 { Method::GET } else { Method::POST },
            path: format!("{PATH}{}", query.unwrap_or_default()).parse()?,
            body: Bytes::from(vec![b'x'; self.body_bytes]),
            is_chunked: self.is_chunked,
            locks: self.locks,
            stale: if self.is_stale { Share::ALL } else { Share::default() },
            refusal: target.refusal,
            warm_up: self.warm_up,
            duration: self.length,
            process: Some(target.process.id()),
            ..Plan::get(client::Target::new(&address, protocol, Some(files))?)
        })
    }

    fn tenures(&self, stage: &Stage<'_>) -> Result<Tenures> {
        let before = |token: &Token| Token::new(token.owner_text(), token.revision() - 1);
        let tokens = stage.tokens(self.locks);
        let tokens = tokens.map(|token| Ok((token.clone(), Some(before(token)?))));
        Ok(Tenures::new(tokens.collect::<Result<Vec<_>>>()?))
    }
}

/// Makes the target serve each lock once, so that it tracks them all.
pub(super) async fn warm(stage: &Stage<'_>, target: &Target, load: &Load) -> Result<()> {
    let connections = load.connections.min(load.locks).min(64);
    let load = Load { connections, streams: None, body_bytes: 0, ..*load };
    touch(&load.plan(target, stage)?, &load.tenures(stage)?, TOUCH_TIMEOUT).await?;
    Ok(())
}

/// Measures a target under a load. Does not count what the target does in the warm-up.
pub(super) async fn measure(stage: &Stage<'_>, target: &mut Target, load: &Load) -> Result<Sample> {
    let (plan, tenures) = (load.plan(target, stage)?, load.tenures(stage)?);
    let outcome = drive(&plan, tenures, &Stop::never(), None, false).await?;
    target.process.runs()?;
    let silent = || format!("{} answered nothing", target.name);
    let (cpu_micros_per_request, busy) = outcome.cpu().with_context(silent)?;
    let Latencies { served, refused, .. } = outcome.latencies();
    let latencies = if load.is_stale { refused } else { served };
    let seconds = |share| latencies.at(share).unwrap_or_default().as_secs_f64();
    Ok(Sample {
        cpu_micros_per_request,
        busy,
        requests_per_second: outcome.per_second(),
        p50_seconds: seconds(0.5),
        p99_seconds: seconds(0.99),
        wrong: outcome.wrong(),
        generator_was_disturbed: outcome.was_disturbed(),
        memory_bytes: memory_of_tree(target.process.id())?,
    })
}

/// Measures connections that wait, after a request each. The target must be fresh.
pub(super) async fn measure_idle(
    stage: &Stage<'_>,
    target: &mut Target,
    count: usize,
) -> Result<IdleSample> {
    let load = Load { connections: count, ..Load::get(stage.options) };
    let start = memory_of_tree(target.process.id())?;
    let waiting = touch(&load.plan(target, stage)?, &load.tenures(stage)?, TOUCH_TIMEOUT).await?;
    tokio::time::sleep(SETTLE).await;
    let memory = memory_of_tree(target.process.id())?;
    drop(waiting);
    target.process.runs()?;
    let per_connection = memory.saturating_sub(start) as f64 / count as f64;
    Ok(IdleSample { start, per_connection })
}
