//! One function for each kind of event. Each returns immediately while the kind's group is off.

use crate::name::Name;
use crate::sys::{self, CONTROL};
use core::sync::atomic::Ordering;
use glass_formats::trace::{BlockKind, Event, Group, Kind, Operation, Outcome, Presence, WakeSource};

/// Whether a group is on: a load and a test. With `--cfg glass_trace_absent` it never is, and the program contains no
/// code of events: the baseline of benchmarks.
#[inline(always)]
pub fn is_on(group: Group) -> bool {
    !cfg!(glass_trace_absent) && CONTROL.groups.load(Ordering::Relaxed) & group as u32 != 0
}

/// Writes an event if its group is on.
#[inline(always)]
pub fn emit(group: Group, event: Event) {
    if is_on(group) {
        write(event);
    }
}

#[inline(always)]
fn write(event: Event) {
    let [_, kind, b, c] = event.to_words();
    write_words(kind, b, c);
}

/// Out of line, so that an event which is off costs its callers few instructions. It takes registers: an event in memory
/// would be stored in parts and loaded as a whole, which a CPU does slowly.
#[cold]
#[inline(never)]
fn write_words(kind: u64, b: u64, c: u64) {
    if let Some(writer) = sys::own::writer() {
        // The clock is read last: loads after it would wait for it.
        writer.write([sys::ticks(), kind, b, c]);
    }
}

/// Writes an event with the given time. Reading the clock is most of the cost of an event, and events of the same
/// moment need it only once.
#[inline(always)]
pub(crate) fn write_at(event: Event) {
    let [ticks, kind, b, c] = event.to_words();
    write_part(ticks, kind, b, c);
}

#[cold]
#[inline(never)]
fn write_part(ticks: u64, kind: u64, b: u64, c: u64) {
    if let Some(writer) = sys::own::writer() {
        writer.write([ticks, kind, b, c]);
    }
}

#[inline(always)]
fn event(kind: Kind, detail: u16, a: u32, b: u64, c: u64) -> Event {
    Event { ticks: 0, kind: kind as u16, detail, a, b, c }
}

/// Two values in one word of an event.
#[inline(always)]
fn word(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// [`Kind::TaskSpawn`]: a task with this number and name exists, created by `parent` (0: none). `was_there`: it existed
/// before tracing started.
#[inline]
pub fn task_spawn(task: u32, name: u32, parent: u32, was_there: bool) {
    emit(Group::Tasks, event(Kind::TaskSpawn, was_there.into(), task, word(name, parent), 0));
}

/// [`Kind::PollBegin`].
#[inline]
pub fn poll_begin(task: u32, name: u32) {
    emit(Group::Tasks, event(Kind::PollBegin, 0, task, name.into(), 0));
}

/// [`Kind::PollEnd`].
#[inline]
pub fn poll_end(task: u32, outcome: Outcome) {
    emit(Group::Tasks, event(Kind::PollEnd, outcome as u16, task, 0, 0));
}

/// [`Kind::Block`]: what the task that is being polled waits for.
#[inline]
pub fn block(kind: BlockKind, name: &Name, object: u64) {
    if is_on(Group::Tasks) {
        write(event(Kind::Block, kind as u16, name.number(), object, 0));
    }
}

/// [`block`] with a name that is known only at run time, by its number from [`crate::intern`].
#[inline]
pub fn block_numbered(kind: BlockKind, name: u32, object: u64) {
    emit(Group::Tasks, event(Kind::Block, kind as u16, name, object, 0));
}

/// [`Kind::Wake`].
#[inline]
pub fn wake(task: u32) {
    emit(Group::Tasks, event(Kind::Wake, 0, task, 0, 0));
}

/// [`Kind::IdleBegin`], with the deadline in nanoseconds of the guest's clock.
#[inline]
pub fn idle_begin(deadline_ns: Option<u64>) {
    emit(Group::Cores, event(Kind::IdleBegin, 0, 0, deadline_ns.unwrap_or(u64::MAX), 0));
}

/// [`Kind::IdleEnd`], with the device's name if one woke the core.
#[inline]
pub fn idle_end(source: WakeSource, device: u32) {
    emit(Group::Cores, event(Kind::IdleEnd, source as u16, device, 0, 0));
}

/// [`Kind::Interrupt`].
#[inline]
pub fn interrupt(device: u32, vector: u64) {
    emit(Group::Cores, event(Kind::Interrupt, 0, device, vector, 0));
}

/// [`Kind::SpinBegin`].
#[inline]
pub fn spin_begin() {
    emit(Group::Cores, event(Kind::SpinBegin, 0, 0, 0, 0));
}

/// [`Kind::SpinEnd`].
#[inline]
pub fn spin_end() {
    emit(Group::Cores, event(Kind::SpinEnd, 0, 0, 0, 0));
}

/// [`Kind::TimersFire`].
#[inline]
pub fn timers_fire(count: u32) {
    emit(Group::Cores, event(Kind::TimersFire, 0, count, 0, 0));
}

/// [`Kind::Submit`]: `in_flight` requests including this one.
#[inline]
pub fn submit(device: u32, operation: Operation, request: u64, bytes: u32, in_flight: u32) {
    emit(Group::Devices, event(Kind::Submit, operation as u16, device, request, word(bytes, in_flight)));
}

/// [`Kind::Complete`]: `in_flight` requests without this one.
#[inline]
pub fn complete(device: u32, request: u64, bytes: u32, in_flight: u32, has_failed: bool) {
    emit(Group::Devices, event(Kind::Complete, has_failed.into(), device, request, word(bytes, in_flight)));
}

/// [`Kind::Kick`], after a notification that took `ticks` of the clock of events.
#[inline]
pub fn kick(device: u32, ticks: u64) {
    emit(Group::Devices, event(Kind::Kick, 0, device, ticks, 0));
}

fn segment(kind: Kind, connection: u32, flags: u16, sequence: (u32, u32), bytes: u32, window: u32) {
    emit(Group::Net, event(kind, flags, connection, word(sequence.0, sequence.1), word(bytes, window)));
}

/// [`Kind::SegmentIn`]: `sequence` is the sequence number and the acknowledgement.
#[inline]
pub fn segment_in(connection: u32, flags: u16, sequence: (u32, u32), bytes: u32, window: u32) {
    segment(Kind::SegmentIn, connection, flags, sequence, bytes, window);
}

/// [`Kind::SegmentOut`].
#[inline]
pub fn segment_out(connection: u32, flags: u16, sequence: (u32, u32), bytes: u32, window: u32) {
    segment(Kind::SegmentOut, connection, flags, sequence, bytes, window);
}

/// [`Kind::Retransmit`].
#[inline]
pub fn retransmit(connection: u32, flags: u16, sequence: (u32, u32), bytes: u32, window: u32) {
    segment(Kind::Retransmit, connection, flags, sequence, bytes, window);
}

/// [`Kind::Connection`].
#[inline]
pub fn connection(connection: u32, presence: Presence, remote: u32, local_port: u16, remote_port: u16) {
    let ports = u64::from(local_port) | u64::from(remote_port) << 16;
    emit(Group::Net, event(Kind::Connection, presence as u16, connection, remote.into(), ports));
}

/// [`Kind::Counter`]: a counter that only grows has this value.
#[inline]
pub fn counter(name: &Name, value: i64) {
    if is_on(Group::Counters) {
        write(event(Kind::Counter, 0, name.number(), value as u64, 0));
    }
}

/// [`Kind::Counter`]: a gauge has this value.
#[inline]
pub fn gauge(name: &Name, value: i64) {
    if is_on(Group::Counters) {
        write(event(Kind::Counter, 1, name.number(), value as u64, 0));
    }
}
