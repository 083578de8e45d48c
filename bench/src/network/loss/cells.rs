//! The conditions under which `network loss` measures.

use crate::network::relay::link::{Bottleneck, Conditions};
use crate::run::Run;
use std::time::Duration;

/// The name of a loss in figures, its share, and the same for round trips.
const LOSSES: [(&str, f64); 4] = [("p0", 0.0), ("p01", 0.001), ("p1", 0.01), ("p3", 0.03)];
const ROUND_TRIPS_MS: [u64; 3] = [1, 40, 80];
/// Of bottlenecks: megabits a second, and the length of the queue in bandwidth-delay products.
const RATES_MBIT: [u64; 2] = [20, 100];
const QUEUES: [(&str, f64); 3] = [("q05", 0.5), ("q1", 1.0), ("q4", 4.0)];
const BOTTLENECK_MS: u64 = 40;
/// Share of the segments that arrive after three later ones.
const REORDERING: f64 = 0.01;
/// What is measured without `--long`: losses by name and round trip, bottlenecks by rate and queue. In addition, reordering.
const ORDINARY_LOSSES: [(&str, u64); 5] = [("p1", 40), ("p0", 40), ("p01", 80), ("p1", 1), ("p3", 80)];
const ORDINARY_BOTTLENECKS: [(u64, &str); 2] = [(20, "q05"), (100, "q1")];

/// What a cell is about, which its figures are named by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Random loss, by its name, at this round trip.
    Loss(&'static str, u64),
    /// A bottleneck of so many megabits a second, with this queue.
    Bottleneck(u64, &'static str),
    /// Like the bottleneck [`IN_ORDER`], with segments that arrive late.
    Reordering,
}

/// What reordering is compared with.
pub const IN_ORDER: Kind = Kind::Bottleneck(100, "q1");

/// Conditions under which all transfers are measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    /// What it is about.
    pub kind: Kind,
    /// What the relay does.
    pub conditions: Conditions,
}

impl Cell {
    /// Its name in figures.
    pub fn name(&self) -> String {
        match self.kind {
            Kind::Loss(loss, ms) => format!("{loss}.{ms}ms"),
            Kind::Bottleneck(mbit, queue) => format!("{mbit}mbit.{queue}"),
            Kind::Reordering => "reordering".to_owned(),
        }
    }

    /// Its name in a plot.
    pub fn title(&self) -> String {
        match self.kind {
            Kind::Loss(_, ms) => format!("{} % lost, {ms} ms", self.conditions.loss * 100.0),
            Kind::Bottleneck(mbit, queue) => {
                let products = QUEUES.iter().find(|(name, _)| *name == queue).map_or(0.0, |(_, products)| *products);
                format!("{mbit} Mbit/s, {BOTTLENECK_MS} ms, queue of {products} BDP")
            }
            Kind::Reordering => "100 Mbit/s, 1 % arrives late".to_owned(),
        }
    }

    /// Whether the far end receives too.
    pub fn has_receivers(&self) -> bool {
        matches!(self.kind, Kind::Loss(..))
    }
}

/// The same delay in both directions.
fn delayed(round_trip_ms: u64) -> Conditions {
    Conditions { delay: Duration::from_micros(round_trip_ms * 500), ..Conditions::default() }
}

fn bottleneck(mbit: u64, products: f64) -> Conditions {
    let bits_per_sec = mbit * 1_000_000;
    let queue_bytes = (bits_per_sec as f64 / 8.0 * BOTTLENECK_MS as f64 / 1e3 * products) as u64;
    Conditions { bottleneck: Some(Bottleneck { bits_per_sec, queue_bytes }), ..delayed(BOTTLENECK_MS) }
}

/// The link that connections share: 100 Mbit/s with a queue of one bandwidth-delay product.
pub fn fair() -> Conditions {
    bottleneck(100, 1.0)
}

/// All cells.
fn all() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (name, loss) in LOSSES {
        for ms in ROUND_TRIPS_MS {
            cells.push(Cell { kind: Kind::Loss(name, ms), conditions: Conditions { loss, ..delayed(ms) } });
        }
    }
    for mbit in RATES_MBIT {
        for (name, products) in QUEUES {
            cells.push(Cell { kind: Kind::Bottleneck(mbit, name), conditions: bottleneck(mbit, products) });
        }
    }
    let conditions = Conditions { reordering: REORDERING, ..fair() };
    cells.push(Cell { kind: Kind::Reordering, conditions });
    cells
}

/// Those that a run measures: eight, all with `--long` and for [`Run::only`], one in a short run.
pub fn chosen(run: &Run) -> Vec<Cell> {
    let is_ordinary = |cell: &Cell| match cell.kind {
        Kind::Loss(loss, ms) => ORDINARY_LOSSES.contains(&(loss, ms)),
        Kind::Bottleneck(mbit, queue) => ORDINARY_BOTTLENECKS.contains(&(mbit, queue)),
        Kind::Reordering => true,
    };
    let is_chosen = |cell: &Cell| match run.is_short() {
        true => cell.kind == Kind::Loss("p1", 1),
        false => run.is_long() || run.only().is_some() || is_ordinary(cell),
    };
    all().into_iter().filter(is_chosen).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_eight_cells_and_all_with_long() {
        let run = Run::new(&|_| (), Duration::ZERO);
        let names: Vec<String> = chosen(&run).iter().map(Cell::name).collect();
        let expected = "p0.40ms p01.80ms p1.1ms p1.40ms p3.80ms 20mbit.q05 100mbit.q1 reordering";
        assert_eq!(names.join(" "), expected);
        assert_eq!(chosen(&run.with_long(true)).len(), 12 + 6 + 1);
        assert_eq!(chosen(&Run::short()).len(), 1);
    }

    #[test]
    fn a_queue_is_given_in_bandwidth_delay_products() {
        // 100 Mbit/s for 40 ms are 500,000 bytes, half of the delay in each direction.
        let Conditions { delay, bottleneck, .. } = bottleneck(100, 0.5);
        assert_eq!(delay, Duration::from_millis(20));
        assert_eq!(bottleneck, Some(Bottleneck { bits_per_sec: 100_000_000, queue_bytes: 250_000 }));
        assert_eq!(delayed(1).delay, Duration::from_micros(500));
    }
}
