//! `xen`: what a domain of Xen costs and how fast it is. Xen runs in QEMU's emulation.

mod block;
mod network;
mod traces;

use crate::Part;
use crate::outcome::Outcome;
use crate::run::Run;

/// The parts.
pub const PARTS: [Part; 3] = [("traces", traces::run), ("block", block::run), ("network", network::run)];

/// What the figures can show.
const EMULATED: &str = "Xen runs in QEMU's emulation (TCG), where a hypercall takes some 16 us and memory is as slow as code: ratios of ways that make the same kinds of calls are meaningful, microseconds are not those of hardware";

/// Whether nothing is measured; `outcome` has the reason.
fn is_skipped(outcome: &mut Outcome, run: &Run) -> bool {
    if run.is_short() {
        outcome.skip("the boot of Xen takes longer than a short run");
    } else {
        outcome.note(EMULATED);
    }
    run.is_short()
}
