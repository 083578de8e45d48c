//! How a VM is connected to, and what is read of it in the stop that this makes.
//!
//! QEMU stops a running VM when it accepts a connection (7.2: `gdb_chr_event`), and with the first byte of each request to one that runs
//! (`gdb_read_byte`). So the stop of the connection cannot be avoided, and it is the first sample's: what is known without it is found before, and
//! what only the protocol has is read in it.

use std::fs;
use std::io;

use glass_profiler_core::arch::paging::Translator;

use super::client::protocol;
use super::clients;
use super::connected::{Connected, read_digits, states};
use super::connection::Connection;
use super::description;
use super::emulated;
use super::freeze::Freezer;
use super::stub::Stub;
use super::switch::{Found, Switch};
use super::{QemuVm, client};
use crate::arch::CoreState;
use crate::arch::gdb::Layout;
use crate::backends::Backend;
use crate::backends::monitor::Monitor;
use crate::backends::paced::Pacer;
use crate::backends::sleeper::{QUIET_PART_EMULATED, Sleeper};
use crate::error::GuestError;
use crate::find::Vm;
use crate::find::vcpus::choose_vcpus;
use crate::memory::Ram;
use crate::stream::SocketAddress;
use crate::sys::monotonic_ns;
use crate::systems::plan::CopyPlan;

/// Bytes that are compared at each address to find out which file is the RAM.
const BYTES_COMPARED: usize = 64;
/// The longest time until the first sample: the user waits for it.
const FIRST_NS_MAX: u64 = 200_000_000;

/// How a VM can be connected to.
pub(super) struct Way {
    pub(super) vm: Vm,
    /// The vCPUs that are to be sampled, all if empty.
    vcpus: Vec<u32>,
    address: SocketAddress,
    /// How the gdbstub is switched on, if it is off.
    pub(super) switch: Option<Switch>,
    /// The threads that run the vCPUs, as far as that is known without a connection.
    threads: Vec<u32>,
    /// What may be the RAM.
    memories: io::Result<Vec<Ram>>,
}

impl Way {
    fn find(vm: &Vm, vcpus: &[u32]) -> Result<Way, GuestError> {
        let (address, switch) = match (&vm.gdb, &vm.monitor) {
            (Some(address), _) => (address.clone(), None),
            (None, Some(monitor)) => match Switch::find(vm.pid, monitor)? {
                Found::On(address) => (address, None),
                Found::Off(switch) => (switch.address(), Some(switch)),
            },
            (None, None) => return Err(GuestError::NoGdbstub(vm.pid)),
        };
        // It would have to be waited for, and until then nothing would be sampled.
        if switch.is_none() && clients::has_client(vm.pid, &address) {
            return Err(protocol(&format!(
                "a debugger, or another glass, is connected to it at {address} already: end it first"
            )));
        }
        let (threads, vcpus) = (threads_of_vcpus(vm), vcpus.to_vec());
        let memories = Ram::candidates(vm.pid, vm.architecture.unwrap_or_default());
        Ok(Way { vm: vm.clone(), vcpus, address, switch, threads, memories })
    }

    /// Undoes what [`Way::find`] has done.
    pub(super) fn forget(&mut self) {
        self.switch.take().iter().for_each(Switch::remove_folder);
    }
}

/// The threads of QEMU that run vCPUs: by their names, which it gives them with `debug-threads=on`, or else by a monitor without a client. None if
/// neither shows them.
fn threads_of_vcpus(vm: &Vm) -> Vec<u32> {
    let named = threads_with_names(vm.pid);
    let free = vm.monitor.as_ref().filter(|monitor| named.is_empty() && clients::is_free(vm.pid, &monitor.socket));
    match free.map(|monitor| Monitor::connect(monitor).and_then(|mut monitor| monitor.ask("info cpus"))) {
        Some(Ok(text)) => client::parse_vcpus(&text),
        Some(Err(_)) | None => named,
    }
}

fn threads_with_names(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let runs_vcpus = |name: &str| {
        let name = name.trim_end();
        (name.starts_with("CPU ") || name.starts_with("ALL CPUs")) && (name.ends_with("/TCG") || name.ends_with("/KVM"))
    };
    let mut threads: Vec<u32> = entries
        .filter(|entry| fs::read_to_string(entry.path().join("comm")).is_ok_and(|name| runs_vcpus(&name)))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .take(crate::find::vcpus::VCPUS_MAX)
        .collect();
    threads.sort_unstable();
    threads
}

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

/// What was read in the stop of the connection.
struct Held {
    /// QEMU's name of each vCPU.
    threads: Vec<String>,
    /// Those that are sampled.
    wanted: Vec<usize>,
    layout: Layout,
    /// The registers of these, and whether each is halted.
    states: Vec<(CoreState, bool)>,
    memory: Option<Ram>,
    /// The threads of QEMU that run the vCPUs.
    vcpu_threads: Vec<u32>,
    /// Its memory shows which block a vCPU executes.
    shows_blocks: bool,
}

impl QemuVm {
    /// A VM that can be connected to, for samples of these vCPUs, of all if none is given. It is not stopped.
    ///
    /// # Errors
    /// Another client is connected, or it has no gdbstub.
    pub(crate) fn find(vm: &Vm, vcpus: &[u32]) -> Result<QemuVm, GuestError> {
        Ok(QemuVm {
            way: Way::find(vm, vcpus)?,
            connected: None,
            plan: CopyPlan::default(),
            started_ns: None,
            first: Vec::new(),
            states: Vec::new(),
            are_started: false,
            sleeper: Sleeper::new(QUIET_PART_EMULATED),
            paused_samples: 0,
            left_behind: None,
            detached: false,
            frozen_ns: 0,
            warnings: Vec::new(),
        })
    }

    /// Connects at a random moment, and takes the first sample by what was planned until now.
    pub(super) fn connect(&mut self) -> Result<(), GuestError> {
        let Way { vm, vcpus, address, switch, threads, memories } = &mut self.way;
        let is_exact = vm.accel == "kvm";
        // Until it is known whether QEMU shows blocks, what its memory has there is compared with the registers all the same.
        let freezer = match threads.is_empty() {
            true => None,
            false => Freezer::new(vm.pid, threads, vm.architecture.filter(|_| !is_exact)).ok(),
        };
        let (line, start_ns) = Connection::open(address, switch.as_ref(), freezer, moment)?;
        let mut stub = Stub::new(line);
        // From here on the VM is stopped, even if we are killed. A `stop` of the owner until it is continued is lost, so it is soon.
        stub.arrive()?;
        let memories = std::mem::replace(memories, Ok(Vec::new()));
        let held = match read(&mut stub, vcpus, memories, &mut self.warnings) {
            Ok(held) => held,
            Err(error) => {
                // If this fails, the watchdog does what is left to do.
                let _ = stub.go();
                return Err(error);
            }
        };
        let Held { threads, wanted, layout, states, memory, vcpu_threads, shows_blocks } = held;
        let mut connected = Connected { stub, layout, memory, threads, wanted, is_exact };
        let samples = connected.samples(&states, &self.plan);
        let is_torn = connected.stub.is_torn();
        let went = connected.stub.go();
        let mut samples = samples?;
        went?;
        let is_paused = connected.stub.is_paused();
        // An emulated VM is sampled at the moment of the request, too.
        let freezer = match vcpu_threads.is_empty() {
            true => Err(io::Error::other("QEMU does not name them")),
            false => {
                let blocks = vm.architecture.filter(|_| shows_blocks && !is_exact);
                connected.stub.freeze_with(vm.pid, &vcpu_threads, blocks)
            }
        };
        // The threads are looked after again when the next sample is waited for.
        connected.stub.line().come_to_rest()?;
        // Memory that is no file is read with the rights of a debugger.
        if connected.memory.as_ref().is_some_and(|memory| !memory.is_file()) && freezer.is_err() {
            connected.memory = None;
            self.warnings.push(no_file());
        }
        self.warnings.extend(freezer.err().map(|error| without_freezer(is_exact, &error)));
        if is_paused {
            self.warnings.push("the VM is paused, and stays so until its owner starts it".to_owned());
        }
        self.complete(&mut samples, start_ns, is_paused);
        self.started_ns = Some(start_ns);
        self.states = states.into_iter().map(|(state, _)| Some(state)).collect();
        match is_torn {
            // Its owner has continued it in between.
            true => self.frozen_ns += samples.first().map_or(0, |sample| sample.frozen_ns),
            false => self.first = samples,
        }
        self.connected = Some(connected);
        Ok(())
    }
}

/// When the first sample is taken: at the first deadline of a recording at the usual rate.
fn moment() -> u64 {
    let now_ns = monotonic_ns();
    let pacer = Pacer::new(now_ns, Backend::Gdbstub.default_rate_hz(), now_ns.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    pacer.deadline_ns().min(now_ns + FIRST_NS_MAX)
}

/// Reads all that samples need. `memories` are those that may be the RAM.
fn read(
    stub: &mut Stub,
    vcpus: &[u32],
    memories: io::Result<Vec<Ram>>,
    warnings: &mut Vec<String>,
) -> Result<Held, GuestError> {
    let vcpu_threads = stub.vcpu_threads()?;
    let shows_blocks = emulated::is_shown_by(&stub.monitor("info version")?);
    let threads = stub.vcpus()?;
    let wanted = choose_vcpus(vcpus, threads.len())?;
    let layout = description::read_layout(stub)?;
    let names: Vec<&str> = wanted.iter().map(|index| threads[*index].as_str()).collect();
    let (_, cores) = read_digits(stub, &layout, &names)?;
    let states = states(&layout, &cores)?;
    if states.is_empty() {
        return Err(protocol("ended the connection"));
    }
    let blocks = memories.map_err(|error| slowly(&format!("the VM's RAM cannot be mapped ({error})"), ""));
    let chosen = match blocks.and_then(|blocks| usable(blocks, !vcpu_threads.is_empty())) {
        Ok(blocks) => choose(stub, &threads, (&wanted, &states), &layout, blocks)?.ok_or_else(|| {
            slowly("which memory of QEMU is the VM's RAM is not clear yet", ": record again once the guest runs")
        }),
        Err(reason) => Err(reason),
    };
    let memory = chosen.map_err(|reason| warnings.push(reason)).ok();
    Ok(Held { threads, wanted, layout, states, memory, vcpu_threads, shows_blocks })
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
/// shows it. `None` if that is not clear yet. `known` are states of vCPUs.
fn choose(
    stub: &mut Stub,
    threads: &[String],
    known: (&[usize], &[(CoreState, bool)]),
    layout: &Layout,
    mut blocks: Vec<Ram>,
) -> Result<Option<Ram>, GuestError> {
    let mut seen = vec![Comparison::default(); blocks.len()];
    let others = (0..threads.len()).filter(|index| !known.0.contains(index)).map(|index| (index, None));
    let known = known.0.iter().copied().zip(known.1.iter().map(|(state, _)| Some(*state)));
    for (index, state) in known.chain(others) {
        let thread = &threads[index];
        let state = match state {
            Some(state) => state,
            None => {
                let (_, cores) = read_digits(stub, layout, &[thread])?;
                let Some((state, _)) = states(layout, &cores)?.first().copied() else { break };
                state
            }
        };
        for address in [state.registers.sp(), state.registers.ip()] {
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

fn slowly(why: &str, remedy: &str) -> String {
    format!("{why}, so it is read through the gdbstub, which makes pauses some times longer{remedy}")
}

fn without_freezer(is_exact: bool, error: &io::Error) -> String {
    let late = if is_exact { "" } else { ", and too many samples show the guest waiting for its devices" };
    format!(
        "the threads of QEMU cannot be stopped ({error}), so a `stop` of the VM's owner is lost if it arrives during a sample{late}: run glass with CAP_SYS_PTRACE (as root, say)"
    )
}
