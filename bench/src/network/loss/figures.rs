//! The figures of `network loss`: each of the VM's beside the Linux process's under the same conditions.

use super::cells::{IN_ORDER, Kind};
use super::{ALGORITHMS, Column, Direction, Far, ROUNDS, Results};
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::plot::Group;
use crate::statistics::{Summary, geometric_mean};
use std::time::Duration;

const LINUX: &str = "linux";

/// The VM's results and Linux's of a kind of transfer, if both were measured.
fn pair<'c>(columns: &'c [Column], direction: Direction, algorithm: &str) -> Option<(&'c [f64], &'c [f64])> {
    let find = |far| {
        let found = columns.iter().filter(|column| column.direction == direction && column.far == far);
        let mut found = found.filter(|column| column.algorithm == algorithm).map(|column| &column.mb_s[..]);
        found.find(|samples| !samples.is_empty())
    };
    Some((find(Far::Vm)?, find(Far::Linux)?))
}

fn median(samples: &[f64]) -> f64 {
    Summary::of(samples).map_or(0.0, |summary| summary.median)
}

fn against(name: &str, samples: &[f64], peer: &str, of_peer: &[f64]) -> Option<Figure> {
    Figure::of(name, "MB/s", samples).map(|figure| figure.against(peer, median(of_peer)))
}

/// Adds all.
pub(super) fn add(outcome: &mut Outcome, results: &Results) {
    outcome.add(Figure::of("network.loss.relay_mb_s", "MB/s", &results.relay_mb_s));
    for direction in [Direction::Out, Direction::In] {
        for algorithm in ALGORITHMS {
            losses(outcome, results, direction, algorithm);
        }
    }
    for (cell, columns) in &results.cells {
        for algorithm in ALGORITHMS {
            let Some((ours, linux)) = pair(columns, Direction::Out, algorithm) else { continue };
            if let Kind::Bottleneck(..) = cell.kind {
                // The names are those of CUBIC.
                let group = if algorithm == ALGORITHMS[0] { "out" } else { "out.bbr" };
                let name = format!("network.bottleneck.{group}.{}_mb_s", cell.name());
                outcome.add(against(&name, ours, LINUX, linux));
            }
        }
    }
    reordering(outcome, results);
    for (name, shares) in ["vm1", "vm2", LINUX].into_iter().zip(&results.shares) {
        outcome.add(Figure::of(&format!("network.fair.{name}"), "thirds", shares));
    }
}

/// The cells with random loss in one direction, and the mean of their ratios.
fn losses(outcome: &mut Outcome, results: &Results, direction: Direction, algorithm: &str) {
    let group = format!("network.loss.{}.{algorithm}", direction.name());
    let mut ratios = Vec::new();
    for (cell, columns) in &results.cells {
        let Some((ours, linux)) = pair(columns, direction, algorithm) else { continue };
        if let Kind::Loss(..) = cell.kind {
            outcome.add(against(&format!("{group}.{}_mb_s", cell.name()), ours, LINUX, linux));
            let ratio = median(ours) / median(linux);
            ratios.extend(Some(ratio).filter(|ratio| ratio.is_finite() && *ratio > 0.0));
        }
    }
    let mean = geometric_mean(&ratios);
    outcome.add(mean.and_then(|mean| Figure::of(&format!("{group}.geomean"), "x", &[mean])));
}

/// What reordering costs the VM, and Linux.
fn reordering(outcome: &mut Outcome, results: &Results) {
    let of = |kind| {
        let (_, columns) = results.cells.iter().find(|(cell, _)| cell.kind == kind)?;
        pair(columns, Direction::Out, ALGORITHMS[0])
    };
    let (Some((ours, linux)), Some((ours_in_order, linux_in_order))) = (of(Kind::Reordering), of(IN_ORDER)) else {
        return;
    };
    outcome.add(against("network.reordering.out_mb_s", ours, "in order", ours_in_order));
    outcome.add(against("network.reordering.out.linux_mb_s", linux, "in order", linux_in_order));
}

/// What the figures mean.
pub(super) fn explain(outcome: &mut Outcome, results: &Results, time: Duration) {
    outcome.note(format!(
        "TCP through a relay between two TAP devices; out: bench-tcp sends to a Linux client, in: it receives from one; the VM beside the same program as a process, which is `linux`; {:.1} s a transfer from its handshake on, {ROUNDS} of each; half of the round trip in each direction, losses of segments in both",
        time.as_secs_f64()
    ));
    outcome.note("cubic, bbr: the congestion control of the sender, Linux's BBR is version 1 unless its kernel was patched; relay: Linux to Linux by CUBIC through the relay without any condition");
    outcome.note("bottleneck: queues in bandwidth-delay products of 40 ms, drop tail; reordering: 1 % of the segments arrive after three later ones; fair: two connections of the VM and one of Linux (CUBIC) share 100 Mbit/s for twice the time of a transfer");
    for ((cell, _), counts) in results.cells.iter().zip(&results.counts) {
        let percent = |count: u64| count as f64 * 100.0 / counts.segments.max(1) as f64;
        outcome.note(format!(
            "{}: of {} segments the relay lost {:.2} %, its queue dropped {:.2} %, {:.2} % arrived late",
            cell.name(),
            counts.segments,
            percent(counts.lost),
            percent(counts.dropped),
            percent(counts.reordered)
        ));
    }
}

/// The plot: a group for each cell and direction, in Mbit/s.
pub(super) fn bars(results: &Results) -> Vec<Group> {
    let mut groups = Vec::new();
    for (cell, columns) in &results.cells {
        for (direction, word) in [(Direction::Out, "sends"), (Direction::In, "receives")] {
            let bars = columns.iter().filter(|column| column.direction == direction).filter_map(|column| {
                let name = match column.far {
                    Far::Vm => format!("VM {}", column.algorithm),
                    Far::Linux => format!("Linux {}", column.algorithm),
                };
                let mbit_s: Vec<f64> = column.mb_s.iter().map(|mb_s| mb_s * 8.0).collect();
                Some((name, Summary::of(&mbit_s)?))
            });
            let bars: Vec<_> = bars.collect();
            if !bars.is_empty() {
                groups.push(Group { title: format!("{word}: {}", cell.title()), unit: "Mbit/s", bars });
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::super::{cells, columns};
    use super::*;
    use crate::run::Run;

    /// Every VM passes 2 MB/s, every Linux 4.
    fn results(algorithms: &[&'static str]) -> Results {
        let run = Run::new(&|_| (), Duration::ZERO);
        let filled = |mut column: Column| {
            column.mb_s.push(if column.far == Far::Vm { 2.0 } else { 4.0 });
            column
        };
        let cells = cells::chosen(&run).into_iter();
        let cells =
            cells.map(|cell| (cell, columns(cell, algorithms, None).into_iter().map(filled).collect())).collect();
        Results { cells, counts: Vec::new(), relay_mb_s: vec![500.0], shares: [vec![0.5], vec![0.5], vec![2.0]] }
    }

    #[test]
    fn each_figure_is_beside_linux_under_the_same_conditions() {
        let mut outcome = Outcome::default();
        add(&mut outcome, &results(&ALGORITHMS));
        let find = |name: &str| outcome.figures.iter().find(|figure| figure.figure == name).unwrap();
        for name in [
            "network.loss.out.cubic.p1.40ms_mb_s",
            "network.loss.out.bbr.p01.80ms_mb_s",
            "network.loss.in.bbr.p3.80ms_mb_s",
            "network.bottleneck.out.20mbit.q05_mb_s",
            "network.bottleneck.out.bbr.100mbit.q1_mb_s",
        ] {
            let figure = find(name);
            assert_eq!(
                (figure.value, figure.against.as_deref(), figure.ratio),
                (2.0, Some("linux"), Some(0.5)),
                "{name}"
            );
        }
        assert_eq!(find("network.loss.in.cubic.geomean").value, 0.5);
        assert_eq!(find("network.reordering.out_mb_s").ratio, Some(1.0));
        assert_eq!(find("network.fair.linux").value, 2.0);
        assert_eq!(bars(&results(&ALGORITHMS)).len(), 8 + 5);
    }

    #[test]
    fn without_bbr_there_are_only_figures_of_cubic() {
        let mut outcome = Outcome::default();
        add(&mut outcome, &results(&ALGORITHMS[..1]));
        assert!(outcome.figures.iter().all(|figure| !figure.figure.contains("bbr")));
        assert!(outcome.figures.iter().any(|figure| figure.figure == "network.loss.in.cubic.p1.1ms_mb_s"));
    }

    #[test]
    fn what_was_not_measured_yet_has_no_figure() {
        let mut results = results(&ALGORITHMS);
        results.cells.iter_mut().flat_map(|(_, columns)| columns).for_each(|column| column.mb_s.clear());
        let mut outcome = Outcome::default();
        add(&mut outcome, &Results { relay_mb_s: Vec::new(), shares: Default::default(), ..results });
        assert_eq!(outcome.figures, []);
    }
}
