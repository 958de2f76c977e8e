//! A plot as inline SVG.

use std::fmt::Write;

/// The drawing's size in its own units, which a page scales: narrow, so that letters stay readable on a phone.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 250.0;
/// Where the data are: between the figures of the axes.
const LEFT: f64 = 74.0;
const RIGHT: f64 = 446.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 222.0;
/// How many steps an axis has, about.
const STEPS: f64 = 5.0;

/// The horizontal axis.
pub(super) struct Axis {
    low: f64,
    high: f64,
    ticks: Vec<(f64, String)>,
}

/// A line, or its points alone.
pub(super) struct Line {
    name: &'static str,
    class: &'static str,
    points: Vec<(f64, f64)>,
}

/// What the axes are of.
pub(super) struct Axes {
    pub(super) across: &'static str,
    pub(super) up: &'static str,
    /// Whether the vertical one is.
    pub(super) is_logarithmic: bool,
}

/// A plot with its title and key.
pub(super) struct Plot {
    pub(super) title: &'static str,
    pub(super) axes: Axes,
    /// Of the vertical axis.
    pub(super) unit: &'static str,
    pub(super) x: Axis,
    pub(super) lines: Vec<Line>,
    /// Whether points stand alone.
    pub(super) is_dotted: bool,
}

impl Axes {
    /// In words: a logarithmic axis makes what differs by much look alike.
    fn told(&self) -> String {
        let scale = if self.is_logarithmic { "logarithmic" } else { "linear, from 0" };
        format!("<p class=\"axes\">Up: {}, {scale}. Across: {}.</p>\n", self.up, self.across)
    }
}

impl Axis {
    /// With these ticks.
    pub(super) fn with_ticks(low: f64, high: f64, ticks: Vec<(f64, String)>) -> Axis {
        Axis { low, high: if high > low { high } else { low + 1.0 }, ticks }
    }

    /// With ticks at round figures.
    pub(super) fn linear(low: f64, high: f64, unit: &str) -> Axis {
        let high = if high > low { high } else { low + 1.0 };
        let step = round_step((high - low) / STEPS);
        let first = (low / step).ceil() as i64;
        let ticks = (first..).map(|number| number as f64 * step).take_while(|tick| *tick <= high * (1.0 + 1e-9));
        Axis::with_ticks(low, high, ticks.map(|tick| (tick, with_unit(tick, unit))).collect())
    }

    /// With ticks at powers of ten, and values to be given by their logarithms.
    fn logarithmic(low: f64, high: f64, unit: &str) -> Axis {
        let (low, high) = (low.log10().floor(), high.log10().ceil());
        let high = if high > low { high } else { low + 1.0 };
        let ticks = (low as i32..=high as i32).map(|power| (f64::from(power), with_unit(10f64.powi(power), unit)));
        Axis { low, high, ticks: ticks.collect() }
    }

    /// Where a value is across the drawing.
    fn across(&self, value: f64) -> f64 {
        LEFT + self.part(value) * (RIGHT - LEFT)
    }

    /// Whether its figures lie within the drawing and beside each other, in a font whose letters are wide.
    #[cfg(test)]
    pub(super) fn fits(&self) -> bool {
        const LETTER: f64 = 8.2;
        let extents: Vec<(f64, f64)> = self
            .ticks
            .iter()
            .map(|(tick, label)| (self.across(*tick), label.len() as f64 * LETTER / 2.0))
            .map(|(middle, half)| (middle - half, middle + half))
            .collect();
        let is_within = extents.iter().all(|(left, right)| 0.0 <= *left && *right <= WIDTH);
        is_within && extents.windows(2).all(|pair| pair[0].1 < pair[1].0)
    }

    /// Where a value is, from 0 to 1.
    fn part(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

impl Line {
    /// Of these points, drawn as that class of the style says.
    pub(super) fn new(name: &'static str, class: &'static str, points: Vec<(f64, f64)>) -> Line {
        Line { name, class, points }
    }

    /// Whether there is none but 0 to be seen, which would lie on the axis and on other lines there.
    pub(super) fn is_zero(&self) -> bool {
        self.points.iter().all(|(_, value)| *value == 0.0)
    }
}

impl Plot {
    /// The plot with its title, or a word that there is nothing to see.
    pub(super) fn section(&self) -> String {
        let drawn: Vec<&Line> = self.lines.iter().filter(|line| !line.points.is_empty()).collect();
        let body = if drawn.is_empty() {
            "<p class=\"none\">None in this run.</p>".to_owned()
        } else {
            format!("{}{}{}", self.axes.told(), key(&drawn), self.drawing(&drawn))
        };
        format!("<section class=\"plot\"><h2>{}</h2>{body}</section>\n", self.title)
    }

    fn drawing(&self, lines: &[&Line]) -> String {
        let y = self.vertical(lines);
        let at = |(x, value): (f64, f64)| {
            let value = if self.axes.is_logarithmic { value.log10() } else { value };
            (self.x.across(x), BOTTOM - y.part(value) * (BOTTOM - TOP))
        };
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n", self.title);
        for (tick, label) in &y.ticks {
            let height = BOTTOM - y.part(*tick) * (BOTTOM - TOP);
            put(&mut svg, format_args!("<path class=\"grid\" d=\"M{LEFT} {height:.1}H{RIGHT}\"/>"));
            put(
                &mut svg,
                format_args!("<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", LEFT - 6.0, height + 4.5),
            );
        }
        for (tick, label) in &self.x.ticks {
            let across = self.x.across(*tick);
            put(&mut svg, format_args!("<path class=\"grid\" d=\"M{across:.1} {TOP}V{BOTTOM}\"/>"));
            put(
                &mut svg,
                format_args!("<text x=\"{across:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", BOTTOM + 20.0),
            );
        }
        for line in lines {
            let points: Vec<(f64, f64)> = line.points.iter().copied().map(at).collect();
            // A line of one point would not be seen.
            if self.is_dotted || points.len() == 1 {
                points.iter().for_each(|(x, y)| {
                    let class = line.class;
                    put(&mut svg, format_args!("<circle class=\"dot {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>"))
                });
            } else {
                let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
                put(&mut svg, format_args!("<path class=\"data {}\" d=\"M{}\"/>", line.class, path.join("L")));
            }
        }
        svg + "</svg>"
    }

    fn vertical(&self, lines: &[&Line]) -> Axis {
        let values = || lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value);
        let high = values().fold(0.0, f64::max);
        if self.axes.is_logarithmic {
            let low = values().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
            return Axis::logarithmic(low.min(high).max(1e-6), high.max(1e-6), self.unit);
        }
        // Where all is 0 any figure will do that can be read.
        let high = if high > 0.0 { high } else { 1.0 };
        // Up to the first round figure above all.
        let step = round_step(high / STEPS);
        Axis::linear(0.0, (high / step).ceil().max(1.0) * step, self.unit)
    }
}

fn key(lines: &[&Line]) -> String {
    let items = lines.iter().map(|line| format!("<li><i class=\"{}\"></i>{}</li>", line.class, line.name));
    format!("<ul class=\"key\">{}</ul>\n", items.collect::<String>())
}

fn put(svg: &mut String, what: std::fmt::Arguments<'_>) {
    writeln!(svg, "{what}").expect("text can be written");
}

/// 1, 2 or 5 times a power of ten, the first that is not below.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
    steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(power * 10.0)
}

/// A round figure with its unit; many milliseconds as seconds.
fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "ms" if value >= 1000.0 => format!("{} s", figure(value / 1000.0)),
        _ => format!("{} {unit}", figure(value)),
    }
}

/// A round figure, as short as it can be read.
fn figure(value: f64) -> String {
    if value >= 1e6 {
        return format!("{} M", figure(value / 1e6));
    }
    if value >= 10_000.0 {
        return format!("{} k", figure(value / 1e3));
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn an_axis_has_round_figures() {
        assert_eq!(labels(&Axis::linear(0.0, 10.0, "s")), ["0 s", "2 s", "4 s", "6 s", "8 s", "10 s"]);
        assert_eq!(labels(&Axis::linear(0.0, 0.4, "s")), ["0 s", "0.1 s", "0.2 s", "0.3 s", "0.4 s"]);
        assert_eq!(labels(&Axis::linear(0.0, 70_000.0, "/s")), ["0 /s", "20 k /s", "40 k /s", "60 k /s"]);
        assert_eq!(labels(&Axis::logarithmic(0.05, 3.0, "ms")), ["0.01 ms", "0.1 ms", "1 ms", "10 ms"]);
        assert_eq!(labels(&Axis::logarithmic(100.0, 9000.0, "ms")), ["100 ms", "1 s", "10 s"]);
    }

    #[test]
    fn whatever_is_drawn_lies_within_the_drawing() {
        let points = vec![(0.0, 0.001), (5.0, 1234.5), (10.0, 3.0)];
        for (is_logarithmic, is_dotted) in [(true, false), (false, false), (false, true)] {
            let lines = vec![Line::new("a", "first", points.clone())];
            let axes = Axes { across: "a", up: "b", is_logarithmic };
            let plot = Plot { title: "t", axes, unit: "ms", x: Axis::linear(0.0, 10.0, "s"), lines, is_dotted };
            let svg = plot.section();
            assert_eq!(svg.contains("Up: b, logarithmic. Across: a."), is_logarithmic, "{svg}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            let drawn = svg.split("<path class=\"data first\" d=\"M").nth(1).and_then(|rest| rest.split('"').next());
            for point in drawn.iter().flat_map(|path| path.split('L')) {
                let (x, y) = point.split_once(' ').expect("a point has two figures");
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!((LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y), "{svg}");
            }
            assert_eq!(drawn.is_none(), is_dotted);
        }
    }

    #[test]
    fn a_line_of_one_point_is_seen() {
        let lines = vec![Line::new("a", "second", vec![(5.0, 3.0)])];
        let axes = Axes { across: "a", up: "b", is_logarithmic: true };
        let x = Axis::linear(0.0, 10.0, "s");
        let svg = Plot { title: "t", axes, unit: "ms", x, lines, is_dotted: false }.section();
        assert!(svg.contains("<circle class=\"dot second\""), "{svg}");
    }

    /// Each of its figures was 0.
    #[test]
    fn an_axis_of_zeros_has_different_figures() {
        let lines = vec![Line::new("a", "first", vec![(0.0, 0.0), (1.0, 0.0)])];
        let axes = Axes { across: "a", up: "b", is_logarithmic: false };
        let plot = Plot { title: "t", axes, unit: "/s", x: Axis::linear(0.0, 1.0, "s"), lines, is_dotted: false };
        let up = plot.vertical(&plot.lines.iter().collect::<Vec<_>>());
        assert_eq!(labels(&up), ["0 /s", "0.2 /s", "0.4 /s", "0.6 /s", "0.8 /s", "1 /s"]);
    }

    #[test]
    fn a_plot_of_nothing_says_so() {
        let lines = vec![Line::new("a", "first", vec![])];
        let x = Axis::linear(0.0, 0.0, "s");
        let axes = Axes { across: "a", up: "b", is_logarithmic: true };
        let plot = Plot { title: "t", axes, unit: "ms", x, lines, is_dotted: false };
        assert!(plot.section().contains("None in this run"));
    }
}
