//! Whose turn it is during a hold: that of QEMU's main thread, or that of its vCPUs. Does no I/O.
//!
//! The main thread executes a [batch](super::holding::Request), which stops the VM, reads it and continues it. For the first of these it
//! waits for the vCPUs, on a condition, and they have to run for it; after the last they must not. A vCPU that is continued may run the guest before
//! it can be held. So they are never continued while they run: they are held whenever the main thread runs, and the main thread is held, in
//! its wait, whenever they run.
//!
//! A thread that sleeps is held from the moment at which that is requested: Linux stops it before it executes another instruction.

/// What the threads do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// The main thread waits for a condition.
    pub(super) main_waits: bool,
    /// It is held by us.
    pub(super) main_is_held: bool,
    /// Its wait has ended, and the VM has not been stopped by us: it has waited for something else of a vCPU, which runs the guest again.
    pub(super) main_is_woken: bool,
    /// Each vCPU waits for a condition.
    pub(super) vcpus_wait: bool,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Wait until more happens.
    Wait,
    /// The main thread has something else to do, and may need help with it.
    Help,
    /// The main thread waits for the vCPUs: hold it, and let them run.
    ReleaseVcpus,
    /// The vCPUs wait, or the main thread needs no more of them: hold them, and let the main thread run.
    ReleaseMain,
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Turn {
    /// The main thread's. The vCPUs are held, or wait until the main thread wakes them.
    #[default]
    Main,
    /// The vCPUs'. The main thread is held.
    Vcpus,
}

impl Turn {
    pub(super) fn next(&mut self, seen: Seen) -> Act {
        let (turn, act) = match *self {
            Turn::Main if seen.main_waits => (Turn::Vcpus, Act::ReleaseVcpus),
            Turn::Main => (Turn::Main, Act::Help),
            // Not all of them have to have stopped: one may also wait for another one. Then the main thread waits once more.
            Turn::Vcpus if seen.main_is_held && (seen.vcpus_wait || seen.main_is_woken) => {
                (Turn::Main, Act::ReleaseMain)
            }
            Turn::Vcpus => (Turn::Vcpus, Act::Wait),
        };
        *self = turn;
        act
    }
}
