//! A page with a plot of each case: the share of the ceiling over the median TTFT.

use std::fmt::Write as _;

use super::compared::{Compared, Row};
use super::verdict::Verdict;
use crate::report::human_ms;

/// The size of a plot and its margins, in pixels.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 44.0;
/// What a letter of a label takes at most, and a line.
const LETTER: f64 = 6.6;
const LINE: f64 = 13.0;

const STYLE: &str = "
:root { color-scheme: light dark; --text: #1b1f24; --dim: #6a737d; --grid: #e3e6ea; --point: #8895a7; --front: #1f6feb; --ours: #d1242f; --back: #ffffff }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --dim: #8b949e; --grid: #2b3138; --point: #7d8590; --front: #58a6ff; --ours: #ff7b72; --back: #0d1117 } }
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin: 2.5rem 0 0 } p { margin: .2rem 0; color: var(--dim) } svg { width: 100%; height: auto }
svg text { font: 11.5px system-ui, sans-serif; fill: var(--text) } svg .dim { fill: var(--dim) } svg .grid { stroke: var(--grid) }
svg .point { fill: var(--point) } svg .on { fill: var(--front) } svg .ours { fill: var(--ours) } svg .front { fill: none; stroke: var(--front); stroke-width: 1.5; stroke-dasharray: 4 3 }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums } th, td { text-align: right; padding: .15rem .5rem; border-bottom: 1px solid var(--grid) }
th:first-child, td:first-child { text-align: left } th { color: var(--dim); font-weight: 500 } li.missed { color: var(--ours) }
";

/// The whole page; it needs nothing else.
pub(super) fn page(compared: &[Compared], verdict: &Verdict) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>rankway sim</title><style>{STYLE}</style></head><body>\n<h1>rankway sim</h1>\n<p>Each point is a policy: up and to the left is better. The dashed line is the Pareto front.</p>\n"
    );
    if !verdict.goals.is_empty() {
        page += "<ul>\n";
        for goal in &verdict.goals {
            let class = if goal.ok { "reached" } else { "missed" };
            let value = goal.value.map_or("-".to_owned(), |it| format!("{it:.3}"));
            // Writing to a String cannot fail.
            let _ = writeln!(
                page,
                "<li class=\"{class}\">{class} {}: {value} (goal {})</li>",
                escaped(&goal.goal),
                goal.limit
            );
        }
        page += "</ul>\n";
    }
    for one in compared {
        let _ = writeln!(
            page,
            "<h2>{}</h2>\n<p>{}</p>\n<p>{}</p>",
            escaped(&one.workload),
            escaped(one.about),
            escaped(&one.setting.join("; "))
        );
        page += &plot(one).unwrap_or_default();
        page += &table(one);
    }
    page + "</body></html>\n"
}

/// Where points stand.
struct Axes {
    /// Of the TTFT, in milliseconds, each a power of ten times 1, 2 or 5.
    least: f64,
    most: f64,
    lowest: f64,
}

impl Axes {
    fn x(&self, ms: f64) -> f64 {
        let share = (ms / self.least).ln() / (self.most / self.least).ln();
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, hit: f64) -> f64 {
        let share = (hit - self.lowest) / (1.0 - self.lowest);
        HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
    }
}

/// None where nothing was measured.
fn plot(compared: &Compared) -> Option<String> {
    let rows = compared.policies.iter();
    let points = rows.filter_map(|it| Some((it.figures.ttft_ms.p50?.max(0.1), it.hit()?, it)));
    let mut points: Vec<(f64, f64, &Row)> = points.collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (first, last) = (points.first()?, points.last()?);
    let lowest = points.iter().map(|it| it.1).fold(1.0, f64::min);
    let axes = Axes {
        least: *round_values(first.0 / 5.0, first.0 * 0.97).last()?,
        most: *round_values(last.0 * 1.03, last.0 * 5.0).first()?,
        lowest: ((lowest * 10.0).floor() / 10.0).min(0.9),
    };
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n");
    svg += &grid(&axes);
    let front: Vec<String> = points
        .iter()
        .filter(|it| it.2.on_pareto_front)
        .map(|it| format!("{:.1},{:.1}", axes.x(it.0), axes.y(it.1)))
        .collect();
    let _ = writeln!(
        svg,
        "<polyline class=\"front\" points=\"{}\"/>",
        front.join(" ")
    );
    let mut taken: Vec<(f64, f64, f64)> = Vec::new();
    for (ms, hit, row) in points {
        let name = row.figures.policy.to_string();
        let class = match row {
            _ if name == "kv" => "point ours",
            _ if row.on_pareto_front => "point on",
            _ => "point",
        };
        let (x, y) = (axes.x(ms), axes.y(hit));
        let width = name.len() as f64 * LETTER;
        let label = label(x + 8.0, y, width, &taken);
        taken.push((x + 8.0, label, width));
        if LINE < (label - y).abs() {
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{label:.1}\"/>",
                x + 7.0
            );
        }
        let name = escaped(&name);
        let shown = human_ms(ms);
        let _ = writeln!(
            svg,
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"><title>{name}: {shown}, {hit:.3}</title></circle><text x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
            x + 8.0,
            label + 4.0
        );
    }
    Some(svg + "</svg>\n")
}

/// The height at which a label meets no other: its point's, or the next free one above or below.
fn label(x: f64, y: f64, width: f64, taken: &[(f64, f64, f64)]) -> f64 {
    let is_free = |at: f64| {
        let meets =
            |it: &(f64, f64, f64)| (at - it.1).abs() < LINE && x < it.0 + it.2 && it.0 < x + width;
        (TOP..HEIGHT - BOTTOM).contains(&at) && !taken.iter().any(meets)
    };
    let steps = (0..60).flat_map(|it| [f64::from(it), -f64::from(it)]);
    let mut places = steps.map(|it| y + it * LINE / 2.0);
    places.find(|it| is_free(*it)).unwrap_or(y)
}

fn grid(axes: &Axes) -> String {
    let mut svg = String::new();
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for ms in round_values(axes.least * 0.99, axes.most * 1.01) {
        let x = axes.x(ms);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/><text class=\"dim\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            bottom + 16.0,
            short_ms(ms)
        );
    }
    // A float to integer cast saturates.
    for tenth in (axes.lowest * 10.0).round() as u32..=10 {
        let hit = f64::from(tenth) / 10.0;
        let y = axes.y(hit);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text class=\"dim\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{hit:.1}</text>",
            LEFT - 8.0,
            y + 4.0
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"dim\" x=\"{LEFT}\" y=\"{:.1}\">median TTFT (log); upwards: share of the ceiling taken from caches</text>",
        HEIGHT - 8.0
    );
    svg
}

/// The values 1, 2 and 5 times a power of ten from `least` to `most`.
fn round_values(least: f64, most: f64) -> Vec<f64> {
    let powers = (-3..=9).map(|it| 10.0_f64.powi(it));
    let values = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|it| it * power));
    values.filter(|it| (least..=most).contains(it)).collect()
}

fn short_ms(ms: f64) -> String {
    match ms {
        _ if ms < 1_000.0 => format!("{ms} ms"),
        _ => format!("{} s", ms / 1e3),
    }
}

fn table(compared: &Compared) -> String {
    let mut html = "<table><tr><th>policy</th><th>TTFT p50</th><th>p99</th><th>mean</th><th>hit/ceiling</th><th>work max/mean</th><th>queue skew</th></tr>\n".to_owned();
    let mut rows: Vec<&Row> = compared.policies.iter().collect();
    let p50 = |it: &Row| it.figures.ttft_ms.p50.unwrap_or(f64::INFINITY);
    rows.sort_by(|one, other| p50(one).total_cmp(&p50(other)));
    for row in rows {
        let time = |it: Option<f64>| it.map_or("-".to_owned(), human_ms);
        let share = |it: Option<f64>| it.map_or("-".to_owned(), |it| format!("{it:.3}"));
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&row.figures.policy.to_string()),
            time(row.figures.ttft_ms.p50),
            time(row.figures.ttft_ms.p99),
            time(row.ttft_mean_ms),
            share(row.hit()),
            share(row.figures.work_max_over_mean),
            share(row.queue_skew),
        );
    }
    html + "</table>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{label, round_values};

    #[test]
    fn axes_end_at_round_values_around_the_points() {
        assert_eq!(round_values(0.9, 25.0), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(round_values(21.0, 49.0), [0.0; 0]);
        assert!(round_values(22.0 / 5.0, 22.0).last() == Some(&20.0));
    }

    #[test]
    fn labels_of_one_place_stand_below_each_other() {
        let mut taken = Vec::new();
        for _ in 0..5 {
            let at = label(100.0, 200.0, 50.0, &taken);
            taken.push((100.0, at, 50.0));
        }

        let mut heights: Vec<f64> = taken.iter().map(|it| it.1).collect();
        heights.sort_by(f64::total_cmp);
        assert!(heights.windows(2).all(|it| it[1] - it[0] >= 13.0));
    }
}
