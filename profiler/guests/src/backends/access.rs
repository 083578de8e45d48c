//! A VM that is attached to, and what it runs.
//!
//! A backend implements [`VmAccess`] and [`Guest`]: it stops vCPUs, reads their registers, and copies what a [`CopyPlan`] names. What
//! the VM runs is found out on the other side of the trait, by [`VmImage`], while the VM runs; so the backend parses nothing, and both
//! sides may be in two processes ([`remote`](crate::backends::remote)).

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use glass_profiler_core::arch::Paging;
use glass_profiler_core::event::Event;

use crate::arch::CoreState;
use crate::error::GuestError;
use crate::memory::Machine;
use crate::systems::image::{VmImage, is_about_symbols};
use crate::systems::linux::{Followed, Replan};
use crate::systems::plan::CopyPlan;
use crate::{Attempt, Counts, Flow, Guest, Source, Taken};

/// How often a vCPU is looked at until its kernel is found. A guest that has only just been started may not have its page tables yet, and one
/// that ends the process in whose address space its kernel is read removes them.
const ATTEMPTS_MAX: u32 = 20;
/// The same of other errors, which are of the moment only if the address space was just removed.
const CHECKS_MAX: u32 = 2;
/// How long after an attempt the next one is made.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(7);

/// From where memory is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// Which of the memories that may be the VM's RAM.
    pub(crate) memory: usize,
    /// The position of a vCPU whose registers `paging` was in.
    pub(crate) vcpu: usize,
    /// What selects the address space.
    pub(crate) paging: Paging,
}

/// A VM that is attached to, whatever it runs. vCPUs are named by their positions among those that are sampled.
pub trait VmAccess {
    /// The numbers of the vCPUs that are sampled. They may be known from [`begin`](VmAccess::begin) on.
    fn vcpus(&self) -> Vec<u32>;

    /// The threads of this machine that run them, in the same order; none if they are not known.
    fn threads(&self) -> Vec<u32> {
        Vec::new()
    }

    /// The registers of a vCPU, which is stopped for them for a moment; `None` if it has none now.
    fn state(&mut self, vcpu: usize) -> Result<Option<CoreState>, GuestError>;

    /// How many memories may be the RAM, the likeliest first; 0 if the RAM is known.
    fn memories(&self) -> usize {
        0
    }

    /// Copies from a virtual address; returns how much there was. The VM runs meanwhile, if its RAM can be read then.
    fn read(&mut self, view: View, address: u64, into: &mut [u8]) -> Result<usize, GuestError>;

    /// Takes one of the memories as the RAM.
    fn choose_memory(&mut self, _memory: usize) -> Result<(), GuestError> {
        Ok(())
    }

    /// Sets what samples copy.
    fn set_plan(&mut self, plan: CopyPlan) -> Result<(), GuestError>;

    /// Where to connect to the VM stops it, connects, and takes the first sample in that stop, by the plan that is set. Returns since when the VM is
    /// sampled then, on the clock of samples. What needs no vCPU is done before.
    fn begin(&mut self) -> Result<Option<u64>, GuestError> {
        Ok(None)
    }

    /// Lets some time pass, in which the VM is looked after.
    fn wait(&mut self, time: Duration) -> Result<(), GuestError>;

    /// Detaches before the first sample.
    fn give_up(&mut self);
}

/// What was found in memory: which of several it is, and a warning if that is not sure.
type Choice = (usize, Option<String>);

/// An attached VM and what it runs.
pub struct KnownVm<V> {
    vm: V,
    image: VmImage,
    warnings: Vec<String>,
}

impl<V: VmAccess> KnownVm<V> {
    /// Finds what a VM runs, and has its samples be made by that. Detaches if it runs something else. `memories` are those that may be the RAM, as
    /// far as this process can read them by itself, in the order of [`VmAccess::memories`].
    pub(crate) fn of(vm: V, image: VmImage, memories: &[Arc<dyn Machine>]) -> Result<KnownVm<V>, GuestError> {
        let mut known = KnownVm { vm, image, warnings: Vec::new() };
        let found = known.find(memories);
        if found.is_err() {
            known.vm.give_up();
        }
        found.map(|()| known)
    }

    /// A Linux whose kernel was found in its RAM, for its samples; once.
    pub(crate) fn take_linux(&mut self) -> Option<Followed> {
        self.image.take_linux()
    }

    /// Adds a warning to those that it announces.
    pub(crate) fn warn(&mut self, text: Option<String>) {
        self.warnings.extend(text);
    }

    fn find(&mut self, memories: &[Arc<dyn Machine>]) -> Result<(), GuestError> {
        match self.image.find_in_ram(memories)? {
            Some((memory, warning)) => {
                if self.vm.memories() > 0 {
                    self.vm.choose_memory(memory)?;
                }
                self.warnings.extend(warning);
                self.vm.set_plan(self.image.plan())?;
                self.vm.begin()?;
            }
            None => {
                // Of the first sample: what follows needs the registers in it.
                self.vm.set_plan(self.image.plan())?;
                self.vm.begin()?;
                self.find_by_vcpus()?;
                self.vm.set_plan(self.image.plan())?;
                self.warnings.extend(self.image.prepare());
            }
        }
        Ok(())
    }

    fn find_by_vcpus(&mut self) -> Result<(), GuestError> {
        let mut attempts = 1;
        let found = loop {
            match self.attempt() {
                Err(error) if attempts < attempts_max(&error) => {
                    attempts += 1;
                    self.vm.wait(BETWEEN_ATTEMPTS)?;
                }
                found => break found?,
            }
        };
        match found {
            Some((memory, warning)) => {
                self.vm.choose_memory(memory)?;
                self.warnings.extend(warning);
            }
            None => self
                .warnings
                .push("no vCPU of the VM has been started yet, so its symbols could not be checked".to_owned()),
        }
        Ok(())
    }

    /// Compares the images with what each vCPU sees, until one of them sees them for sure. `None` if none has been started.
    fn attempt(&mut self) -> Result<Option<Choice>, GuestError> {
        let (mut possible, mut wrong, mut unknown) = (None, None, None);
        for vcpu in 0..self.vm.vcpus().len() {
            let Some(state) = self.vm.state(vcpu)? else { continue };
            match self.choose(vcpu, &state) {
                Ok(sure @ (_, None)) => return Ok(Some(sure)),
                // A vCPU that has not been started yet sees nothing that could be compared; the first does.
                Ok(choice) => possible = possible.or(Some(choice)),
                Err(error) if is_about_symbols(&error) => wrong = wrong.or(Some(error)),
                Err(error) => unknown = unknown.or(Some(error)),
            }
        }
        match (wrong.or(if possible.is_none() { unknown } else { None }), possible) {
            (Some(error), _) => Err(error),
            (None, None) if self.vm.memories() > 0 => Err(self.no_vcpu()),
            (None, choice) => Ok(choice),
        }
    }

    fn no_vcpu(&self) -> GuestError {
        GuestError::NoVcpu(self.image.kind().pid().unwrap_or(0))
    }

    /// The memory that holds what the guest should run.
    fn choose(&mut self, vcpu: usize, state: &CoreState) -> Result<Choice, GuestError> {
        let memories = self.vm.memories();
        let (mut possible, mut wrong) = (None, None);
        for memory in 0..memories.max(1) {
            let vm = &mut self.vm;
            let mut read = |paging, address, into: &mut [u8]| vm.read(View { memory, vcpu, paging }, address, into);
            match self.image.check(state, &mut read) {
                Ok(None) => return Ok((memory, None)),
                // Other memory than RAM holds no page tables that lead anywhere.
                Ok(warning) if memories == 0 || read(state.paging, state.registers.ip(), &mut [0])? == 1 => {
                    possible = possible.or(Some((memory, warning)));
                }
                Ok(_) => {}
                Err(error) if is_about_symbols(&error) => wrong = wrong.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        match (wrong, possible) {
            (Some(error), _) => Err(error),
            (None, Some(possible)) => Ok(possible),
            (None, None) => Err(GuestError::NoRamFile(self.image.kind().pid().unwrap_or(0))),
        }
    }

    fn announce_known(&mut self, sink: &mut dyn FnMut(Event)) {
        self.warnings.drain(..).for_each(|text| sink(Event::Warning(text)));
        self.image.announce(self.vm.vcpus().into_iter(), sink);
    }
}

fn attempts_max(error: &GuestError) -> u32 {
    match error {
        GuestError::KernelNotFound(_) => ATTEMPTS_MAX,
        error if is_about_symbols(error) => CHECKS_MAX,
        _ => 1,
    }
}

impl<V: VmAccess> Replan for V {
    fn replan(&mut self, plan: CopyPlan) -> Result<(), GuestError> {
        self.set_plan(plan)
    }
}

impl<V: VmAccess> Replan for KnownVm<V> {
    fn replan(&mut self, plan: CopyPlan) -> Result<(), GuestError> {
        self.vm.set_plan(plan)
    }
}

impl<V> Deref for KnownVm<V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.vm
    }
}

impl<V> DerefMut for KnownVm<V> {
    fn deref_mut(&mut self) -> &mut V {
        &mut self.vm
    }
}

impl<V: VmAccess + Guest> Guest for KnownVm<V> {
    fn started_ns(&self) -> Option<u64> {
        self.vm.started_ns()
    }

    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.announce_known(sink);
        self.vm.announce(sink)
    }

    fn parts(&self) -> usize {
        self.vm.parts()
    }

    fn sample(&mut self, part: usize) -> Result<Attempt, GuestError> {
        self.vm.sample(part)
    }

    fn rest(&mut self, until_ns: u64) -> Result<Option<(usize, Taken)>, GuestError> {
        self.vm.rest(until_ns)
    }

    fn remark(&self) -> Option<String> {
        self.vm.remark()
    }

    fn left_behind(&self) -> Option<String> {
        self.vm.left_behind()
    }

    fn tracks(&self) -> u64 {
        self.vm.tracks()
    }

    fn detach(&mut self) -> Result<(), GuestError> {
        self.vm.detach()
    }
}

impl<V: VmAccess + Source> Source for KnownVm<V> {
    fn started_ns(&self) -> Option<u64> {
        self.vm.started_ns()
    }

    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.announce_known(sink);
        self.vm.announce(sink)
    }

    fn collect(&mut self, wait: Duration, sink: &mut dyn FnMut(Event)) -> Result<Flow, GuestError> {
        self.vm.collect(wait, sink)
    }

    fn counts(&self) -> Counts {
        self.vm.counts()
    }

    fn detach(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.vm.detach(sink)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use glass_profiler_core::arch::Width;
    use glass_profiler_core::arch::paging::Translator;
    use glass_profiler_core::arch::x86_64::Registers;
    use glass_profiler_core::arch::x86_64::paging::Paging;
    use glass_profiler_core::guest::GuestKind;
    use glass_profiler_core::memory::Physical;
    use glass_tests::folder::Folder;

    use super::*;
    use crate::VmSettings;

    /// By how much the kernel of the guest has moved.
    const SLIDE: u64 = 6 << 20;
    const INTERRUPT_TABLE: u64 = 0xffff_fe00_0000_0000;
    const MAP: &str = "\
ffffffff81000000 T _text
ffffffff81001000 T asm_exc_divide_error
ffffffff81002000 T start_kernel
ffffffff81003000 T entry_SYSCALL_64
ffffffff8100a000 R linux_banner
ffffffff8100b000 R __start_orc_unwind_ip
ffffffff8100b010 R __stop_orc_unwind_ip
ffffffff8100b010 R __start_orc_unwind
ffffffff8100b028 R __stop_orc_unwind
ffffffff8100c000 T _end
";

    struct Memory(Vec<u8>);

    impl Memory {
        fn set(&mut self, address: u64, bytes: &[u8]) {
            self.0[address as usize..][..bytes.len()].copy_from_slice(bytes);
        }

        fn link(&mut self, table: u64, index: u64, to: u64) {
            self.set(table + index * 8, &(to | 3).to_le_bytes());
        }
    }

    impl Physical for Memory {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let there = self.0.get(address as usize..).and_then(|rest| rest.get(..into.len()));
            there.map(|there| into.copy_from_slice(there)).is_some()
        }
    }

    /// The RAM of a Linux with page table isolation: the kernel's page tables at 0x2000, those of its process behind them.
    fn isolating() -> Memory {
        const KERNEL: u64 = 0x2000;
        const PROCESS: u64 = 0x3000;
        let mut memory = Memory(vec![0; 64 << 10]);
        // The area of the entries with the interrupt table is in both.
        for tables in [KERNEL, PROCESS] {
            memory.link(tables, 508, 0x4000);
        }
        memory.link(0x4000, 0, 0x5000);
        memory.link(0x5000, 0, 0x6000);
        memory.link(0x6000, 0, 0x7000);
        let handler = (0xffff_ffff_8100_1000 + SLIDE).to_le_bytes();
        let gate = [&handler[..2], &[0x10, 0, 0, 0x8e], &handler[2..], &[0; 4]].concat();
        (0..32).for_each(|index| memory.set(0x7000 + index * 16, &gate));
        // The kernel, a large page at the physical address 0, is in its own alone.
        memory.link(KERNEL, 511, 0x8000);
        memory.link(0x8000, 510, 0x9000);
        memory.link(0x9000, 8 + SLIDE / (2 << 20), 0x80);
        memory.set(0xa000, b"Linux version 6.1.0\n");
        memory
    }

    /// A VM with one vCPU, which is always in a process.
    struct Fake {
        memory: Memory,
        interrupt_table: Option<u64>,
        plan: Option<CopyPlan>,
        waits: Cell<u32>,
    }

    impl VmAccess for Fake {
        fn vcpus(&self) -> Vec<u32> {
            vec![0]
        }

        fn state(&mut self, _vcpu: usize) -> Result<Option<CoreState>, GuestError> {
            Ok(Some(CoreState {
                registers: Registers::new(0x40_1000, 0x7ffe_0000, 0).into(),
                paging: Paging { cr0: 1 << 31 | 1, cr3: 0x3806, cr4: 1 << 5, efer: Some(1 << 10) }.into(),
                width: Width::Bits64,
                is_privileged: false,
                is_at_reset: false,
                interrupt_table: self.interrupt_table,
            }))
        }

        fn read(&mut self, view: View, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
            Ok(Translator::new(view.paging).read(&self.memory, address, into))
        }

        fn set_plan(&mut self, plan: CopyPlan) -> Result<(), GuestError> {
            self.plan = Some(plan);
            Ok(())
        }

        fn wait(&mut self, _time: Duration) -> Result<(), GuestError> {
            self.waits.set(self.waits.get() + 1);
            Ok(())
        }

        fn give_up(&mut self) {}
    }

    fn attach(memory: Memory, map: &str, address: Option<u64>) -> Result<KnownVm<Fake>, GuestError> {
        let folder = Folder::new("access").unwrap();
        let path = folder.file("System.map");
        std::fs::write(&path, map).unwrap();
        let mut settings = VmSettings::new(1024, path);
        settings.symbols[0].address = address;
        let image = VmImage::load(GuestKind::Vm { vmm: 1 }, "a guest", settings)?;
        let fake = Fake { memory, interrupt_table: Some(INTERRUPT_TABLE), plan: None, waits: Cell::new(0) };
        KnownVm::of(fake, image, &[])
    }

    /// A guest that computed in a process was refused after 20 attempts, as if the map were that of another kernel (2026-11-25).
    #[test]
    fn a_kernel_that_the_page_tables_of_its_processes_lack() {
        let start = 0xffff_ffff_8100_0000 + SLIDE;
        let without_banner = MAP.replace("linux_banner", "other");
        for (map, address) in [(MAP, None), (MAP, Some(start)), (&without_banner, None)] {
            let known = attach(isolating(), map, address).unwrap();
            assert_eq!(known.waits.get(), 0, "by the first attempt");
            let linux = known.plan.as_ref().unwrap().linux.as_ref().unwrap();
            assert_eq!(linux.range.start, start);
            // Tables of four entries of zeros cannot be used, but they were read.
            let short = |text: &&String| text.contains("stacks of the guest's kernel will be short");
            assert!(
                known.warnings.iter().filter(short).all(|text| text.contains("cannot be used")),
                "{:?}",
                known.warnings
            );
        }
    }

    #[test]
    fn tables_that_are_no_pair_are_not_used_and_the_map_is_not_blamed() {
        // The page in front of the process's tables is one of another kind; or leads to another interrupt table.
        let mut other = isolating();
        other.set(0x2000, &[0x55; 4096]);
        let mut elsewhere = isolating();
        elsewhere.link(0x2000, 508, 0xc000);
        elsewhere.link(0xc000, 0, 0xd000);
        elsewhere.link(0xd000, 0, 0xe000);
        elsewhere.link(0xe000, 0, 0xf000);
        for memory in [other, elsewhere] {
            let error = attach(memory, MAP, None).err().unwrap().to_string();
            assert!(error.contains("page table isolation") && !error.contains("System.map"), "{error}");
        }
        // Of another kernel it is the map that is wrong.
        let wrong = MAP.replace("ffffffff81001000", "ffffffff81001010");
        let error = attach(isolating(), &wrong, None).err().unwrap().to_string();
        assert!(error.contains("belongs to another kernel") && error.contains("System.map"), "{error}");
    }
}
