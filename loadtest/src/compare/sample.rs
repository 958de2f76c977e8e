//! One measurement of one target.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::stage::{PATH, Stage, Target};
use crate::client::Protocol;
use crate::drive::{Expected, Plan, Stop, Tenures, Window, drive_quietly, touch};
use crate::machine::{CpuTime, memory_of_tree};
use crate::token::Token;
use crate::worker::quick::ASKS_FOR_BYTES;

/// How long a target may take for an answer before it is measured.
const TOUCH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long memory is left to settle before it is read.
const SETTLE: Duration = Duration::from_secs(1);

/// What is sent, whatever it is sent to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) connections: usize,
    /// With HTTP/2: requests at a time on each connection.
    pub(super) streams: Option<usize>,
    /// Whether connections are by TLS.
    pub(super) is_secure: bool,
    /// After so many a connection is closed, and another opened; `None` keeps them.
    pub(super) requests_per_connection: Option<NonZeroU64>,
    pub(super) body_bytes: usize,
    /// Whether the body comes in a chunk.
    pub(super) is_chunked: bool,
    /// What the worker answers; `None` leaves that to it.
    pub(super) answer_bytes: Option<usize>,
    pub(super) locks: usize,
    /// Threads that send.
    pub(super) threads: usize,
    /// Whether all requests are stale.
    pub(super) is_stale: bool,
    /// How long to send before that is measured, and then.
    pub(super) warm_up: Duration,
    pub(super) length: Duration,
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// CPU time of the target for each answer, in microseconds.
    pub(super) cpu_micros: f64,
    /// How much of its CPUs the target had, 1 for one whole CPU.
    pub(super) busy: f64,
    pub(super) per_second: f64,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
    /// Answers that were not as they should be, or did not come.
    pub(super) wrong: u64,
    /// Whether the generator, or its machine, had too little time.
    pub(super) was_disturbed: bool,
    /// Memory of the target afterwards, in bytes.
    pub(super) memory: u64,
}

/// What connections that wait take.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdleSample {
    /// Memory before there was any connection.
    pub(super) start: u64,
    /// Memory for each.
    pub(super) per_connection: f64,
}

impl Load {
    /// Of GET requests for one lock over this many connections.
    pub(super) fn get(connections: usize, length: Duration) -> Load {
        Load {
            connections,
            streams: None,
            is_secure: false,
            requests_per_connection: None,
            body_bytes: 0,
            is_chunked: false,
            answer_bytes: None,
            locks: 1,
            threads: 1,
            is_stale: false,
            warm_up: Duration::ZERO,
            length,
        }
    }

    fn plan(&self, target: &Target, stage: &Stage<'_>) -> anyhow::Result<Plan> {
        let address = match (self.is_secure, self.streams) {
            (true, _) => format!("https://{}", target.tls),
            (false, Some(_)) => format!("http://{}", target.h2c),
            (false, None) => format!("http://{}", target.http1),
        };
        let asks = self.answer_bytes.map(|bytes| format!("{ASKS_FOR_BYTES}{bytes}"));
        let path = format!("{PATH}{}", asks.unwrap_or_default());
        Ok(Plan {
            target: crate::target::Target::new(&address.parse()?, Some(&stage.files()))?,
            protocol: if self.streams.is_some() { Protocol::Http2 } else { Protocol::Http1 },
            connections: self.connections,
            streams: self.streams.unwrap_or(1),
            requests_per_connection: self.requests_per_connection,
            threads: self.threads.min(self.connections),
            method: if self.body_bytes == 0 { Method::GET } else { Method::POST },
            path: path.parse()?,
            lock_header: None,
            body: Bytes::from(vec![b'x'; self.body_bytes]),
            is_chunked: self.is_chunked,
            tells_number: false,
            worker_takes: Duration::ZERO,
            locks: self.locks,
            handoff_every: None,
            stale: if self.is_stale { "100%".parse()? } else { "0%".parse()? },
            expected: Expected::Fenced(target.refusal),
            rate: None,
            warm_up: self.warm_up,
            duration: self.length,
            cpus: stage.cpus.others().to_vec(),
        })
    }

    fn tenures(&self, stage: &Stage<'_>) -> anyhow::Result<Tenures> {
        let before = |token: &Token| Token::new(token.owner_text(), token.revision() - 1);
        let tokens = stage.tokens(self.locks).map(|token| Ok((token.clone(), Some(before(token)?))));
        Ok(Tenures::new(tokens.collect::<anyhow::Result<Vec<_>>>()?))
    }
}

/// Has the target serve each lock once, so that it knows them all.
pub(super) async fn warm(stage: &Stage<'_>, target: &Target, load: &Load) -> anyhow::Result<()> {
    let load = Load { connections: load.connections.min(load.locks).min(64), streams: None, body_bytes: 0, ..*load };
    touch(&load.plan(target, stage)?, &load.tenures(stage)?, TOUCH_TIMEOUT).await?;
    Ok(())
}

/// Measures a target under a load. What it does before the warm-up is over, as taking connections, is not counted.
pub(super) async fn measure(stage: &Stage<'_>, target: &mut Target, load: &Load) -> anyhow::Result<Sample> {
    let (plan, tenures) = (load.plan(target, stage)?, load.tenures(stage)?);
    let (tell, window) = oneshot::channel();
    let stop = Arc::<Stop>::default();
    let driving = drive_quietly(&plan, tenures, &stop, tell);
    let (outcome, cpu) = tokio::join!(driving, cpu_within(window, target.process.id()));
    let (outcome, (before, after)) = (outcome?, cpu?);
    target.process.runs()?;
    let answered = outcome.answered_within();
    ensure!(answered > 0, "{} answered nothing", target.name);
    let latencies = if load.is_stale { outcome.refused() } else { outcome.served() };
    Ok(Sample {
        cpu_micros: after.since(&before).as_secs_f64() * 1e6 / answered as f64,
        busy: after.share_since(&before).had,
        per_second: outcome.per_second(),
        p50: latencies.at(0.5).unwrap_or_default(),
        p99: latencies.at(0.99).unwrap_or_default(),
        wrong: outcome.wrong(),
        was_disturbed: outcome.was_disturbed(),
        memory: memory_of_tree(target.process.id())?,
    })
}

/// The CPU time of a process and its children when the time that is measured begins, and when it ends.
async fn cpu_within(window: oneshot::Receiver<Window>, process: u32) -> anyhow::Result<(CpuTime, CpuTime)> {
    let Window { begin, length } = window.await.context("the run did not begin")?;
    tokio::time::sleep_until(begin.into()).await;
    let before = CpuTime::of_tree(process)?;
    tokio::time::sleep_until((begin + length).into()).await;
    Ok((before, CpuTime::of_tree(process)?))
}

/// Measures what connections take that wait, after a request each. The target must be fresh.
pub(super) async fn measure_idle(stage: &Stage<'_>, target: &mut Target, count: usize) -> anyhow::Result<IdleSample> {
    let load = Load::get(count, Duration::ZERO);
    let start = memory_of_tree(target.process.id())?;
    let waiting = touch(&load.plan(target, stage)?, &load.tenures(stage)?, TOUCH_TIMEOUT).await?;
    tokio::time::sleep(SETTLE).await;
    let memory = memory_of_tree(target.process.id())?;
    drop(waiting);
    target.process.runs()?;
    Ok(IdleSample { start, per_connection: memory.saturating_sub(start) as f64 / count as f64 })
}

impl Sample {
    /// The same for a program.
    pub(super) fn as_json(&self) -> Value {
        json!({
            "cpu_micros_per_request": self.cpu_micros,
            "busy": self.busy,
            "requests_per_second": self.per_second,
            "p50_seconds": self.p50.as_secs_f64(),
            "p99_seconds": self.p99.as_secs_f64(),
            "wrong": self.wrong,
            "generator_was_disturbed": self.was_disturbed,
            "memory_bytes": self.memory,
        })
    }
}
