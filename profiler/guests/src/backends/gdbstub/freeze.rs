//! Stops the threads of an emulator's vCPUs at the moment of a sample, so that the guest waits until
//! QEMU's main loop handles the stop request, and keeps them from running until the sample has ended.
//!
//! The main loop serves the devices and the gdbstub. It reads a request that arrives while it serves a device
//! only afterwards, and by then the guest would have continued and be waiting for that device. So its
//! threads are stopped by ptrace, until the main loop waits for them to stop by themselves. Then the main thread is stopped
//! instead and they are released, and stop at the start of the next block. They are stopped by ptrace again before the main thread
//! continues: the end of the request continues the VM, and none may run the guest before the sample has ended. See [`Turn`].
//!
//! A thread that was stopped while it holds QEMU's lock is resumed until it releases the lock. That is a
//! system call, since the main loop waits for the lock, and at its end the thread is stopped again.
//!
//! It may also hold a lock that the main loop spins for. While the main loop spins, the threads run for short moments. (They did so whenever it was busy for
//! long until 2026-11-27: the guest could continue after devices that the main loop had served meanwhile.)
//!
//! The kernel resumes all these threads if we die, at any moment. None is stopped for longer than
//! [`FROZEN_NS_MAX`] because of another one; such a sample is displaced, and counted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use glass_profiler_core::arch::{Architecture, Registers};

use super::beside::Beside;
use super::emulated::Emulated;
use super::turn::{Act, Seen, Turn};
use super::waits::{Call, HaltPlace, Word, parse_call};
use crate::backends::thread_stat::ran_ns;
use crate::error::GuestError;
use crate::sys::{ChildSignals, Stop, Tracee, arch, monotonic_ns, read_process, set_quiet};

/// How long the threads are stopped at most until the main loop handles the request. On a loaded host the main loop
/// has to wait for a CPU.
const FROZEN_NS_MAX: u64 = 50_000_000;
/// When the main loop has been busy for so long, a thread may hold a lock that it spins for: QEMU guards its clock by
/// one, which a guest takes at each read of its time stamp counter.
const BUSY_NS_MAX: u64 = 400_000;
/// How long a thread may take to stop: a loaded host may not run it for a while.
const STOP_NS_MAX: u64 = 5_000_000_000;
/// Interval of polling the main loop. An interval of 5 us kept it from running: it needed 2 ms instead of 0.3.
const LOOK_EVERY: Duration = Duration::from_micros(150);
/// Interval of polling threads that are about to wait: they need no other thread for it.
const LOOK_SOON: Duration = Duration::from_micros(50);
/// When it has been busy for so long without spinning as we know it, it may spin in another way.
const STUCK_NS_MAX: u64 = 10_000_000;
/// How long the main thread may take to stop so that its code can be read.
const LOOK_NS_MAX: u64 = 2_000_000;
/// Bytes of code that are looked at, before and from the instruction pointer on. QEMU's loop for a lock (`qemu_spin_lock`) is shorter.
const CODE_BEFORE: u64 = 16;
const CODE_BYTES: usize = 32;
/// How long a thread runs to release a lock. Waking it takes most of it.
const NUDGE_NS: u64 = 30_000;
/// The longest sleep in waiting for a stop, in case that SIGCHLD was swallowed.
const SLEEP_MAX: Duration = Duration::from_micros(200);
/// The most stops that are processed at a time.
const STOPS_MAX: u32 = 64;
/// Offset of the owner in glibc's mutex, from the word that others wait on.
const OWNER_OFFSET: u64 = 8;

/// The state of a thread, as far as we have changed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    /// It runs to the end of a system call, where it stops.
    Stepping,
    /// It is stopped, with this signal.
    Held(i32),
    Ended,
}

/// A thread that runs vCPUs, or the main thread.
struct Thread {
    id: u32,
    tracee: Tracee,
    state: State,
    /// A stop was requested and has not arrived yet.
    asked: bool,
    /// Reads its state.
    call: File,
    /// Reads its CPU.
    stat: File,
    /// Reads for how long it has run.
    schedule: Option<File>,
    halt: HaltPlace,
}

impl Thread {
    /// Traces a thread of a process without stopping it.
    fn seize(pid: u32, id: u32) -> io::Result<Thread> {
        // In a container its threads have other ids.
        let call = File::open(format!("/proc/{pid}/task/{id}/syscall"))?;
        let stat = File::open(format!("/proc/{pid}/task/{id}/stat"))?;
        let schedule = File::open(format!("/proc/{pid}/task/{id}/schedstat")).ok();
        let (tracee, halt) = (Tracee::seize(id)?, HaltPlace::default());
        Ok(Thread { id, tracee, state: State::Running, asked: false, call, stat, schedule, halt })
    }

    /// Its system call.
    fn doing(&self) -> Call {
        let mut bytes = [0; 256];
        let count = self.call.read_at(&mut bytes, 0).unwrap_or(0);
        parse_call(&String::from_utf8_lossy(&bytes[..count]))
    }

    /// Whether it waits for a condition: that its vCPU has something to do, or, of the main thread, that the vCPUs have stopped.
    fn waits(&self) -> bool {
        matches!(self.doing(), Call::Condition(_))
    }

    fn is_held(&self) -> bool {
        self.state == State::Held(libc::SIGTRAP)
    }

    /// Whether it is as it was requested to be.
    fn is_settled(&self) -> bool {
        match self.state {
            State::Held(_) | State::Ended => true,
            State::Running => !self.asked,
            State::Stepping => false,
        }
    }

    fn ask(&mut self) -> io::Result<()> {
        if !self.asked && !matches!(self.state, State::Held(_) | State::Ended) {
            set_quiet(false);
            self.tracee.interrupt()?;
            self.asked = true;
        }
        Ok(())
    }

    /// Processes at most one stop. Signals are passed on immediately.
    fn look(&mut self) -> io::Result<bool> {
        if matches!(self.state, State::Held(_) | State::Ended) {
            return Ok(false);
        }
        match self.tracee.stop()? {
            None => return Ok(false),
            Some(Stop::Ended) => {
                self.asked = false;
                self.state = State::Ended;
            }
            Some(Stop::Signal(signal)) if self.state == State::Stepping => self.tracee.resume_to_call_with(signal)?,
            Some(Stop::Signal(signal)) => self.resume_otherwise(signal)?,
            Some(Stop::Call) if self.state != State::Stepping => self.resume_otherwise(0)?,
            Some(Stop::Call) => match is_begin_of_call(arch::result(&self.tracee.registers()?)) {
                true => self.tracee.resume_to_call()?,
                false => self.state = State::Held(libc::SIGTRAP),
            },
            Some(Stop::Event(signal)) => {
                self.asked = false;
                self.state = State::Held(signal);
            }
        }
        Ok(true)
    }

    /// Resumes it from a stop that is not the requested one, which has cancelled the request in the kernel. Requested while it is
    /// stopped, the next stop precedes the next instruction.
    fn resume_otherwise(&mut self, signal: i32) -> io::Result<()> {
        if self.asked {
            self.tracee.interrupt()?;
        }
        self.tracee.resume(signal)
    }

    /// Resumes it, if it is stopped.
    fn resume(&mut self) -> io::Result<()> {
        match self.state {
            State::Held(libc::SIGTRAP) => self.tracee.resume(0)?,
            // Another process has stopped the whole process, and it stays so.
            State::Held(_) => self.tracee.listen()?,
            State::Running | State::Stepping | State::Ended => return Ok(()),
        }
        self.state = State::Running;
        Ok(())
    }

    /// Resumes it up to the end of its next system call, if it is stopped.
    fn step(&mut self) -> io::Result<()> {
        if self.is_held() {
            self.tracee.resume_to_call()?;
            self.state = State::Stepping;
        }
        Ok(())
    }

    /// Resumes it for a moment, if it is stopped: it releases a lock in a few instructions.
    fn nudge(&mut self) -> io::Result<()> {
        if self.is_held() {
            self.resume()?;
            let start_ns = monotonic_ns();
            while monotonic_ns() - start_ns < NUDGE_NS {
                std::hint::spin_loop();
            }
            self.ask()?;
        }
        Ok(())
    }

    /// Resumes it for good: later stops end as soon as they are processed.
    fn release(&mut self) -> io::Result<()> {
        if self.state == State::Stepping {
            self.state = State::Running;
            self.ask()?;
        }
        self.settle()
    }

    /// Detaches from it; call it until it has stopped for that, or ended.
    fn detach(&mut self) -> io::Result<()> {
        // Refused if it was killed, and then its end has to be collected.
        let asked = self.ask();
        self.look()?;
        asked?;
        if let State::Held(signal) = self.state {
            // A thread that was stopped as part of its process stays so.
            self.tracee.detach(if signal == libc::SIGTRAP { 0 } else { signal })?;
            self.state = State::Ended;
        }
        Ok(())
    }

    fn settle(&mut self) -> io::Result<()> {
        self.resume()?;
        for _ in 0..STOPS_MAX {
            if !self.look()? {
                break;
            }
            self.resume()?;
        }
        Ok(())
    }
}

/// Linux puts this where the result will be when a system call starts.
fn is_begin_of_call(result: u64) -> bool {
    result == -i64::from(libc::ENOSYS) as u64
}

/// Whether the vCPUs are stopped as they have to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frozen {
    Yes,
    /// No: the main loop waits for them before it has received the request, to stop them at the owner's request say.
    Stopping,
    /// No: the main loop was busy for too long.
    Late,
}

/// Whether code has the instruction that loops have which spin: `pause` of x86-64.
fn has_pause(code: &[u8]) -> bool {
    const PAUSE: [u8; 2] = [0xf3, 0x90];
    code.windows(PAUSE.len()).any(|bytes| bytes == PAUSE)
}

/// For how long the main loop has been busy.
#[derive(Debug, Clone, Copy)]
struct Busy {
    /// Since when, or since the vCPUs have run for it.
    since_ns: u64,
    /// When it was looked at what it executes.
    looked_ns: u64,
}

impl Busy {
    fn since(since_ns: u64) -> Busy {
        Busy { since_ns, looked_ns: since_ns }
    }
}

/// The threads of a VM's vCPUs, and the main thread.
pub(super) struct Freezer {
    pid: u32,
    vcpus: Vec<Thread>,
    main: Thread,
    /// What the memory of QEMU shows of each vCPU, if it does.
    emulated: Option<Vec<Emulated>>,
    beside: Beside,
    // The kernel resumes threads that are dropped while stopped.
    signals: ChildSignals,
    /// Samples for which the main loop did not handle the request in time.
    displaced: u64,
}

/// Does something to a thread, which may have ended.
fn attempt(thread: &mut Thread, act: impl FnOnce(&mut Thread) -> io::Result<()>) -> Result<(), GuestError> {
    let Err(error) = act(thread) else { return Ok(()) };
    match error.raw_os_error() {
        // Killed. Its end has to be collected: before that its VMM cannot end either.
        Some(libc::ESRCH) if thread.state != State::Ended => thread.state = State::Running,
        Some(libc::ESRCH) => {}
        Some(libc::ECHILD) => {
            thread.asked = false;
            thread.state = State::Ended;
        }
        _ => return Err(GuestError::System { action: "stop a thread of QEMU".to_owned(), error }),
    }
    Ok(())
}

impl Freezer {
    /// Traces these threads of a process, which run its vCPUs, and its main thread.
    /// `shows_blocks`: its memory shows which block a vCPU of this kind executes.
    pub(super) fn new(pid: u32, ids: &[u32], shows_blocks: Option<Architecture>) -> io::Result<Freezer> {
        let signals = ChildSignals::block()?;
        let vcpus = ids.iter().map(|id| Thread::seize(pid, *id)).collect::<io::Result<_>>()?;
        let emulated = shows_blocks.map(|architecture| vec![Emulated::new(architecture); ids.len()]);
        Ok(Freezer {
            pid,
            vcpus,
            main: Thread::seize(pid, pid)?,
            emulated,
            beside: Beside::new(),
            signals,
            displaced: 0,
        })
    }

    /// Whether it is for these threads, which are in order.
    pub(super) fn is_of(&self, ids: &[u32]) -> bool {
        self.vcpus.iter().map(|vcpu| vcpu.id).eq(ids.iter().copied())
    }

    /// Whether the memory of QEMU shows which block a vCPU executes, of one of this kind.
    pub(super) fn show_blocks(&mut self, of: Option<Architecture>) {
        match of {
            Some(architecture) if self.emulated.is_none() => {
                self.emulated = Some(vec![Emulated::new(architecture); self.vcpus.len()]);
            }
            Some(_) => {}
            None => self.emulated = None,
        }
    }

    fn each(&mut self, mut act: impl FnMut(&mut Thread) -> io::Result<()>) -> Result<(), GuestError> {
        self.vcpus.iter_mut().try_for_each(|thread| attempt(thread, &mut act))
    }

    /// The same with the main thread, which is the last.
    fn all(&mut self, mut act: impl FnMut(&mut Thread) -> io::Result<()>) -> Result<(), GuestError> {
        self.vcpus.iter_mut().chain([&mut self.main]).try_for_each(|thread| attempt(thread, &mut act))
    }

    /// Helps the main thread to continue: a thread that has the lock that it waits for is resumed until it releases the lock.
    /// `busy` is `None` if the vCPUs have stopped for the main thread: then it is about to continue them.
    fn help(&mut self, main: Call, busy: &mut Option<Busy>) -> Result<(), GuestError> {
        match (main, busy) {
            (Call::Lock(address), busy) => {
                let owner = self.owner(address);
                // It has no owner for a moment when it is released.
                let is_any = owner == 0 && busy.is_some();
                self.each(|vcpu| if is_any || vcpu.id == owner { vcpu.step() } else { Ok(()) })?;
            }
            (Call::Other, Some(busy)) if monotonic_ns() - busy.looked_ns > BUSY_NS_MAX => {
                if self.main_spins()? || monotonic_ns() - busy.since_ns > STUCK_NS_MAX {
                    self.each(Thread::nudge)?;
                    busy.since_ns = monotonic_ns();
                }
                busy.looked_ns = monotonic_ns();
            }
            (Call::Other | Call::Idle | Call::Condition(_), _) => {}
        }
        Ok(())
    }

    /// Whether the main thread spins for a lock, by its code where it is stopped for this.
    fn main_spins(&mut self) -> Result<bool, GuestError> {
        attempt(&mut self.main, Thread::ask)?;
        let start_ns = monotonic_ns();
        while !self.main.is_settled() && monotonic_ns() - start_ns < LOOK_NS_MAX {
            attempt(&mut self.main, |main| main.look().map(drop))?;
        }
        let mut code = [0; CODE_BYTES];
        if self.main.is_held() {
            let ip = self.main.tracee.registers().map_or(0, |registers| arch::ip(&registers));
            read_process(self.pid, ip.wrapping_sub(CODE_BEFORE), &mut code);
        }
        attempt(&mut self.main, Thread::resume)?;
        Ok(has_pause(&code))
    }

    /// Stops the vCPUs that do not wait, and the first one in any case, so that the VM cannot be stopped. Then waits until the main loop
    /// waits for events: what it has handled before, it has reported.
    pub(super) fn freeze(&mut self) -> Result<Frozen, GuestError> {
        let first = self.vcpus.first().map(|vcpu| vcpu.id);
        self.each(|vcpu| if Some(vcpu.id) == first || !vcpu.waits() { vcpu.ask() } else { Ok(()) })?;
        let is_idle = |freezer: &mut Freezer| {
            let is_settled = freezer.vcpus.iter().all(|vcpu| vcpu.is_settled() || vcpu.waits());
            let is_idle = is_settled && freezer.main.doing() == Call::Idle;
            if !is_idle {
                freezer.signals.wait(LOOK_EVERY);
            }
            Ok(is_idle)
        };
        self.take_turns(is_idle, || false, true)
    }

    /// Lets the main loop execute a request, which stops the VM and continues it, while the vCPUs are kept from running the guest. They are
    /// stopped at the end. `is_answered` waits for the answer, at most this long, and returns whether the main loop has handled the request,
    /// `is_unread` whether it has not received it.
    pub(super) fn hold(
        &mut self,
        mut is_answered: impl FnMut(Duration) -> Result<bool, GuestError>,
        is_unread: impl Fn() -> bool,
    ) -> Result<Frozen, GuestError> {
        let is_done = |freezer: &mut Freezer| {
            let is_answered = is_answered(LOOK_SOON)?;
            let is_settled = freezer.vcpus.iter().all(Thread::is_settled);
            if is_answered && !is_settled {
                freezer.signals.wait(LOOK_SOON);
            }
            Ok(is_answered && is_settled)
        };
        self.take_turns(is_done, is_unread, false)
    }

    /// Lets the main thread run, and the vCPUs where it waits for them, never both, until `is_done`, which is polled while the main thread
    /// runs. `is_unread` returns whether the vCPUs must not stop for it; they may run the guest meanwhile if `may_run`.
    fn take_turns(
        &mut self,
        mut is_done: impl FnMut(&mut Freezer) -> Result<bool, GuestError>,
        is_unread: impl Fn() -> bool,
        may_run: bool,
    ) -> Result<Frozen, GuestError> {
        let start_ns = monotonic_ns();
        let mut busy = Some(Busy::since(start_ns));
        let mut waited_at = None;
        let mut turn = Turn::default();
        loop {
            match turn {
                Turn::Vcpus => self.each(Thread::settle)?,
                _ => self.each(|vcpu| vcpu.look().map(drop))?,
            }
            attempt(&mut self.main, |main| main.look().map(drop))?;
            if turn == Turn::Main {
                // To stop it so that its code could be read took too long.
                attempt(&mut self.main, Thread::resume)?;
            }
            if turn == Turn::Main && is_done(self)? {
                return Ok(Frozen::Yes);
            }
            let main = self.main.doing();
            let seen = self.seen(main, waited_at.filter(|_| may_run));
            match turn.next(seen) {
                Act::ReleaseVcpus if is_unread() => return Ok(Frozen::Stopping),
                Act::ReleaseVcpus => {
                    waited_at = if let Call::Condition(word) = main { Some(word) } else { None };
                    attempt(&mut self.main, Thread::ask)?;
                    self.note_blocks();
                    self.each(Thread::release)?;
                    busy = None;
                }
                Act::ReleaseMain => {
                    match seen.vcpus_wait {
                        true => self.vcpus.iter_mut().for_each(|vcpu| vcpu.halt.note(vcpu.doing())),
                        false => busy = Some(Busy::since(monotonic_ns())),
                    }
                    self.each(Thread::ask)?;
                    attempt(&mut self.main, Thread::resume)?;
                }
                Act::Help => self.help(main, &mut busy)?,
                Act::Wait => self.signals.wait(LOOK_SOON),
            }
            if monotonic_ns() - start_ns > FROZEN_NS_MAX {
                self.displaced += 1;
                self.forget_blocks();
                return Ok(Frozen::Late);
            }
        }
    }

    /// Each vCPU is about to continue until the end of the block that it executes.
    fn note_blocks(&mut self) {
        for (vcpu, emulated) in self.vcpus.iter().zip(self.emulated.iter_mut().flatten()) {
            let state = || vcpu.tracee.registers().ok().map(|registers| arch::emulator_state(&registers));
            match vcpu.is_held() {
                true => emulated.stopped(self.pid, state),
                false => emulated.forget(),
            }
        }
    }

    fn forget_blocks(&mut self) {
        self.emulated.iter_mut().flatten().for_each(Emulated::forget);
    }

    /// An instruction of the block that a vCPU with these registers has executed last, if that is known. Call it in a hold.
    pub(super) fn block_before(&mut self, registers: &Registers) -> Option<u64> {
        self.emulated.iter_mut().flatten().find_map(|emulated| emulated.block(self.pid, registers))
    }

    /// `waited_at` is what the main thread waited at when it was held.
    fn seen(&self, main: Call, waited_at: Option<Word>) -> Seen {
        Seen {
            main_waits: matches!(main, Call::Condition(_)),
            main_is_held: self.main.is_held(),
            // Nothing shows that a thread was woken that is stopped: its wait ends by the stop. Who wakes it changes the word.
            main_is_woken: waited_at.is_some_and(|word| self.word(word.address) != word.value),
            vcpus_wait: self.vcpus.iter().all(|vcpu| vcpu.state == State::Ended || vcpu.waits()),
        }
    }

    /// Keeps them stopped until the main loop, which has a request to stop the VM, waits for them to stop by themselves, then resumes
    /// them. `is_answered` returns whether the main loop has handled the request.
    pub(super) fn stop(&mut self, mut is_answered: impl FnMut() -> Result<bool, GuestError>) -> Result<(), GuestError> {
        let start_ns = monotonic_ns();
        let mut busy = Some(Busy::since(start_ns));
        loop {
            self.each(|thread| thread.look().map(drop))?;
            let main = self.main.doing();
            if matches!(main, Call::Condition(_)) {
                self.note_blocks();
                return self.all(Thread::release);
            }
            let is_late = monotonic_ns() - start_ns > FROZEN_NS_MAX;
            if is_answered()? || is_late {
                self.displaced += u64::from(is_late);
                return self.go();
            }
            self.help(main, &mut busy)?;
            self.signals.wait(LOOK_EVERY);
        }
    }

    /// Resumes them. A thread that stops once more for us would keep the main loop waiting: call [`Freezer::settle`] while
    /// waiting for it.
    pub(super) fn go(&mut self) -> Result<(), GuestError> {
        self.forget_blocks();
        self.all(Thread::release)
    }

    /// Whether all vCPUs have nothing to do: each waits where it waits when it is stopped, and the main thread, which would stop them there, waits for
    /// events. A vCPU that waits for a lock, or for another vCPU, is elsewhere.
    pub(super) fn are_idle(&self) -> bool {
        self.vcpus.iter().all(|vcpu| vcpu.state == State::Running && vcpu.halt.is_at(vcpu.doing()))
            && self.main.doing() == Call::Idle
    }

    /// For how long the threads of the vCPUs have run on a CPU in all; `None` if that is not known of all of them.
    pub(super) fn ran_ns(&self) -> Option<u64> {
        self.vcpus.iter().map(|vcpu| vcpu.schedule.as_ref().and_then(ran_ns)).sum()
    }

    /// Passes on what has happened to threads that run.
    pub(super) fn settle(&mut self) -> Result<(), GuestError> {
        self.all(Thread::settle)
    }

    /// The thread that holds a lock, 0 if none does or it cannot be read.
    fn owner(&self, lock: u64) -> u32 {
        self.word(lock.wrapping_add(OWNER_OFFSET))
    }

    /// A word of the process, 0 if it cannot be read.
    fn word(&self, address: u64) -> u32 {
        let mut word = [0; 4];
        read_process(self.pid, address, &mut word);
        u32::from_ne_bytes(word)
    }

    /// Waits until none of them is about to stop for us: such a stop lasts until the next call here, and may keep a lock of QEMU.
    pub(super) fn come_to_rest(&mut self) -> Result<(), GuestError> {
        let start_ns = monotonic_ns();
        loop {
            self.settle()?;
            let is_settled = self.vcpus.iter().chain([&self.main]).all(Thread::is_settled);
            if is_settled || monotonic_ns() - start_ns > STOP_NS_MAX {
                return Ok(());
            }
            self.signals.wait(SLEEP_MAX);
        }
    }

    /// Waits until `until_ns`, and passes signals on.
    pub(super) fn rest(&mut self, until_ns: u64) -> Result<(), GuestError> {
        self.beside.follow(self.vcpus.iter().map(|vcpu| &vcpu.stat));
        loop {
            self.all(Thread::settle)?;
            let left_ns = until_ns.saturating_sub(monotonic_ns());
            if left_ns == 0 {
                return Ok(());
            }
            self.signals.wait(Duration::from_nanos(left_ns));
        }
    }

    /// Samples for which the guest continued before QEMU stopped it.
    pub(super) fn displaced(&self) -> u64 {
        self.displaced
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let start_ns = monotonic_ns();
        // The kernel resumes threads that do not stop in time when this thread ends.
        while self.vcpus.iter().chain([&self.main]).any(|thread| thread.state != State::Ended)
            && monotonic_ns() - start_ns < STOP_NS_MAX
            && self.all(Thread::detach).is_ok()
        {
            self.signals.wait(SLEEP_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_that_spin() {
        // pause; mov (%rdi), %eax; test %eax, %eax; jne.
        assert!(has_pause(&[0x66, 0x90, 0xf3, 0x90, 0x8b, 0x07, 0x85, 0xc0, 0x75, 0xf8]));
        assert!(!has_pause(&[0xf3, 0x0f, 0x90, 0x8b, 0x07, 0xf3]));
    }
}
