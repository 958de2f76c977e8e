//! Tables, as Markdown has them.

use std::time::Duration;

use super::sample::Sample;

/// What share of a CPU a target has at least, for its figures to be judged: below, the machine was shared or the load too small.
const BUSY_MIN: f64 = 0.9;

/// What was measured of several, the first of which ratios are to. A ratio that is not to be judged by has a question mark.
pub(super) fn of_samples<'a>(what: &str, rows: impl Iterator<Item = (String, &'a Vec<Sample>)>) -> String {
    let rows: Vec<(String, &Vec<Sample>)> = rows.collect();
    let Some((_, reference)) = rows.first() else { return String::new() };
    let head = [what, "CPU µs/request", "spread", "ratio", "busy", "requests/s", "p50 ms", "p99 ms", "MiB", "wrong"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    let was_busy = |samples: &[Sample]| median(samples.iter().map(|sample| sample.busy)) >= BUSY_MIN;
    let was_disturbed = |samples: &[Sample]| samples.iter().any(|sample| sample.was_disturbed);
    for (name, samples) in &rows {
        let middle = |of: fn(&Sample) -> f64| median(samples.iter().map(of));
        let doubt = if was_busy(samples) && was_busy(reference) { "" } else { "?" };
        let ratios = samples.iter().zip(*reference).map(|(sample, reference)| sample.cpu_micros / reference.cpu_micros);
        let cpu = || samples.iter().map(|sample| sample.cpu_micros);
        lines.push(vec![
            name.clone(),
            format!("{:.1}", median(cpu())),
            format!("{:.1}-{:.1}", cpu().fold(f64::INFINITY, f64::min), cpu().fold(0.0, f64::max)),
            format!("{:.2}{doubt}", median(ratios)),
            format!("{:.2}", middle(|sample| sample.busy)),
            format!("{:.0}", middle(|sample| sample.per_second)),
            format!("{:.2}", middle(|sample| in_milliseconds(sample.p50))),
            format!("{:.2}", middle(|sample| in_milliseconds(sample.p99))),
            format!("{:.1}", middle(|sample| in_mebibytes(sample.memory))),
            samples.iter().map(|sample| sample.wrong).sum::<u64>().to_string(),
        ]);
    }
    let mut text = table(&lines);
    if rows.iter().any(|(_, samples)| !was_busy(samples)) {
        text += "? busy is below 0.9: the machine was shared, or the load too small, and each request pays for a wake-up of its own. Do not judge by it.\n";
    }
    if rows.iter().any(|(_, samples)| was_disturbed(samples)) {
        text += "The generator had too little time in some of these: it, or its machine, may have been the limit.\n";
    }
    text
}

/// What waiting connections take: a name, memory at the start, memory for each.
pub(super) fn of_idle(connections: usize, rows: &[(String, u64, f64)]) -> String {
    let head = [format!("idle, {connections} connections"), "MiB at start".to_owned(), "KiB/connection".to_owned()];
    let mut lines = vec![head.to_vec()];
    for (name, start, each) in rows {
        lines.push(vec![name.clone(), format!("{:.1}", in_mebibytes(*start)), format!("{:.1}", each / 1024.0)]);
    }
    table(&lines)
}

fn in_milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn in_mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

/// The one in the middle, or between the two that are there.
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

/// The first line is the head; the first column stands on the left, figures on the right.
fn table(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let cell = |column: usize| {
            let (cell, width) = (&line[column], widths[column]);
            if column == 0 { format!(" {cell:<width$} |") } else { format!(" {cell:>width$} |") }
        };
        text += &format!("|{}\n", (0..columns).map(cell).collect::<String>());
        if number == 0 {
            let rule = |column: usize| {
                let dashes = "-".repeat(widths[column] + 1);
                if column == 0 { format!("{dashes}-|") } else { format!("{dashes}:|") }
            };
            text += &format!("|{}\n", (0..columns).map(rule).collect::<String>());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(cpu_micros: f64) -> Sample {
        let (p50, p99) = (Duration::from_millis(1), Duration::from_millis(2));
        let (busy, was_disturbed, memory) = (1.0, false, 1 << 20);
        Sample { cpu_micros, busy, per_second: 1e6 / cpu_micros, p50, p99, wrong: 1, was_disturbed, memory }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
    }

    /// A machine that was slow in one round was slow for all: the ratio within each round counts.
    #[test]
    fn ratios_are_taken_within_a_round() {
        let reference = vec![sample(10.0), sample(20.0), sample(10.0)];
        let other = vec![sample(11.0), sample(22.0), sample(12.0)];
        let rows = [("a".to_owned(), &reference), ("b".to_owned(), &other)];
        let table = of_samples("get", rows.into_iter());
        assert!(table.lines().nth(3).is_some_and(|row| row.contains(" 1.10 |")), "{table}");
        assert!(table.lines().nth(2).is_some_and(|row| row.contains(" 1.00 |") && row.contains(" 3 |")), "{table}");
    }

    /// They stood there like all others.
    #[test]
    fn ratios_of_what_was_not_busy_are_marked() {
        let (busy, idle) = (vec![sample(10.0)], vec![Sample { busy: 0.5, was_disturbed: true, ..sample(12.0) }]);
        let table = |one: &Vec<Sample>, other: &Vec<Sample>| {
            of_samples("get", [("a".to_owned(), one), ("b".to_owned(), other)].into_iter())
        };
        assert!(!table(&busy, &busy).contains('?'));
        let of_busy = table(&busy, &idle);
        assert!(of_busy.contains(" 1.00 |") && of_busy.contains(" 1.20? |"), "{of_busy}");
        assert!(of_busy.contains("Do not judge by it") && of_busy.contains("too little time"), "{of_busy}");
        assert!(table(&idle, &busy).contains(" 0.83? |"), "one is enough");
    }

    #[test]
    fn all_lines_of_a_table_are_of_one_width() {
        let table = of_idle(1000, &[("fencepost".to_owned(), 12 << 20, 14_000.0)]);
        assert!(
            table.lines().all(|line| line.chars().count() == table.lines().next().unwrap().chars().count()),
            "{table}"
        );
    }
}
