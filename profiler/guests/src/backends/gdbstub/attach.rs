//! What is read of a VM while the connection to its gdbstub holds it.
//!
//! QEMU stops a running VM when it accepts a connection (7.2: `gdb_chr_event`), and with the first byte of each request to one that runs
//! (`gdb_read_byte`). So the stop of the connection cannot be avoided, and all that an attach has to read is read in it: the first stop after that is
//! the first sample's.

use std::io;

use glass_profiler_core::arch::x86_64::paging::Translator;

use super::client::protocol;
use super::connection::Connection;
use super::description;
use super::emulated;
use super::freeze::Freezer;
use super::stub::Stub;
use super::switch::{Found, Switch};
use super::{QemuVm, read_digits};
use crate::arch::x86_64::CoreState;
use crate::arch::x86_64::gdb::Layout;
use crate::error::GuestError;
use crate::find::Vm;
use crate::find::vcpus::choose_vcpus;
use crate::memory::Ram;
use crate::sys::monotonic_ns;
use crate::systems::plan::CopyPlan;

/// Bytes that are compared at each address to find out which file is the RAM.
const BYTES_COMPARED: usize = 64;

/// A file's bytes beside those that QEMU reads.
#[derive(Debug, Clone, Copy, Default)]
struct Comparison {
    /// How many are the same and not 0 (memory that was never written is 0).
    same: usize,
    differs: bool,
}

impl Comparison {
    fn compare(&mut self, expected: &[u8], found: &[u8]) {
        self.differs |= expected != found;
        self.same += expected.iter().zip(found).filter(|(expected, found)| expected == found && **found != 0).count();
    }
}

/// What was read.
struct Held {
    /// QEMU's name of each vCPU.
    threads: Vec<String>,
    /// Those that are sampled.
    wanted: Vec<usize>,
    layout: Layout,
    /// The registers of the first of those.
    first: CoreState,
    memory: Result<Ram, String>,
    /// The threads of QEMU that run the vCPUs.
    vcpu_threads: Vec<u32>,
    /// Its memory shows which block a vCPU executes.
    shows_blocks: bool,
}

impl QemuVm {
    /// Connects, for samples of these vCPUs, of all if none is given. What the VM runs is not known yet.
    pub(crate) fn connect(vm: &Vm, vcpus: &[u32]) -> Result<QemuVm, GuestError> {
        let (address, switch) = match (&vm.gdb, &vm.monitor) {
            (Some(address), _) => (address.clone(), None),
            (None, Some(monitor)) => match Switch::find(vm.pid, monitor)? {
                Found::On(address) => (address, None),
                Found::Off(switch) => (switch.address(), Some(switch)),
            },
            (None, None) => return Err(GuestError::NoGdbstub(vm.pid)),
        };
        let memories = Ram::candidates(vm.pid);
        let start_ns = monotonic_ns();
        let mut stub = Stub::new(Connection::open(&address, switch.as_ref())?);
        // From here on the VM is stopped, even if we are killed. A `stop` of the owner until it is continued is lost, so it is soon.
        let held = read(&mut stub, vcpus, memories);
        let went = stub.go();
        let frozen_ns = monotonic_ns() - start_ns;
        let Held { threads, wanted, layout, first, memory, vcpu_threads, shows_blocks } = held?;
        went?;
        let is_exact = vm.accel == "kvm";
        let mut warnings = Vec::new();
        // An emulated VM is then sampled at the moment of the request, too. Under KVM QEMU needs these threads to read registers: not before.
        let freezer = match vcpu_threads.is_empty() {
            true => Err(io::Error::other("QEMU does not name them")),
            false => Freezer::new(vm.pid, &vcpu_threads, shows_blocks && !is_exact)
                .and_then(|freezer| stub.freeze_with(vm.pid, freezer)),
        };
        // Memory that is no file is read with the rights of a debugger.
        let memory =
            memory.and_then(|memory| if memory.is_file() || freezer.is_ok() { Ok(memory) } else { Err(no_file()) });
        if let Err(error) = freezer {
            warnings.push(without_freezer(is_exact, &error));
        }
        let memory = memory.map_err(|reason| warnings.push(reason)).ok();
        let is_paused = stub.is_paused();
        if is_paused {
            warnings.push("the VM is paused, and stays so until its owner starts it".to_owned());
        }
        Ok(QemuVm {
            pid: vm.pid,
            stub,
            switch,
            layout,
            memory,
            threads,
            wanted,
            is_exact,
            plan: CopyPlan::default(),
            first_state: Some(first),
            paused_samples: 0,
            left_behind: None,
            detached: false,
            frozen_ns: if is_paused { 0 } else { frozen_ns },
            warnings,
        })
    }
}

/// Reads all that an attach needs. `memories` are those that may be the RAM.
fn read(stub: &mut Stub, vcpus: &[u32], memories: io::Result<Vec<Ram>>) -> Result<Held, GuestError> {
    let vcpu_threads = stub.vcpu_threads()?;
    let shows_blocks = emulated::is_shown_by(&stub.monitor("info version")?);
    let threads = stub.vcpus()?;
    let wanted = choose_vcpus(vcpus, threads.len())?;
    let layout = description::read_layout(stub)?;
    let blocks = memories.map_err(|error| slowly(&format!("the VM's RAM cannot be mapped ({error})"), ""));
    let memory = match blocks.and_then(|blocks| usable(blocks, !vcpu_threads.is_empty())) {
        Ok(blocks) => choose(stub, &threads, &layout, blocks)?.ok_or_else(|| {
            slowly("which memory of QEMU is the VM's RAM is not clear yet", ": record again once the guest runs")
        }),
        Err(reason) => Err(reason),
    };
    let first = state(stub, &threads[wanted[0]], &layout)?;
    Ok(Held { threads, wanted, layout, first, memory, vcpu_threads, shows_blocks })
}

/// The ways to RAM among what may be it: files, if there are any, or if no thread is known whose memory a debugger could read.
fn usable(mut blocks: Vec<Ram>, has_threads: bool) -> Result<Vec<Ram>, String> {
    if !has_threads || blocks.iter().any(Ram::is_file) {
        blocks.retain(Ram::is_file);
    }
    if blocks.is_empty() { Err(no_file()) } else { Ok(blocks) }
}

fn no_file() -> String {
    slowly("the VM's RAM is no memfd", ": start QEMU with `-object memory-backend-memfd,share=on`")
}

/// Finds out which memory of QEMU is the RAM: that which holds what QEMU reads there. Of several, the nodes of a NUMA machine for example, nothing else
/// shows it. `None` if that is not clear yet.
fn choose(
    stub: &mut Stub,
    threads: &[String],
    layout: &Layout,
    mut blocks: Vec<Ram>,
) -> Result<Option<Ram>, GuestError> {
    let mut seen = vec![Comparison::default(); blocks.len()];
    for thread in threads {
        let state = state(stub, thread, layout)?;
        for address in [state.registers.rsp, state.registers.rip] {
            let mut expected = [0; BYTES_COMPARED];
            let bytes = stub.read_memory(thread, address, &mut expected)?;
            for (block, seen) in blocks.iter().zip(&mut seen) {
                let mut found = [0; BYTES_COMPARED];
                let read = Translator::new(state.paging).read(block, address, &mut found[..bytes]);
                seen.compare(&expected[..read], &found[..read]);
            }
        }
        if seen.iter().any(|seen| seen.same > 0) {
            break;
        }
    }
    let best = (0..blocks.len()).filter(|index| !seen[*index].differs).max_by_key(|index| seen[*index].same);
    let is_only = |index: usize| blocks.len() == 1 && blocks[index].is_file();
    let best = best.filter(|best| seen[*best].same > 0 || is_only(*best));
    Ok(best.map(|best| blocks.swap_remove(best)))
}

/// The registers of a vCPU.
fn state(stub: &mut Stub, thread: &str, layout: &Layout) -> Result<CoreState, GuestError> {
    let (_, cores) = read_digits(stub, &[thread])?;
    let (digits, _) = cores.first().ok_or_else(|| protocol("ended the connection"))?;
    layout.registers(digits).ok_or_else(|| protocol("sent too few registers"))
}

fn slowly(why: &str, remedy: &str) -> String {
    format!("{why}, so it is read through the gdbstub, which makes pauses some times longer{remedy}")
}

fn without_freezer(is_exact: bool, error: &io::Error) -> String {
    let late = if is_exact { "" } else { ", and too many samples show the guest waiting for its devices" };
    format!(
        "the threads of QEMU cannot be stopped ({error}), so a `stop` of the VM's owner is lost if it arrives during a sample{late}: run glass with CAP_SYS_PTRACE (as root, say)"
    )
}
