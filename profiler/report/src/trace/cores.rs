//! Cores: how much of the time they ran tasks, looked for work, were idle.

use glass_profile::trace::model::Trace;

use super::table::Table;
use crate::format::{count, percent};
use crate::names::printable;

/// Time of one core.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    run_ns: u64,
    spin_ns: u64,
    idle_ns: u64,
    polls: u64,
    interrupts: u64,
}

/// A row for each core.
pub(super) fn text(trace: &Trace) -> String {
    let mut shares = vec![Share::default(); trace.cores.len()];
    for poll in &trace.polls {
        if let Some(share) = shares.get_mut(poll.core as usize) {
            share.run_ns = share.run_ns.saturating_add(poll.end_ns - poll.start_ns);
            share.polls += 1;
        }
    }
    for idle in &trace.idles {
        if let Some(share) = shares.get_mut(idle.interval.core as usize) {
            share.idle_ns = share.idle_ns.saturating_add(idle.interval.end_ns - idle.interval.start_ns);
        }
    }
    for spin in &trace.spins {
        if let Some(share) = shares.get_mut(spin.core as usize) {
            share.spin_ns = share.spin_ns.saturating_add(spin.end_ns - spin.start_ns);
        }
    }
    for interrupt in &trace.interrupts {
        if let Some(share) = shares.get_mut(interrupt.core as usize) {
            share.interrupts += 1;
        }
    }
    let all_ns = trace.end_ns - trace.start_ns;
    let mut out = format!("Cores: {}\n", count(trace.cores.len() as u64));
    let mut table = Table::new(&["<core", "in tasks", "looking for work", "idle", "rest", "polls", "interrupts"]);
    for (core, share) in trace.cores.iter().zip(&shares) {
        let known_ns = share.run_ns + share.idle_ns + share.spin_ns;
        table.row(vec![
            printable(&core.name),
            percent(share.run_ns, all_ns),
            percent(share.spin_ns, all_ns),
            percent(share.idle_ns, all_ns),
            percent(all_ns.saturating_sub(known_ns), all_ns),
            count(share.polls),
            count(share.interrupts),
        ]);
    }
    out.push_str(&table.lines());
    out
}
