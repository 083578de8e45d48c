//! How a domain is attached to: whether it can be sampled, and whether it runs what the symbol files hold.

use glass_profile::arch::Width;
use glass_profile::arch::x86_64::paging::Translator;
use glass_profile::guest::GuestKind;

use super::domains::{self, Domain};
use super::memory::Frames;
use super::{Core, Vcpu, XenDomain, context_call, failed};
use crate::arch::x86_64::CoreState;
use crate::error::GuestError;
use crate::sys::monotonic_ns;
use crate::sys::xen::{Call, Guardian, Hypercalls};
use crate::vm::{VCPUS_MAX, VmImage, VmSettings};

/// CR0's bit for paging: before it is set, a guest that ends in long mode runs code of 32 bits too.
const CR0_PAGING: u64 = 1 << 31;

fn refuse_32_bits(domain: &Domain) -> GuestError {
    GuestError::Unsupported(format!(
        "domain {} runs code of 32 bits, which glass cannot unwind: it samples guests of 64 bits",
        domain.name
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
    pub fn attach(domain: &Domain, settings: VmSettings, force: bool) -> Result<XenDomain, GuestError> {
        let gone = || GuestError::NotFound(format!("there is no domain {} any more", domain.name));
        let id = u16::try_from(domain.id).map_err(|_| gone())?;
        let mut calls = domains::open(force)?;
        let info = domains::info(&mut calls, id)?.filter(|info| !info.has_ended).ok_or_else(gone)?;
        if !info.is_hvm && is_of_32_bits(&mut calls)? {
            return Err(refuse_32_bits(domain));
        }
        let frames = Frames::new(domains::privcmd()?, id);
        // Before much is in our memory.
        let guardian = Guardian::start(&calls).map_err(|error| failed("start the guardian of the domain", error))?;
        let wanted = settings.choose((info.vcpus as usize).min(VCPUS_MAX))?;
        let stack_bytes = settings.stack_bytes as usize;
        let vcpus = wanted.into_iter().map(|index| Vcpu::new(index as u32, stack_bytes)).collect();
        let image = VmImage::load(GuestKind::XenDomain { id: domain.id }, &domain.name, settings)?;
        let mut attached = XenDomain {
            guardian,
            calls,
            frames,
            image,
            id,
            is_hvm: info.is_hvm,
            vcpus,
            paused_samples: 0,
            frozen_ns: 0,
            warnings: Vec::new(),
        };
        let info = attached.look()?.ok_or_else(gone)?;
        attached.check(domain, info.is_paused)?;
        if info.is_paused {
            attached.warnings.push("the domain is paused, and stays so until its owner lets it run".to_owned());
        }
        attached.warnings.extend(attached.image.prepare());
        Ok(attached)
    }

    /// Compares the symbol files with what the first vCPU that was started sees, while the domain is held.
    fn check(&mut self, domain: &Domain, is_paused: bool) -> Result<(), GuestError> {
        let Some(vcpu) = self.vcpus.iter().find(|vcpu| vcpu.info.is_online) else {
            self.warnings
                .push("no vCPU of the domain has been started yet, so its symbols could not be checked".to_owned());
            return Ok(());
        };
        let call = context_call(self.is_hvm, vcpu.index, 0);
        let start_ns = monotonic_ns();
        let held = self.calls.pause_and_make(&[call]).map_err(|error| failed("hold the domain", error));
        let checked = held.and_then(|()| self.registers(0, 0)).and_then(|state| match state {
            Some(state) if is_32_bit_guest(&state) => Err(refuse_32_bits(domain)),
            Some(state) => {
                let translator = Translator::new(state.paging);
                self.image.check(&state, &mut Core { frames: &self.frames, translator, is_blocked: false })
            }
            None => Ok(None),
        });
        // Whatever the result is, the domain is resumed.
        let resumed = self.calls.resume().map_err(|error| failed("resume the domain", error));
        if !is_paused {
            self.frozen_ns = monotonic_ns() - start_ns;
        }
        self.warnings.extend(checked?);
        resumed
    }
}

fn is_32_bit_guest(state: &CoreState) -> bool {
    const EFER_LONG_MODE_ACTIVE: u64 = 1 << 10;
    let is_long = state.paging.efer.is_some_and(|efer| efer & EFER_LONG_MODE_ACTIVE != 0);
    state.width == Width::Bits32 && state.paging.cr0 & CR0_PAGING != 0 && !is_long
}
