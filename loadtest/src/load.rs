//! Many requests with one token.

mod pace;
mod tally;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use hyper::http::uri::PathAndQuery;
use tokio::task::JoinSet;

use crate::Conclusion;
use crate::cli::LoadSettings;
use crate::client::{Client, Protocol};
use crate::drive::Stop;
use crate::progress::Progress;
use crate::retry::pause_after;
use crate::token::Token;

use self::pace::Pace;
use self::tally::{Outcome, Tally};

/// Sends them and prints what came back.
pub(crate) async fn run(settings: LoadSettings) -> anyhow::Result<Conclusion> {
    settings.json.iter().try_for_each(|file| crate::output::check(file))?;
    let stop = crate::signals::stop_when_asked()?;
    let lanes = tokio::select! {
        lanes = open_lanes(&settings) => lanes?,
        () = stop.stopped() => bail!("ended before all connections were open"),
    };
    let duration = Duration::from_secs(settings.seconds.get());
    let begun = Instant::now();
    let pace = Arc::new(match settings.rate {
        Some(rate) => Pace::open(begun, duration, rate)?,
        None => Pace::closed(begun, duration),
    });
    pace.start()?;
    let tally = drive(lanes, &pace, &stop, settings.seconds.get()).await?;
    let ended_early = stop.is_stopped();
    // The last request of a constant rate is due before the end, and answered before it unless it is slow.
    let elapsed = if ended_early { begun.elapsed() } else { begun.elapsed().max(duration) };
    let outcome = Outcome { tally, unsent: pace.unsent(), elapsed, ended_early, expected: settings.expect };
    print!("{outcome}");
    if let Some(file) = &settings.json {
        let json = format!("{:#}\n", outcome.as_json());
        crate::output::write(file, &json)?;
    }
    Ok(outcome.conclusion())
}

/// One request at a time: an HTTP/1.1 connection, or a stream after another on an HTTP/2 connection.
#[derive(Debug)]
struct Lane {
    client: Client,
    path: PathAndQuery,
    token: Token,
    body: Bytes,
}

impl Lane {
    async fn run(mut self, pace: Arc<Pace>, stop: Arc<Stop>) -> Tally {
        let mut tally = Tally::default();
        tokio::select! {
            () = self.send_all(&pace, &mut tally) => {}
            () = stop.stopped() => {} // What is under way has no answer any more, and is not counted.
        }
        tally
    }

    async fn send_all(&mut self, pace: &Pace, tally: &mut Tally) {
        let mut errors_in_a_row: u32 = 0;
        while let Some(due) = pace.next().await {
            match self.client.send(&self.path, &self.token, self.body.clone()).await {
                Ok(answer) => {
                    errors_in_a_row = 0;
                    tally.answered(answer, due.elapsed());
                }
                Err(error) => {
                    errors_in_a_row = errors_in_a_row.saturating_add(1);
                    tally.failed(format!("{error:#}"));
                    tokio::time::sleep(pause_after(errors_in_a_row)).await;
                }
            }
        }
    }
}

async fn open_lanes(settings: &LoadSettings) -> anyhow::Result<Vec<Lane>> {
    let token = Token::new(&settings.owner, settings.revision)?;
    let body = Bytes::from(vec![b'x'; settings.body]);
    let protocol = if settings.h2c { Protocol::Http2 } else { Protocol::Http1 };
    let (target, mut clients) = (settings.proxy.at.target()?, Vec::new());
    for _ in 0..settings.connections.get() {
        let client = Client::connect(&target, protocol).await?;
        let more = (1..settings.streams.get()).filter_map(|_| client.another_stream());
        clients.extend(more);
        clients.push(client);
    }
    let path = &settings.proxy.path;
    let lane = |client| Lane { client, path: path.clone(), token: token.clone(), body: body.clone() };
    Ok(clients.into_iter().map(lane).collect())
}

async fn drive(lanes: Vec<Lane>, pace: &Arc<Pace>, stop: &Arc<Stop>, seconds: u64) -> anyhow::Result<Tally> {
    let mut running = JoinSet::new();
    for lane in lanes {
        running.spawn(lane.run(Arc::clone(pace), Arc::clone(stop)));
    }
    let begun = Instant::now();
    let mut progress = Progress::new(seconds, "seconds");
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    let mut tally = Tally::default();
    loop {
        tokio::select! {
            ended = running.join_next() => match ended {
                Some(lane) => tally.merge(lane.context("a sender panicked")?),
                None => break,
            },
            _ = tick.tick() => progress.done(begun.elapsed().as_secs().min(seconds)),
        }
    }
    progress.end(begun.elapsed().as_secs().min(seconds));
    Ok(tally)
}
