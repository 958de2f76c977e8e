//! fencepost beside others, on one machine and in one run: what each takes per request, and how that grows.

mod peers;
mod process;
mod sample;
mod stage;
mod table;
mod tls_files;

use std::num::NonZeroU64;

use anyhow::anyhow;
use clap::ValueEnum;
use serde_json::{Value, json};

use self::sample::{IdleSample, Load, Sample, measure, measure_idle, warm};
use self::stage::{Stage, Target};
use crate::Conclusion;
use crate::cli::{CompareSettings, Series, TargetName, Workload};
use crate::occasion::Occasion;
use crate::output::print;
use crate::progress::Progress;

/// Measures, and prints tables. Whatever was started has ended when this returns, and if it is asked to end as well. What was measured until
/// then is written, whatever came of the rest.
pub(crate) async fn run(settings: CompareSettings) -> anyhow::Result<Conclusion> {
    let occasion = Occasion::of_this_run();
    crate::machine::open_many_files()?;
    settings.json.iter().try_for_each(|file| crate::output::check(file))?;
    let mut report = Report::default();
    let (done, ended_early) = tokio::select! {
        done = compare(&settings, &mut report) => (done, false),
        () = crate::signals::asked_to_end()? => {
            (Err(anyhow!("ended before it was done; so were the processes that it had started")), true)
        }
    };
    report.end_table();
    if let Some(file) = &settings.json {
        let broke_off = done.as_ref().err().map(crate::failure::in_words);
        let json = json!({
            "ended_early": ended_early, "broke_off": broke_off, "samples": report.samples, "run": occasion.as_json(),
        });
        crate::output::write(file, &format!("{json:#}\n"))?;
    }
    done?;
    if report.wrong > 0 {
        print(format_args!("{} answers were not as they should be.\n", report.wrong));
        return Ok(Conclusion::NotAsExpected);
    }
    Ok(Conclusion::AsExpected)
}

/// What was measured.
#[derive(Default)]
struct Report {
    samples: Vec<Value>,
    wrong: u64,
    /// What is being measured, and of what: printed when it is done, or as far as it is when there is no more.
    table: Option<Measured>,
}

/// What was measured of several.
struct Measured {
    what: String,
    of: Vec<(String, Vec<Sample>)>,
}

impl Report {
    /// Begins to measure something of these.
    fn begin_table(&mut self, what: &str, of: impl Iterator<Item = String>) {
        self.table = Some(Measured { what: what.to_owned(), of: of.map(|of| (of, Vec::new())).collect() });
    }

    /// Adds a sample of the one of that number.
    fn add(&mut self, number: usize, round: u64, sample: Sample) {
        self.wrong += sample.wrong;
        let Some(Measured { what, of }) = &mut self.table else { return };
        let (of, samples) = &mut of[number];
        let mut json = sample.as_json();
        json["what"] = json!(what);
        json["of"] = json!(of);
        json["round"] = json!(round);
        self.samples.push(json);
        samples.push(sample);
    }

    fn end_table(&mut self) {
        let Some(Measured { what, of }) = self.table.take() else { return };
        let measured = of.iter().filter(|(_, samples)| !samples.is_empty());
        let table = table::of_samples(&what, measured.map(|(of, samples)| (of.clone(), samples)));
        if !table.is_empty() {
            print(format_args!("{table}\n"));
        }
    }
}

async fn compare(settings: &CompareSettings, report: &mut Report) -> anyhow::Result<()> {
    match settings.series {
        None => beside_others(settings, report).await,
        Some(series) => growing(settings, series, report).await,
    }
}

async fn beside_others(settings: &CompareSettings, report: &mut Report) -> anyhow::Result<()> {
    let mut stage = Stage::set(settings, 1).await?;
    tell_of_cpus(&stage);
    let mut targets = Vec::new();
    for name in &settings.targets {
        match stage.peer(*name).await? {
            Some(target) => targets.push((Some(*name), target)),
            None => print(format_args!("{} is not installed: not measured.\n", name_of(*name))),
        }
    }
    targets.push((None, stage.fencepost(1).await?));
    print(format_args!("Ratios are to {}.\n\n", targets[0].1.name));
    for workload in &settings.workloads {
        match load_of(settings, *workload) {
            Some(load) => compare_by(settings, &stage, &mut targets, *workload, &load, report).await?,
            None => compare_idle(settings, &mut stage, &targets, report).await?,
        }
    }
    Ok(())
}

/// All targets in turn, round by round: whatever disturbs a round disturbs all.
async fn compare_by(
    settings: &CompareSettings,
    stage: &Stage<'_>,
    targets: &mut [(Option<TargetName>, Target)],
    workload: Workload,
    load: &Load,
    report: &mut Report,
) -> anyhow::Result<()> {
    let what = name_of(workload);
    let (rounds, count) = (settings.rounds.get(), targets.len());
    let mut progress = Progress::new(rounds * count as u64, "measurements");
    report.begin_table(&what, targets.iter().map(|(_, target)| target.name.clone()));
    for round in 0..rounds {
        for turn in 0..count {
            // Another one begins each round.
            let number = (turn + round as usize) % count;
            let (_, target) = &mut targets[number];
            report.add(number, round, measure(stage, target, load).await?);
            progress.done(round * count as u64 + turn as u64 + 1);
        }
    }
    progress.end(rounds * count as u64);
    report.end_table();
    Ok(())
}

async fn compare_idle(
    settings: &CompareSettings,
    stage: &mut Stage<'_>,
    targets: &[(Option<TargetName>, Target)],
    report: &mut Report,
) -> anyhow::Result<()> {
    let connections = settings.idle_connections.get();
    let mut rows = Vec::new();
    for (name, target) in targets {
        // One that has served nothing yet: memory that was once needed is kept.
        let fresh = match name {
            Some(name) => stage.peer(*name).await?,
            None => Some(stage.fencepost(1).await?),
        };
        let Some(mut fresh) = fresh else { continue };
        let IdleSample { start, per_connection } = measure_idle(stage, &mut fresh, connections).await?;
        report.samples.push(json!({
            "what": "idle", "of": target.name, "connections": connections,
            "memory_bytes_at_start": start, "memory_bytes_per_connection": per_connection,
        }));
        rows.push((target.name.clone(), start, per_connection));
    }
    print(format_args!("{}\n", table::of_idle(connections, &rows)));
    Ok(())
}

/// fencepost alone, as one quantity grows.
async fn growing(settings: &CompareSettings, series: Series, report: &mut Report) -> anyhow::Result<()> {
    let values = if settings.values.is_empty() { usual_values(series).to_vec() } else { settings.values.clone() };
    let locks = values.iter().map(|value| load_before(settings, series, *value).locks).max().unwrap_or(1);
    let mut stage = Stage::set(settings, locks).await?;
    tell_of_cpus(&stage);
    let mut targets = Vec::new();
    for value in &values {
        let load = load_with(settings, series, *value);
        let target = stage.fencepost(if series == Series::Threads { *value } else { 1 }).await?;
        warm(&stage, &target, &load_before(settings, series, *value)).await?;
        targets.push((load, target));
    }
    let (rounds, count) = (settings.rounds.get(), targets.len());
    let mut progress = Progress::new(rounds * count as u64, "measurements");
    report.begin_table(&name_of(series), values.iter().map(usize::to_string));
    for round in 0..rounds {
        for (number, (load, target)) in targets.iter_mut().enumerate() {
            report.add(number, round, measure(&stage, target, load).await?);
            progress.done(round * count as u64 + number as u64 + 1);
        }
    }
    progress.end(rounds * count as u64);
    report.end_table();
    Ok(())
}

fn tell_of_cpus(stage: &Stage<'_>) {
    if !stage.cpus.are_apart() {
        print("There is one CPU: what is measured shares it with its load, and figures are of little worth.\n");
    }
}

/// What a workload sends; `None` for the one that measures memory.
fn load_of(settings: &CompareSettings, workload: Workload) -> Option<Load> {
    let get = Load { warm_up: settings.warm_up, ..Load::get(settings.connections.get(), settings.seconds) };
    let h2c = Load { connections: 8, streams: Some(16), ..get };
    match workload {
        Workload::Get => Some(get),
        Workload::Post1k => Some(Load { body_bytes: 1024, ..get }),
        Workload::Post1kChunked => Some(Load { body_bytes: 1024, is_chunked: true, ..get }),
        Workload::Post64k => Some(Load { body_bytes: 64 * 1024, ..get }),
        Workload::Get64k => Some(Load { answer_bytes: Some(64 * 1024), ..get }),
        Workload::H2c => Some(h2c),
        Workload::H2c4k => Some(Load { answer_bytes: Some(4096), ..h2c }),
        Workload::H2cStale => Some(Load { is_stale: true, ..h2c }),
        Workload::Stale => Some(Load { is_stale: true, ..get }),
        Workload::StalePost1k => Some(Load { is_stale: true, body_bytes: 1024, ..get }),
        Workload::Churn => Some(Load { requests_per_connection: NonZeroU64::new(10), ..get }),
        Workload::GetTls => Some(Load { is_secure: true, ..get }),
        Workload::H2Tls => Some(Load { is_secure: true, ..h2c }),
        Workload::NewTls => Some(Load { is_secure: true, requests_per_connection: NonZeroU64::new(1), ..get }),
        Workload::Idle => None,
    }
}

fn load_with(settings: &CompareSettings, series: Series, value: usize) -> Load {
    let get = Load { warm_up: settings.warm_up, ..Load::get(settings.connections.get(), settings.seconds) };
    match series {
        Series::Locks => Load { locks: value, ..get },
        Series::Tracked => Load { locks: value.min(get.connections), ..get },
        Series::Connections => Load { connections: value, ..get },
        Series::Threads => Load { threads: value, ..get },
        Series::Body => Load { body_bytes: value, ..get },
    }
}

/// What each target is asked for once before it is measured.
fn load_before(settings: &CompareSettings, series: Series, value: usize) -> Load {
    let load = load_with(settings, series, value);
    if series == Series::Tracked { Load { locks: value, ..load } } else { load }
}

fn usual_values(series: Series) -> &'static [usize] {
    match series {
        Series::Locks | Series::Tracked => &[1, 1_000, 100_000],
        Series::Connections => &[1, 64, 1_000, 2_000],
        Series::Threads => &[1, 2],
        Series::Body => &[0, 1_024, 65_536, 1_048_576],
    }
}

/// What a choice is called on the command line, and in tables.
fn name_of(choice: impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        settings: CompareSettings,
    }

    #[test]
    fn of_the_locks_that_are_tracked_as_many_are_asked_for_as_there_are_connections() {
        let settings = Arguments::parse_from(["compare", "--fencepost", "/", "--connections", "4"]).settings;
        let check = |series, value, asked_for, before| {
            assert_eq!(load_with(&settings, series, value).locks, asked_for);
            assert_eq!(load_before(&settings, series, value).locks, before);
        };
        check(Series::Tracked, 150, 4, 150);
        check(Series::Tracked, 1, 1, 1);
        check(Series::Locks, 150, 150, 150);
        check(Series::Body, 150, 1, 1);
    }
}
