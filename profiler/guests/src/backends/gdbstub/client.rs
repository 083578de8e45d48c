//! A connection to a gdbstub: sends requests and receives their answers. [`holding`](super::holding) decides which.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use super::holding::{Answer, Decoder, Request};
use super::switch::Switch;
use crate::arch::gdb::hex_byte;
use crate::error::GuestError;
use crate::find::vcpus::VCPUS_MAX;
use crate::stream::{SocketAddress, Stream};
use crate::sys::{Watchdog, connect_socket, open_socket};

/// How long an answer may take: a loaded host may not run QEMU for a while.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes that are received at a time.
const BYTES_PER_READ: usize = 16 << 10;

/// A connection to a gdbstub.
pub(super) struct Client {
    stream: Stream,
    decoder: Decoder,
}

pub(super) fn protocol(text: &str) -> GuestError {
    GuestError::Protocol(text.to_owned())
}

/// Whether QEMU has ended the connection, or has ended.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

fn broken(error: io::Error) -> GuestError {
    GuestError::Protocol(format!("the connection failed: {error}"))
}

impl Client {
    /// Starts a watchdog, then connects: QEMU stops the guest when it accepts the
    /// connection, and from then on a process must remain that resumes it. A stub that is off
    /// is started in between, so that the watchdog can stop it again. `before` returns when all is ready, and the guest may be stopped.
    pub(super) fn connect(
        address: &SocketAddress,
        switch: Option<&Switch>,
        mut before: impl FnMut() -> Result<(), GuestError>,
    ) -> Result<(Client, Watchdog), GuestError> {
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
            before()?;
            match connect_socket(&socket, &endpoint, ANSWER_TIMEOUT) {
                Ok(()) => {
                    let stream = Stream::of(socket, &endpoint, ANSWER_TIMEOUT).map_err(broken)?;
                    return Ok((Client { stream, decoder: Decoder::default() }, watchdog));
                }
                Err(error) => last = error,
            }
            if switch.is_none() {
                watchdog.dismiss();
            }
        }
        Err(failed(last))
    }

    /// The time by which an answer has to be there.
    pub(super) fn deadline() -> Instant {
        Instant::now() + ANSWER_TIMEOUT
    }

    /// Sends a request, in one write. If QEMU has ended, its answer shows it.
    pub(super) fn send(&mut self, request: &Request) -> Result<(), GuestError> {
        match self.stream.write_all(&request.bytes) {
            Err(error) if !is_end(&error) => Err(broken(error)),
            _ => Ok(()),
        }
    }

    /// Adds what has arrived, or arrives soon, to an answer. Returns whether it is complete. Fails after the deadline.
    pub(super) fn collect(
        &mut self,
        request: &Request,
        answer: &mut Answer,
        (at_most, deadline): (Duration, Instant),
    ) -> Result<bool, GuestError> {
        if !answer.is_complete(request) {
            self.receive(at_most, answer)?;
        }
        if answer.is_complete(request) {
            return Ok(true);
        }
        match Instant::now() > deadline {
            true => Err(protocol("does not answer; is a debugger attached to it already?")),
            false => Ok(false),
        }
    }

    /// Whether another client has stopped a running guest since: QEMU reports it without a request.
    pub(super) fn was_stopped(&mut self) -> Result<bool, GuestError> {
        let mut unasked = Answer::default();
        self.receive(Duration::ZERO, &mut unasked)?;
        Ok(unasked.reported() || unasked.is_gone)
    }

    /// Receives at most once, waiting at most this long for it.
    fn receive(&mut self, at_most: Duration, answer: &mut Answer) -> Result<(), GuestError> {
        if !self.stream.can_read(at_most) {
            return Ok(());
        }
        let mut bytes = [0; BYTES_PER_READ];
        let count = match self.stream.read(&mut bytes) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) if is_end(&error) => 0,
            Err(error) => return Err(broken(error)),
        };
        answer.is_gone |= count == 0;
        for byte in &bytes[..count] {
            if let Some(item) = self.decoder.add(*byte).map_err(protocol)? {
                answer.add(item).map_err(protocol)?;
            }
        }
        Ok(())
    }

    pub(super) fn socket(&self) -> &Stream {
        &self.stream
    }
}

pub(super) fn bytes_of(digits: &[u8]) -> impl Iterator<Item = u8> {
    digits.chunks_exact(2).filter_map(|pair| hex_byte(pair[0], pair[1]))
}

/// The threads in the output of `info cpus`: a line like `* CPU #0: thread_id=4711` for each vCPU. With
/// `-accel tcg,thread=single` one thread runs them all.
pub(super) fn parse_vcpus(text: &str) -> Vec<u32> {
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
