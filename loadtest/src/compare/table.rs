//! Tables of samples, as Markdown has them.

use super::sample::{IdleSample, Row, Sample};

/// Below this share of a CPU the machine was shared or the load too small, so no ratio is judged.
const BUSY_MIN: f64 = 0.9;

/// What was measured of several targets. Ratios are to the first one; a doubtful one has a "?".
pub(super) fn of_samples(what: &str, rows: &[Row]) -> String {
    let Some((_, reference)) = rows.first() else { return String::new() };
    let head = [what, "CPU µs/request", "spread", "ratio", "busy", "requests/s", "p50 ms"];
    let head = [&head[..], &["p99 ms", "MiB", "wrong"]].concat();
    let mut lines = vec![head.into_iter().map(str::to_owned).collect()];
    for (name, samples) in rows {
        let middle = |of: fn(&Sample) -> f64| median(samples.iter().map(of));
        let doubt = if was_busy(samples) && was_busy(reference) { "" } else { "?" };
        let cpu = |sample: &Sample| sample.cpu_micros_per_request;
        let ratios = samples.iter().zip(reference).map(|(one, other)| cpu(one) / cpu(other));
        let least = samples.iter().map(cpu).fold(f64::INFINITY, f64::min);
        let most = samples.iter().map(cpu).fold(0.0, f64::max);
        lines.push(vec![
            name.clone(),
            format!("{:.1}", middle(cpu)),
            format!("{least:.1}-{most:.1}"),
            format!("{:.2}{doubt}", median(ratios)),
            format!("{:.2}", middle(|sample| sample.busy)),
            format!("{:.0}", middle(|sample| sample.requests_per_second)),
            format!("{:.2}", middle(|sample| sample.p50_seconds * 1000.0)),
            format!("{:.2}", middle(|sample| sample.p99_seconds * 1000.0)),
            format!("{:.1}", middle(|sample| in_mebibytes(sample.memory_bytes))),
            samples.iter().map(|sample| sample.wrong).sum::<u64>().to_string(),
        ]);
    }
    let mut text = table(&lines);
    if rows.iter().any(|(_, samples)| !was_busy(samples)) {
        text += "? busy is below 0.9: the machine was shared, or the load too small. Each request \
                 pays for a wake-up of its own. Do not judge by it.\n";
    }
    if rows.iter().flat_map(|(_, samples)| samples).any(|sample| sample.generator_was_disturbed) {
        text += "The generator, or its machine, had too little time in some of these samples.\n";
    }
    text
}

pub(super) fn of_idle(connections: usize, rows: &[(String, IdleSample)]) -> String {
    let what = format!("idle, {connections} connections");
    let mut lines = vec![vec![what, "MiB at start".to_owned(), "KiB/connection".to_owned()]];
    for (name, IdleSample { start, per_connection }) in rows {
        let (start, each) = (in_mebibytes(*start), per_connection / 1024.0);
        lines.push(vec![name.clone(), format!("{start:.1}"), format!("{each:.1}")]);
    }
    table(&lines)
}

fn was_busy(samples: &[Sample]) -> bool {
    median(samples.iter().map(|sample| sample.busy)) >= BUSY_MIN
}

fn in_mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// The first line is the head. The first column is aligned to the left, the others to the right.
fn table(lines: &[Vec<String>]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let columns = 0..lines.first().map_or(0, Vec::len);
    let widths: Vec<usize> = columns.map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!(" {cell:<width$} |") } else { format!(" {cell:>width$} |") }
        });
        text += &format!("|{}\n", cells.collect::<String>());
        if number == 0 {
            let rules = widths.iter().enumerate().map(|(column, width)| {
                let dashes = "-".repeat(width + 1);
                if column == 0 { format!("{dashes}-|") } else { format!("{dashes}:|") }
            });
            text += &format!("|{}\n", rules.collect::<String>());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(cpu_micros_per_request: f64) -> Sample {
        Sample {
            cpu_micros_per_request,
            busy: 1.0,
            requests_per_second: 1.0,
            p50_seconds: 0.001,
            p99_seconds: 0.002,
            wrong: 1,
            generator_was_disturbed: false,
            memory_bytes: 1 << 20,
        }
    }

    fn table_of(one: Vec<Sample>, other: Vec<Sample>) -> String {
        of_samples("get", &[("a".to_owned(), one), ("b".to_owned(), other)])
    }

    #[test]
    fn median_of_an_even_count_is_between() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
    }

    /// A machine that was slow in one round was slow for all.
    #[test]
    fn ratio_is_taken_within_each_round() {
        let table =
            table_of([10.0, 20.0, 10.0].map(sample).into(), [11.0, 22.0, 12.0].map(sample).into());
        let rows: Vec<&str> = table.lines().collect();
        assert!(rows[2].contains(" 1.00 |") && rows[2].contains(" 3 |"), "{table}");
        assert!(rows[3].contains(" 1.10 |"), "{table}");
    }

    /// Ratios of targets that were not busy stood there like all others.
    #[test]
    fn ratio_of_an_idle_target_is_marked() {
        let busy = || vec![sample(10.0)];
        let idle = || vec![Sample { busy: 0.5, generator_was_disturbed: true, ..sample(12.0) }];
        assert!(!table_of(busy(), busy()).contains('?'));
        let table = table_of(busy(), idle());
        assert!(table.contains(" 1.00 |") && table.contains(" 1.20? |"), "{table}");
        assert!(
            table.contains("Do not judge by it") && table.contains("too little time"),
            "{table}"
        );
        assert!(table_of(idle(), busy()).contains(" 0.83? |"), "one idle target is enough");
    }

    #[test]
    fn lines_of_a_table_have_one_width() {
        let row = IdleSample { start: 12 << 20, per_connection: 14_000.0 };
        let table = of_idle(1000, &[("fencepost".to_owned(), row)]);
        let mut widths = table.lines().map(|line| line.chars().count());
        let first = widths.next();
        assert!(widths.all(|width| Some(width) == first), "{table}");
    }
}
