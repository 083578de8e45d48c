//! Whose turn it is during a hold: that of QEMU's main thread, or that of its vCPUs. Does no I/O.
//!
//! The main thread executes a [batch](super::holding::Request), which stops the VM, reads it and continues it. For the first of these it
//! waits for the vCPUs, on a condition, and they have to run for it; after the last they must not. A vCPU that is continued may run the guest before
//! it can be held. So they are never continued while they run: the vCPUs are held whenever the main thread runs, and the main thread is held, at
//! the wait, whenever the vCPUs run.

/// What the threads do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// The main thread waits for a condition.
    pub(super) main_waits: bool,
    /// It is held by us.
    pub(super) main_is_held: bool,
    /// Each vCPU waits for a condition.
    pub(super) vcpus_wait: bool,
    /// Each is held by us.
    pub(super) vcpus_are_held: bool,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Wait until more happens.
    Wait,
    /// The main thread has something else to do, and may need help with it.
    Help,
    /// It waits for the vCPUs: stop it.
    HoldMain,
    /// Let the vCPUs run, and hold the main thread at the end of its wait.
    ReleaseVcpus,
    /// Stop the vCPUs.
    HoldVcpus,
    /// Let the main thread run.
    ReleaseMain,
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Turn {
    /// The main thread's. The vCPUs are held, or wait until the main thread wakes them.
    #[default]
    Main,
    /// The main thread is about to stop.
    HoldMain,
    /// The vCPUs'. The main thread is held.
    Vcpus,
    /// The vCPUs are about to stop.
    HoldVcpus,
}

impl Turn {
    pub(super) fn next(&mut self, seen: Seen) -> Act {
        let (turn, act) = match *self {
            Turn::Main if seen.main_waits => (Turn::HoldMain, Act::HoldMain),
            Turn::Main => (Turn::Main, Act::Help),
            Turn::HoldMain if seen.main_is_held && seen.main_waits => (Turn::Vcpus, Act::ReleaseVcpus),
            // Its wait had ended before.
            Turn::HoldMain if seen.main_is_held => (Turn::Main, Act::ReleaseMain),
            Turn::Vcpus if seen.main_is_held && seen.vcpus_wait => (Turn::HoldVcpus, Act::HoldVcpus),
            Turn::HoldVcpus if seen.vcpus_are_held => (Turn::Main, Act::ReleaseMain),
            turn => (turn, Act::Wait),
        };
        *self = turn;
        act
    }
}
