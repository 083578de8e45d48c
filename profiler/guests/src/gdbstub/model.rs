//! All orders of what the owner of a VM and we do to it, with a model of QEMU (7.2: `gdbstub.c`, `softmmu/cpus.c`): one main
//! loop takes commands from the monitor and bytes from the gdbstub in any order.
//!
//! Not modelled: connecting, which stops the VM at a moment that the protocol does not show.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::freeze::Frozen;
use super::holding::{Answer, Decoder, LEAVE, LEAVE_HELD, Request};
use super::stub::{Hold, Line, Stub};
use crate::error::GuestError;

/// Where the stub is in a packet.
#[derive(Debug, Clone, PartialEq)]
enum Reading {
    Idle,
    Line(Vec<u8>),
    Sum(Vec<u8>, Vec<u8>),
}

/// What the main loop is about to do when the vCPUs have stopped.
#[derive(Debug, Clone, PartialEq)]
enum Stopping {
    ForOwner,
    /// The gdbstub's other bytes follow.
    ForStub(Vec<u8>),
}

struct Qemu {
    runs: bool,
    /// The owner's last word.
    owner_wants_it_to_run: bool,
    /// The guest ran although its owner had stopped it.
    ran_unasked: bool,
    /// Its vCPUs are kept from running.
    is_frozen: bool,
    stopping: Option<Stopping>,
    reading: Reading,
    /// QEMU waits for an acknowledgement.
    has_sent: bool,
    monitor: VecDeque<bool>,
    socket: VecDeque<u8>,
    answers: Vec<u8>,
    decoder: Decoder,
    /// What happens next, in the order of the moments.
    chances: VecDeque<u8>,
    /// How many calls there are until we are killed.
    calls_left: usize,
    can_freeze: bool,
    noted_held: bool,
    noted_detached: bool,
    /// The stub has stopped it. Without the rights of a debugger, a `stop` is lost then, so it does not arrive then.
    is_held: bool,
}

fn killed() -> GuestError {
    GuestError::Protocol("killed".to_owned())
}

impl Qemu {
    fn packet(&mut self, body: &str) {
        let sum = body.bytes().fold(0u8, |sum, byte| sum.wrapping_add(byte));
        self.answers.extend(format!("${body}#{sum:02x}").bytes());
        self.has_sent = true;
    }

    fn stopped(&mut self, by_stub: bool) {
        (self.runs, self.is_held) = (false, by_stub);
        self.packet("T02thread:01;");
    }

    fn execute(&mut self, line: &[u8]) {
        match line {
            b"c" => (self.runs, self.is_held) = (true, false),
            b"D;1" => {
                (self.runs, self.is_held) = (true, false);
                self.packet("OK");
            }
            b"qC" => self.packet("QC1"),
            // A command whose answer may be anything, and what follows its parameters.
            _ => self.packet("00"),
        }
    }

    /// `gdb_read_byte`.
    fn byte(&mut self, byte: u8) {
        match std::mem::replace(&mut self.reading, Reading::Idle) {
            Reading::Idle if byte == b'$' => self.reading = Reading::Line(Vec::new()),
            Reading::Idle => {}
            Reading::Line(line) if byte == b'#' => self.reading = Reading::Sum(line, Vec::new()),
            Reading::Line(mut line) => {
                line.push(byte);
                self.reading = Reading::Line(line);
            }
            Reading::Sum(line, mut sum) => {
                sum.push(byte);
                let expected = line.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
                if sum.len() < 2 {
                    self.reading = Reading::Sum(line, sum);
                } else if sum == format!("{expected:02x}").as_bytes() {
                    self.answers.push(b'+');
                    self.execute(&line);
                } else {
                    self.answers.push(b'-');
                }
            }
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for (at, byte) in bytes.iter().enumerate() {
            if self.has_sent {
                self.has_sent = !matches!(byte, b'+' | b'$');
                if *byte != b'$' {
                    continue;
                }
            }
            if !self.runs {
                self.byte(*byte);
            } else if self.is_frozen {
                self.stopping = Some(Stopping::ForStub(bytes[at + 1..].to_vec()));
                return;
            } else {
                self.stopped(true);
            }
        }
    }

    /// The vCPUs stop for the main loop, which continues.
    fn let_stop(&mut self) {
        let is_frozen = std::mem::replace(&mut self.is_frozen, false);
        if let Some(stopping) = self.stopping.take() {
            self.stopped(stopping != Stopping::ForOwner);
            match stopping {
                Stopping::ForOwner => self.owner_wants_it_to_run = false,
                Stopping::ForStub(rest) => self.bytes(&rest),
            }
        }
        self.is_frozen = is_frozen;
    }

    /// One round of the main loop.
    fn main(&mut self, monitor_first: bool) {
        if self.stopping.is_some() && !self.is_frozen {
            self.let_stop();
        }
        if self.stopping.is_some() {
            return;
        }
        let is_lost = self.is_held && !self.can_freeze;
        let handled =
            self.monitor.pop_front_if(|runs| (monitor_first || self.socket.is_empty()) && (*runs || !is_lost));
        if let Some(runs) = handled {
            match runs {
                true => (self.runs, self.owner_wants_it_to_run) = (true, true),
                false if self.runs && self.is_frozen => self.stopping = Some(Stopping::ForOwner),
                false => {
                    if self.runs {
                        self.stopped(false);
                    }
                    self.owner_wants_it_to_run = false;
                }
            }
        } else {
            let bytes: Vec<u8> = self.socket.drain(..).collect();
            self.bytes(&bytes);
        }
        self.guest();
    }

    /// The guest runs, if it may.
    fn guest(&mut self) {
        self.ran_unasked |= self.runs && !self.is_frozen && self.stopping.is_none() && !self.owner_wants_it_to_run;
    }

    /// Any time passes: the owner gives commands and QEMU handles them.
    fn wait(&mut self) -> Result<(), GuestError> {
        self.calls_left = self.calls_left.saturating_sub(1);
        while let Some(chance) = self.chances.pop_front() {
            match chance % 8 {
                0 => self.monitor.push_back(false),
                1 | 2 => self.monitor.push_back(true),
                3 => self.main(false),
                4 => self.main(true),
                5 => self.guest(),
                _ => break,
            }
        }
        // Not while QEMU has not received a batch: it could not be withdrawn.
        if self.calls_left == 0 && self.socket.is_empty() { Err(killed()) } else { Ok(()) }
    }

    fn take(&mut self, answer: &mut Answer) {
        for byte in std::mem::take(&mut self.answers) {
            if let Some(item) = self.decoder.add(byte).unwrap() {
                answer.add(item).unwrap();
            }
        }
    }

    fn chance(&mut self) -> bool {
        self.chances.pop_front().is_some_and(|chance| chance & 16 == 0)
    }

    /// The watchdog's part, and then everything that is left to do.
    fn end(&mut self, is_killed: bool) {
        self.is_frozen = false;
        if is_killed && !self.noted_detached {
            self.socket.extend(if self.noted_held { LEAVE_HELD } else { LEAVE });
        }
        while self.stopping.is_some() || !self.socket.is_empty() || !self.monitor.is_empty() {
            let monitor_first = self.chance();
            self.main(monitor_first);
        }
    }
}

impl Line for Qemu {
    fn was_stopped(&mut self) -> Result<bool, GuestError> {
        self.wait()?;
        let mut answer = Answer::default();
        self.take(&mut answer);
        Ok(answer.reported())
    }

    fn send(&mut self, request: &Request) -> Result<(), GuestError> {
        self.wait()?;
        self.socket.extend(&request.bytes);
        Ok(())
    }

    fn complete(&mut self, request: &Request, answer: &mut Answer) -> Result<(), GuestError> {
        loop {
            self.wait()?;
            self.take(answer);
            if answer.is_complete(request) {
                return Ok(());
            }
            let monitor_first = self.chance();
            self.main(monitor_first);
        }
    }

    fn freeze(&mut self) -> Result<Frozen, GuestError> {
        self.wait()?;
        self.is_frozen = true;
        self.wait()?;
        self.let_stop();
        Ok(Frozen::Yes)
    }

    fn hold(&mut self, batch: &Request, answer: &mut Answer) -> Result<Frozen, GuestError> {
        loop {
            self.wait()?;
            self.take(answer);
            if answer.is_complete(batch) {
                return Ok(Frozen::Yes);
            }
            if self.stopping.is_some() && !self.socket.is_empty() {
                return Ok(Frozen::Stopping);
            }
            self.let_stop();
            let monitor_first = self.chance();
            self.main(monitor_first);
        }
    }

    fn withdraw(&mut self) -> bool {
        let is_some = !self.socket.is_empty();
        self.socket.clear();
        is_some
    }

    fn stop(&mut self, _request: &Request, _answer: &mut Answer) -> Result<(), GuestError> {
        self.wait()?;
        self.is_frozen = false;
        Ok(())
    }

    fn go(&mut self) -> Result<(), GuestError> {
        self.wait()?;
        self.is_frozen = false;
        self.wait()
    }

    fn note_held(&mut self, is_held: bool) {
        self.noted_held = is_held;
    }

    fn note_detached(&mut self) {
        self.noted_detached = true;
    }
}

/// A VM that runs or that its owner has stopped, and that we have connected to just now.
fn connected(runs: bool, can_freeze: bool, chances: Vec<u8>, calls: usize) -> Stub<Qemu> {
    let mut qemu = Qemu {
        runs,
        owner_wants_it_to_run: runs,
        ran_unasked: false,
        is_frozen: false,
        stopping: None,
        reading: Reading::Idle,
        has_sent: false,
        monitor: VecDeque::new(),
        socket: VecDeque::new(),
        answers: Vec::new(),
        decoder: Decoder::default(),
        chances: VecDeque::new(),
        calls_left: usize::MAX,
        can_freeze,
        noted_held: true,
        noted_detached: false,
        is_held: false,
    };
    if runs {
        qemu.stopped(true);
    }
    let mut stub = Stub::new(qemu);
    stub.ask(&["?".to_owned()]).unwrap();
    stub.go().unwrap();
    stub.freeze_from_now_on(can_freeze);
    (stub.line_mut().chances, stub.line_mut().calls_left) = (chances.into(), calls);
    stub
}

/// Takes samples, and detaches unless it is killed; then its owner is alone again.
fn sample(mut stub: Stub<Qemu>, samples: usize) -> Qemu {
    let commands = ["Hg01".to_owned(), "g".to_owned()];
    let mut work = || {
        for _ in 0..samples {
            let (hold, answers) = stub.hold(&commands)?;
            assert_eq!(answers.len(), 2);
            let more = stub.ask(&["m0,8".to_owned()])?;
            assert_eq!(more.len(), 1);
            assert!(hold != Hold::Ended);
            stub.go()?;
        }
        stub.detach()
    };
    let is_killed = work().is_err();
    let mut qemu = stub.into_line();
    qemu.end(is_killed);
    qemu
}

fn check(qemu: &Qemu) -> Result<(), TestCaseError> {
    prop_assert!(!qemu.ran_unasked, "it ran although its owner had stopped it");
    prop_assert_eq!(qemu.runs, qemu.owner_wants_it_to_run);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_the_owner_says_is_done(
        runs: bool, chances in prop::collection::vec(any::<u8>(), 0..200), samples in 0usize..6,
    ) {
        check(&sample(connected(runs, true, chances, usize::MAX), samples))?;
    }

    #[test]
    fn what_the_owner_says_is_done_if_we_are_killed(
        runs: bool, chances in prop::collection::vec(any::<u8>(), 0..200), calls in 1usize..60,
    ) {
        check(&sample(connected(runs, true, chances, calls), 6))?;
    }

    /// Without the rights of a debugger, what the owner sends during a sample is lost; at all other moments it is not.
    #[test]
    fn what_the_owner_says_between_samples_is_done_without_the_rights_of_a_debugger(
        runs: bool, chances in prop::collection::vec(any::<u8>(), 0..200), samples in 0usize..6,
    ) {
        check(&sample(connected(runs, false, chances, usize::MAX), samples))?;
    }
}
