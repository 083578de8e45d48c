//! The way to a gdbstub and to the threads of the vCPUs of its QEMU.

use std::io;
use std::time::{Duration, Instant};

use glass_profiler_core::arch::{Architecture, Registers};

use super::client::Client;
use super::freeze::{Freezer, Frozen};
use super::holding::{Answer, Request};
use super::stub::Line;
use super::switch::Switch;
use crate::error::GuestError;
use crate::stream::SocketAddress;
use crate::sys::{OtherEnd, Watchdog, monotonic_ns, set_quiet};

/// Interval of passing on what happens to the vCPUs' threads during a request.
const SETTLE_EVERY: Duration = Duration::from_micros(150);
/// How long one wait for bytes may take where no threads need attention.
const WAIT: Duration = Duration::from_secs(1);

/// A connection, and what keeps the vCPUs from running.
pub(super) struct Connection {
    /// Dropped first: the watchdog can only be of use if the vCPUs run.
    freezer: Option<Freezer>,
    client: Client,
    watchdog: Watchdog,
    other_end: Option<OtherEnd>,
    /// By when the answer to the last request has to be there.
    deadline: Instant,
}

impl Connection {
    /// Connects at a `moment`, which stops the VM. A freezer stops the vCPUs at that moment. Also returns when that was.
    pub(super) fn open(
        address: &SocketAddress,
        switch: Option<&Switch>,
        mut freezer: Option<Freezer>,
        moment: impl Fn() -> u64,
    ) -> Result<(Connection, u64), GuestError> {
        let mut start_ns = 0;
        let before = || {
            rest(freezer.as_mut(), moment())?;
            start_ns = monotonic_ns();
            if let Some(freezer) = &mut freezer
                && freezer.freeze()? != Frozen::Yes
            {
                freezer.go()?;
            }
            Ok(())
        };
        let (client, watchdog) = Client::connect(address, switch, before)?;
        Ok((Connection { freezer, client, watchdog, other_end: None, deadline: Client::deadline() }, start_ns))
    }

    /// Stops these threads for each sample from now on; `shows_blocks` as for [`Freezer::new`].
    pub(super) fn freeze_with(
        &mut self,
        pid: u32,
        threads: &[u32],
        shows_blocks: Option<Architecture>,
    ) -> io::Result<()> {
        let before = self.freezer.take();
        let other_end = OtherEnd::find(pid, self.client.socket())?;
        let other_end = other_end.ok_or_else(|| io::Error::other("QEMU has no end of the connection"))?;
        let mut freezer = match before.filter(|freezer| freezer.is_of(threads)) {
            Some(freezer) => freezer,
            None => Freezer::new(pid, threads, shows_blocks)?,
        };
        freezer.show_blocks(shows_blocks);
        (self.other_end, self.freezer) = (Some(other_end), Some(freezer));
        Ok(())
    }

    /// See [`Freezer::come_to_rest`].
    pub(super) fn come_to_rest(&mut self) -> Result<(), GuestError> {
        self.freezer.as_mut().map_or(Ok(()), Freezer::come_to_rest)
    }

    /// Samples for which QEMU was busy for too long.
    pub(super) fn displaced(&self) -> u64 {
        self.freezer.as_ref().map_or(0, Freezer::displaced)
    }

    /// Waits until `until_ns`, and passes on the signals of the vCPUs' threads.
    pub(super) fn rest(&mut self, until_ns: u64) -> Result<(), GuestError> {
        self.watchdog.look_after();
        rest(self.freezer.as_mut(), until_ns)
    }

    /// Whether all vCPUs have nothing to do, if that is known, see [`Freezer::are_idle`].
    pub(super) fn are_idle(&self) -> bool {
        self.freezer.as_ref().is_some_and(Freezer::are_idle)
    }

    /// For how long the vCPUs have run, if that is known, see [`Freezer::ran_ns`].
    pub(super) fn ran_ns(&self) -> Option<u64> {
        self.freezer.as_ref().and_then(Freezer::ran_ns)
    }

    /// An instruction of the block that a vCPU with these registers has executed last, if QEMU has shown it.
    pub(super) fn block_before(&mut self, registers: &Registers) -> Option<u64> {
        self.freezer.as_mut()?.block_before(registers)
    }

    /// Releases the threads of the vCPUs for good.
    pub(super) fn let_threads_go(&mut self) {
        self.freezer = None;
    }

    /// Ends the watchdog, when nothing is left to do.
    pub(super) fn dismiss_watchdog(&mut self) {
        self.watchdog.dismiss();
    }
}

fn rest(freezer: Option<&mut Freezer>, until_ns: u64) -> Result<(), GuestError> {
    match freezer {
        Some(freezer) => freezer.rest(until_ns)?,
        None => std::thread::sleep(Duration::from_nanos(until_ns.saturating_sub(monotonic_ns()))),
    }
    Ok(())
}

impl Line for Connection {
    fn was_stopped(&mut self) -> Result<bool, GuestError> {
        self.client.was_stopped()
    }

    fn send(&mut self, request: &Request) -> Result<(), GuestError> {
        // Without a freezer, which does so itself, this stops the VM.
        set_quiet(false);
        self.deadline = Client::deadline();
        self.client.send(request)
    }

    fn complete(&mut self, request: &Request, answer: &mut Answer) -> Result<(), GuestError> {
        let at_most = if self.freezer.is_some() { SETTLE_EVERY } else { WAIT };
        while !self.client.collect(request, answer, (at_most, self.deadline))? {
            if let Some(freezer) = &mut self.freezer {
                freezer.settle()?;
            }
        }
        Ok(())
    }

    fn freeze(&mut self) -> Result<Frozen, GuestError> {
        self.freezer.as_mut().map_or(Ok(Frozen::Late), Freezer::freeze)
    }

    fn hold(&mut self, batch: &Request, answer: &mut Answer) -> Result<Frozen, GuestError> {
        let Connection { freezer: Some(freezer), client, other_end, deadline, .. } = self else {
            return Ok(Frozen::Late);
        };
        let is_answered = |at_most| client.collect(batch, answer, (at_most, *deadline));
        freezer.hold(is_answered, || other_end.as_ref().is_some_and(OtherEnd::has_unread))
    }

    fn withdraw(&mut self) -> bool {
        self.other_end.as_ref().is_some_and(OtherEnd::withdraw)
    }

    fn stop(&mut self, request: &Request, answer: &mut Answer) -> Result<(), GuestError> {
        let Connection { freezer: Some(freezer), client, deadline, .. } = self else { return Ok(()) };
        freezer.stop(|| client.collect(request, answer, (Duration::ZERO, *deadline)))
    }

    fn go(&mut self) -> Result<(), GuestError> {
        self.freezer.as_mut().map_or(Ok(()), Freezer::go)
    }

    fn note_held(&mut self, is_held: bool) {
        self.watchdog.note_held(is_held);
    }

    fn note_detached(&mut self) {
        self.watchdog.note_detached();
    }
}
