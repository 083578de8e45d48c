//! The bar chart: how fast each service is in each mode, as text and as an image.

use crate::statistics::Summary;
use std::fmt::Write;

/// Bars that belong together, such as the modes of one service on one platform.
pub struct Group {
    /// The title.
    pub title: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// Label, median and spread of each bar.
    pub bars: Vec<(String, Summary)>,
}

/// Columns of the longest bar.
const TEXT_COLUMNS: usize = 50;

/// The chart for a terminal.
pub fn text(groups: &[Group]) -> String {
    let mut text = String::new();
    let width = groups.iter().flat_map(|group| &group.bars).map(|(label, _)| label.len()).max().unwrap_or(0);
    for group in groups {
        let top = scale(group);
        let _ = writeln!(text, "{} ({})", group.title, group.unit);
        for (label, summary) in &group.bars {
            let columns = (summary.median / top * TEXT_COLUMNS as f64).round() as usize;
            let bar = "█".repeat(columns.min(TEXT_COLUMNS));
            let _ = writeln!(
                text,
                "  {label:<width$} {bar:<TEXT_COLUMNS$} {:>8.1}  ({:.1} to {:.1})",
                summary.median, summary.low, summary.high
            );
        }
    }
    text
}

/// The largest value that is drawn.
fn scale(group: &Group) -> f64 {
    group.bars.iter().map(|(_, summary)| summary.high).fold(f64::MIN_POSITIVE, f64::max)
}

const GROUP_WIDTH: usize = 360;
const GROUP_HEIGHT: usize = 250;
const PLOT_HEIGHT: f64 = 150.0;
const COLORS: [&str; 6] = ["#64748b", "#2563eb", "#0d9488", "#7c3aed", "#d97706", "#dc2626"];

/// The chart as an SVG, two groups beside each other: bars are medians, whiskers the 10th and 90th percentile.
pub fn svg(groups: &[Group]) -> String {
    let (width, height) = (GROUP_WIDTH * 2, GROUP_HEIGHT * groups.len().div_ceil(2));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, group) in groups.iter().enumerate() {
        let (left, top) = ((index % 2) * GROUP_WIDTH + 20, (index / 2) * GROUP_HEIGHT + 24);
        let _ =
            writeln!(svg, "<text x=\"{left}\" y=\"{top}\" font-size=\"13\">{} ({})</text>", group.title, group.unit);
        let base = top as f64 + 30.0 + PLOT_HEIGHT;
        let step = (GROUP_WIDTH - 40) as f64 / group.bars.len().max(1) as f64;
        for (bar, (label, summary)) in group.bars.iter().enumerate() {
            let y = |value: f64| base - value / scale(group) * PLOT_HEIGHT;
            let x = left as f64 + bar as f64 * step;
            let middle = x + step * 0.4;
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
                y(summary.median),
                step * 0.8,
                base - y(summary.median),
                COLORS[bar % COLORS.len()]
            );
            let _ = writeln!(
                svg,
                "<path d=\"M{middle:.1} {:.1}V{:.1}\" stroke=\"black\"/>",
                y(summary.low),
                y(summary.high)
            );
            let _ = writeln!(
                svg,
                "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.0}</text>",
                y(summary.high) - 4.0,
                summary.median
            );
            for (line, word) in label.split(' ').enumerate() {
                let _ = writeln!(
                    svg,
                    "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{word}</text>",
                    base + 14.0 + line as f64 * 12.0
                );
            }
        }
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_is_the_fastest_and_both_charts_name_all() {
        let bar =
            |label: &str, median| (label.to_owned(), Summary { count: 5, median, low: median * 0.9, high: median });
        let groups =
            [Group { title: "queue, process".into(), unit: "MiB/s", bars: vec![bar("off", 50.0), bar("on", 100.0)] }];
        let text = text(&groups);
        let bars: Vec<usize> = text.lines().skip(1).map(|line| line.matches('█').count()).collect();
        assert_eq!(bars, [TEXT_COLUMNS / 2, TEXT_COLUMNS]);
        let svg = svg(&groups);
        assert_eq!(svg.matches("<path").count(), 2);
        assert!(svg.contains("queue, process") && svg.ends_with("</svg>\n"));
    }
}
