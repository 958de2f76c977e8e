//! `compare`: what fencepost and its peers cost per request, on one machine and in one run.

mod process;
mod sample;
mod stage;
mod table;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use serde_json::{Value, json};

use self::sample::{IdleSample, Load, Row, Sample, measure, measure_idle, warm};
use self::stage::{Stage, Target};
use crate::Conclusion;
use crate::cli::{CompareOptions, PeerName, Series, Workload};
use crate::report::{Progress, ReportFile, print};
use crate::stop::Stop;

/// Measures, and prints tables. Ends all that it started. Reports what it measured until an error
/// or a signal.
pub(crate) async fn run(options: CompareOptions) -> Result<Conclusion> {
    crate::machine::open_many_files()?;
    let file = ReportFile::open(options.json.as_deref())?;
    let (stop, mut report) = (Stop::when_asked()?, Report::default());
    let done = tokio::select! {
        done = measure_all(&options, &mut report) => done,
        () = stop.stopped() => Err(anyhow!("ended before it was done, with all that it started")),
    };
    report.end_table();
    file.write(json!({
        "ended_early": stop.is_stopped(),
        "broke_off": done.as_ref().err().map(|error| format!("{error:#}")),
        "samples": report.samples,
    }))?;
    done?;
    if report.wrong > 0 {
        print(format_args!("{} answers were not as they should be.\n", report.wrong));
        return Ok(Conclusion::NotAsExpected);
    }
    Ok(Conclusion::AsExpected)
}

#[derive(Default)]
struct Report {
    samples: Vec<Value>,
    wrong: u64,
    /// The name of the table that is under way, and its rows.
    table: Option<(String, Vec<Row>)>,
}

impl Report {
    fn begin_table(&mut self, what: &str, of: impl Iterator<Item = String>) {
        self.table = Some((what.to_owned(), of.map(|of| (of, Vec::new())).collect()));
    }

    fn add(&mut self, row: usize, round: u64, sample: Sample) {
        let Some((what, rows)) = &mut self.table else { return };
        let (of, samples) = &mut rows[row];
        let mut json = json!(sample);
        json["what"] = json!(what);
        json["of"] = json!(of);
        json["round"] = json!(round);
        self.wrong += sample.wrong;
        self.samples.push(json);
        samples.push(sample);
    }

    fn end_table(&mut self) {
        let Some((what, mut rows)) = self.table.take() else { return };
        rows.retain(|(_, samples)| !samples.is_empty());
        if !rows.is_empty() {
            print(format_args!("{}\n", table::of_samples(&what, &rows)));
        }
    }
}

async fn measure_all(options: &CompareOptions, report: &mut Report) -> Result<()> {
    if let Some(series) = options.series {
        return growing(options, series, report).await;
    }
    let mut stage = Stage::set(options, 1).await?;
    let mut targets = Vec::new();
    for name in &options.targets {
        match stage.peer(*name).await? {
            Some(target) => targets.push((Some(*name), target)),
            None => print(format_args!("{} is not installed: not measured.\n", name_of(*name))),
        }
    }
    targets.push((None, stage.fencepost(1).await?));
    print(format_args!("Ratios are to {}.\n\n", targets[0].1.name));
    for workload in &options.workloads {
        let Some(load) = load_of(options, *workload) else {
            compare_idle(options, &mut stage, &targets, report).await?;
            continue;
        };
        let loaded = targets.iter_mut().map(|(_, target)| (target.name.clone(), target, load));
        measure_rounds(options, &stage, &name_of(*workload), loaded.collect(), report).await?;
    }
    Ok(())
}

/// Measures all in turn, round by round, because what disturbs a round disturbs all.
async fn measure_rounds(
    options: &CompareOptions,
    stage: &Stage<'_>,
    what: &str,
    mut targets: Vec<(String, &mut Target, Load)>,
    report: &mut Report,
) -> Result<()> {
    let count = targets.len() as u64;
    let mut progress = Progress::new(options.rounds * count, "measurements");
    report.begin_table(what, targets.iter().map(|(name, ..)| name.clone()));
    for round in 0..options.rounds {
        for turn in 0..count {
            // Another target begins each round.
            let row = ((turn + round) % count) as usize;
            let (_, target, load) = &mut targets[row];
            report.add(row, round, measure(stage, target, load).await?);
            progress.done(round * count + turn + 1);
        }
    }
    report.end_table();
    Ok(())
}

async fn compare_idle(
    options: &CompareOptions,
    stage: &mut Stage<'_>,
    targets: &[(Option<PeerName>, Target)],
    report: &mut Report,
) -> Result<()> {
    let connections = options.idle_connections;
    let mut rows = Vec::new();
    for (name, target) in targets {
        // A fresh one: a process keeps memory that it once needed.
        let fresh = match name {
            Some(name) => stage.peer(*name).await?,
            None => Some(stage.fencepost(1).await?),
        };
        let Some(mut fresh) = fresh else { continue };
        let sample = measure_idle(stage, &mut fresh, connections).await?;
        let IdleSample { start, per_connection } = sample;
        report.samples.push(json!({
            "what": "idle",
            "of": target.name,
            "connections": connections,
            "memory_bytes_at_start": start,
            "memory_bytes_per_connection": per_connection,
        }));
        rows.push((target.name.clone(), sample));
    }
    print(format_args!("{}\n", table::of_idle(connections, &rows)));
    Ok(())
}

/// Measures fencepost alone, as one quantity grows.
async fn growing(options: &CompareOptions, series: Series, report: &mut Report) -> Result<()> {
    let usual = usual_values(series);
    let values = if options.values.is_empty() { usual } else { &options.values };
    let locks = values.iter().map(|value| load_with(options, series, *value, true).locks);
    let mut stage = Stage::set(options, locks.max().unwrap_or(1)).await?;
    let mut targets = Vec::new();
    for value in values {
        let threads = if series == Series::Threads { *value } else { 1 };
        let target = stage.fencepost(threads).await?;
        warm(&stage, &target, &load_with(options, series, *value, true)).await?;
        targets.push((value, target));
    }
    let loaded = targets.iter_mut().map(|(value, target)| {
        (value.to_string(), target, load_with(options, series, **value, false))
    });
    measure_rounds(options, &stage, &name_of(series), loaded.collect(), report).await
}

fn load_of(options: &CompareOptions, workload: Workload) -> Option<Load> {
    let get = Load::get(options);
    let h2c = Load { connections: 8, streams: Some(16), ..get };
    Some(match workload {
        Workload::Get => get,
        Workload::Post1k => Load { body_bytes: 1024, ..get },
        Workload::Post1kChunked => Load { body_bytes: 1024, is_chunked: true, ..get },
        Workload::Post64k => Load { body_bytes: 64 * 1024, ..get },
        Workload::Get64k => Load { answer_bytes: Some(64 * 1024), ..get },
        Workload::H2c => h2c,
        Workload::H2c4k => Load { answer_bytes: Some(4096), ..h2c },
        Workload::H2cStale => Load { is_stale: true, ..h2c },
        Workload::Stale => Load { is_stale: true, ..get },
        Workload::StalePost1k => Load { is_stale: true, body_bytes: 1024, ..get },
        Workload::Churn => Load { requests_per_connection: Some(10), ..get },
        Workload::GetTls => Load { is_secure: true, ..get },
        Workload::H2Tls => Load { is_secure: true, ..h2c },
        Workload::NewTls => Load { is_secure: true, requests_per_connection: Some(1), ..get },
        Workload::Idle => return None,
    })
}

/// What a value of a series sends, or what its target must serve before.
fn load_with(options: &CompareOptions, series: Series, value: usize, is_before: bool) -> Load {
    let get = Load::get(options);
    match series {
        Series::Locks => Load { locks: value, ..get },
        Series::Tracked if is_before => Load { locks: value, ..get },
        Series::Tracked => Load { locks: value.min(get.connections), ..get },
        Series::Connections => Load { connections: value, ..get },
        Series::Threads => get,
        Series::Body => Load { body_bytes: value, ..get },
    }
}

fn usual_values(series: Series) -> &'static [usize] {
    match series {
        Series::Locks | Series::Tracked => &[1, 1_000, 100_000],
        Series::Connections => &[1, 64, 1_000, 2_000],
        Series::Threads => &[1, 2],
        Series::Body => &[0, 1_024, 65_536, 1_048_576],
    }
}

fn name_of(choice: impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        options: CompareOptions,
    }

    #[test]
    fn tracked_series_asks_for_fewer_locks() {
        let words = ["compare", "--fencepost", "/", "--connections", "4"];
        let options = Arguments::parse_from(words).options;
        let check = |series, value, asked_for, before| {
            assert_eq!(load_with(&options, series, value, false).locks, asked_for);
            assert_eq!(load_with(&options, series, value, true).locks, before);
        };
        check(Series::Tracked, 150, 4, 150);
        check(Series::Tracked, 1, 1, 1);
        check(Series::Locks, 150, 150, 150);
        check(Series::Body, 150, 1, 1);
    }
}
