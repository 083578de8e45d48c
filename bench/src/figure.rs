//! The one form in which every measurement is reported.

use crate::statistics::Summary;
use serde::{Deserialize, Serialize};

/// A measured figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What was measured, such as `boot.tcg.first_byte_ms`.
    pub figure: String,
    /// The median.
    pub value: f64,
    /// The unit of `value`, `low` and `high`.
    pub unit: String,
    /// How many measurements.
    pub n: usize,
    /// The 10th percentile.
    pub low: f64,
    /// The 90th percentile.
    pub high: f64,
    /// The peer or lower bound that was measured in the same run.
    pub against: Option<String>,
    /// `value` divided by the peer's median.
    pub ratio: Option<f64>,
}

impl Figure {
    /// The figure for `samples`; `None` if there are none.
    pub fn of(figure: &str, unit: &str, samples: &[f64]) -> Option<Figure> {
        let Summary { count, median, low, high } = Summary::of(samples)?;
        Some(Figure {
            figure: figure.to_owned(),
            value: rounded(median),
            unit: unit.to_owned(),
            n: count,
            low: rounded(low),
            high: rounded(high),
            against: None,
            ratio: None,
        })
    }

    /// Sets the peer or lower bound, whose median in the same run was `value`.
    pub fn against(mut self, name: &str, value: f64) -> Figure {
        self.against = Some(name.to_owned());
        self.ratio = (value > 0.0).then(|| rounded(self.value / value));
        self
    }

    /// The same, if there is a peer: its name, and its median.
    pub fn beside(self, peer: Option<(&str, f64)>) -> Figure {
        match peer {
            Some((name, value)) => self.against(name, value),
            None => self,
        }
    }
}

/// Four significant digits: more would be noise.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = (3.0 - value.abs().log10().floor()).max(0.0);
    let scale = 10f64.powf(digits);
    (value * scale).round() / scale
}

/// What one run measured: the file `target/bench/NAME.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The processors, and whatever else matters.
    pub machine: String,
    /// The day, as `2026-11-25`.
    pub date: String,
    /// The commit that was measured.
    pub commit: String,
    /// The command that measured it.
    pub command: String,
    /// The figures, in the order of their measurement.
    pub figures: Vec<Figure>,
}

impl Results {
    /// The text of the file.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and strings always serialise") + "\n"
    }
}

/// The figures as a table.
pub fn table(figures: &[Figure]) -> String {
    let header = ["figure", "median", "10 %", "90 %", "unit", "n", "against", "ratio"].map(str::to_owned);
    let rows = figures.iter().map(|figure| {
        let ratio = figure.ratio.map_or(String::new(), |ratio| format!("{ratio}"));
        let number = |value: f64| format!("{value}");
        [
            figure.figure.clone(),
            number(figure.value),
            number(figure.low),
            number(figure.high),
            figure.unit.clone(),
            figure.n.to_string(),
            figure.against.clone().unwrap_or_default(),
            ratio,
        ]
    });
    let rows: Vec<[String; 8]> = std::iter::once(header).chain(rows).collect();
    let widths: Vec<usize> = (0..8).map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0)).collect();
    let line = |row: &[String; 8]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            1..=3 | 5 | 7 => format!("{cell:>width$}"),
            _ => format!("{cell:<width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Figure {
        Figure::of("boot.tcg.first_byte_ms", "ms", &[50.0, 40.0, 60.0]).unwrap().against("floor", 20.0)
    }

    #[test]
    fn the_json_has_exactly_the_agreed_keys_in_order() {
        let [machine, date, commit, command] = ["a", "2026-11-25", "c", "d"].map(str::to_owned);
        let results = Results { machine, date, commit, command, figures: vec![example()] };
        let text = results.json();
        let figure = ["figure", "value", "unit", "n", "low", "high", "against", "ratio"];
        let keys = ["machine", "date", "commit", "command", "figures"].into_iter().chain(figure);
        let found = text.lines().filter_map(|line| line.trim().strip_prefix('"')?.split('"').next());
        assert!(found.eq(keys), "{text}");
        assert!(text.contains("\"value\": 50.0") && text.contains("\"ratio\": 2.5"), "{text}");
        assert!(text.starts_with('{') && text.ends_with("}\n"));
        assert_eq!(serde_json::from_str::<Results>(&text).unwrap(), results);
    }

    #[test]
    fn the_table_has_a_line_for_each_figure() {
        let text = table(&[example(), Figure::of("x", "bytes", &[1_234_567.0]).unwrap()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].starts_with("boot.tcg.first_byte_ms") && lines[1].ends_with("2.5"), "{text}");
        assert!(lines[2].contains("1234567") && lines[2].ends_with('1'));
    }

    #[test]
    fn a_figure_keeps_four_digits() {
        assert_eq!(rounded(123_456.78), 123_457.0);
        assert_eq!(rounded(0.012_345_6), 0.01235);
        assert_eq!(rounded(-12.3456), -12.35);
        assert_eq!(rounded(0.0), 0.0);
    }
}
