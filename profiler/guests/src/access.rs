//! A VM that is attached to, and what it runs.
//!
//! A backend implements [`VmAccess`] and [`Guest`]: it stops vCPUs, reads their registers, and copies what a [`CopyPlan`] names. What
//! the VM runs is found out on the other side of the trait, by [`VmImage`], while the VM runs; so the backend parses nothing, and both
//! sides may be in two processes ([`remote`](crate::remote)).

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use glass_profile::arch::x86_64::paging::Paging;
use glass_profile::event::Event;

use crate::arch::x86_64::CoreState;
use crate::error::GuestError;
use crate::plan::{AddressSpace, CopyPlan};
use crate::vm::{VmImage, is_about_symbols};
use crate::{Counts, Flow, Guest, Source};

/// How often a vCPU is looked at until its kernel is found: half of the attempts find a busy guest there; one that is never there
/// has nothing to show of it.
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
    /// The numbers of the vCPUs that are sampled.
    fn vcpus(&self) -> Vec<u32>;

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

    /// Lets some time pass, in which the VM is looked after.
    fn wait(&mut self, time: Duration) -> Result<(), GuestError>;

    /// Detaches before the first sample.
    fn give_up(&mut self);
}

/// Memory as a vCPU of a VM sees it.
struct Viewed<'a, V> {
    vm: &'a mut V,
    view: View,
}

impl<V: VmAccess> AddressSpace for Viewed<'_, V> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        self.vm.read(self.view, address, into)
    }
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
    /// Finds what a VM runs, and has its samples be made by that. Detaches if it runs something else.
    pub(crate) fn of(vm: V, image: VmImage) -> Result<KnownVm<V>, GuestError> {
        let mut known = KnownVm { vm, image, warnings: Vec::new() };
        let found = known.find();
        if found.is_err() {
            known.vm.give_up();
        }
        found.map(|()| known)
    }

    /// Adds a warning to those that it announces.
    pub(crate) fn warn(&mut self, text: Option<String>) {
        self.warnings.extend(text);
    }

    fn find(&mut self) -> Result<(), GuestError> {
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
        self.vm.set_plan(self.image.plan())?;
        self.warnings.extend(self.image.prepare());
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
            let view = View { memory, vcpu, paging: state.paging };
            let mut space = Viewed { vm: &mut self.vm, view };
            match self.image.check(state, &mut space) {
                Ok(None) => return Ok((memory, None)),
                // Other memory than RAM holds no page tables that lead anywhere.
                Ok(warning) if memories == 0 || space.read(state.registers.rip, &mut [0])? == 1 => {
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
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.announce_known(sink);
        self.vm.announce(sink)
    }

    fn sample(&mut self) -> Result<Option<Vec<Event>>, GuestError> {
        self.vm.sample()
    }

    fn rest(&mut self, until_ns: u64) -> Result<(), GuestError> {
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
