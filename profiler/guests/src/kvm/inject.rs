//! Reads registers by calls that a vCPU's stopped thread makes for us, `KVM_GET_REGS` and `KVM_GET_SREGS`: for
//! a KVM that does not share registers, or a shared page that cannot be mapped.
//!
//! The thread gets other registers, runs one `syscall` instruction that is already there, and gets its
//! own back; meanwhile it blocks all signals, and the result goes to its stack, below what a function
//! may use without moving the stack pointer. Unlike the shared page this is not safe at every moment:
//! if we are killed within these some 50 us, the thread resumes in a call that it did not make.

use std::io;
use std::time::Duration;

use libc::user_regs_struct;

use super::vcpu::{IOCTL, KVM_RUN, Thread, call_of};
use crate::arch::x86_64::CoreState;
use crate::arch::x86_64::kvm::{GENERAL_BYTES, SYSTEM_BYTES, parse_parts};
use crate::error::GuestError;
use crate::sys::{ChildSignals, Stop, monotonic_ns, read_process, write_process};

/// `KVM_GET_REGS` and `KVM_GET_SREGS` of `linux/kvm.h`.
const GET_GENERAL: u64 = 0x8090_ae81;
const GET_SYSTEM: u64 = 0x8138_ae83;
/// What a function may use below its stack pointer (System V ABI, x86-64).
const RED_ZONE_BYTES: u64 = 128;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const SYSCALL_BYTES: u64 = SYSCALL.len() as u64;
/// How long one call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Stops of the whole process that may come in between.
const OTHER_STOPS_MAX: u32 = 8;

/// The calls for one vCPU.
#[derive(Debug)]
pub(super) struct Injector {
    pid: u32,
    /// The vCPU's descriptor in the VMM.
    descriptor: i32,
    /// Address of a `syscall` instruction.
    syscall: Option<u64>,
}

/// Whether a thread is within a system call that the kernel restarts when it resumes.
fn is_restarted(registers: &user_regs_struct) -> bool {
    // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK of the kernel.
    registers.orig_rax != u64::MAX && matches!((registers.rax as i64).wrapping_neg(), 512 | 513 | 514 | 516)
}

/// Whether the thread's system calls are filtered: one that the filter forbids could end the VMM.
pub(super) fn is_filtered(pid: u32, thread: u32) -> bool {
    let status = std::fs::read(format!("/proc/{pid}/task/{thread}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_none_or(|mode| mode.trim() != "0")
}

fn failed(why: &str) -> GuestError {
    GuestError::Unsupported(format!("the VMM's thread cannot be made to read the registers of its vCPU: {why}"))
}

fn system(error: io::Error) -> GuestError {
    GuestError::System { action: "have the VMM's thread read registers".to_owned(), error }
}

impl Injector {
    pub(super) fn new(pid: u32, descriptor: i32) -> Injector {
        Injector { pid, descriptor, syscall: None }
    }

    /// The registers of the vCPU of a stopped thread. `Ok(None)` if it is within a system call that
    /// the kernel is about to restart, or part of a process that is stopped: calls of ours would
    /// change its next action.
    pub(super) fn registers(
        &mut self,
        thread: &mut Thread,
        signals: &ChildSignals,
    ) -> Result<Option<CoreState>, GuestError> {
        let Some((libc::SIGTRAP, saved)) = thread.held() else { return Ok(None) };
        if call_of(&saved).run_on.is_some() {
            self.learn(saved.rip.wrapping_sub(SYSCALL_BYTES))?;
        }
        let Some(syscall) = self.syscall.filter(|_| !is_restarted(&saved)) else { return Ok(None) };
        let scratch = saved.rsp.wrapping_sub(RED_ZONE_BYTES + SYSTEM_BYTES as u64) & !63;
        let mut stack = [0; SYSTEM_BYTES];
        if read_process(self.pid, scratch, &mut stack) < stack.len() {
            return Err(failed("its stack has no room"));
        }
        let mask = thread.tracee().blocked_signals().map_err(system)?;
        thread.tracee().block_signals(u64::MAX).map_err(system)?;
        let call = Call { injector: self, saved: &saved, syscall, scratch };
        let parts = call.read(thread, signals, GET_GENERAL).and_then(|general: [u8; GENERAL_BYTES]| {
            call.read(thread, signals, GET_SYSTEM).map(|system: [u8; SYSTEM_BYTES]| (general, system))
        });
        // Whatever the result, the thread's state is restored before it resumes.
        if !thread.has_ended() {
            write_process(self.pid, scratch, &stack);
            thread.tracee().set_registers(&saved).map_err(system)?;
            thread.tracee().block_signals(mask).map_err(system)?;
        }
        let Some((general, system)) = Some(parts?).filter(|_| !thread.has_ended()) else { return Ok(None) };
        Ok(Some(parse_parts(&general, &system)))
    }

    /// Records the address of a system call.
    fn learn(&mut self, address: u64) -> Result<(), GuestError> {
        if self.syscall == Some(address) {
            return Ok(());
        }
        let mut code = [0; SYSCALL.len()];
        if read_process(self.pid, address, &mut code) < code.len() || code != SYSCALL {
            return Err(failed("it has not entered KVM by the syscall instruction"));
        }
        self.syscall = Some(address);
        Ok(())
    }
}

/// One call.
struct Call<'a> {
    injector: &'a Injector,
    saved: &'a user_regs_struct,
    syscall: u64,
    scratch: u64,
}

impl Call<'_> {
    fn read<const BYTES: usize>(
        &self,
        thread: &mut Thread,
        signals: &ChildSignals,
        request: u64,
    ) -> Result<[u8; BYTES], GuestError> {
        debug_assert!(request != KVM_RUN);
        let registers = user_regs_struct {
            rip: self.syscall,
            rax: IOCTL,
            orig_rax: u64::MAX,
            rdi: self.injector.descriptor as u64,
            rsi: request,
            rdx: self.scratch,
            ..*self.saved
        };
        thread.tracee().set_registers(&registers).map_err(system)?;
        // Its entry and its exit.
        for _ in 0..2 {
            step(thread, signals)?;
        }
        let mut bytes = [0; BYTES];
        if thread.has_ended() {
            return Ok(bytes);
        }
        let result = thread.tracee().registers().map_err(system)?.rax as i64;
        if result != 0 {
            let error = io::Error::from_raw_os_error((-result).clamp(0, 4095) as i32);
            return Err(failed(&format!("KVM returns \"{error}\"")));
        }
        if read_process(self.injector.pid, self.scratch, &mut bytes) < BYTES {
            return Err(failed("its stack cannot be read"));
        }
        Ok(bytes)
    }
}

/// Resumes a thread up to the entry or the exit of a system call.
fn step(thread: &mut Thread, signals: &ChildSignals) -> Result<(), GuestError> {
    let start_ns = monotonic_ns();
    for _ in 0..OTHER_STOPS_MAX {
        thread.tracee().resume_to_call().map_err(system)?;
        let stop = loop {
            match thread.tracee().stop().map_err(system)? {
                Some(stop) => break stop,
                None if monotonic_ns() - start_ns < CALL_TIMEOUT.as_nanos() as u64 => {
                    signals.wait(Duration::from_micros(200));
                }
                None => return Err(failed("it does not come back from the kernel")),
            }
        };
        match stop {
            Stop::Call => return Ok(()),
            Stop::Ended => {
                thread.end();
                return Ok(());
            }
            // Only SIGSTOP cannot be blocked. The thread gets it when its state is restored.
            Stop::Signal(signal) | Stop::Event(signal) if signal != libc::SIGTRAP => thread.owe(signal),
            Stop::Signal(_) | Stop::Event(_) => {}
        }
    }
    Err(failed("it is stopped by others again and again"))
}
