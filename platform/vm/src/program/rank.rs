//! Runs a program's ranks, and prints what they write.

use super::calls::{Outcome, Process, SHARED};
use super::elf::Program;
use super::pages::Pages;
use super::stack::Start;
use super::{LARGE_PAGE_BYTES, Place, shared};
use crate::arch::ports::{load_page_tables, write_msr};
use crate::cores::this_core;
use crate::memory::{HeapTables, PAGE_TABLES};
use crate::paging::{AddressSpace, OutOfTables, PAGE_BYTES, Protection};
use crate::platform::{VmCore, VmPlatform};
use crate::{heap, random};
use alloc::alloc::{Layout, alloc};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::error::Error;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::ptr;
use core::sync::atomic::Ordering;
use core::task::Poll;
use core::time::Duration;
use glass_api::{Clock, Console, CoreHandle, Cores, Platform, Spawn};
use glass_lib_cores::{Receiver, Sender, channel};

/// Model-specific registers of `syscall` (AMD's manual, volume 2, section 6.1.1).
mod msr {
    pub const EFER: u32 = 0xc000_0080;
    pub const STAR: u32 = 0xc000_0081;
    pub const LSTAR: u32 = 0xc000_0082;
    pub const FMASK: u32 = 0xc000_0084;
}
/// What boot.s has set, and the bit that allows `syscall`.
const EFER: u64 = 0xd01;
/// Ring 0's segments; those for `sysret` are not used.
const STAR: u64 = 0x0020_0008 << 32;
/// Flags that are cleared: trap, interrupts, direction.
const FMASK: u64 = 0x700;
/// One part in so many of all memory stays the kernel's, and so much for each core at least.
const KERNEL_SHARE: u64 = 4;
const KERNEL_BYTES: u64 = 2 << 20;
/// Lines of a rank that wait for the first core.
const LINES_MAX: usize = 256;
/// How long ranks may take to report that another one has ended, before the VM ends.
const GRACE: Duration = Duration::from_secs(1);

unsafe extern "C" {
    fn glass_program_enter(entry: u64, stack: u64) -> u64;
    fn glass_program_leave(code: u64) -> !;
    static glass_system_call_entry: u8;
}

/// What a core needs to run a rank.
struct Rank {
    number: usize,
    file: &'static [u8],
    program: Program,
    place: Place,
    /// Its page tables.
    root: u64,
    arguments: Vec<String>,
    environment: Vec<String>,
    cpus: usize,
}

/// Runs the program in `file`, which starts at a page, as one rank on each core but the first; an error if one of them fails.
pub async fn run(platform: VmPlatform, file: &'static [u8]) -> Result<(), Box<dyn Error>> {
    assert!(file.as_ptr().addr().is_multiple_of(4096), "the program's pages are mapped where the image has them");
    let ranks = platform.cores() - 1;
    if ranks == 0 {
        return Err(
            "a C program needs a core more than it has ranks, for the devices: give the VM 2 cores or more".into()
        );
    }
    let program =
        Program::read(file).map_err(|error| format!("the program {error}: make it with `glass build --c`"))?;
    let (place, memory) = memory_of(&program, ranks)?;
    let cpus = platform.world.cpus.unwrap_or(ranks);
    let mut handles = Vec::new();
    let mut printers = Vec::new();
    for number in 0..ranks {
        let own = memory + number as u64 * (place.memory.end - place.memory.start);
        let root = page_tables(&program, &place, file, own)
            .map_err(|_| "the VM has too little memory for page tables: give it more")?;
        let mut arguments = Vec::from([String::from("program")]);
        arguments.extend_from_slice(platform.args());
        let environment = environment(number, ranks, &place, memory);
        let (sender, receiver) = channel(LINES_MAX);
        let (program, place) = (program.clone(), place.clone());
        let rank = Rank { number, file, program, place, root, arguments, environment, cpus };
        handles.push(Some(platform.spawn_on(number + 1, "rank", move |_core| async move { rank.run(sender) })?));
        let printer = platform.clone();
        printers.push(Some(platform.spawn("output of a rank", print(printer.world.core.clone(), receiver))?));
    }
    let failed = wait(&platform, &mut handles, &mut printers).await;
    failed.map_or(Ok(()), |reason| Err(reason.into()))
}

async fn print(core: VmCore, mut lines: Receiver<String>) {
    while let Some(line) = lines.recv().await {
        core.writable(line.len() + 1).await;
        core.print(format_args!("{line}"));
    }
}

/// Waits for all ranks; why the first that failed did. After that the others have a moment to end by themselves.
async fn wait(
    platform: &VmPlatform,
    handles: &mut [Option<CoreHandle<u8>>],
    printers: &mut [Option<impl Future + Unpin>],
) -> Option<String> {
    let mut failed: Option<(String, glass_api::Instant)> = None;
    while let Some(ended) = match &failed {
        None => next(handles).await,
        Some((_, end)) => platform.timeout(end.since(platform.now()), next(handles)).await.unwrap_or(None),
    } {
        let (rank, code) = ended;
        // Everything that it has written is printed before the end.
        if let Some(printer) = printers[rank].take() {
            printer.await;
        }
        let reason = match code {
            0 if !shared::is_inside(rank) => continue,
            0 => format!("rank {rank} ended without MPI_Finalize"),
            code => format!("rank {rank} ended with exit code {code}"),
        };
        shared::announce_end_of(rank, code.max(1));
        failed.get_or_insert((reason, platform.now() + GRACE));
    }
    failed.map(|(reason, _)| reason)
}

/// The next rank that ends, and its exit code; `None` when all have.
async fn next(handles: &mut [Option<CoreHandle<u8>>]) -> Option<(usize, u8)> {
    poll_fn(|context| {
        let mut are_all_gone = true;
        for (rank, slot) in handles.iter_mut().enumerate() {
            let Some(handle) = slot else { continue };
            are_all_gone = false;
            if let Poll::Ready(code) = Pin::new(handle).poll(context) {
                *slot = None;
                return Poll::Ready(Some((rank, code.unwrap_or(1))));
            }
        }
        if are_all_gone { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

/// Memory for all ranks: as much as the kernel can spare. Its address.
fn memory_of(program: &Program, ranks: usize) -> Result<(Place, u64), String> {
    let total = heap::total_bytes();
    let spare = total.saturating_sub((total / KERNEL_SHARE).max((ranks as u64 + 1) * KERNEL_BYTES));
    let mut bytes = spare / ranks as u64 / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
    while bytes > 0 {
        let Some(place) = Place::of(program, bytes) else { break };
        let all = (bytes * ranks as u64) as usize;
        if let Ok(layout) = Layout::from_size_align(all, LARGE_PAGE_BYTES as usize) {
            // SAFETY: the size is not zero. It is never freed.
            let memory = unsafe { alloc(layout) };
            if !memory.is_null() {
                return Ok((place, memory.expose_provenance() as u64));
            }
        }
        bytes -= LARGE_PAGE_BYTES;
    }
    Err(format!(
        "the VM has too little memory for {ranks} ranks: give it more, such as `--memory {}M`",
        64 * (ranks + 1)
    ))
}

/// Page tables for a rank whose memory is at `memory`. Their root.
fn page_tables(program: &Program, place: &Place, file: &[u8], memory: u64) -> Result<u64, OutOfTables> {
    // SAFETY: the root is opened by none but the CPU.
    let mut space = AddressSpace::new(unsafe { HeapTables::new() })?;
    let image = file.as_ptr().expose_provenance() as u64;
    for part in &program.constants {
        let protection = if part.is_executable { Protection::ReadExecute } else { Protection::Read };
        space.map_at(place.start + part.address, image + part.file.start, image + part.file.end, protection)?;
    }
    let bytes = place.memory.end - place.memory.start;
    space.map_at(place.memory.start, memory, memory + bytes, Protection::ReadWrite)?;
    space.unmap(place.guard)?;
    space.join(PAGE_TABLES.load(Ordering::Relaxed));
    Ok(space.root())
}

/// What `glass run --ranks` gives processes, and what only ranks of a VM have (docs/formats/mpi-ranks.md).
fn environment(rank: usize, ranks: usize, place: &Place, memory: u64) -> Vec<String> {
    let core = this_core();
    let bytes = place.memory.end - place.memory.start;
    Vec::from([
        format!("GLASS_MPI_RANK={rank}"),
        format!("GLASS_MPI_RANKS={ranks}"),
        format!("GLASS_MPI_FD={SHARED}"),
        format!("GLASS_MPI_MEMORY={}:{bytes}:{memory}", place.memory.start),
        format!("GLASS_MPI_CLOCK={}:{}", core.clock_origin.get(), core.clock_scale.get()),
    ])
}

/// Where the events of a program on this core go: into the core's ring, which the kernel writes only while the program does not run.
fn trace_of_this_core() -> Option<String> {
    let own = this_core().trace_memory.get().as_ptr().addr() as u64;
    let ring = glass_lib_trace::CONTROL
        .rings
        .iter()
        .position(|ring| ring.capacity.load(Ordering::Acquire) > 0 && ring.address.load(Ordering::Relaxed) == own)?;
    Some(format!("GLASS_MPI_TRACE={}:{ring}", (&raw const glass_lib_trace::CONTROL).expose_provenance()))
}

impl Rank {
    /// Runs the program on this core to its end; its exit code.
    fn run(mut self, printed: Sender<String>) -> u8 {
        self.environment.extend(trace_of_this_core());
        // SAFETY: the tables map all that the kernel's do, at the same addresses.
        unsafe { load_page_tables(self.root) };
        self.load();
        let mut random = [0; 16];
        random::fill(&mut random);
        let entry = self.place.start + self.program.entry;
        let start = Start {
            arguments: &self.arguments,
            environment: &self.environment,
            entry,
            headers: (self.place.start + self.program.headers, self.program.headers_count),
            random,
        };
        let (stack, content) = start.lay_out(self.place.memory.end);
        let has_space = stack > self.place.guard + (self.place.memory.end - self.place.guard) / 2;
        assert!(has_space, "the arguments need more than half of a rank's stack");
        let pages = Pages::new(self.place.heap.clone());
        let its_stack = self.place.guard + PAGE_BYTES..self.place.memory.end;
        let process = Process::new(self.number, self.place.start, its_stack, pages, self.cpus, printed);
        this_core().arch.program.replace(Some(process));
        // SAFETY: the end of the stack is mapped for this rank alone. The registers make `syscall` lead to program.s, whose code is
        // mapped in each address space, and the program runs on memory of its own until it leaves.
        let code = unsafe {
            ptr::copy_nonoverlapping(content.as_ptr(), stack as *mut u8, content.len());
            write_msr(msr::EFER, EFER);
            write_msr(msr::STAR, STAR);
            write_msr(msr::LSTAR, &raw const glass_system_call_entry as u64);
            write_msr(msr::FMASK, FMASK);
            glass_program_enter(entry, stack)
        };
        // The channel closes with it.
        this_core().arch.program.replace(None);
        // SAFETY: the kernel's own tables.
        unsafe { load_page_tables(PAGE_TABLES.load(Ordering::Relaxed)) };
        code as u8
    }

    /// Fills the pages of the program's data.
    fn load(&self) {
        let pages = &self.program.writable;
        let start = self.place.start;
        // SAFETY: the pages are mapped for this rank alone, and hold all of the data (`Program::read` has checked both).
        unsafe {
            ptr::write_bytes((start + pages.start) as *mut u8, 0, (pages.end - pages.start) as usize);
            for data in &self.program.data {
                let bytes = &self.file[data.file.start as usize..data.file.end as usize];
                ptr::copy_nonoverlapping(bytes.as_ptr(), (start + data.address) as *mut u8, bytes.len());
            }
        }
    }
}

/// The registers of a system call, as program.s has pushed them.
#[repr(C)]
pub struct Registers {
    rax: u64,
    r9: u64,
    r8: u64,
    r10: u64,
    rdx: u64,
    rsi: u64,
    rdi: u64,
}

/// program.s comes here at each system call; what it returns is the program's.
#[unsafe(no_mangle)]
extern "C" fn glass_system_call(registers: &Registers) -> u64 {
    let Registers { rax, r9, r8, r10, rdx, rsi, rdi } = *registers;
    let mut process = this_core().arch.program.borrow_mut();
    let running = process.as_mut().expect("only a rank's program makes system calls");
    match running.answer(rax, [rdi, rsi, rdx, r10, r8, r9]) {
        Outcome::Return(Ok(value)) => value,
        Outcome::Return(Err(errno)) => (errno as i64).wrapping_neg() as u64,
        Outcome::Exit(code) => {
            running.flush();
            drop(process);
            // SAFETY: the program was entered on this core, and nothing of its calls is in use any more.
            unsafe { glass_program_leave(code.into()) }
        }
    }
}
