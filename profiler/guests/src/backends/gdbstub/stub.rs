//! A VM behind a gdbstub that is held for some requests at a time, and that is never continued if its owner has stopped it.
//!
//! With the rights of a debugger over QEMU, the vCPUs' threads are kept from running, while for QEMU the VM runs: a `stop` of the
//! owner takes effect when they are released. Without these rights the VM is stopped, and a `stop` in between is lost.

use std::io;

use glass_profiler_core::arch::Architecture;

use super::client::{bytes_of, parse_vcpus, protocol};
use super::connection::Connection;
use super::freeze::Frozen;
use super::holding::{Answer, Holder, Holding, Next, REQUEST_BYTES_MAX, Request};
use crate::arch::gdb::hex_byte;
use crate::error::GuestError;
use crate::find::vcpus::VCPUS_MAX;

/// Bytes of memory requested in one packet: QEMU's packets hold 4096 characters.
const MEMORY_BYTES_PER_PACKET: usize = 1024;
/// How many of these are requested at a time, so that one request holds them: a VM may be stopped for each request.
const PIECES_PER_REQUEST: usize = 64;
/// How often a request is repeated because the owner has continued or stopped the VM meanwhile, or QEMU was busy.
const ATTEMPTS_MAX: u32 = 100;
/// Bytes of a request beside its commands.
const BATCH_EXTRA_BYTES: usize = 32;
/// Bytes of each command in a request beside its own, at most.
const COMMAND_EXTRA_BYTES: usize = 20;

/// The way to a gdbstub and to the threads of the vCPUs. In tests a model of QEMU.
pub(super) trait Line {
    /// Whether QEMU has reported a stop since the last answer.
    fn was_stopped(&mut self) -> Result<bool, GuestError>;
    /// Sends a request in one write.
    fn send(&mut self, request: &Request) -> Result<(), GuestError>;
    /// Waits until an answer is complete.
    fn complete(&mut self, request: &Request, answer: &mut Answer) -> Result<(), GuestError>;
    /// Keeps the vCPUs from running, see [`Freezer::freeze`](super::freeze::Freezer::freeze).
    fn freeze(&mut self) -> Result<Frozen, GuestError>;
    /// Waits until a batch is answered, with the vCPUs kept from running before and after it, see [`Freezer::hold`](super::freeze::Freezer::hold).
    fn hold(&mut self, batch: &Request, answer: &mut Answer) -> Result<Frozen, GuestError>;
    /// Takes back a batch that QEMU has not received. Returns whether there was one.
    fn withdraw(&mut self) -> bool;
    /// Lets the vCPUs run as soon as QEMU is about to stop them for a request.
    fn stop(&mut self, request: &Request, answer: &mut Answer) -> Result<(), GuestError>;
    /// Lets the vCPUs run.
    fn go(&mut self) -> Result<(), GuestError>;
    /// Sets whether the watchdog has to continue the VM in any case.
    fn note_held(&mut self, is_held: bool);
    /// The watchdog has nothing to continue any more.
    fn note_detached(&mut self);
}

/// The VM while it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// It would run without us.
    Runs,
    /// Its owner has paused it, or has not started it.
    Paused,
    /// It has ended.
    Ended,
}

/// A gdbstub that we are connected to.
pub(super) struct Stub<L = Connection> {
    line: L,
    holding: Holding,
    /// The watchdog was notified: the VM has to be continued in any case.
    noted_held: bool,
    /// Some answers of this hold were given.
    has_read: bool,
    /// The guest ran between two answers of this hold.
    is_torn: bool,
    is_gone: bool,
}

impl Stub {
    /// Keeps the vCPUs from running during a hold from now on. Call it between holds.
    pub(super) fn freeze_with(
        &mut self,
        pid: u32,
        threads: &[u32],
        shows_blocks: Option<Architecture>,
    ) -> io::Result<()> {
        self.line.freeze_with(pid, threads, shows_blocks)?;
        self.freeze_from_now_on(true);
        Ok(())
    }

    pub(super) fn line(&mut self) -> &mut Connection {
        &mut self.line
    }

    /// Whether all vCPUs of a VM that was not stopped have nothing to do. False if that is not known.
    pub(super) fn are_idle(&mut self) -> Result<bool, GuestError> {
        if self.is_gone || self.holding.holder() != Holder::Unheld || !self.line.are_idle() {
            return Ok(false);
        }
        // One that its owner has stopped waits at the same place, and the main thread has reported it before it waits for events.
        Ok(!self.note_a_stop()?)
    }

    /// Whether the VM was stopped by its owner since the last hold.
    pub(super) fn note_a_stop(&mut self) -> Result<bool, GuestError> {
        let was_stopped = self.line.was_stopped()?;
        self.holding.note_stop(was_stopped);
        Ok(was_stopped)
    }

    pub(super) fn displaced(&self) -> u64 {
        self.line.displaced()
    }
}

impl<L: Line> Stub<L> {
    /// A VM that was connected to just now, and is held.
    pub(super) fn new(line: L) -> Stub<L> {
        Stub { line, holding: Holding::new(), noted_held: true, has_read: false, is_torn: false, is_gone: false }
    }

    /// Waits until the connection has stopped the VM. Call it first.
    pub(super) fn arrive(&mut self) -> Result<(), GuestError> {
        let request = self.holding.request(&[]);
        self.line.send(&request)?;
        let mut answer = Answer::to(&request);
        self.line.stop(&request, &mut answer)?;
        let answer = self.complete(&request, answer)?;
        self.note_answer(&request, &answer);
        match answer.is_gone {
            true => Err(protocol("ended the connection before the first sample: does the VM still run?")),
            false => Ok(()),
        }
    }

    /// Sets whether the vCPUs can be kept from running.
    pub(super) fn freeze_from_now_on(&mut self, can_freeze: bool) {
        self.holding.can_freeze = can_freeze;
        self.notify_watchdog();
    }

    /// Whether its owner has paused the VM, as far as is known after a hold.
    pub(super) fn is_paused(&self) -> bool {
        self.holding.holder() == Holder::Owner
    }

    #[cfg(test)]
    pub(super) fn line_mut(&mut self) -> &mut L {
        &mut self.line
    }

    #[cfg(test)]
    pub(super) fn into_line(self) -> L {
        self.line
    }

    /// Executes commands with one answer each. The VM is held from the first of them on, until [`Stub::go`], and was in `Hold` then. The
    /// answers are empty if it has ended.
    pub(super) fn hold(&mut self, commands: &[String]) -> Result<(Hold, Vec<Vec<u8>>), GuestError> {
        (self.has_read, self.is_torn) = (false, false);
        let was_stopped = self.line.was_stopped()?;
        self.holding.note_stop(was_stopped);
        let answers = self.ask(commands)?;
        let hold = match self.holding.holder() {
            _ if self.is_gone => Hold::Ended,
            Holder::Owner => Hold::Paused,
            Holder::Unheld | Holder::Unknown | Holder::Us | Holder::Undone => Hold::Runs,
        };
        Ok((hold, answers))
    }

    /// Executes commands with one answer each in a VM that is held.
    pub(super) fn ask(&mut self, commands: &[String]) -> Result<Vec<Vec<u8>>, GuestError> {
        let mut answers = Vec::with_capacity(commands.len());
        let mut rest = commands;
        while !rest.is_empty() && !self.is_gone {
            let mut bytes = BATCH_EXTRA_BYTES;
            let mut fits = |command: &String| {
                bytes += command.len() + COMMAND_EXTRA_BYTES;
                bytes <= REQUEST_BYTES_MAX
            };
            let count = rest.iter().take_while(|command| fits(command)).count().max(1);
            let (now, later) = rest.split_at(count);
            answers.extend(self.ask_at_once(now)?);
            rest = later;
        }
        Ok(answers)
    }

    fn ask_at_once(&mut self, commands: &[String]) -> Result<Vec<Vec<u8>>, GuestError> {
        for _ in 0..ATTEMPTS_MAX {
            let request = self.holding.request(commands);
            let answer = match request.continues() {
                true => self.execute_frozen(&request)?,
                false => Some(self.exchange(&request)?),
            };
            if let Some(answer) = answer
                && (answer.is_gone || self.note_answer(&request, &answer) == Next::Done)
            {
                self.has_read = true;
                let mut packets = answer.packets;
                packets.truncate(if request.is_look() { commands.len() } else { usize::MAX });
                return Ok(packets);
            }
            self.is_torn |= self.has_read;
        }
        Err(protocol("is stopped and continued by others all the time"))
    }

    /// Ends a hold.
    pub(super) fn go(&mut self) -> Result<(), GuestError> {
        self.line.go()?;
        match self.holding.end().filter(|_| !self.is_gone) {
            Some(resume) => self.execute(&resume),
            None => {
                self.notify_watchdog();
                Ok(())
            }
        }
    }

    /// Sends a request, receives its answer and takes note of it.
    fn execute(&mut self, request: &Request) -> Result<(), GuestError> {
        let answer = self.exchange(request)?;
        self.note_answer(request, &answer);
        Ok(())
    }

    fn note_answer(&mut self, request: &Request, answer: &Answer) -> Next {
        let next = self.holding.answered(request, answer);
        self.notify_watchdog();
        next
    }

    /// The watchdog has to continue a VM that we may have stopped, and must not continue another one.
    fn notify_watchdog(&mut self) {
        let is_held = match self.holding.holder() {
            Holder::Us | Holder::Unknown => true,
            Holder::Unheld => !self.holding.can_freeze,
            Holder::Owner | Holder::Undone => false,
        };
        if is_held != self.noted_held {
            self.noted_held = is_held;
            self.line.note_held(is_held);
        }
    }

    /// Sends a request and receives its answer.
    fn exchange(&mut self, request: &Request) -> Result<Answer, GuestError> {
        self.line.send(request)?;
        let mut answer = Answer::to(request);
        if request.stops() {
            self.line.stop(request, &mut answer)?;
        }
        self.complete(request, answer)
    }

    fn complete(&mut self, request: &Request, mut answer: Answer) -> Result<Answer, GuestError> {
        self.line.complete(request, &mut answer)?;
        self.is_gone |= answer.is_gone;
        Ok(answer)
    }

    /// Executes a batch while the vCPUs are kept from running. `None` if the owner has stopped or continued the VM meanwhile, or QEMU was busy.
    fn execute_frozen(&mut self, batch: &Request) -> Result<Option<Answer>, GuestError> {
        // If the main loop has nothing in hand, what has stopped the VM was reported.
        if self.line.freeze()? != Frozen::Yes || self.line.was_stopped()? {
            return self.look_again();
        }
        self.line.send(batch)?;
        let mut answer = Answer::to(batch);
        let frozen = self.line.hold(batch, &mut answer)?;
        if frozen == Frozen::Stopping && self.line.withdraw() {
            return self.look_again();
        }
        if frozen == Frozen::Yes {
            self.is_gone |= answer.is_gone;
            return Ok(Some(answer));
        }
        // The guest runs, or will.
        self.line.go()?;
        let answer = self.complete(batch, answer)?;
        if answer.is_gone {
            return Ok(Some(answer));
        }
        if self.note_answer(batch, &answer) == Next::Done { self.look_again() } else { Ok(None) }
    }

    /// Lets the vCPUs run. The next request finds out whether the owner has stopped the VM.
    fn look_again(&mut self) -> Result<Option<Answer>, GuestError> {
        self.line.go()?;
        self.holding.look_again();
        Ok(None)
    }

    /// Detaches: the VM runs on, if its owner has not stopped it.
    pub(super) fn detach(&mut self) -> Result<(), GuestError> {
        self.line.go()?;
        if self.is_gone {
            return Ok(());
        }
        let leave = self.holding.leave();
        if self.holding.holder() != Holder::Us {
            // If we are killed now, it runs, or its owner has stopped it.
            self.line.note_detached();
        }
        let answer = self.exchange(&leave)?;
        self.line.note_detached();
        match answer.packets.first() {
            Some(packet) if packet.starts_with(b"E") => {
                Err(protocol("refuses to resume the guest: continue it by QEMU's monitor (`cont`)"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the guest ran between two answers of this hold.
    pub(super) fn is_torn(&self) -> bool {
        self.is_torn
    }

    /// The threads of QEMU that run the vCPUs, each once; none if QEMU does not list them. Call it in the hold of the connection.
    pub(super) fn vcpu_threads(&mut self) -> Result<Vec<u32>, GuestError> {
        self.monitor("info cpus").map(|text| parse_vcpus(&text))
    }

    /// What QEMU's monitor prints for a command; nothing if the stub has no monitor. Call it in the hold of the connection.
    pub(super) fn monitor(&mut self, command: &str) -> Result<String, GuestError> {
        let words: String = command.bytes().map(|byte| format!("{byte:02x}")).collect();
        // The output comes in parts, then the answer.
        let parts = self.ask(&[format!("qRcmd,{words}")])?;
        let text: Vec<u8> = parts
            .iter()
            .filter(|part| *part != b"OK")
            .filter_map(|part| part.strip_prefix(b"O"))
            .flat_map(bytes_of)
            .collect();
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// QEMU's names of the vCPUs. Call it in the hold of the connection, where no request is repeated: QEMU sends a name at a time.
    pub(super) fn vcpus(&mut self) -> Result<Vec<String>, GuestError> {
        let mut names = Vec::new();
        for command in std::iter::once("qfThreadInfo").chain(std::iter::repeat_n("qsThreadInfo", VCPUS_MAX)) {
            let answers = self.ask(&[command.to_owned()])?;
            let Some(list) = answers.first().and_then(|answer| answer.strip_prefix(b"m")) else { break };
            let list = String::from_utf8_lossy(list);
            names.extend(list.split(',').filter(|id| !id.is_empty() && id.len() <= 64).map(str::to_owned));
        }
        names.truncate(VCPUS_MAX);
        if names.is_empty() { Err(protocol("names no vCPU")) } else { Ok(names) }
    }

    /// Copies memory of the held VM at a virtual address of a vCPU; returns how much there was up to a page that is not mapped.
    pub(super) fn read_memory(&mut self, thread: &str, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        let mut done = 0;
        while done < into.len() {
            let (mut commands, mut pieces, mut end) = (vec![format!("Hg{thread}")], Vec::new(), done);
            while end < into.len() && pieces.len() < PIECES_PER_REQUEST {
                let Some(at) = address.checked_add(end as u64) else { break };
                let in_page = 4096 - (at % 4096) as usize;
                let bytes = in_page.min(into.len() - end).min(MEMORY_BYTES_PER_PACKET);
                commands.push(format!("m{at:x},{bytes:x}"));
                pieces.push(bytes);
                end += bytes;
            }
            let answers = self.ask(&commands)?;
            for (bytes, answer) in pieces.into_iter().zip(answers.iter().skip(1)) {
                if answer.len() != bytes * 2 {
                    return Ok(done);
                }
                for (byte, pair) in into[done..].iter_mut().zip(answer.chunks_exact(2)) {
                    *byte =
                        hex_byte(pair[0], pair[1]).ok_or_else(|| protocol("sent memory that is not hexadecimal"))?;
                }
                done += bytes;
            }
            if done < end || commands.len() == 1 {
                break;
            }
        }
        Ok(done)
    }
}
