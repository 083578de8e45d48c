//! Requests of the host, and the memory that it reads.

use crate::emit::emit;
use crate::sys::{CONTROL, ticks};
use core::sync::atomic::{AtomicU64, Ordering};
use glass_formats::trace::{CONTROL_MAGIC, Event, Group, Kind, TRACE_VERSION};

/// What [`follow_host`] has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Groups that were off and are on now.
    pub switched_on: u32,
    /// Groups that are on now.
    pub groups: u32,
}

/// Makes tracing possible. `rings` is the memory for rings, `origin_ticks` the zero of the
/// guest's clock.
pub fn start(is_process: bool, rings: &'static [AtomicU64], origin_ticks: u64, ticks_per_second: u64) {
    CONTROL.area_address.store(rings.as_ptr() as u64, Ordering::Relaxed);
    CONTROL.area_bytes.store(size_of_val(rings) as u64, Ordering::Relaxed);
    CONTROL.version.store(TRACE_VERSION, Ordering::Relaxed);
    CONTROL.is_process.store(is_process.into(), Ordering::Relaxed);
    CONTROL.origin_ticks.store(origin_ticks, Ordering::Relaxed);
    CONTROL.ticks_per_second.store(ticks_per_second, Ordering::Relaxed);
    CONTROL.functions.store(crate::functions::count(), Ordering::Relaxed);
    CONTROL.magic.store(CONTROL_MAGIC, Ordering::Release);
}

/// Has `rings`, of secondary cores, in the memory for rings too: what the host reads as such then reaches from the first to the last.
pub fn extend(rings: &'static [AtomicU64]) {
    let (address, bytes) = (CONTROL.area_address.load(Ordering::Relaxed), CONTROL.area_bytes.load(Ordering::Relaxed));
    let first = rings.as_ptr() as u64;
    let end = (first + size_of_val(rings) as u64).max(address + bytes);
    let start = first.min(address);
    CONTROL.area_address.store(start, Ordering::Relaxed);
    CONTROL.area_bytes.store(end - start, Ordering::Relaxed);
}

/// Sets the value of the event clock at zero of the guest's clock.
pub fn set_origin(ticks: u64) {
    CONTROL.origin_ticks.store(ticks, Ordering::Relaxed);
}

/// Sets the rate of the event clock, as precisely as it is known so far.
pub fn set_rate(ticks_per_second: u64) {
    CONTROL.ticks_per_second.store(ticks_per_second, Ordering::Relaxed);
}

/// Sets which groups are on, for example from an argument of the service; all others are switched off.
pub fn switch(groups: u32) -> Change {
    let before = CONTROL.groups.load(Ordering::Relaxed);
    if groups == before {
        // A host that only needs the time requests the groups that are on already.
        return Change { switched_on: 0, groups };
    }
    let had_spans = crate::is_on(Group::Spans);
    // The last event of the old groups and the first of the new ones both record the groups that are on.
    CONTROL.groups.fetch_or(groups, Ordering::Relaxed);
    emit_groups(groups);
    CONTROL.groups.store(groups, Ordering::Relaxed);
    if crate::is_on(Group::Spans) != had_spans {
        crate::tracing_subscriber::switched();
    }
    Change { switched_on: groups & !before, groups }
}

fn emit_groups(groups: u32) {
    for (group, _) in glass_formats::trace::GROUPS {
        if crate::is_on(group) {
            emit(group, Event { kind: Kind::Groups as u16, b: groups.into(), ..Event::default() });
            return;
        }
    }
}

/// Whether the host has made a request that [`follow_host`] has not handled.
pub fn has_request() -> bool {
    CONTROL.request.load(Ordering::Relaxed) != CONTROL.answered.load(Ordering::Relaxed)
}

/// Handles the host's requests since the last call; a platform calls it in each round and after each
/// sleep. Costs two loads if there is none. `functions` gets the requested groups
/// and switches the tracing of functions: see [`crate::functions::switch`].
pub fn follow_host(functions: impl FnOnce(u32)) -> Option<Change> {
    let request = CONTROL.request.load(Ordering::Acquire);
    if request == CONTROL.answered.load(Ordering::Relaxed) {
        return None;
    }
    CONTROL.answer_ticks.store(ticks(), Ordering::Relaxed);
    let groups = CONTROL.groups_wanted.load(Ordering::Relaxed);
    if (groups | CONTROL.groups.load(Ordering::Relaxed)) & Group::Functions as u32 != 0 {
        functions(groups);
    }
    let change = switch(groups);
    CONTROL.answered.store(request, Ordering::Release);
    Some(change)
}
