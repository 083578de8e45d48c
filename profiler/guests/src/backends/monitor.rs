//! QEMU's monitor, in either of its protocols: QMP, which is JSON, and HMP, which is for humans. The
//! client sends only HMP commands, in QMP inside of `human-monitor-command`.
//!
//! A monitor serves one client and lets others wait without an answer, so each wait has a bound, and a
//! connection is kept no longer than a query takes.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use glass_profiler_core::names::safe_chars;
use serde_json::Value;

use crate::error::GuestError;
use crate::find::monitor::{Language, MonitorAddress};
use crate::stream::Stream;

/// How long a whole answer may take: a loaded host may not run QEMU for a while.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest answer, in bytes. HMP echoes each received character with all earlier ones.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The longest command, in bytes: its echo has to fit into an answer.
const COMMAND_BYTES_MAX: usize = 512;
/// Messages of QMP that are skipped in search of an answer: events are reported in between.
const MESSAGES_SKIPPED_MAX: usize = 1000;
/// Why a monitor does not answer, or does not accept one more client that waits.
const BUSY: &str = "does not answer: it serves one client at a time, so end the other one (libvirt keeps it)";
/// The prompt of HMP.
const PROMPT: &[u8] = b"(qemu) ";

/// A connection to a monitor.
pub struct Monitor {
    address: MonitorAddress,
    stream: Stream,
    received: Vec<u8>,
}

impl Monitor {
    /// Connects and waits until the monitor is ready.
    pub fn connect(address: &MonitorAddress) -> Result<Monitor, GuestError> {
        let socket = &address.socket;
        let stream = Stream::connect(socket, ANSWER_TIMEOUT).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => GuestError::NotPermitted {
                action: format!("connect to QEMU's monitor at {socket}"),
                remedy: "run glass as the user who started the VM, or as root".to_owned(),
            },
            ErrorKind::WouldBlock | ErrorKind::TimedOut => GuestError::Monitor(format!("the one at {socket} {BUSY}")),
            _ => GuestError::Monitor(format!("cannot connect to {socket}: {error}")),
        })?;
        let mut monitor = Monitor { address: address.clone(), stream, received: Vec::new() };
        match address.language {
            Language::Hmp => drop(monitor.until_prompt()?),
            Language::Qmp => {
                if !monitor.is_greeted()? {
                    return Err(monitor.failed("does not speak QMP"));
                }
                monitor.write(b"{\"execute\":\"qmp_capabilities\"}\n")?;
                monitor.answer()?;
            }
        }
        Ok(monitor)
    }

    /// Executes a command of HMP and returns its output.
    pub fn ask(&mut self, command: &str) -> Result<String, GuestError> {
        if command.len() > COMMAND_BYTES_MAX || command.contains(char::is_control) {
            return Err(self.failed("takes no command that is so long or has more than one line"));
        }
        self.write(&self.address.line(command))?;
        match self.address.language {
            Language::Qmp => Ok(self.answer()?.as_str().unwrap_or_default().to_owned()),
            Language::Hmp => {
                let text = self.until_prompt()?;
                let text = String::from_utf8_lossy(&text).into_owned();
                // The first line is our own: each character echoed, with the moves of a cursor.
                Ok(text.split_once("\r\n").map_or(String::new(), |(_, rest)| rest.to_owned()))
            }
        }
    }

    fn failed(&self, what: &str) -> GuestError {
        GuestError::Monitor(format!("the one at {} {what}", self.address.socket))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), GuestError> {
        self.stream.write_all(bytes).map_err(|error| self.failed(&format!("takes no command: {error}")))
    }

    /// Receives until `done` finds an end in the received bytes; returns the bytes up to it.
    fn until(&mut self, done: impl Fn(&[u8]) -> Option<usize>) -> Result<Vec<u8>, GuestError> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            if let Some(end) = done(&self.received) {
                let rest = self.received.split_off(end);
                return Ok(std::mem::replace(&mut self.received, rest));
            }
            if self.received.len() > ANSWER_BYTES_MAX {
                return Err(self.failed("sends an answer without end"));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.failed(BUSY));
            }
            let mut bytes = [0; 4096];
            let timed = self.stream.set_read_timeout(left.max(Duration::from_millis(1)));
            match timed.and_then(|()| self.stream.read(&mut bytes)) {
                Ok(0) => return Err(self.failed("ended the connection")),
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Err(self.failed(BUSY));
                }
                Err(error) => return Err(self.failed(&format!("broke the connection: {error}"))),
            }
        }
    }

    /// Whether a greeting is among the first messages. Messages for the previous client may precede it.
    fn is_greeted(&mut self) -> Result<bool, GuestError> {
        const MESSAGES_MAX: usize = 16;
        for _ in 0..MESSAGES_MAX {
            let message = self.message()?;
            if message.get("QMP").is_some() || !message.is_object() {
                return Ok(message.is_object());
            }
        }
        Ok(false)
    }

    fn until_prompt(&mut self) -> Result<Vec<u8>, GuestError> {
        // Only a prompt at the end counts: an answer may contain one.
        self.until(|received| received.ends_with(PROMPT).then_some(received.len()))
    }

    /// The next message of QMP, which is a line.
    fn message(&mut self) -> Result<Value, GuestError> {
        let line = self.until(|received| Some(received.iter().position(|byte| *byte == b'\n')? + 1))?;
        serde_json::from_slice(&line).map_err(|_| self.failed("does not speak QMP"))
    }

    /// The answer to a command of QMP.
    fn answer(&mut self) -> Result<Value, GuestError> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        for _ in 0..MESSAGES_SKIPPED_MAX {
            let mut message = self.message()?;
            if let Some(answer) = message.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(error) = message.get("error") {
                let text = error.get("desc").and_then(Value::as_str).unwrap_or("it does not say why");
                let text: String = safe_chars(text).take(200).collect();
                return Err(self.failed(&format!("refuses: {text}")));
            }
            if Instant::now() > deadline {
                break;
            }
        }
        Err(self.failed("sends messages, but no answer to the request"))
    }
}
