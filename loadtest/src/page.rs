//! The report as one page of HTML that needs nothing else: no script, no font, no style from anywhere.

mod plot;

use std::fmt::Write;
use std::time::Duration;

use self::plot::{Axes, Axis, Line, Plot};
use crate::Conclusion;
use crate::drive::{Durations, Fault, Figure, Outcome, PARTS, milliseconds};
use crate::occasion::Occasion;

/// What plots over time have across.
const SINCE: &str = "seconds since the warm-up ended";
const STYLE: &str = include_str!("page/style.css");

/// The page of a run.
pub(crate) fn page(outcome: &Outcome, occasion: &Occasion) -> String {
    let figures_of_faults = outcome.to_be_none();
    let was_wrong = figures_of_faults.iter().any(|figure| figure.fault == Fault::Wrong && figure.count > 0);
    let was_tried = figures_of_faults.iter().all(|figure| figure.was_tried);
    let (class, verdict) = match outcome.conclusion() {
        Conclusion::AsExpected if was_tried => ("good", "As it should be"),
        Conclusion::AsExpected => ("", "As it should be, as far as it was tried: nothing superseded was sent"),
        Conclusion::PutOff => ("put-off", "Nothing was wrong, but not everybody was served"),
        Conclusion::NotAsExpected if was_wrong => ("bad", "Not as it should be"),
        Conclusion::NotAsExpected => ("missing", "Not as it should be, though nobody was judged wrongly"),
    };
    let sections = [
        figures(outcome),
        latencies(outcome),
        answers(outcome),
        "<div class=\"plots\">\n".to_owned(),
        percentile_curve(outcome),
        latency_over_time(outcome),
        throughput(outcome),
        handoffs(outcome),
        "</div>\n".to_owned(),
    ];
    let warnings: String =
        outcome.warnings().iter().map(|warning| format!("<p class=\"warning\">{}</p>\n", escaped(warning))).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>fencepost-loadtest: {verdict}</title>\n<style>\n{STYLE}</style>\n\
         <main>\n<header><h1>fencepost-loadtest</h1>\n<p class=\"{class}\">{verdict}</p></header>\n{}{warnings}{}</main>\n</html>\n",
        of_the_run(outcome, occasion),
        sections.concat(),
    )
}

/// When it was, of what, and what was asked for.
fn of_the_run(outcome: &Outcome, occasion: &Occasion) -> String {
    let facts = [
        ("began", occasion.began()),
        ("by", occasion.program().to_owned()),
        ("command", format!("<code>{}</code>", escaped(occasion.command()))),
        ("asked of it", escaped(&outcome.description())),
    ];
    let facts = facts.map(|(name, fact)| format!("<dt>{name}</dt><dd>{fact}</dd>\n"));
    format!("<dl>\n{}</dl>\n", facts.concat())
}

/// The figures that say whether the fence holds.
fn figures(outcome: &Outcome) -> String {
    let mut tiles = String::new();
    let mut tile = |class: &str, figure: &str, name: &str| {
        writeln!(tiles, "<div class=\"tile {class}\"><b>{figure}</b><span>{name}</span></div>")
            .expect("text can be written");
    };
    for Figure { name, count, fault, was_tried } in outcome.to_be_none() {
        match (was_tried, count) {
            (false, _) => tile("", "–", &format!("{name}: not tried")),
            (true, 0) => tile("good", "0", name),
            (true, _) => tile(class_of(fault), &count.to_string(), name),
        }
    }
    tile("", &format!("{:.0}", outcome.per_second()), "requests a second");
    tile("", &outcome.answered().to_string(), "answered");
    tile("", &outcome.moved().count().to_string(), "handoffs");
    format!("<section class=\"tiles\">\n{tiles}</section>\n")
}

fn latencies(outcome: &Outcome) -> String {
    let mut moved = Durations::default();
    outcome.moved().for_each(|each| moved.add(each.answered));
    let mut columns = vec![("served", outcome.served()), ("refused", outcome.refused()), ("handoff", &moved)];
    // Few runs have these, and a phone is narrow.
    let failed = [("put off", outcome.until_put_off()), ("no answer", outcome.until_failed())];
    columns.extend(failed.into_iter().filter(|(_, durations)| durations.count() > 0));
    let row = |name: &str, cell: &dyn Fn(&Durations) -> String| {
        let cells: String = columns.iter().map(|(_, durations)| format!("<td>{}</td>", cell(durations))).collect();
        format!("<tr><th>{name}</th>{cells}</tr>\n")
    };
    let names: String = columns.iter().map(|(name, _)| format!("<th>{name}</th>")).collect();
    // A column for each percentile would not fit on a phone.
    let rows: String =
        PARTS.iter().map(|(name, _, part)| row(name, &|durations| milliseconds(durations.at(*part)))).collect();
    format!(
        "<section><h2>Latencies</h2><table><tr><th></th>{names}</tr>\n{}{rows}</table></section>\n",
        row("count", &|durations| durations.count().to_string()),
    )
}

fn answers(outcome: &Outcome) -> String {
    let mut kinds: Vec<(&str, String, u64, &str)> = outcome
        .answers()
        .map(|(standing, answer, count, finding)| {
            (standing.name(), answer.to_string(), count, finding.fault().map_or("good", class_of))
        })
        .collect();
    kinds.extend(
        outcome.missing().map(|(why, count)| ("", format!("no answer: {why}"), count, class_of(Fault::Missing))),
    );
    let most = kinds.iter().map(|(_, _, count, _)| *count).max().unwrap_or(1).max(1);
    let mut rows = String::new();
    for (sender, answer, count, class) in kinds {
        // By its logarithm, so that the one wrong answer of a million can be seen.
        let share = ((count as f64).ln_1p() / (most as f64).ln_1p() * 100.0).max(1.0);
        writeln!(
            rows,
            "<tr><th>{sender}</th><td class=\"text\">{}</td><td>{count}</td><td class=\"bar\"><i class=\"{class}\" style=\"width:{share:.0}%\"></i></td></tr>",
            escaped(&answer),
        )
        .expect("text can be written");
    }
    format!(
        "<section><h2>Answers</h2><table><tr><th>sender</th><th class=\"text\">answer</th><th>count</th><th class=\"bar\">count, logarithmic</th></tr>\n{rows}</table></section>\n"
    )
}

/// What is not as it should be, in the words of the style.
fn class_of(fault: Fault) -> &'static str {
    match fault {
        Fault::Wrong => "bad",
        Fault::PutOff => "put-off",
        Fault::Missing => "missing",
    }
}

/// How many nines are drawn: as many as there are requests for.
fn nines_of(durations: &Durations) -> f64 {
    (durations.count().max(1) as f64).log10().clamp(1.0, 6.0)
}

fn percentile_curve(outcome: &Outcome) -> String {
    let nines = nines_of(outcome.served()).max(nines_of(outcome.refused()));
    let curve = |durations: &Durations| -> Vec<(f64, f64)> {
        let steps = (nines_of(durations) * 40.0) as u32;
        let at = |step: u32| f64::from(step) / 40.0;
        let point = |nines: f64| Some((nines, in_milliseconds(durations.at(1.0 - 10f64.powf(-nines))?)));
        let slowest = durations.at(1.0).map(|most| (nines_of(durations), in_milliseconds(most)));
        (0..=steps).filter_map(|step| point(at(step))).chain(slowest).collect()
    };
    let x = percentiles(nines);
    let lines = vec![
        Line::new("served", "first", curve(outcome.served())),
        Line::new("refused", "second", curve(outcome.refused())),
    ];
    let axes =
        Axes { across: "percentile (%), logarithmic by what is left to 100", up: "latency", is_logarithmic: true };
    Plot { title: "Latency by percentile", axes, unit: "ms", x, lines, is_dotted: false }.section()
}

/// The percentiles up to that many nines; without their unit, which would not fit on a phone beside six nines.
fn percentiles(nines: f64) -> Axis {
    let labels = ["0", "90", "99", "99.9", "99.99", "99.999", "99.9999"];
    let ticks = labels.iter().enumerate().map(|(nine, label)| (nine as f64, (*label).to_owned()));
    Axis::with_ticks(0.0, nines, ticks.filter(|(nine, _)| *nine <= nines).collect())
}

fn latency_over_time(outcome: &Outcome) -> String {
    let series = |part: f64| {
        let slots = outcome.slots().iter().enumerate();
        let point = |(number, slot): (usize, &crate::drive::Slot)| {
            Some((seconds(outcome, number), in_milliseconds(slot.latencies.at(part)?)))
        };
        slots.filter_map(point).collect()
    };
    let lines = vec![
        Line::new("p50", "first", series(0.5)),
        Line::new("p99", "second", series(0.99)),
        Line::new("max", "third", series(1.0)),
    ];
    let title = "Latency over time, by when a request was due";
    let axes = Axes { across: SINCE, up: "latency", is_logarithmic: true };
    Plot { title, axes, unit: "ms", x: time(outcome), lines, is_dotted: false }.section()
}

fn throughput(outcome: &Outcome) -> String {
    let series = |count: fn(&crate::drive::Slot) -> u64| {
        let slots = outcome.slots_with_rates().iter().enumerate();
        let rate = |number, slot| count(slot) as f64 / outcome.slot_length(number).as_secs_f64();
        slots.map(|(number, slot)| (seconds(outcome, number), rate(number, slot))).collect()
    };
    let mut lines = vec![
        Line::new("refused", "second", series(|slot| slot.refused)),
        Line::new("put off", "put-off", series(|slot| slot.put_off)),
        Line::new("no answer", "missing", series(|slot| slot.unanswered)),
        Line::new("not sent", "unsent", series(|slot| slot.unsent)),
        Line::new("wrong", "bad", series(|slot| slot.wrong)),
    ];
    // A red line on the axis would look like something wrong all the time. That nothing was served is to be seen.
    lines.retain(|line| !line.is_zero());
    lines.insert(0, Line::new("served", "first", series(|slot| slot.served)));
    let title = "Requests a second, over time, by what became of them";
    let axes = Axes { across: SINCE, up: "requests a second", is_logarithmic: false };
    Plot { title, axes, unit: "/s", x: time(outcome), lines, is_dotted: false }.section()
}

fn handoffs(outcome: &Outcome) -> String {
    let points = |was_served: bool| {
        let moved = outcome.moved().filter(|moved| moved.was_served == was_served);
        moved.filter_map(|moved| Some((moved.at?.as_secs_f64(), in_milliseconds(moved.answered)))).collect()
    };
    let lines = vec![
        Line::new("release to the successor's first answer", "first", points(true)),
        Line::new("to its end, never served", "missing", points(false)),
    ];
    let axes = Axes { across: SINCE, up: "time from the release", is_logarithmic: false };
    Plot { title: "Handoffs over time", axes, unit: "ms", x: time(outcome), lines, is_dotted: true }.section()
}

fn time(outcome: &Outcome) -> Axis {
    Axis::linear(0.0, outcome.measured().as_secs_f64(), "s")
}

/// The middle of a slot of time.
fn seconds(outcome: &Outcome, slot: usize) -> f64 {
    (outcome.slot_begin(slot) + outcome.slot_length(slot) / 2).as_secs_f64()
}

fn in_milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Text of others, harmless in a page.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_is_no_markup() {
        assert_eq!(escaped("<a href=\"x\">&</a>"), "&lt;a href=&quot;x&quot;&gt;&amp;&lt;/a&gt;");
    }

    /// A run of just over 100,000 requests had a figure outside of its drawing.
    #[test]
    fn however_many_requests_there_were_the_figures_fit_below_the_curve() {
        for tenths in 10..=60 {
            let nines = f64::from(tenths) / 10.0;
            assert!(percentiles(nines).fits(), "at {nines} nines");
        }
    }
}
