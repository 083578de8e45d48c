//! The system calls of Linux that a static C library makes, as far as programs here need them.
//!
//! Programs and the kernel share ring 3, so an address that is not mapped is a crash, not `EFAULT`.

use super::output::Line;
use super::pages::Pages;
use super::shared;
use crate::arch::apic;
use crate::interrupts::Wake;
use crate::{clock, cores::this_core, random, wall};
use alloc::string::String;
use core::ops::Range;
use core::ptr;
use core::slice;
use core::time::Duration;
use glass_api::Instant;
use glass_formats::Activity;
use glass_lib_cores::Sender;
use glass_lib_executor::sync::TrySendError;

/// Numbers of system calls (Linux, arch/x86/entry/syscalls/syscall_64.tbl).
mod number {
    pub const READ: u64 = 0;
    pub const WRITE: u64 = 1;
    pub const OPEN: u64 = 2;
    pub const CLOSE: u64 = 3;
    pub const LSEEK: u64 = 8;
    pub const MMAP: u64 = 9;
    pub const MPROTECT: u64 = 10;
    pub const MUNMAP: u64 = 11;
    pub const BRK: u64 = 12;
    pub const RT_SIGACTION: u64 = 13;
    pub const RT_SIGPROCMASK: u64 = 14;
    pub const IOCTL: u64 = 16;
    pub const WRITEV: u64 = 20;
    pub const SCHED_YIELD: u64 = 24;
    pub const MADVISE: u64 = 28;
    pub const NANOSLEEP: u64 = 35;
    pub const GETPID: u64 = 39;
    pub const CLONE: u64 = 56;
    pub const EXIT: u64 = 60;
    pub const KILL: u64 = 62;
    pub const UNAME: u64 = 63;
    pub const FTRUNCATE: u64 = 77;
    pub const ARCH_PRCTL: u64 = 158;
    pub const GETTID: u64 = 186;
    pub const TKILL: u64 = 200;
    pub const SCHED_SETAFFINITY: u64 = 203;
    pub const SCHED_GETAFFINITY: u64 = 204;
    pub const SET_TID_ADDRESS: u64 = 218;
    pub const CLOCK_GETTIME: u64 = 228;
    pub const CLOCK_NANOSLEEP: u64 = 230;
    pub const EXIT_GROUP: u64 = 231;
    pub const TGKILL: u64 = 234;
    pub const OPENAT: u64 = 257;
    pub const GETRANDOM: u64 = 318;
    /// Above every number.
    pub const END: u64 = 512;
}

/// What a call returns when it fails (Linux, include/uapi/asm-generic/errno.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i64)]
pub enum Errno {
    NoEntry = 2,
    BadDescriptor = 9,
    Again = 11,
    NoMemory = 12,
    Invalid = 22,
    NoTerminal = 25,
    NoSeek = 29,
    NoSystemCall = 38,
}

/// What becomes of a program's call.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It continues with this result.
    Return(Result<u64, Errno>),
    /// It ends with this exit code.
    Exit(u8),
}

const STANDARD_INPUT: u64 = 0;
const STANDARD_OUTPUT: u64 = 1;
const STANDARD_ERROR: u64 = 2;
/// The descriptor of the memory that all ranks share.
pub const SHARED: u64 = 3;
/// How long `sched_yield` halts: long enough that the host gives the core to another rank. A halt of 1 us does not (a barrier of 4 ranks on 2
/// cores of the host takes three of its time slices, 9 ms), one of 20 us does sometimes.
const YIELD: Duration = Duration::from_micros(50);
/// Between two attempts to give the first core a line.
const OUTPUT_WAIT: Duration = Duration::from_micros(200);
const ARCH_SET_FS: u64 = 0x1002;
const MSR_FS_BASE: u32 = 0xc000_0100;
const CLOCK_REALTIME: u64 = 0;
const TIMER_ABSTIME: u64 = 1;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
/// Pieces of `writev` at most (Linux, UIO_MAXIOV).
const PIECES_MAX: u64 = 1024;

/// The program on one core, as its system calls need it.
pub struct Process {
    /// Its number.
    pub rank: usize,
    /// Where its file is, and its stack, for the report of a crash.
    pub start: u64,
    pub stack: Range<u64>,
    /// Free pages of its memory.
    pub pages: Pages,
    /// Processors of the host, which the program may take for its own.
    pub cpus: usize,
    /// Lines on their way to the first core.
    pub printed: Sender<String>,
    /// What was written to standard output and standard error behind the last end of a line.
    pub lines: [Line; 2],
    /// Calls that were reported as unknown, a bit each.
    unknown: [u64; number::END as usize / 64],
}

impl Process {
    /// Rank `rank`, whose file is at `start`.
    pub fn new(
        rank: usize,
        start: u64,
        stack: Range<u64>,
        pages: Pages,
        cpus: usize,
        printed: Sender<String>,
    ) -> Process {
        let unknown = [0; number::END as usize / 64];
        Process { rank, start, stack, pages, cpus, printed, lines: [Line::default(), Line::default()], unknown }
    }

    /// Answers call `number`.
    pub fn answer(&mut self, number: u64, arguments: [u64; 6]) -> Outcome {
        use number::*;
        let [first, second, third, _, fifth, _] = arguments;
        let result = match number {
            EXIT | EXIT_GROUP => return Outcome::Exit(first as u8),
            // What a shell makes of an end by a signal.
            KILL | TKILL if second < 64 => return Outcome::Exit(128 + second as u8),
            TGKILL if third < 64 => return Outcome::Exit(128 + third as u8),
            WRITE => self.write(first, second..second.wrapping_add(third)),
            WRITEV => self.write_pieces(first, second, third),
            READ if first == STANDARD_INPUT => Ok(0),
            READ => Err(Errno::BadDescriptor),
            OPEN | OPENAT => Err(Errno::NoEntry),
            LSEEK => Err(Errno::NoSeek),
            IOCTL => Err(Errno::NoTerminal),
            MMAP => self.map(second, arguments[3], fifth),
            MUNMAP => {
                self.pages.give(first..first.saturating_add(second));
                Ok(0)
            }
            // The heap grows by `mmap` alone: the end of the data stays where it is.
            BRK => Ok(0),
            CLOSE | MPROTECT | MADVISE | RT_SIGACTION | RT_SIGPROCMASK | SCHED_SETAFFINITY => Ok(0),
            SCHED_YIELD => {
                halt_until(clock::now() + YIELD);
                Ok(0)
            }
            NANOSLEEP => self.sleep(0, first),
            CLOCK_NANOSLEEP => self.sleep(second & TIMER_ABSTIME, third),
            CLOCK_GETTIME => read_clock(first, second),
            GETPID | GETTID | SET_TID_ADDRESS => Ok(self.rank as u64 + 1),
            CLONE => Err(Errno::Again),
            UNAME => name_machine(first),
            FTRUNCATE if first == SHARED => shared::make(second).ok_or(Errno::NoMemory).map(|()| 0),
            ARCH_PRCTL if first == ARCH_SET_FS => {
                // SAFETY: the kernel does not use FS.
                unsafe { crate::arch::ports::write_msr(MSR_FS_BASE, second) };
                Ok(0)
            }
            SCHED_GETAFFINITY => self.affinity(second, third),
            GETRANDOM => fill_random(first, second),
            _ => Err(self.report_unknown(number)),
        };
        Outcome::Return(result)
    }

    fn write(&mut self, descriptor: u64, bytes: Range<u64>) -> Result<u64, Errno> {
        let line = match descriptor {
            STANDARD_OUTPUT => 0,
            STANDARD_ERROR => 1,
            _ => return Err(Errno::BadDescriptor),
        };
        let length = bytes.end.checked_sub(bytes.start).ok_or(Errno::Invalid)?;
        if length == 0 {
            return Ok(0);
        }
        // SAFETY: the program passes memory of its own, and does not run meanwhile.
        let bytes = unsafe { slice::from_raw_parts(bytes.start as *const u8, length as usize) };
        let Process { lines, printed, .. } = self;
        lines[line].add(bytes, |text| send(printed, text));
        Ok(length)
    }

    fn write_pieces(&mut self, descriptor: u64, pieces: u64, count: u64) -> Result<u64, Errno> {
        if count > PIECES_MAX {
            return Err(Errno::Invalid);
        }
        let mut written = 0;
        for index in 0..count {
            // SAFETY: the program passes a table of so many addresses and lengths.
            let [start, length] = unsafe { ptr::read_unaligned((pieces + index * 16) as *const [u64; 2]) };
            written += self.write(descriptor, start..start.wrapping_add(length))?;
        }
        Ok(written)
    }

    /// Prints what has no end of a line, before the program ends.
    pub fn flush(&mut self) {
        let Process { lines, printed, .. } = self;
        lines.iter_mut().for_each(|line| line.flush(|text| send(printed, text)));
    }

    /// Memory without a name, filled with zeros, or the memory that all ranks share.
    fn map(&mut self, bytes: u64, flags: u64, descriptor: u64) -> Result<u64, Errno> {
        if flags & MAP_FIXED != 0 {
            return Err(Errno::Invalid);
        }
        if flags & MAP_ANONYMOUS == 0 {
            let shared = if descriptor == SHARED { shared::memory() } else { return Err(Errno::BadDescriptor) };
            let memory = shared.filter(|memory| bytes <= memory.len() as u64 * 4).ok_or(Errno::Invalid)?;
            return Ok(memory.as_ptr().expose_provenance() as u64);
        }
        let taken = self.pages.take(bytes).ok_or(Errno::NoMemory)?;
        // SAFETY: the pages are mapped, and none of the program's allocations is there.
        unsafe { ptr::write_bytes(taken.start as *mut u8, 0, (taken.end - taken.start) as usize) };
        Ok(taken.start)
    }

    /// Sleeps for the time at `wanted`, or until it.
    fn sleep(&mut self, is_absolute: u64, wanted: u64) -> Result<u64, Errno> {
        // SAFETY: the program passes two numbers: seconds and nanoseconds.
        let [seconds, ns] = unsafe { ptr::read_unaligned(wanted as *const [u64; 2]) };
        if ns >= 1_000_000_000 {
            return Err(Errno::Invalid);
        }
        let ns = seconds.saturating_mul(1_000_000_000).saturating_add(ns);
        halt_until(if is_absolute != 0 { Instant(ns) } else { Instant(clock::now().0.saturating_add(ns)) });
        Ok(0)
    }

    fn affinity(&self, bytes: u64, mask: u64) -> Result<u64, Errno> {
        if bytes < 8 {
            return Err(Errno::Invalid);
        }
        let cpus = u64::MAX >> (64 - self.cpus.clamp(1, 64));
        // SAFETY: the program passes room for so many bytes.
        unsafe { ptr::write_unaligned(mask as *mut u64, cpus) };
        Ok(8)
    }

    #[cold]
    fn report_unknown(&mut self, number: u64) -> Errno {
        let is_new = number < number::END && {
            let (word, bit) = (&mut self.unknown[number as usize / 64], 1 << (number % 64));
            let is_new = *word & bit == 0;
            *word |= bit;
            is_new
        };
        if is_new {
            let rank = self.rank;
            send(
                &mut self.printed,
                alloc::format!("rank {rank} made system call {number}, which is not there in a VM"),
            );
        }
        Errno::NoSystemCall
    }
}

/// Gives the first core a line, and waits while it has too many already.
fn send(to: &mut Sender<String>, mut line: String) {
    while let Err(TrySendError::Full(back)) = to.try_send(line) {
        line = back;
        halt_until(clock::now() + OUTPUT_WAIT);
    }
}

/// Halts this core until `deadline`. Others may ring before; what they want is done when the program has ended.
pub fn halt_until(deadline: Instant) {
    let state = this_core().state();
    state.set_activity(Activity::Idle);
    while clock::now() < deadline {
        if let Wake::Interrupt(_) = apic::idle(Some(deadline)) {
            apic::end_of_interrupt();
        }
    }
    state.set_activity(Activity::Running);
}

fn read_clock(which: u64, into: u64) -> Result<u64, Errno> {
    let ns = match which {
        CLOCK_REALTIME => wall::now().map_or(clock::now().0, |time| time.since_epoch.as_nanos() as u64),
        _ => clock::now().0,
    };
    // SAFETY: the program passes room for two numbers.
    unsafe { ptr::write_unaligned(into as *mut [u64; 2], [ns / 1_000_000_000, ns % 1_000_000_000]) };
    Ok(0)
}

/// Six fields of 65 bytes (Linux, struct new_utsname).
fn name_machine(into: u64) -> Result<u64, Errno> {
    const FIELD: usize = 65;
    let mut names = [0; 6 * FIELD];
    for (index, name) in ["Linux", "glasshouse", "0", "0", "x86_64", ""].iter().enumerate() {
        names[index * FIELD..index * FIELD + name.len()].copy_from_slice(name.as_bytes());
    }
    // SAFETY: the program passes room for them.
    unsafe { ptr::copy_nonoverlapping(names.as_ptr(), into as *mut u8, names.len()) };
    Ok(0)
}

fn fill_random(into: u64, bytes: u64) -> Result<u64, Errno> {
    if bytes > 0 {
        // SAFETY: the program passes room for so many bytes.
        random::fill(unsafe { slice::from_raw_parts_mut(into as *mut u8, bytes as usize) });
    }
    Ok(bytes)
}
