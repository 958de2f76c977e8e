//! Many requests with one token, each of which is to be answered with the same status: a run of `drive` that judges by that alone.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use serde_json::{Map, Value, json};

use crate::Conclusion;
use crate::cli::LoadSettings;
use crate::cli::values::{Share, Template};
use crate::client::Protocol;
use crate::drive::{Expected, Outcome, Plan, Tenures, drive_unmoved};
use crate::occasion::Occasion;
use crate::token::Token;

/// Sends them and prints what came back.
pub(crate) async fn run(settings: LoadSettings) -> anyhow::Result<Conclusion> {
    let occasion = Occasion::of_this_run();
    crate::machine::open_many_files()?;
    settings.json.iter().try_for_each(|file| crate::output::check(file))?;
    let token = Token::new(&settings.owner, settings.revision)?;
    let stop = crate::signals::stop_when_asked()?;
    let outcome = drive_unmoved(&plan(&settings)?, Tenures::new([(token, None)]), &stop).await?;
    let mut report = as_json(&outcome);
    report["run"] = occasion.as_json();
    let written = settings.json.as_ref().map(|file| crate::output::write(file, &format!("{report:#}\n")));
    crate::output::print(&outcome);
    written.unwrap_or(Ok(()))?;
    Ok(outcome.conclusion())
}

fn plan(settings: &LoadSettings) -> anyhow::Result<Plan> {
    Ok(Plan {
        target: settings.proxy.at.target()?,
        protocol: if settings.h2c { Protocol::Http2 } else { Protocol::Http1 },
        connections: settings.connections.get(),
        streams: settings.streams.get(),
        requests_per_connection: None,
        threads: settings.threads.get(),
        method: if settings.body == 0 { Method::GET } else { Method::POST },
        path: Template::without_number(settings.proxy.path.as_str()),
        lock_header: None,
        body: Bytes::from(vec![b'x'; settings.body]),
        is_chunked: false,
        tells_number: false,
        worker_takes: Duration::ZERO,
        locks: 1,
        handoff_every: None,
        stale: Share::default(),
        expected: Expected::Status(settings.expect),
        rate: settings.rate,
        warm_up: Duration::ZERO,
        duration: Duration::from_secs(settings.seconds.get()),
        cpus: Vec::new(),
    })
}

/// With how often each answer came, by the answer: all senders are the same here.
fn as_json(outcome: &Outcome) -> Value {
    let mut json = outcome.as_json();
    let answers = outcome.answers().map(|(_, answer, count, _)| (answer.to_string(), json!(count)));
    json["answers"] = answers.collect::<Map<_, _>>().into();
    json
}
