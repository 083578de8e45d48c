//! The page faults of a copy, with the guest's registers and stack at each. KVM sees the guest's memory through a second mapping, which may not be used
//! at first: the first read of a page and the first write to it end KVM's run with an error, in front of the instruction that made it. That takes no
//! rights and no other process.
//!
//! KVM does not report which page it was. So the pages that the instruction may use are opened one after the other, until the guest continues: that of the
//! instruction, that of its operand, and those of the registers that instructions use without an operand.
//!
//! What KVM itself has to read and write to run the guest is opened before: page tables, descriptor tables, handlers and stacks of interrupts.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use glass_formats::page_fault::{PageFault, STACK_BYTES_MAX};
use kvm_bindings::{kvm_regs, kvm_sregs};
use kvm_ioctls::VcpuFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::time::{ClockId, clock_gettime};
use vm_memory::{
    Bytes as _, FileOffset, GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap, GuestMemoryRegion as _,
    GuestRegionMmap, MmapRegion,
};

use crate::x86_64::operand;
use crate::x86_64::snapshot::disk::copy_data;
use crate::x86_64::snapshot::pages::{ENTRY_BYTES, IS_THERE};
use crate::x86_64::snapshot::{RAM_OFFSET, Snapshot};
use crate::x86_64::{PAGE_BYTES, ranges, sys};

/// Pages of tables that a guest has, at most.
const TABLES_MAX: usize = 4096;
/// In an entry of a page table (Intel SDM, volume 3, section 5.5): it is there; it is a page and no table; its address.
const PRESENT: u64 = 1 << 0;
const IS_PAGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const LEVELS: u32 = 4;
/// Where the stack pointers of a task state segment are (section 9.7): of three privileges, and seven of interrupts.
const STACKS: [u64; 10] = [4, 12, 20, 36, 44, 52, 60, 68, 76, 84];
/// A gate of the table of interrupts (section 7.14.1).
const GATE_BYTES: usize = 16;
const GATE_PRESENT: u64 = 1 << 47;
/// The longest instruction, and the longest operand of one.
const INSTRUCTION_BYTES_MAX: usize = 15;
const OPERAND_BYTES_MAX: u64 = 64;

/// How far a page was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opened {
    No,
    Read,
    Written,
}

/// RAM of a copy as the VMM and as KVM see it.
pub struct Views {
    pub memory: GuestMemoryMmap,
    pub seen: GuestMemoryMmap,
}

impl Views {
    /// Copies the RAM of a snapshot.
    pub fn of(snapshot: &Snapshot) -> Result<Views> {
        let bytes = snapshot.state.memory_bytes;
        let ram = File::from(memfd_create("glass_ram", MemfdFlags::CLOEXEC).context("there is no memory")?);
        ftruncate(&ram, bytes).context("there is no memory")?;
        copy_data(&snapshot.file, RAM_OFFSET, bytes, &ram).context("cannot copy the RAM of the snapshot")?;
        let map = |protection| {
            let mut offset = 0;
            let mut regions = Vec::new();
            for (address, bytes) in ranges(bytes) {
                let file = FileOffset::new(ram.try_clone()?, offset);
                let region =
                    MmapRegion::build(Some(file), bytes as usize, protection, libc::MAP_SHARED | libc::MAP_NORESERVE);
                let region = region.context("there is no memory")?;
                regions.push(GuestRegionMmap::new(region, GuestAddress(address)).context("RAM has no end")?);
                offset += bytes;
            }
            GuestMemoryMmap::from_regions(regions).context("there is no memory")
        };
        Ok(Views { memory: map(libc::PROT_READ | libc::PROT_WRITE)?, seen: map(libc::PROT_NONE)? })
    }
}

/// The pages of a guest, and who is sent its faults.
pub struct Faults {
    views: Views,
    /// By their numbers in RAM.
    pages: Vec<Opened>,
    /// The address of the guest's page tables, of which it has one set.
    tables: u64,
    client: UnixStream,
    /// Which pages of this process are there.
    table: File,
    trial: Option<Trial>,
}

/// An instruction that did not run.
struct Trial {
    /// Of the guest in front of it.
    registers: kvm_regs,
    /// As it is sent, but for the page.
    fault: PageFault,
    stack: Vec<u8>,
    /// The page that was opened last, how, and how it was before.
    open: (u64, Opened),
    before: Opened,
    /// Addresses in pages that it may use, the likeliest last.
    left: Vec<(u64, Opened)>,
}

impl Faults {
    /// Sends the faults of a processor with these registers to who listens at `path`.
    pub fn connect(path: &Path, views: Views, system: &kvm_sregs, registers: &kvm_regs) -> Result<Faults> {
        let client = UnixStream::connect(path).context("nothing listens for page faults")?;
        let bytes: u64 = views.memory.iter().map(|region| region.len()).sum();
        let pages = vec![Opened::No; (bytes / PAGE_BYTES) as usize];
        let table = File::open("/proc/self/pagemap").context("the process has no table of its pages")?;
        let tables = system.cr3 & ADDRESS;
        let mut faults = Faults { views, pages, tables, client, table, trial: None };
        let tables = faults.page_tables()?;
        tables.iter().try_for_each(|table| faults.open(*table, Opened::Written))?;
        for (start, bytes) in [
            (system.gdt.base, u64::from(system.gdt.limit) + 1),
            (system.idt.base, u64::from(system.idt.limit) + 1),
            (system.tr.base, u64::from(system.tr.limit) + 1),
            (registers.rsp, 1),
            (registers.rip, 1),
        ] {
            faults.open_range(start, bytes)?;
        }
        // The first instructions of handlers, which KVM decodes where ring 0 is emulated.
        let last = system.idt.base.saturating_add(u64::from(system.idt.limit));
        for gate in (system.idt.base..=last).step_by(GATE_BYTES) {
            if let Some(handler) = faults.handler(gate) {
                faults.open_range(handler, 1)?;
            }
        }
        for at in STACKS {
            let stack = faults
                .address(system.tr.base.wrapping_add(at))
                .and_then(|at| faults.views.memory.read_obj(GuestAddress(at)).ok());
            if let Some(stack) = stack.filter(|stack: &u64| *stack > 0) {
                faults.open_range(stack - 1, 1)?;
            }
        }
        let before = faults.pages.iter().filter(|page| **page != Opened::No).count();
        // To find the clock takes a system call that the jail forbids.
        now_ns();
        faults.client.write_all(&(before as u64).to_le_bytes()).context("nothing listens for page faults")?;
        Ok(faults)
    }

    /// The addresses of all page tables.
    fn page_tables(&self) -> Result<Vec<u64>> {
        let mut found = vec![self.tables];
        let mut above = vec![self.tables];
        for _ in 1..LEVELS {
            let mut below = Vec::new();
            for table in above {
                for index in 0..PAGE_BYTES / 8 {
                    let entry = self.views.memory.read_obj::<u64>(GuestAddress(table + index * 8)).unwrap_or(0);
                    if entry & PRESENT != 0 && entry & IS_PAGE == 0 && !found.contains(&(entry & ADDRESS)) {
                        found.push(entry & ADDRESS);
                        below.push(entry & ADDRESS);
                        ensure!(found.len() <= TABLES_MAX, "the guest has more than {TABLES_MAX} page tables");
                    }
                }
            }
            above = below;
        }
        Ok(found)
    }

    /// The physical address of a linear one; `None` if the guest has not mapped it.
    fn address(&self, linear: u64) -> Option<u64> {
        let mut table = self.tables;
        for level in (0..LEVELS).rev() {
            let shift = 12 + 9 * level;
            let index = linear >> shift & 0x1ff;
            let entry = self.views.memory.read_obj::<u64>(GuestAddress(table + index * 8)).ok()?;
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 0 || entry & IS_PAGE != 0 {
                let inside = (1 << shift) - 1;
                return Some(entry & ADDRESS & !inside | linear & inside);
            }
            table = entry & ADDRESS;
        }
        None
    }

    /// Where the handler of an interrupt begins, of the gate at a linear address; `None` if there is none.
    fn handler(&self, gate: u64) -> Option<u64> {
        let [low, high] = self.views.memory.read_obj::<[u64; 2]>(GuestAddress(self.address(gate)?)).ok()?;
        let is_there = low & GATE_PRESENT != 0;
        is_there.then_some(low & 0xffff | low >> 32 & 0xffff_0000 | high << 32)
    }

    /// Opens what is mapped of a range of linear addresses.
    fn open_range(&mut self, start: u64, bytes: u64) -> Result<()> {
        let mut at = start & !(PAGE_BYTES - 1);
        while at < start.saturating_add(bytes) {
            if let Some(address) = self.address(at) {
                self.open(address, Opened::Written)?;
            }
            let Some(next) = at.checked_add(PAGE_BYTES) else { break };
            at = next;
        }
        Ok(())
    }

    /// Whether an address is in RAM.
    pub fn has(&self, address: u64) -> bool {
        self.views.memory.address_in_range(GuestAddress(address))
    }

    /// How far the page at an address was opened; `None` if it is not in RAM.
    fn page(&mut self, address: u64) -> Option<&mut Opened> {
        let mut before = 0;
        for region in self.views.memory.iter() {
            if let Some(inside) = address.checked_sub(region.start_addr().0).filter(|inside| *inside < region.len()) {
                return self.pages.get_mut(((before + inside) / PAGE_BYTES) as usize);
            }
            before += region.len();
        }
        None
    }

    fn open(&mut self, address: u64, how: Opened) -> Result<()> {
        match self.page(address).filter(|page| **page != Opened::Written) {
            Some(page) => *page = how,
            None => return Ok(()),
        }
        self.protect(address, how)
    }

    fn protect(&self, address: u64, how: Opened) -> Result<()> {
        let (is_read, is_written) = (how != Opened::No, how == Opened::Written);
        sys::protect_page(&self.views.seen, GuestAddress(address), is_read, is_written)
    }

    fn close(&mut self, address: u64, how: Opened) -> Result<()> {
        if let Some(page) = self.page(address) {
            *page = how;
        }
        self.protect(address, how)
    }

    /// KVM could not run the guest, since `start_ns`: opens the next page that may be the reason.
    ///
    /// # Errors
    /// There is none, or nothing receives faults any more.
    pub fn not_run(&mut self, processor: &VcpuFd, start_ns: u64) -> Result<()> {
        let registers = processor.get_regs().context("KVM has no registers")?;
        let mut trial = match self.trial.take() {
            Some(trial) if trial.registers == registers => self.tried(trial)?,
            other => {
                self.trial = other;
                self.went_on()?;
                let mut stack = vec![0; STACK_BYTES_MAX];
                let bytes = self.read(registers.rsp, &mut stack);
                stack.truncate(bytes);
                let left = self.may_use(&registers, processor)?;
                Trial {
                    registers,
                    fault: fault(&registers, start_ns, bytes),
                    stack,
                    open: (0, Opened::No),
                    before: Opened::No,
                    left,
                }
            }
        };
        while let Some((address, how)) = trial.left.pop() {
            let before = self.page(address).copied().unwrap_or(Opened::Written);
            let is_next = before == Opened::No || (before == Opened::Read && how == Opened::Written);
            if is_next {
                self.open(address, how)?;
                (trial.open, trial.before) = ((address, how), before);
                trial.fault.paused_ns += now_ns().saturating_sub(start_ns);
                self.trial = Some(trial);
                return Ok(());
            }
        }
        bail!(
            "KVM cannot run the guest's instruction at {:#x}, or it uses memory in a way that is not known here; take --faults away",
            registers.rip
        )
    }

    /// The instruction still does not run: the page that was opened last is needed if KVM has used it.
    fn tried(&mut self, trial: Trial) -> Result<Trial> {
        let (address, _) = trial.open;
        match trial.before {
            Opened::No if self.is_there(address)? => self.send(&trial)?,
            before => self.close(address, before)?,
        }
        Ok(trial)
    }

    /// The guest has gone on, so the page that was opened last was the one.
    pub fn went_on(&mut self) -> Result<()> {
        self.trial.take().map_or(Ok(()), |trial| self.send(&trial))
    }

    /// Whether KVM has used the page of this address.
    fn is_there(&self, address: u64) -> Result<bool> {
        let page = self.views.seen.get_host_address(GuestAddress(address)).context("the page is not in RAM")?;
        let mut entry = [0; 8];
        self.table
            .read_exact_at(&mut entry, page.addr() as u64 / PAGE_BYTES * ENTRY_BYTES)
            .context("there is no table of pages")?;
        Ok(u64::from_le_bytes(entry) & IS_THERE != 0)
    }

    /// The pages that the next instruction may use, the likeliest last.
    fn may_use(&self, registers: &kvm_regs, processor: &VcpuFd) -> Result<Vec<(u64, Opened)>> {
        let mut code = [0; INSTRUCTION_BYTES_MAX];
        let bytes = self.read(registers.rip, &mut code);
        let operands = operand::addresses(&code[..bytes], registers, || {
            let system = processor.get_sregs().ok()?;
            Some([system.fs.base, system.gs.base])
        });
        // Of stacks, strings, and the end of what begins in front of a page.
        let kvm_regs { rsp, rsi, rdi, rip, .. } = *registers;
        let implied = [rsp.wrapping_sub(8), rsp, rdi, rsi];
        let with_ends = |address: u64| [address, address.wrapping_add(OPERAND_BYTES_MAX - 1)];
        let used = operands.into_iter().chain(implied).flat_map(with_ends);
        let of_code = [rip, rip.wrapping_add(INSTRUCTION_BYTES_MAX as u64 - 1)];
        let reads = of_code.map(|address| (address, Opened::Read));
        let ordered =
            reads.into_iter().chain(used.flat_map(|address| [(address, Opened::Read), (address, Opened::Written)]));
        let physical = ordered.filter_map(|(linear, how)| Some((self.address(linear)?, how)));
        let mut physical: Vec<_> = physical.collect();
        physical.reverse();
        Ok(physical)
    }

    fn send(&mut self, trial: &Trial) -> Result<()> {
        let (address, how) = trial.open;
        let fault = PageFault { address: address & !(PAGE_BYTES - 1), is_write: how == Opened::Written, ..trial.fault };
        self.client
            .write_all(&[&fault.to_bytes()[..], &trial.stack].concat())
            .context("nothing receives page faults any more")
    }

    /// KVM has decoded an instruction that uses the page of this address, and was not allowed to.
    pub fn reached(&mut self, processor: &VcpuFd, address: u64, is_write: bool, start_ns: u64) -> Result<()> {
        let how = if is_write { Opened::Written } else { Opened::Read };
        let is_new = self.page(address).is_some_and(|page| *page == Opened::No || (is_write && *page == Opened::Read));
        if is_new {
            self.open(address, how)?;
            let registers = processor.get_regs().context("KVM has no registers")?;
            let mut stack = vec![0; STACK_BYTES_MAX];
            let bytes = self.read(registers.rsp, &mut stack);
            stack.truncate(bytes);
            let fault = fault(&registers, start_ns, bytes);
            self.send(&Trial { registers, fault, stack, open: (address, how), before: how, left: Vec::new() })?;
        }
        Ok(())
    }

    /// Copies from a linear address on; returns how much is mapped.
    fn read(&self, start: u64, into: &mut [u8]) -> usize {
        let mut copied = 0;
        while copied < into.len() {
            let linear = start.wrapping_add(copied as u64);
            let Some(address) = self.address(linear) else { break };
            let count = (into.len() - copied).min((PAGE_BYTES - linear % PAGE_BYTES) as usize);
            if self.views.memory.read_slice(&mut into[copied..copied + count], GuestAddress(address)).is_err() {
                break;
            }
            copied += count;
        }
        copied
    }

    /// Reads and writes RAM for an instruction that KVM has decoded.
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.views.memory
    }
}

/// What is sent of a fault with these registers, but for its page.
fn fault(registers: &kvm_regs, time_ns: u64, stack_bytes: usize) -> PageFault {
    let kvm_regs { rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rip, .. } = *registers;
    // In the order of DWARF.
    let general = [rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15];
    PageFault { time_ns, rip, general, stack_bytes: stack_bytes as u64, ..PageFault::default() }
}

/// `CLOCK_MONOTONIC`, as samples have it.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
