//! The gdb remote serial protocol, as much of it as sampling needs.
//!
//! Peculiarities of QEMU (7.2, `gdbstub.c`): while the guest runs, *any* byte stops it and is
//! then ignored, so the client sends only 0x03 then, and `D` only to a stopped guest. An
//! acknowledgement may be missing if the next command follows, so the client sends none on its own.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use super::switch::Switch;
use crate::error::GuestError;
use crate::plan::VCPUS_MAX;
use crate::stream::{SocketAddress, Stream};
use crate::sys::{Watchdog, connect_socket, open_socket};

/// How long an answer may take: a loaded host may not run QEMU for a while.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest packet that is accepted, in bytes.
const PACKET_BYTES_MAX: usize = 64 << 10;
/// Packets that are skipped in search of an answer.
const PACKETS_SKIPPED_MAX: usize = 16;
/// Packets of a monitor's output: QEMU puts up to 2048 characters into each.
const OUTPUT_PACKETS_MAX: usize = 1024;
/// Bytes of memory requested in one packet: QEMU's packets hold 4096 characters.
const MEMORY_BYTES_PER_PACKET: usize = 1024;

/// The result of a request to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopped {
    /// The guest ran, and was stopped by the request.
    Yes,
    /// It was stopped before: its owner has paused it, or has not started it.
    Before,
    /// The guest is gone.
    Ended,
}

/// A connection to a gdbstub.
pub(super) struct Client {
    stream: Stream,
    received: Vec<u8>,
    /// How much of `received` was used.
    used: usize,
    packet: Vec<u8>,
    acknowledge: bool,
}

fn protocol(text: &str) -> GuestError {
    GuestError::Protocol(text.to_owned())
}

fn broken(error: io::Error) -> GuestError {
    GuestError::Protocol(format!("the connection failed: {error}"))
}

impl Client {
    /// Starts a watchdog, then connects: QEMU stops the guest when it accepts the
    /// connection, and from then on a process must remain that resumes it. A stub that is off
    /// is started in between, so that the watchdog can stop it again.
    pub(super) fn connect(address: &SocketAddress, switch: Option<&Switch>) -> Result<(Client, Watchdog), GuestError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => GuestError::NotPermitted {
                action: format!("connect to QEMU's gdbstub at {address}"),
                remedy: "run glass as the user who started the VM".to_owned(),
            },
            _ => GuestError::Protocol(format!("cannot connect to {address}: {error}; does the VM still run?")),
        };
        let cleanup = switch.map(Switch::cleanup).transpose()?;
        let mut last = io::Error::other("the name has no address");
        for endpoint in address.endpoints().map_err(failed)? {
            let socket = open_socket(&endpoint).map_err(failed)?;
            let mut watchdog = Watchdog::start(&socket, cleanup.as_ref())
                .map_err(|error| GuestError::System { action: "start the watchdog".to_owned(), error })?;
            if let Some(Err(error)) = switch.map(Switch::on) {
                // If another process has started it, it stays on.
                watchdog.dismiss();
                return Err(error);
            }
            match connect_socket(&socket, &endpoint, ANSWER_TIMEOUT) {
                Ok(()) => {
                    let stream = Stream::of(socket, &endpoint, ANSWER_TIMEOUT).map_err(broken)?;
                    let (received, packet) = (Vec::new(), Vec::new());
                    return Ok((Client { stream, received, used: 0, packet, acknowledge: true }, watchdog));
                }
                Err(error) => last = error,
            }
            if switch.is_none() {
                watchdog.dismiss();
            }
        }
        Err(failed(last))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), GuestError> {
        self.stream.write_all(bytes).map_err(broken)
    }

    fn send(&mut self, command: &str) -> Result<(), GuestError> {
        let sum = command.bytes().fold(0u8, |sum, byte| sum.wrapping_add(byte));
        let acknowledgement = if self.acknowledge { "+" } else { "" };
        self.write(format!("{acknowledgement}${command}#{sum:02x}").as_bytes())
    }

    /// The next byte; `None` at the end of the connection.
    fn byte(&mut self, deadline: Instant) -> Result<Option<u8>, GuestError> {
        if self.used == self.received.len() {
            let late = "does not answer; is a debugger attached to it already?";
            self.received.resize(8192, 0);
            self.used = 0;
            let count = loop {
                match self.stream.read(&mut self.received) {
                    Ok(count) => break count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted && Instant::now() < deadline => {}
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break 0,
                    Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                        self.received.clear();
                        return Err(protocol(late));
                    }
                    Err(error) => {
                        self.received.clear();
                        return Err(broken(error));
                    }
                }
            };
            self.received.truncate(count);
            if count == 0 {
                return Ok(None);
            }
            if Instant::now() > deadline {
                return Err(protocol(late));
            }
        }
        self.used += 1;
        Ok(Some(self.received[self.used - 1]))
    }

    /// Whether a packet starts to arrive, or the connection has ended, waiting at most this long. QEMU
    /// acknowledges each of our packets with a byte, which is not an answer.
    fn has_packet(&mut self, at_most: Duration) -> bool {
        if self.used == self.received.len() {
            if !self.stream.can_read(at_most) {
                return false;
            }
            self.received.resize(8192, 0);
            let count = self.stream.read(&mut self.received).unwrap_or(0);
            self.received.truncate(count);
            self.used = 0;
            if count == 0 {
                return true;
            }
        }
        let begin = self.received[self.used..].iter().position(|byte| *byte == b'$');
        self.used = begin.map_or(self.received.len(), |begin| self.used + begin);
        begin.is_some()
    }

    /// Receives a packet into `self.packet`; false at the end of the connection.
    fn receive(&mut self) -> Result<bool, GuestError> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            match self.byte(deadline)? {
                Some(b'$') => break,
                Some(_) => {}
                None => return Ok(false),
            }
        }
        self.packet.clear();
        let mut sum = 0u8;
        loop {
            match self.byte(deadline)? {
                Some(b'#') => break,
                Some(byte) if self.packet.len() < PACKET_BYTES_MAX => {
                    sum = sum.wrapping_add(byte);
                    self.packet.push(byte);
                }
                Some(_) => return Err(protocol("sent a packet without end")),
                None => return Ok(false),
            }
        }
        let (Some(high), Some(low)) = (self.byte(deadline)?, self.byte(deadline)?) else { return Ok(false) };
        match hex_byte(high, low) {
            Some(expected) if expected == sum => Ok(true),
            _ => Err(protocol("sent a packet with a wrong checksum")),
        }
    }

    /// Sends a command to a stopped guest and returns the answer.
    fn command(&mut self, command: &str) -> Result<&[u8], GuestError> {
        self.send(command)?;
        if !self.receive()? {
            return Err(protocol("ended the connection"));
        }
        Ok(&self.packet)
    }

    /// Like `command`, with the answer as text.
    pub(super) fn ask(&mut self, command: &str) -> Result<String, GuestError> {
        Ok(String::from_utf8_lossy(self.command(command)?).into_owned())
    }

    /// The first requests. Connecting has stopped the guest if it ran, and QEMU reports each change from running to
    /// stopped before it answers later requests. So a guest without a report was stopped before:
    /// nothing else shows it, because QEMU's monitor calls both states paused.
    pub(super) fn greet(&mut self) -> Result<Stopped, GuestError> {
        self.send("QStartNoAckMode")?;
        let stopped = self.skip_reports()?;
        match &self.packet[..] {
            _ if stopped == Stopped::Ended => Err(protocol("ended the connection")),
            b"OK" => {
                // The last acknowledgement that QEMU waits for.
                self.acknowledge = false;
                self.write(b"+")?;
                Ok(stopped)
            }
            // Not supported: acknowledgements continue.
            _ => Ok(stopped),
        }
    }

    /// Receives up to the first packet that is not a report of a stop; returns whether there was a report before it.
    fn skip_reports(&mut self) -> Result<Stopped, GuestError> {
        let mut stopped = Stopped::Before;
        for _ in 0..PACKETS_SKIPPED_MAX {
            if !self.receive()? {
                return Ok(Stopped::Ended);
            }
            match self.packet.first() {
                Some(b'T' | b'S') => stopped = Stopped::Yes,
                Some(b'W' | b'X') => return Ok(Stopped::Ended),
                _ => return Ok(stopped),
            }
        }
        Err(protocol("reports stops without end"))
    }

    /// Whether another client has stopped a running guest since: QEMU reports it without a request.
    /// A stop just after this check counts as our own; the protocol does not distinguish them.
    pub(super) fn was_stopped(&mut self) -> bool {
        self.has_packet(Duration::ZERO)
    }

    /// Stops a guest that may or may not run: one that does not run ignores the request, and
    /// reports no stop before the answer to the next request.
    pub(super) fn stop_if_it_runs(&mut self) -> Result<Stopped, GuestError> {
        while self.was_stopped() {
            if !self.receive()? {
                return Ok(Stopped::Ended);
            }
        }
        // The first byte acknowledges QEMU's last report: until then QEMU ignores everything else. Without a
        // report, the byte itself stops a running guest.
        if self.write(b"+\x03+").and_then(|()| self.send("qAttached")).is_err() {
            return Ok(Stopped::Ended);
        }
        self.skip_reports()
    }

    /// Stops a running guest.
    pub(super) fn stop(&mut self) -> Result<Stopped, GuestError> {
        self.stop_while(|_| Ok(()))
    }

    /// Stops a running guest. Between the request and the wait for its answer `meanwhile` is called, with a function
    /// that waits for the answer for a limited time.
    pub(super) fn stop_while(
        &mut self,
        meanwhile: impl FnOnce(&mut dyn FnMut(Duration) -> bool) -> Result<(), GuestError>,
    ) -> Result<Stopped, GuestError> {
        match self.write(b"\x03") {
            Ok(()) => {}
            // QEMU has ended: either the write or the read fails first.
            Err(_) => {
                meanwhile(&mut |_| true)?;
                return Ok(Stopped::Ended);
            }
        }
        meanwhile(&mut |at_most| self.has_packet(at_most))?;
        for _ in 0..PACKETS_SKIPPED_MAX {
            if !self.receive()? {
                return Ok(Stopped::Ended);
            }
            match self.packet.first() {
                Some(b'T' | b'S') => return Ok(Stopped::Yes),
                Some(b'W' | b'X') => return Ok(Stopped::Ended),
                _ => {}
            }
        }
        Err(protocol("does not stop the guest"))
    }

    /// Resumes a stopped guest. Does not wait: there is no answer.
    pub(super) fn resume(&mut self) -> Result<(), GuestError> {
        self.send("c")
    }

    /// Stops the guest and detaches: it resumes. A guest that does not run stays paused: QEMU
    /// leaves it so when the connection ends without a detach.
    pub(super) fn detach(&mut self, may_be_paused: bool) -> Result<(), GuestError> {
        let stopped = if may_be_paused || self.was_stopped() { self.stop_if_it_runs()? } else { self.stop()? };
        if stopped != Stopped::Yes {
            return Ok(());
        }
        self.send("D")?;
        // The answer may be lost with the connection; the guest runs either way.
        if !self.receive()? || !self.packet.starts_with(b"E") {
            return Ok(());
        }
        // QEMU 7.2 keeps the multiprocess mode of an earlier debugger, and then requires the process
        // to detach from: the first, as that is the one that it attaches to.
        self.send("D;1")?;
        if self.receive()? && self.packet.starts_with(b"E") {
            return Err(protocol("refuses to resume the guest: continue it by QEMU's monitor (`cont`)"));
        }
        Ok(())
    }

    /// Selects the vCPU that `registers` reads.
    pub(super) fn select(&mut self, thread: &str) -> Result<(), GuestError> {
        match self.command(&format!("Hg{thread}"))? {
            b"OK" => Ok(()),
            _ => Err(protocol("does not accept a vCPU that it listed")),
        }
    }

    /// The threads of QEMU that run the vCPUs of a stopped guest, each once; none if QEMU does not list them.
    pub(super) fn vcpu_threads(&mut self) -> Result<Vec<u32>, GuestError> {
        let words: String = b"info cpus".iter().map(|byte| format!("{byte:02x}")).collect();
        self.send(&format!("qRcmd,{words}"))?;
        let mut text = Vec::new();
        // The output comes in parts, then the answer.
        for _ in 0..OUTPUT_PACKETS_MAX {
            if !self.receive()? {
                return Err(protocol("ended the connection"));
            }
            match self.packet.split_first() {
                Some((b'O', part)) if part != b"K" => text.extend(bytes_of(part)),
                _ => return Ok(parse_vcpus(&String::from_utf8_lossy(&text))),
            }
        }
        Err(protocol("does not end its answer"))
    }

    /// All registers of the selected vCPU, as hexadecimal digits.
    pub(super) fn registers(&mut self) -> Result<&[u8], GuestError> {
        self.command("g")
    }

    /// Whether QEMU reports a vCPU as halted, in its text for humans ("CPU#0 [halted ]"), which has been stable for a decade.
    pub(super) fn is_halted(&mut self, thread: &str) -> Result<bool, GuestError> {
        let answer = self.command(&format!("qThreadExtraInfo,{thread}"))?;
        let text: Vec<u8> = bytes_of(answer).collect();
        Ok(text.windows(6).any(|window| window == b"halted"))
    }

    /// Copies memory at a virtual address; returns how much there was up to a page that is not mapped.
    pub(super) fn read_memory(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        let mut done = 0;
        while done < into.len() {
            let Some(at) = address.checked_add(done as u64) else { break };
            let in_page = 4096 - (at % 4096) as usize;
            let bytes = in_page.min(into.len() - done).min(MEMORY_BYTES_PER_PACKET);
            let answer = self.command(&format!("m{at:x},{bytes:x}"))?;
            if answer.len() != bytes * 2 {
                break;
            }
            for (byte, pair) in into[done..].iter_mut().zip(answer.chunks_exact(2)) {
                *byte = hex_byte(pair[0], pair[1]).ok_or_else(|| protocol("sent memory that is not hexadecimal"))?;
            }
            done += bytes;
        }
        Ok(done)
    }
}

/// Two hexadecimal digits.
pub(crate) fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |byte| char::from(byte).to_digit(16);
    Some((digit(high)? << 4 | digit(low)?) as u8)
}

fn bytes_of(digits: &[u8]) -> impl Iterator<Item = u8> {
    digits.chunks_exact(2).filter_map(|pair| hex_byte(pair[0], pair[1]))
}

/// The threads in the output of `info cpus`: a line like `* CPU #0: thread_id=4711` for each vCPU. With
/// `-accel tcg,thread=single` one thread runs them all.
fn parse_vcpus(text: &str) -> Vec<u32> {
    let id = |line: &str| line.split_once("thread_id=")?.1.split_ascii_whitespace().next()?.parse().ok();
    let mut threads: Vec<u32> = text.lines().filter_map(id).collect();
    threads.sort_unstable();
    threads.dedup();
    threads.truncate(VCPUS_MAX);
    threads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_of_vcpus() {
        assert_eq!(parse_vcpus("* CPU #0: thread_id=81\r\n  CPU #1: thread_id=80\r\n"), [80, 81]);
        assert_eq!(parse_vcpus("* CPU #0: thread_id=81\r\n  CPU #1: thread_id=81\r\n"), [81]);
        assert!(parse_vcpus("unknown command: 'info cpus'\r\n").is_empty());
        assert!(parse_vcpus("CPU #0: thread_id=99999999999 (halted)").is_empty());
    }
}
