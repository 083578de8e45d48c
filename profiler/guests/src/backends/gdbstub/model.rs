//! All orders of what the owner of a VM and we do to it, with a model of QEMU (7.2: `gdbstub.c`, `softmmu/cpus.c`): one main
//! loop takes commands from the monitor and bytes from the gdbstub in any order, and waits for each of several vCPUs to stop.
//!
//! Not modelled: connecting, which stops the VM at a moment that the protocol does not show.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::freeze::Frozen;
use super::holding::{Answer, Decoder, Request};
use super::stub::{Hold, Line, Stub};
use super::turn::{Act, Seen, Turn};
use crate::error::GuestError;
use crate::sys::{LEAVE, LEAVE_HELD};

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

/// The thread of a vCPU.
#[derive(Debug, Clone, Copy, Default)]
struct Vcpu {
    /// By us.
    is_held: bool,
    /// For the main loop.
    has_stopped: bool,
    /// It has not left the wait in which it had stopped: if it has to stop once more, it does so before it runs the guest.
    is_parked: bool,
}

struct Qemu {
    runs: bool,
    vcpus: Vec<Vcpu>,
    /// The main loop is held by us, where it waits for the vCPUs.
    main_is_held: bool,
    /// How often a vCPU has run the guest, and how often it had when its registers were read.
    guest_runs: u64,
    guest_runs_read: u64,
    /// The owner's last word.
    owner_wants_it_to_run: bool,
    /// The guest ran although its owner had stopped it.
    ran_unasked: bool,
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
            b"c" => {
                self.is_held = false;
                self.resume();
            }
            b"D;1" => {
                self.is_held = false;
                self.resume();
                self.packet("OK");
            }
            b"qC" => self.packet("QC1"),
            // A command whose answer may be anything, and what follows its parameters.
            _ => {
                if line.starts_with(b"g") {
                    self.guest_runs_read = self.guest_runs;
                }
                self.packet("00");
            }
        }
    }

    fn resume(&mut self) {
        self.runs = true;
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.has_stopped = false);
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
            if self.runs {
                self.stopping = Some(Stopping::ForStub(bytes[at + 1..].to_vec()));
                return;
            }
            self.byte(*byte);
        }
    }

    /// The main loop continues where it has waited for the vCPUs, if they have stopped.
    fn end_stop(&mut self) {
        if !self.vcpus.iter().all(|vcpu| vcpu.has_stopped) {
            return;
        }
        if let Some(stopping) = self.stopping.take() {
            self.stopped(stopping != Stopping::ForOwner);
            match stopping {
                Stopping::ForOwner => self.owner_wants_it_to_run = false,
                Stopping::ForStub(rest) => self.bytes(&rest),
            }
        }
    }

    /// One round of the main loop.
    fn main(&mut self, monitor_first: bool) {
        if self.main_is_held {
            return;
        }
        if self.stopping.is_some() {
            self.end_stop();
            return;
        }
        let is_lost = self.is_held && !self.can_freeze;
        let handled =
            self.monitor.pop_front_if(|runs| (monitor_first || self.socket.is_empty()) && (*runs || !is_lost));
        if let Some(runs) = handled {
            match runs {
                true => {
                    self.owner_wants_it_to_run = true;
                    self.resume();
                }
                false if self.runs => self.stopping = Some(Stopping::ForOwner),
                false => self.owner_wants_it_to_run = false,
            }
        } else {
            let bytes: Vec<u8> = self.socket.drain(..).collect();
            self.bytes(&bytes);
        }
    }

    /// The vCPUs' threads run, if they may: a vCPU runs the guest until it stops for the main loop.
    fn guest(&mut self) {
        for index in 0..self.vcpus.len() {
            let vcpu = self.vcpus[index];
            if vcpu.is_held || vcpu.has_stopped || !self.runs {
                continue;
            }
            if self.stopping.is_some() && (vcpu.is_parked || !self.chance()) {
                self.vcpus[index] = Vcpu { has_stopped: true, is_parked: true, ..vcpu };
            } else {
                self.vcpus[index].is_parked = false;
                self.guest_runs += 1;
                self.ran_unasked |= self.stopping.is_none() && !self.owner_wants_it_to_run;
            }
        }
    }

    /// All threads run, if they may.
    fn pass(&mut self) {
        let monitor_first = self.chance();
        self.main(monitor_first);
        self.guest();
    }

    fn release(&mut self) {
        self.main_is_held = false;
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.is_held = false);
    }

    /// As [`Freezer`](super::freeze::Freezer) does it.
    fn take_turns(&mut self, mut is_done: impl FnMut(&mut Qemu) -> bool, is_batch: bool) -> Result<Frozen, GuestError> {
        let mut turn = Turn::default();
        loop {
            self.wait()?;
            if turn == Turn::Main && is_done(self) {
                return Ok(Frozen::Yes);
            }
            // A vCPU may also wait for another one.
            let waits: Vec<bool> =
                (0..self.vcpus.len()).map(|vcpu| self.vcpus[vcpu].has_stopped || self.chance()).collect();
            let seen = Seen {
                main_waits: self.stopping.is_some() && self.vcpus.iter().any(|vcpu| !vcpu.has_stopped),
                main_is_held: self.main_is_held,
                main_is_woken: false,
                vcpus_wait: waits.iter().all(|waits| *waits),
            };
            let mut hold_main = |is_held: bool| {
                self.main_is_held = is_held;
                self.vcpus.iter_mut().for_each(|vcpu| vcpu.is_held = !is_held);
            };
            match turn.next(seen) {
                Act::ReleaseVcpus if is_batch && !self.socket.is_empty() => return Ok(Frozen::Stopping),
                Act::ReleaseVcpus => hold_main(true),
                Act::ReleaseMain => hold_main(false),
                Act::Help | Act::Wait => {}
            }
            self.pass();
        }
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
        self.release();
        if is_killed && !self.noted_detached {
            self.socket.extend(if self.noted_held { LEAVE_HELD } else { LEAVE });
        }
        while self.stopping.is_some() || !self.socket.is_empty() || !self.monitor.is_empty() {
            self.pass();
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
            self.pass();
        }
    }

    fn freeze(&mut self) -> Result<Frozen, GuestError> {
        self.wait()?;
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.is_held = true);
        self.take_turns(|qemu| qemu.stopping.is_none(), false)
    }

    fn hold(&mut self, batch: &Request, answer: &mut Answer) -> Result<Frozen, GuestError> {
        let is_answered = |qemu: &mut Qemu| {
            qemu.take(answer);
            answer.is_complete(batch)
        };
        self.take_turns(is_answered, true)
    }

    fn withdraw(&mut self) -> bool {
        let is_some = !self.socket.is_empty();
        self.socket.clear();
        is_some
    }

    fn stop(&mut self, request: &Request, answer: &mut Answer) -> Result<(), GuestError> {
        while self.stopping.is_none() && !answer.is_complete(request) {
            self.wait()?;
            self.pass();
            self.take(answer);
        }
        self.release();
        Ok(())
    }

    fn go(&mut self) -> Result<(), GuestError> {
        self.wait()?;
        self.release();
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
fn connected(runs: bool, vcpus: usize, can_freeze: bool, chances: Vec<u8>, calls: usize) -> Stub<Qemu> {
    let mut qemu = Qemu {
        runs,
        vcpus: vec![Vcpu::default(); vcpus],
        main_is_held: false,
        guest_runs: 0,
        guest_runs_read: 0,
        owner_wants_it_to_run: runs,
        ran_unasked: false,
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
            let qemu = stub.line_mut();
            let has_run = qemu.can_freeze && qemu.guest_runs > qemu.guest_runs_read;
            assert!(hold != Hold::Runs || !has_run || stub.is_torn(), "the guest ran after its registers were read");
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
        runs: bool, vcpus in 1usize..5, chances in prop::collection::vec(any::<u8>(), 0..200), samples in 0usize..6,
    ) {
        check(&sample(connected(runs, vcpus, true, chances, usize::MAX), samples))?;
    }

    #[test]
    fn what_the_owner_says_is_done_if_we_are_killed(
        runs: bool, vcpus in 1usize..5, chances in prop::collection::vec(any::<u8>(), 0..200), calls in 1usize..60,
    ) {
        check(&sample(connected(runs, vcpus, true, chances, calls), 6))?;
    }

    /// Without the rights of a debugger, what the owner sends during a sample is lost; at all other moments it is not.
    #[test]
    fn what_the_owner_says_between_samples_is_done_without_the_rights_of_a_debugger(
        runs: bool, vcpus in 1usize..5, chances in prop::collection::vec(any::<u8>(), 0..200), samples in 0usize..6,
    ) {
        check(&sample(connected(runs, vcpus, false, chances, usize::MAX), samples))?;
    }
}
