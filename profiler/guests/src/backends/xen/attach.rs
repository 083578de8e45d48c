//! How a domain is attached to: whether it can be sampled, and whether it runs what the symbol files hold.

use std::time::Duration;

use glass_profiler_core::arch::Width;
use glass_profiler_core::guest::GuestKind;

use super::memory::Frames;
use super::{Vcpu, XenDomain, context_call, failed};
use crate::Guest;
use crate::arch::CoreState;
use crate::backends::access::{KnownVm, View, VmAccess};
use crate::error::GuestError;
use crate::find::domains::{self, Domain};
use crate::find::vcpus::{VCPUS_MAX, choose_vcpus};
use crate::memory::{AddressSpace, LiveSpace};
use crate::sys::monotonic_ns;
use crate::sys::xen::{Call, Guardian, Hypercalls};
use crate::systems::image::{VmImage, VmSettings};
use crate::systems::plan::CopyPlan;

/// CR0's bit for paging: before it is set, a guest that ends in long mode runs code of 32 bits too.
const CR0_PAGING: u64 = 1 << 31;

fn refuse_32_bits(name: &str) -> GuestError {
    GuestError::Unsupported(format!(
        "domain {name} runs code of 32 bits, which glass cannot unwind: it samples guests of 64 bits"
    ))
}

/// Whether a paravirtualized guest is one of 32 bits: its registers have another layout.
fn is_of_32_bits(calls: &mut Hypercalls) -> Result<bool, GuestError> {
    calls.make_one(Call::AddressSize).map_err(|error| failed("read the width of the domain's addresses", error))?;
    Ok(u32::from_le_bytes(calls.answer(0)) == 32)
}

impl XenDomain {
    /// Attaches. The domain is paused for some hundred microseconds; when this returns it runs, unless others have
    /// paused it. With `force`, an unknown version of Xen is taken for the newest known one.
    pub fn attach(domain: &Domain, settings: VmSettings, force: bool) -> Result<KnownVm<XenDomain>, GuestError> {
        let vcpus = settings.vcpus.clone();
        // Its guardian is a copy of our memory, which has little in it yet.
        let attached = XenDomain::open(domain, &vcpus, force)?;
        let image = VmImage::load(GuestKind::XenDomain { id: domain.id }, &domain.name, settings)?;
        KnownVm::of(attached, image, &[])
    }

    /// Gets ready to sample these vCPUs, all if none is given. What the domain runs is not known yet.
    pub(crate) fn open(domain: &Domain, vcpus: &[u32], force: bool) -> Result<XenDomain, GuestError> {
        let gone = || GuestError::NotFound(format!("there is no domain {} any more", domain.name));
        let id = u16::try_from(domain.id).map_err(|_| gone())?;
        let mut calls = domains::open(force)?;
        let info = domains::info(&mut calls, id)?.filter(|info| !info.has_ended).ok_or_else(gone)?;
        if !info.is_hvm && is_of_32_bits(&mut calls)? {
            return Err(refuse_32_bits(&domain.name));
        }
        let frames = Frames::new(domains::privcmd()?, id);
        // Before much is in our memory.
        let guardian = Guardian::start(&calls).map_err(|error| failed("start the guardian of the domain", error))?;
        let wanted = choose_vcpus(vcpus, (info.vcpus as usize).min(VCPUS_MAX))?;
        let vcpus = wanted.into_iter().map(|index| Vcpu::new(index as u32, 0)).collect();
        let mut attached = XenDomain {
            guardian,
            calls,
            frames,
            plan: CopyPlan::default(),
            name: domain.name.clone(),
            id,
            is_hvm: info.is_hvm,
            vcpus,
            paused_samples: 0,
            frozen_ns: 0,
            warnings: Vec::new(),
        };
        if attached.look()?.ok_or_else(gone)?.is_paused {
            attached.warnings.push("the domain is paused, and stays so until its owner lets it run".to_owned());
        }
        Ok(attached)
    }
}

impl VmAccess for XenDomain {
    fn vcpus(&self) -> Vec<u32> {
        self.vcpus.iter().map(|vcpu| vcpu.index).collect()
    }

    fn state(&mut self, vcpu: usize) -> Result<Option<CoreState>, GuestError> {
        let Some(info) = self.look()? else { return Ok(None) };
        let Some(vcpu) = self.vcpus.get(vcpu).filter(|vcpu| vcpu.info.is_online) else { return Ok(None) };
        let call = context_call(self.is_hvm, vcpu.index, 0);
        let start_ns = monotonic_ns();
        let held = self.calls.pause_and_make(&[call]).map_err(|error| failed("hold the domain", error));
        let state = held.and_then(|()| self.registers(0, 0));
        // Whatever the result is, the domain is resumed.
        let resumed = self.calls.resume().map_err(|error| failed("resume the domain", error));
        if !info.is_paused {
            self.frozen_ns += monotonic_ns() - start_ns;
        }
        match state? {
            Some(state) if is_32_bit_guest(&state) => Err(refuse_32_bits(&self.name)),
            state => resumed.map(|()| state),
        }
    }

    fn read(&mut self, view: View, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        LiveSpace::new(&self.frames, view.paging).read(address, into)
    }

    fn set_plan(&mut self, plan: CopyPlan) -> Result<(), GuestError> {
        for vcpu in &mut self.vcpus {
            *vcpu = Vcpu::new(vcpu.index, plan.stack_bytes as usize);
        }
        self.plan = plan;
        Ok(())
    }

    fn wait(&mut self, time: Duration) -> Result<(), GuestError> {
        self.rest(monotonic_ns() + time.as_nanos() as u64).map(drop)
    }

    fn give_up(&mut self) {
        // If this fails, the guardian tries once more.
        let _ = self.detach();
    }
}

fn is_32_bit_guest(state: &CoreState) -> bool {
    const EFER_LONG_MODE_ACTIVE: u64 = 1 << 10;
    let Some(paging) = state.paging.x86_64() else { return false };
    let is_long = paging.efer.is_some_and(|efer| efer & EFER_LONG_MODE_ACTIVE != 0);
    state.width == Width::Bits32 && paging.cr0 & CR0_PAGING != 0 && !is_long
}
