//! One vCPU thread under ptrace: stopped for a sample, and resumed without a visible effect on the VMM.
//!
//! A stop ends `KVM_RUN` with `EINTR`. Before the thread resumes it is put back in front of its system
//! call, so that it enters the guest again. If a signal for the VMM arrives before that, this is
//! undone: then the VMM has to receive `EINTR`.

use std::io;
use std::time::Duration;

use super::polling::Polling;
use crate::error::GuestError;
use crate::sys::arch::{self, ThreadRegisters};
use crate::sys::{ChildSignals, Stop, Tracee, monotonic_ns, set_quiet};

/// `KVM_RUN` of `linux/kvm.h`.
const KVM_RUN: u64 = 0xae80;
/// The longest sleep in waiting for a stop, in case that SIGCHLD was swallowed.
const SLEEP_NS_MAX: u64 = 1_000_000;
/// How long a thread without a detach may take to stop.
const DROP_TIMEOUT: Duration = Duration::from_secs(1);

/// The system call of a stopped thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call {
    /// Its file descriptor, if it is `KVM_RUN`, or the thread is about to enter that again after a stop.
    pub(super) run_on: Option<u64>,
    /// The stop, or a signal, has ended it.
    pub(super) interrupted: bool,
}

pub(super) const IOCTL: u64 = libc::SYS_ioctl as u64;
const INTERRUPTED: u64 = -(libc::EINTR as i64) as u64;

/// The system call in the registers of a stopped thread.
pub(super) fn call_of(registers: &ThreadRegisters) -> Call {
    let [descriptor, request] = arch::arguments(registers);
    let is_run = arch::call(registers) == IOCTL && is_run(request);
    Call { run_on: is_run.then_some(descriptor), interrupted: is_run && arch::result(registers) == INTERRUPTED }
}

/// Whether the request of an `ioctl` is `KVM_RUN`. The number is an `unsigned int` to the kernel.
pub(crate) fn is_run(request: u64) -> bool {
    request & 0xffff_ffff == KVM_RUN
}

/// In front of the system call again.
fn rewind(registers: &mut ThreadRegisters) {
    arch::call_again(registers, IOCTL);
}

/// Whether `rewind` has led here, to this address, and the thread has not moved since.
fn is_rewound(registers: &ThreadRegisters, address: u64) -> bool {
    let [_, request] = arch::arguments(registers);
    arch::ip(registers) == address && arch::is_to_call(registers, IOCTL) && is_run(request)
}

/// As if the system call had just returned `EINTR`.
fn undo_rewind(registers: &mut ThreadRegisters) {
    arch::return_with(registers, INTERRUPTED);
}

/// The result of a request to stop a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// It is stopped.
    Yes(Call),
    /// It did not stop in time. The request stays, and `settle` resumes it when it does.
    Late,
    /// It is gone.
    Ended,
}

/// A thread of a VMM.
pub(super) struct Thread {
    tracee: Tracee,
    /// When a stop was requested that has not arrived yet.
    asked_ns: Option<u64>,
    /// It is stopped, with this signal.
    held: Option<(i32, ThreadRegisters)>,
    /// The address that it was put back to last.
    rewound: Option<u64>,
    ended: bool,
    /// Signals that were passed on.
    signals: u64,
    /// How often it was stopped.
    stops: u64,
    polling: Polling,
    /// When the current stop was requested.
    held_since_ns: Option<u64>,
    /// The total time for which it was stopped, since the last query.
    frozen_ns: u64,
}

fn failed(action: &str) -> impl FnOnce(io::Error) -> GuestError {
    move |error| GuestError::System { action: format!("{action} the vCPU's thread"), error }
}

impl Thread {
    pub(super) fn seize(thread: u32) -> io::Result<Thread> {
        let tracee = Tracee::seize(thread)?;
        Ok(Thread {
            tracee,
            asked_ns: None,
            held: None,
            rewound: None,
            ended: false,
            signals: 0,
            stops: 0,
            polling: Polling::default(),
            held_since_ns: None,
            frozen_ns: 0,
        })
    }

    /// Its thread ID.
    pub(super) fn id(&self) -> u32 {
        self.tracee.id()
    }

    /// Requests that it stops, unless that was requested already.
    fn ask(&mut self) -> Result<(), GuestError> {
        if self.asked_ns.is_none() && self.held.is_none() && !self.ended {
            set_quiet(false);
            let now_ns = monotonic_ns();
            match self.tracee.interrupt() {
                Ok(()) => self.asked_ns = Some(now_ns),
                Err(error) => self.lost(error, "stop")?,
            }
        }
        Ok(())
    }

    /// Requests that it stops, and waits only as long as it may be about to. After `Hold::Late`, [`Thread::has_stopped`] returns when it has.
    pub(super) fn hold_at_once(&mut self, signals: &ChildSignals) -> Result<Hold, GuestError> {
        self.ask()?;
        self.wait_for_stop(signals, self.polling.limit_ns())
    }

    /// Whether a requested stop has arrived.
    pub(super) fn has_stopped(&mut self, signals: &ChildSignals) -> Result<Hold, GuestError> {
        self.wait_for_stop(signals, 0)
    }

    /// Stops it, within `limit`; without a wait if it was late before: a thread that is stuck in the kernel is not waited for each time.
    pub(super) fn hold(&mut self, signals: &ChildSignals, limit: Duration) -> Result<Hold, GuestError> {
        let limit_ns = if self.asked_ns.is_some() { 0 } else { limit.as_nanos() as u64 };
        self.ask()?;
        self.wait_for_stop(signals, limit_ns)
    }

    fn wait_for_stop(&mut self, signals: &ChildSignals, limit_ns: u64) -> Result<Hold, GuestError> {
        let start_ns = monotonic_ns();
        let asked_ns = self.asked_ns.unwrap_or(start_ns);
        loop {
            if self.ended {
                return Ok(Hold::Ended);
            }
            self.look()?;
            let now_ns = monotonic_ns();
            let waited_ns = now_ns - start_ns;
            if let Some((_, registers)) = &self.held {
                self.polling.stopped(now_ns - asked_ns);
                self.held_since_ns = Some(asked_ns);
                let is_rewound = self.rewound.is_some_and(|address| is_rewound(registers, address));
                let again =
                    is_rewound.then_some(Call { run_on: Some(arch::arguments(registers)[0]), interrupted: false });
                return Ok(Hold::Yes(again.unwrap_or(call_of(registers))));
            }
            if waited_ns >= limit_ns && !self.ended {
                return Ok(Hold::Late);
            }
            if self.polling.goes_on(waited_ns) {
                std::hint::spin_loop();
                continue;
            }
            signals.wait(Duration::from_nanos(limit_ns.saturating_sub(waited_ns).min(SLEEP_NS_MAX)));
        }
    }

    /// An error of ptrace: fine if the thread is gone.
    fn lost(&mut self, error: io::Error, action: &str) -> Result<(), GuestError> {
        match error.raw_os_error() {
            Some(libc::ESRCH) => self.reap(),
            Some(libc::ECHILD) => self.end(),
            _ => return Err(failed(action)(error)),
        }
        Ok(())
    }

    /// Waits for the end of a thread that was killed: until its tracer has collected it, its process can neither end
    /// nor become another program.
    fn reap(&mut self) {
        let start_ns = monotonic_ns();
        while !self.ended && monotonic_ns() - start_ns < DROP_TIMEOUT.as_nanos() as u64 {
            match self.tracee.stop() {
                Ok(Some(Stop::Ended)) | Err(_) => self.end(),
                // It was about to stop.
                Ok(Some(_)) => drop(self.tracee.resume(0)),
                Ok(None) => std::thread::sleep(Duration::from_nanos(SLEEP_NS_MAX)),
            }
        }
        self.end();
    }

    /// Processes at most one stop. Signals are passed on immediately.
    fn look(&mut self) -> Result<bool, GuestError> {
        if self.held.is_some() || self.ended {
            return Ok(false);
        }
        let result = match self.tracee.stop() {
            Ok(None) => return Ok(false),
            Ok(Some(Stop::Ended)) => {
                self.ended = true;
                Ok(())
            }
            Ok(Some(Stop::Signal(signal))) => self.hand_on(signal),
            // Left over from a call that another process made it execute.
            Ok(Some(Stop::Call)) => self.tracee.resume(0),
            Ok(Some(Stop::Event(signal))) => {
                self.asked_ns = None;
                self.stops += 1;
                self.tracee.registers().map(|registers| self.held = Some((signal, registers)))
            }
            Err(error) => Err(error),
        };
        result.or_else(|error| self.lost(error, "look after"))?;
        Ok(true)
    }

    fn hand_on(&mut self, signal: i32) -> io::Result<()> {
        self.signals += 1;
        if let Some(address) = self.rewound {
            let mut registers = self.tracee.registers()?;
            if is_rewound(&registers, address) {
                undo_rewind(&mut registers);
                self.tracee.set_registers(&registers)?;
            }
        }
        self.tracee.resume(signal)
    }

    /// Puts a stopped thread back in front of `KVM_RUN` if our stop has ended that.
    fn repair(&mut self) -> io::Result<Option<i32>> {
        let Some((signal, mut registers)) = self.held.take() else { return Ok(None) };
        if call_of(&registers).interrupted {
            rewind(&mut registers);
            self.tracee.set_registers(&registers)?;
            self.rewound = Some(arch::ip(&registers));
        }
        Ok(Some(signal))
    }

    /// Resumes a stopped thread.
    pub(super) fn release(&mut self) -> Result<(), GuestError> {
        let resumed = self.repair().and_then(|held| match held {
            None => Ok(()),
            Some(libc::SIGTRAP) => self.tracee.resume(0),
            // Another process has stopped the whole process, and it stays so.
            Some(_) => self.tracee.listen(),
        });
        if let Some(since_ns) = self.held_since_ns.take() {
            self.frozen_ns += monotonic_ns() - since_ns;
        }
        resumed.or_else(|error| self.lost(error, "release"))
    }

    /// Between samples: passes signals on, and resumes a thread that has stopped too late.
    pub(super) fn settle(&mut self) -> Result<(), GuestError> {
        const STOPS_MAX: u32 = 64;
        for _ in 0..STOPS_MAX {
            if !self.look()? {
                break;
            }
            self.release()?;
        }
        Ok(())
    }

    /// Its stop and its registers, if it is stopped.
    pub(super) fn held(&self) -> Option<(i32, ThreadRegisters)> {
        self.held
    }

    /// It was not running before this time: its pause begins then.
    pub(super) fn stood_until(&mut self, time_ns: u64) {
        self.held_since_ns = self.held_since_ns.map(|since_ns| since_ns.max(time_ns));
    }

    /// How long it was stopped since the last query: from each stop request until it was resumed.
    pub(super) fn take_frozen_ns(&mut self) -> u64 {
        std::mem::take(&mut self.frozen_ns)
    }

    /// Records that it has ended while other code waited for it.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.held = None;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The number of signals that were passed on to the VMM.
    pub(super) fn signals(&self) -> u64 {
        self.signals
    }

    /// How often it was stopped at our request.
    pub(super) fn stops(&self) -> u64 {
        self.stops
    }

    /// Detaches from it; fails for a thread that does not stop within `limit`.
    pub(super) fn detach(&mut self, signals: &ChildSignals, limit: Duration) -> Result<(), GuestError> {
        let start_ns = monotonic_ns();
        loop {
            match self.hold(signals, limit)? {
                Hold::Yes(_) => {
                    let done = self.repair().and_then(|_| self.tracee.detach(0));
                    self.ended = true;
                    return done.or_else(|error| self.lost(error, "detach from"));
                }
                Hold::Ended => return Ok(()),
                Hold::Late if monotonic_ns() - start_ns < limit.as_nanos() as u64 => {
                    signals.wait(Duration::from_nanos(SLEEP_NS_MAX));
                }
                Hold::Late => {
                    let error = io::Error::other("it does not stop; it resumes when glass ends");
                    return Err(failed("detach from")(error));
                }
            }
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if !self.ended
            && let Ok(signals) = ChildSignals::block()
        {
            // The kernel resumes a thread that does not stop when this thread ends.
            let _ = self.detach(&signals, DROP_TIMEOUT);
        }
    }
}

// Of the registers of x86-64.
#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    fn in_call(number: u64, request: u64, result: i64) -> ThreadRegisters {
        let mut registers = EMPTY;
        registers.orig_rax = number;
        registers.rax = result as u64;
        registers.rdi = 17;
        registers.rsi = request;
        registers.rip = 0x1002;
        registers
    }

    const EMPTY: ThreadRegisters = ThreadRegisters {
        r15: 0,
        r14: 0,
        r13: 0,
        r12: 0,
        rbp: 0,
        rbx: 0,
        r11: 0,
        r10: 0,
        r9: 0,
        r8: 0,
        rax: 0,
        rcx: 0,
        rdx: 0,
        rsi: 0,
        rdi: 0,
        orig_rax: 0,
        rip: 0,
        cs: 0,
        eflags: 0,
        rsp: 0,
        ss: 0,
        fs_base: 0,
        gs_base: 0,
        ds: 0,
        es: 0,
        fs: 0,
        gs: 0,
    };

    #[test]
    fn only_an_interrupted_run_is_entered_again() {
        let call = |registers| (call_of(&registers).run_on, call_of(&registers).interrupted);
        assert_eq!(call(in_call(IOCTL, KVM_RUN, -4)), (Some(17), true));
        // QEMU passes the request as a long, whose upper half may be anything.
        assert_eq!(call(in_call(IOCTL, KVM_RUN | 7 << 32, -4)), (Some(17), true));
        // The guest has left by itself, for a device of the VMM.
        assert_eq!(call(in_call(IOCTL, KVM_RUN, 0)), (Some(17), false));
        assert_eq!(call(in_call(IOCTL, 0xae81, -4)), (None, false));
        assert_eq!(call(in_call(libc::SYS_futex as u64, KVM_RUN, -4)), (None, false));
    }

    #[test]
    fn a_signal_takes_back_what_a_stop_has_changed() {
        let before = in_call(IOCTL, KVM_RUN, -4);
        let mut registers = before;
        rewind(&mut registers);
        assert_eq!((registers.rip, registers.rax, registers.orig_rax), (0x1000, IOCTL, u64::MAX));
        assert_eq!(call_of(&registers), Call { run_on: None, interrupted: false }, "rewound only once");
        assert!(is_rewound(&registers, 0x1000));
        assert!(!is_rewound(&registers, 0x2000));
        assert!(!is_rewound(&before, 0x1000));
        undo_rewind(&mut registers);
        assert_eq!((registers.rip, registers.rax), (before.rip, before.rax));
    }
}
