//! Who has stopped the VM, and what may be sent to its gdbstub therefore. Does no I/O.
//!
//! QEMU ignores a `stop` of its owner while the VM is stopped already, and nothing shows it. So a VM that we have
//! stopped may not be continued later: the owner may have sent `stop` in between. The requests of this file use how QEMU
//! (7.2, `gdb_read_byte`) reads, which handles all bytes of one write (up to [`REQUEST_BYTES_MAX`]) before any other event:
//!
//! * The first byte that it receives while the VM runs stops the VM and is no part of a packet. Thus `$` before a packet
//!   makes it conditional: it is executed if that `$` has stopped a running VM, and refused (`-`), as its checksum is wrong, if
//!   the owner had stopped the VM.
//! * A packet may be made such that it is one command if the VM is stopped, and `c` if its first `$` has stopped a running VM, see
//!   [`Request::look`]. So a VM that its owner has stopped is read, and a running one continues.
//! * A [batch](Request::batch) stops the VM, reads and continues it before QEMU can handle a `stop`. Only its first packet
//!   is conditional. A `stop` that QEMU handles before it receives the batch would be undone, so the batch is withdrawn, or the vCPUs
//!   are kept from running until the VM is stopped again, see [`Holder::Undone`].
//! * Without the rights of a debugger, the vCPUs cannot be kept from running between a batch and the reads that depend on its answers, so the VM is
//!   [stopped](Request::stop), read, and [continued](Request::resume). A `stop` in between is lost: nothing in the protocol can prevent it.

use crate::arch::gdb::hex_byte;
use crate::sys::{LEAVE, LEAVE_HELD};

/// Bytes that QEMU reads at a time.
pub(super) const REQUEST_BYTES_MAX: usize = 4096;
/// The longest packet that is accepted, in bytes.
const PACKET_BYTES_MAX: usize = 64 << 10;
/// Packets in one answer: QEMU puts up to 2048 characters of a monitor's output into each.
const PACKETS_MAX: usize = 8192;
/// A request that has an answer in any state, and its first bytes, with which no other answer starts.
const MARKER: (&str, &[u8]) = ("qC", b"QC");

/// Who has stopped the VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// It runs.
    Unheld,
    /// Connecting has stopped it, or its owner before.
    Unknown,
    /// Its owner. It is never continued.
    Owner,
    /// We. It has to be continued.
    Us,
    /// Its owner, but a batch has continued it. The vCPUs have not run since, if they can be kept from it.
    Undone,
}

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Batch,
    Stop,
    Look,
    Read,
    Resume,
    Leave,
}

/// Bytes for one write, and what answers them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) bytes: Vec<u8>,
    kind: Kind,
    packets: usize,
}

fn push(bytes: &mut Vec<u8>, command: &str) {
    let sum = command.bytes().fold(0u8, |sum, byte| sum.wrapping_add(byte));
    bytes.extend(format!("${command}#{sum:02x}").bytes());
}

impl Request {
    fn new(kind: Kind, before: &[u8], commands: &[&str]) -> Request {
        let mut bytes = before.to_vec();
        commands.iter().for_each(|command| push(&mut bytes, command));
        Request { bytes, kind, packets: commands.len() }
    }

    /// Stops a running VM, executes commands that have one answer each, and continues it.
    fn batch(commands: &[String]) -> Request {
        let commands: Vec<&str> = commands.iter().map(String::as_str).chain(["c"]).collect();
        Request::new(Kind::Batch, b"$", &commands)
    }

    /// Stops a running VM.
    fn stop() -> Request {
        Request::new(Kind::Stop, b"$", &[MARKER.0])
    }

    /// Executes commands in a VM that its owner has stopped. If it runs, each packet stops and continues it.
    ///
    /// QEMU ignores what follows the parameters of a command. In `$gu$c#63` that is `u$c` if the VM is stopped. If it runs, the
    /// first `$` stops it, `gu` is ignored, and `$c#63` continues it.
    fn look(commands: &[String]) -> Request {
        let mut bytes = Vec::new();
        // With two commands, the first answer precedes the last sign.
        let commands: Vec<&str> = commands.iter().map(String::as_str).chain(["T1"]).collect();
        commands.iter().for_each(|command| bytes.extend(format!("${command}{}$c#63", filler(command)).bytes()));
        Request { bytes, kind: Kind::Look, packets: commands.len() }
    }

    /// Executes commands in a stopped VM. If its owner has continued it, the first one is lost, and not the marker.
    fn read(commands: &[String]) -> Request {
        let commands: Vec<&str> = commands.iter().map(String::as_str).chain([MARKER.0]).collect();
        Request::new(Kind::Read, b"", &commands)
    }

    /// Continues a VM that we have stopped. The first bytes are ignored; if the VM runs, one of them stops it.
    fn resume() -> Request {
        Request::new(Kind::Resume, b"+\x03", &["c"])
    }

    /// Whether the VM runs when QEMU has read all of it.
    pub(super) fn continues(&self) -> bool {
        self.kind == Kind::Batch
    }

    /// Whether it has an answer more than commands.
    pub(super) fn is_look(&self) -> bool {
        self.kind == Kind::Look
    }

    /// Whether it stops a running VM, and leaves it stopped.
    pub(super) fn stops(&self) -> bool {
        self.kind == Kind::Stop
    }
}

/// Letters by which the checksum of `command`, then `$c`, is that of `c`. None of them is a hexadecimal digit, which would belong to a number.
fn filler(command: &str) -> String {
    let sum: usize = command.bytes().map(usize::from).sum::<usize>() + usize::from(b'$');
    let missing = 256 - sum % 256;
    let range = usize::from(b'g')..=usize::from(b'z');
    let fits = |count: &usize| (count * range.start()..=count * range.end()).any(|sum| sum % 256 == missing % 256);
    // Of 14 letters on, every sum can be had.
    let count = (1..=14).find(fits).unwrap_or(14);
    let sum = (count * range.start()..=count * range.end()).find(|sum| sum % 256 == missing % 256).unwrap_or(0);
    let letter = |index: usize| sum / count + usize::from(index < sum % count);
    (0..count).map(|index| char::from(letter(index) as u8)).collect()
}

/// What arrives from QEMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    /// A packet was received.
    Accepted,
    /// A packet had a wrong checksum.
    Refused,
    Packet(Vec<u8>),
}

/// Splits what QEMU sends.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    packet: Option<Vec<u8>>,
    /// How many digits of its checksum were received, once its end was.
    digits: Option<Vec<u8>>,
}

impl Decoder {
    /// Processes a byte. Fails if QEMU breaks the protocol.
    pub(super) fn add(&mut self, byte: u8) -> Result<Option<Item>, &'static str> {
        let Some(packet) = &mut self.packet else {
            return Ok(match byte {
                b'+' => Some(Item::Accepted),
                b'-' => Some(Item::Refused),
                b'$' => {
                    self.packet = Some(Vec::new());
                    None
                }
                _ => None,
            });
        };
        match &mut self.digits {
            None if byte == b'#' => self.digits = Some(Vec::new()),
            None if packet.len() < PACKET_BYTES_MAX => packet.push(byte),
            None => return Err("sent a packet without end"),
            Some(digits) => digits.push(byte),
        }
        let Some(&[high, low]) = self.digits.as_deref() else { return Ok(None) };
        let sum = packet.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        if hex_byte(high, low) != Some(sum) {
            return Err("sent a packet with a wrong checksum");
        }
        self.digits = None;
        Ok(self.packet.take().map(Item::Packet))
    }
}

/// What has arrived since a request.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// Packets of the request: QEMU accepts or refuses each.
    signs: usize,
    accepted: usize,
    refused: usize,
    /// Answers to commands, without reports.
    pub(super) packets: Vec<Vec<u8>>,
    /// The VM was stopped.
    reported: bool,
    /// It was stopped after the request.
    stopped_since: bool,
    has_marker: bool,
    /// QEMU, or the connection to it, has ended.
    pub(super) is_gone: bool,
}

impl Answer {
    pub(super) fn to(request: &Request) -> Answer {
        Answer { signs: request.packets, ..Default::default() }
    }

    pub(super) fn add(&mut self, item: Item) -> Result<(), &'static str> {
        match item {
            Item::Accepted => self.accepted += 1,
            Item::Refused => self.refused += 1,
            Item::Packet(packet) => match packet.first() {
                Some(b'T' | b'S') => {
                    self.reported = true;
                    self.stopped_since |= self.accepted + self.refused >= self.signs;
                }
                Some(b'W' | b'X') => self.is_gone = true,
                _ if packet.starts_with(MARKER.1) => self.has_marker = true,
                _ if self.packets.len() < PACKETS_MAX => self.packets.push(packet),
                _ => return Err("does not end its answer"),
            },
        }
        Ok(())
    }

    /// Whether all of the answer to a request has arrived.
    pub(super) fn is_complete(&self, request: &Request) -> bool {
        let signs = self.accepted + self.refused;
        self.is_gone
            || match request.kind {
                Kind::Batch => signs == request.packets && self.packets.len() + 1 + self.refused >= request.packets,
                Kind::Stop => self.refused > 0 || self.has_marker,
                Kind::Look => signs == request.packets && (self.packets.is_empty() || self.packets.len() == signs),
                Kind::Resume => signs > 0,
                Kind::Read => self.has_marker,
                Kind::Leave => self.refused > 0 || !self.packets.is_empty(),
            }
    }

    /// Whether the VM was reported as stopped.
    pub(super) fn reported(&self) -> bool {
        self.reported
    }
}

/// What follows an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The packets answer the commands.
    Done,
    /// Call [`Holding::request`] once more.
    Again,
}

/// The state of a VM that is attached to. Connecting has stopped it, if it ran.
#[derive(Debug)]
pub(super) struct Holding {
    holder: Holder,
    /// Its vCPUs can be kept from running.
    pub(super) can_freeze: bool,
}

impl Holding {
    pub(super) fn new() -> Holding {
        Holding { holder: Holder::Unknown, can_freeze: false }
    }

    pub(super) fn holder(&self) -> Holder {
        self.holder
    }

    /// Takes note of whether QEMU has reported a stop that was not ours.
    pub(super) fn note_stop(&mut self, was_stopped: bool) {
        if was_stopped && self.holder == Holder::Unheld {
            // It may have continued it since: the next answer shows it.
            self.holder = Holder::Owner;
        }
    }

    /// The request that executes commands, or has to precede it.
    pub(super) fn request(&self, commands: &[String]) -> Request {
        match self.holder {
            Holder::Undone => Request::stop(),
            Holder::Unheld if self.can_freeze => Request::batch(commands),
            Holder::Unheld => Request::stop(),
            Holder::Owner => Request::look(commands),
            Holder::Unknown | Holder::Us => Request::read(commands),
        }
    }

    /// Takes note of an answer.
    pub(super) fn answered(&mut self, request: &Request, answer: &Answer) -> Next {
        let (is_refused, is_lost) = (answer.refused > 0, answer.packets.len() + 1 < request.packets);
        match request.kind {
            Kind::Batch if is_refused => self.holder = Holder::Undone,
            Kind::Stop if is_refused || self.holder == Holder::Undone => self.holder = Holder::Owner,
            Kind::Stop => self.holder = Holder::Us,
            Kind::Look if answer.packets.is_empty() => self.holder = Holder::Unheld,
            Kind::Resume => self.holder = Holder::Unheld,
            // Its owner has continued it, and the request has stopped it.
            Kind::Read if is_lost => self.holder = Holder::Us,
            Kind::Read if self.holder == Holder::Unknown && answer.reported => self.holder = Holder::Us,
            Kind::Batch | Kind::Look | Kind::Read | Kind::Leave => {}
        }
        self.note_stop(answer.stopped_since);
        match request.kind {
            Kind::Stop => Next::Again,
            Kind::Batch if is_refused => Next::Again,
            Kind::Read if is_lost => Next::Again,
            Kind::Look if answer.packets.is_empty() => Next::Again,
            _ => Next::Done,
        }
    }

    /// Takes note that QEMU may be about to stop the VM for its owner.
    pub(super) fn look_again(&mut self) {
        self.holder = Holder::Owner;
    }

    /// The request that continues the VM, if we have stopped it. If no stop was reported since we have connected, it is its owner who has.
    pub(super) fn end(&mut self) -> Option<Request> {
        if self.holder == Holder::Unknown {
            self.holder = Holder::Owner;
        }
        (self.holder == Holder::Us).then(Request::resume)
    }

    /// The request to detach.
    pub(super) fn leave(&self) -> Request {
        let bytes = match self.holder {
            Holder::Us => LEAVE_HELD,
            Holder::Unheld | Holder::Unknown | Holder::Owner | Holder::Undone => LEAVE,
        };
        Request { bytes: bytes.to_vec(), kind: Kind::Leave, packets: 1 }
    }
}
