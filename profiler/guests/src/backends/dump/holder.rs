//! The process that stops a VM and copies its RAM. It parses nothing that the guest has written.
//!
//! While the VM stands it waits for nothing without a bound: a thread of its own writes, and if that makes no progress, the VM is released.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::copy::{self, Progress};
use super::elf::{Head, head};
use super::messages::{Outcome, Report};
use super::ram_only::RamOnly;
use super::stacks::Stacks;
use super::whole::{Stopped, WholeVm};
use super::{Task, system};
use crate::backends::Backend;
use crate::backends::gdbstub::QemuVm;
use crate::backends::kvm::KvmVm;
use crate::error::GuestError;
use crate::find::{self, Found};
use crate::memory::content::{self, Piece};
use crate::sys::{AWAKE_PERIOD, Packets, Received, leave_session, stay_awake};

/// How often the progress is reported, and the other end inspected.
const ROUND: Duration = Duration::from_millis(20);
/// How long the VM stands although nothing of it was copied: a disk that does not answer must not hold it.
const STALL_MAX: Duration = Duration::from_secs(10);
/// How long the last report may wait for room.
const REPORT_MAX: Duration = Duration::from_secs(10);
/// Threads that copy. More have not been faster with a file in the page cache.
const THREADS: usize = 2;

/// Dumps a VM into `file` for the process at the other end of `socket`. For a process of its own, whose standard input and output they
/// are: it leaves the terminal's session and ignores signals, and the kernel releases what it holds when it ends.
///
/// # Errors
/// `socket` is none that [`Dump`](super::Dump) has made, or the process cannot be kept awake. What is wrong with the VM or the file is
/// reported to the other end.
pub fn serve(socket: OwnedFd, file: OwnedFd, task: &Task) -> io::Result<()> {
    if !Packets::is_one(&socket) {
        return Err(io::Error::other("standard input is no socket of glass, which starts this by itself"));
    }
    leave_session(c"glass-holder");
    stay_awake(AWAKE_PERIOD)?;
    let link = Link { packets: Packets::of(socket) };
    let report = match dump(&link, File::from(file), task) {
        Ok(outcome) => Report::Done(outcome),
        Err(error) => Report::failed(&error),
    };
    link.finish(&report);
    Ok(())
}

/// The way to the other process.
struct Link {
    packets: Packets,
}

impl Link {
    /// Sends a report that may be lost.
    fn report(&self, report: &Report) {
        // If the other end is gone, the next look at it shows that.
        let _ = self.packets.send(&report.to_bytes());
    }

    /// Sends the last one. For when nothing is held.
    fn finish(&self, report: &Report) {
        let (start, message) = (Instant::now(), report.to_bytes());
        while matches!(self.packets.send(&message), Ok(false)) && start.elapsed() < REPORT_MAX {
            self.packets.wait(true, ROUND);
        }
    }

    /// Whether the other process wants no dump any more, or is gone.
    fn is_over(&self) -> bool {
        // It sends nothing.
        !matches!(self.packets.receive(&mut [0; 16]), Ok(Received::Nothing))
    }
}

fn dump(link: &Link, file: File, task: &Task) -> Result<Outcome, GuestError> {
    let vm = match find::by_pid(task.pid)? {
        Found::Vm(vm) => vm,
        Found::Process => return Err(GuestError::NoVcpu(task.pid)),
    };
    match task.backend {
        None => dump_whole(link, file, task, RamOnly::of(task.pid)?),
        Some(Backend::Kvm) => dump_whole(link, file, task, KvmVm::seize(task.pid, &[])?),
        Some(Backend::Gdbstub | Backend::Monitor) => dump_whole(link, file, task, QemuVm::find(&vm, &[])?),
    }
}

fn dump_whole(link: &Link, file: File, task: &Task, mut vm: impl WholeVm) -> Result<Outcome, GuestError> {
    let result = dump_attached(link, file, task, &mut vm);
    // Whatever the result, it runs.
    let left = vm.resume().and_then(|()| vm.leave());
    let outcome = result?;
    left?;
    Ok(outcome)
}

/// The file that a dump goes into, and what goes there.
struct Copy {
    file: File,
    pieces: Vec<Piece>,
    progress: Progress,
}

fn dump_attached(link: &Link, file: File, task: &Task, vm: &mut impl WholeVm) -> Result<Outcome, GuestError> {
    vm.prepare()?;
    let ram = vm.ram().ok_or(GuestError::NoRamFile(task.pid))?;
    let pieces = content::of(ram).map_err(|error| system("read the VM's RAM", error))?;
    let ranges: Vec<Range<u64>> = pieces.iter().map(|piece| piece.range.clone()).collect();
    let ram_bytes = pieces.iter().map(Piece::bytes).sum();
    vm.warnings().into_iter().for_each(|text| link.report(&Report::Warning(text)));

    let copy = Arc::new(Copy { file, pieces, progress: Progress::default() });
    let start = Instant::now();
    let mut stacks = Stacks::default();
    let (stopped, longest) = match task.is_live {
        true => vm.registers(&mut |ram, all| stacks.copy(ram, all))?,
        false => (vm.stop()?, Duration::ZERO),
    };
    warn(link, &stopped, task.is_live);
    let all: Vec<_> = stopped.vcpus.iter().filter_map(|(vcpu, all)| Some((*vcpu, (*all)?))).collect();
    let vcpus = (all.len() as u32, stopped.vcpus.len() as u32);
    let head = head(&all, &ranges).map_err(cannot_write)?;
    let notes = head.notes.clone();
    let done = start_copy(Arc::clone(&copy), head, stacks);
    let copied = Watch { link, progress: &copy.progress, done, ram_bytes }.run(|| match task.is_live {
        true => vm.pass(ROUND).map(|()| Duration::ZERO),
        false => Ok(ROUND),
    });
    let resumed = vm.resume();
    let stood = match task.is_live {
        true => longest,
        false if stopped.was_paused => Duration::ZERO,
        false => start.elapsed(),
    };
    copied?;
    resumed?;
    let written_bytes = copy.progress.written_bytes.load(Ordering::Relaxed);
    let unread_bytes = copy.progress.unread_bytes.load(Ordering::Relaxed);
    Ok(Outcome { vcpus, ram_bytes, written_bytes, unread_bytes, stood, notes })
}

fn cannot_write(error: io::Error) -> GuestError {
    system("write the dump", error)
}

/// Starts a thread that writes the head, all pieces, and over them the stacks of a live dump. Returns where its result arrives.
fn start_copy(copy: Arc<Copy>, head: Head, stacks: Stacks) -> Receiver<io::Result<()>> {
    let (sender, receiver) = channel();
    let work = move || {
        let Copy { file, pieces, progress } = &*copy;
        // An attempt by another backend may have left something.
        file.set_len(0)?;
        file.set_len(head.file_bytes)?;
        file.write_all_at(&head.bytes, 0)?;
        copy::copy(pieces, &head.offsets, file, THREADS, progress)?;
        stacks.write(pieces, &head.offsets, file)
    };
    // If it cannot be started, or fails without a result, the channel is closed.
    let _ = std::thread::Builder::new().name("copy".to_owned()).spawn(move || sender.send(work()));
    receiver
}

/// The copy, as the thread that holds the VM observes it.
struct Watch<'a> {
    link: &'a Link,
    progress: &'a Progress,
    done: Receiver<io::Result<()>>,
    ram_bytes: u64,
}

impl Watch<'_> {
    /// Waits until it ends, the other process wants no dump any more, or it has made no progress for too long. `rest` is called each round
    /// and returns how long to wait.
    fn run(&self, mut rest: impl FnMut() -> Result<Duration, GuestError>) -> Result<(), GuestError> {
        let (mut last_bytes, mut last) = (0, Instant::now());
        loop {
            let round = rest().inspect_err(|_| self.cancel())?;
            match self.done.recv_timeout(round) {
                Ok(result) => return result.map_err(cannot_write),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(cannot_write(io::Error::other("the thread that copies has failed")));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let done_bytes = self.progress.done_bytes.load(Ordering::Relaxed);
            if done_bytes != last_bytes {
                (last_bytes, last) = (done_bytes, Instant::now());
            }
            if self.link.is_over() {
                self.cancel();
                return Err(cannot_write(io::Error::other("it was interrupted")));
            }
            if last.elapsed() > STALL_MAX {
                self.cancel();
                let sentence =
                    format!("the disk has taken nothing for {} s, so the VM runs again", STALL_MAX.as_secs());
                return Err(cannot_write(io::Error::other(sentence)));
            }
            self.link.report(&Report::Progress { done_bytes, all_bytes: self.ram_bytes });
        }
    }

    fn cancel(&self) {
        self.progress.is_cancelled.store(true, Ordering::Relaxed);
    }
}

fn warn(link: &Link, stopped: &Stopped, is_live: bool) {
    let missing = stopped.vcpus.iter().filter(|(_, all)| all.is_none()).map(|(vcpu, _)| vcpu.to_string());
    let missing: Vec<String> = missing.collect();
    if !missing.is_empty() {
        let text = format!("the dump lacks the registers of vCPU {}: they cannot be read now", missing.join(", "));
        link.report(&Report::Warning(text));
    }
    if !stopped.is_complete && !is_live {
        let text = "not all vCPUs have stopped in time, so structures of the guest may be torn";
        link.report(&Report::Warning(text.to_owned()));
    }
}
