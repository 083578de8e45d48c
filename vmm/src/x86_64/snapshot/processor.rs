//! The state of a processor and of the interrupt controllers, between KVM and a snapshot.

use std::mem::size_of;

use anyhow::{Context, Result, ensure};
use kvm_bindings::{
    CpuId, KVM_IRQCHIP_IOAPIC, KVM_MAX_CPUID_ENTRIES, KVM_MP_STATE_HALTED, KVM_MP_STATE_RUNNABLE, Msrs,
    kvm_cpuid_entry2, kvm_irqchip, kvm_lapic_state, kvm_mp_state, kvm_msr_entry, kvm_regs, kvm_sregs, kvm_vcpu_events,
    kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::{VcpuFd, VmFd};
use vm_memory::ByteValued;

use super::bytes::{Reader, Writer};
use crate::x86_64::processor::TIMING_LEAF;
use crate::x86_64::sys::{Plain, set_extended_state};

/// Model-specific registers that an image of ours may have set: PAT, MISC_ENABLE, SYSENTER_CS, _ESP and _EIP, STAR, LSTAR, CSTAR, FMASK, KERNEL_GS_BASE and
/// TSC_AUX. The time stamp counter is not one: a copy continues by its own (`platform/vm/src/generation.rs`).
const MSRS: [u32; 11] =
    [0x277, 0x1a0, 0x174, 0x175, 0x176, 0xc000_0081, 0xc000_0082, 0xc000_0083, 0xc000_0084, 0xc000_0102, 0xc000_0103];
/// Of the TSC's rate, so much may differ from what it was, in parts in so many: two measurements of the same host's.
const RATE_PARTS: u32 = 1000;

const ALL: u32 = u32::MAX;
/// Leaves of CPUID and their indexes, and which bits of EAX, EBX, ECX and EDX are features of the processor: not that there is a hypervisor, nor what the
/// guest has switched on (XSAVE, protection keys).
const FEATURES: [(u32, u32, [u32; 4]); 5] = [
    (0x1, 0, [0, 0, !(1 << 31 | 1 << 27), ALL]),
    (0x7, 0, [0, ALL, !(1 << 4), ALL]),
    (0x7, 1, [ALL, 0, 0, 0]),
    (0xd, 0, [ALL, 0, 0, 0]),
    (0x8000_0001, 0, [0, 0, ALL, ALL]),
];

/// EAX, EBX, ECX and EDX of a leaf; zeroes without it.
fn leaf(list: &[kvm_cpuid_entry2], function: u32, index: u32) -> [u32; 4] {
    let found = list.iter().find(|leaf| leaf.function == function && leaf.index == index);
    found.map_or([0; 4], |leaf| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx])
}

/// All that a processor has, and the I/O APIC.
#[derive(Clone)]
pub struct ProcessorState {
    registers: Plain<kvm_regs>,
    system: Plain<kvm_sregs>,
    extended_control: Plain<kvm_xcrs>,
    extended: Vec<u8>,
    events: Plain<kvm_vcpu_events>,
    local_apic: Plain<kvm_lapic_state>,
    io_apic: Plain<kvm_irqchip>,
    /// Those of [`MSRS`] that the processor has.
    msrs: Vec<(u32, u64)>,
    features: Vec<kvm_cpuid_entry2>,
}

/// Whether a processor, which is not in KVM now, is halted.
pub fn is_halted(processor: &VcpuFd) -> bool {
    processor.get_mp_state().is_ok_and(|state| state.mp_state == KVM_MP_STATE_HALTED)
}

fn plain<T: Default>(reader: &mut Reader) -> Result<Plain<T>>
where
    Plain<T>: ByteValued,
{
    let mut value = Plain(T::default());
    value.as_mut_slice().copy_from_slice(reader.bytes(size_of::<T>())?);
    Ok(value)
}

impl ProcessorState {
    /// Reads that of a VM's only processor, which was made with these features.
    pub fn read(vm: &VmFd, processor: &VcpuFd, features: &CpuId) -> Result<ProcessorState> {
        let mut io_apic = kvm_irqchip { chip_id: KVM_IRQCHIP_IOAPIC, ..Default::default() };
        vm.get_irqchip(&mut io_apic)?;
        let mut msrs = Vec::new();
        for index in MSRS {
            let mut one = Msrs::from_entries(&[kvm_msr_entry { index, ..Default::default() }])?;
            if processor.get_msrs(&mut one).is_ok_and(|count| count == 1) {
                msrs.push((index, one.as_slice()[0].data));
            }
        }
        let extended = processor.get_xsave()?.region.iter().flat_map(|word| word.to_le_bytes()).collect();
        Ok(ProcessorState {
            registers: Plain(processor.get_regs()?),
            system: Plain(processor.get_sregs()?),
            extended_control: Plain(processor.get_xcrs()?),
            extended,
            events: Plain(processor.get_vcpu_events()?),
            local_apic: Plain(processor.get_lapic()?),
            io_apic: Plain(io_apic),
            msrs,
            features: features.as_slice().to_vec(),
        })
    }

    /// Gives it to the only processor of a new VM, which then leaves its halt.
    ///
    /// # Errors
    /// This host's processor lacks something, or KVM refuses a value.
    pub fn apply(&self, vm: &VmFd, processor: &VcpuFd) -> Result<()> {
        let features = CpuId::from_entries(&self.features)?;
        processor.set_cpuid2(&features).context("KVM refuses its features")?;
        processor.set_sregs(&self.system.0).context("KVM refuses its control registers")?;
        processor.set_regs(&self.registers.0).context("KVM refuses its registers")?;
        processor.set_xcrs(&self.extended_control.0).context("KVM refuses its extended control registers")?;
        let mut extended = kvm_xsave::default();
        for (word, bytes) in extended.region.iter_mut().zip(self.extended.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        set_extended_state(processor, &extended).context("KVM refuses its extended registers")?;
        let msrs =
            self.msrs.iter().map(|(index, data)| kvm_msr_entry { index: *index, data: *data, ..Default::default() });
        let msrs = Msrs::from_entries(&msrs.collect::<Vec<_>>())?;
        let set = processor.set_msrs(&msrs).context("KVM refuses its model-specific registers")?;
        ensure!(set == self.msrs.len(), "KVM refuses its model-specific register {:#x}", self.msrs[set].0);
        processor.set_lapic(&self.local_apic.0).context("KVM refuses its local APIC")?;
        processor.set_vcpu_events(&self.events.0).context("KVM refuses its events")?;
        vm.set_irqchip(&self.io_apic.0).context("KVM refuses its I/O APIC")?;
        processor.set_mp_state(kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE })?;
        Ok(())
    }

    /// Whether a processor of a host with these features can continue it.
    ///
    /// # Errors
    /// It cannot; why.
    pub fn check(&self, here: &CpuId) -> Result<()> {
        for (function, index, masks) in FEATURES {
            let (had, has) = (leaf(&self.features, function, index), leaf(here.as_slice(), function, index));
            for (mask, (had, has)) in masks.into_iter().zip(had.into_iter().zip(has)) {
                let lacks = had & !has & mask;
                ensure!(
                    lacks == 0,
                    "this host's processor lacks features of the one that it ran on (CPUID {function:#x}: {lacks:#x})"
                );
            }
        }
        Ok(())
    }

    /// Whether a processor's time stamp counter is as fast.
    ///
    /// # Errors
    /// It is not.
    pub fn check_rate(&self, tsc_khz: u32) -> Result<()> {
        let [then, ..] = leaf(&self.features, TIMING_LEAF, 0);
        ensure!(
            then.abs_diff(tsc_khz) <= then / RATE_PARTS,
            "the time stamp counter of this host has {tsc_khz} kHz, and that of the one that it ran on {then}"
        );
        Ok(())
    }

    pub fn encode(&self, writer: &mut Writer) {
        writer.bytes(self.registers.as_slice());
        writer.bytes(self.system.as_slice());
        writer.bytes(self.extended_control.as_slice());
        writer.bytes(&self.extended);
        writer.bytes(self.events.as_slice());
        writer.bytes(self.local_apic.as_slice());
        writer.bytes(self.io_apic.as_slice());
        writer.u32(self.msrs.len() as u32);
        for (index, value) in &self.msrs {
            writer.u32(*index);
            writer.u64(*value);
        }
        writer.u32(self.features.len() as u32);
        for leaf in &self.features {
            [leaf.function, leaf.index, leaf.flags, leaf.eax, leaf.ebx, leaf.ecx, leaf.edx]
                .into_iter()
                .for_each(|word| writer.u32(word));
        }
    }

    pub fn decode(reader: &mut Reader) -> Result<ProcessorState> {
        let registers = plain(reader)?;
        let system = plain(reader)?;
        let extended_control = plain(reader)?;
        let extended = reader.bytes(size_of::<kvm_xsave>())?.to_vec();
        let events = plain(reader)?;
        let local_apic = plain(reader)?;
        let io_apic: Plain<kvm_irqchip> = plain(reader)?;
        ensure!(io_apic.0.chip_id == KVM_IRQCHIP_IOAPIC, "it has no I/O APIC");
        let mut msrs = Vec::new();
        for _ in 0..reader.count(MSRS.len())? {
            let (index, value) = (reader.u32()?, reader.u64()?);
            ensure!(MSRS.contains(&index), "the model-specific register {index:#x} is none that an image sets");
            msrs.push((index, value));
        }
        let mut features = Vec::new();
        for _ in 0..reader.count(KVM_MAX_CPUID_ENTRIES)? {
            let mut word = || reader.u32();
            let (function, index, flags) = (word()?, word()?, word()?);
            let (eax, ebx, ecx, edx) = (word()?, word()?, word()?, word()?);
            features.push(kvm_cpuid_entry2 { function, index, flags, eax, ebx, ecx, edx, ..Default::default() });
        }
        Ok(ProcessorState {
            registers,
            system,
            extended_control,
            extended,
            events,
            local_apic,
            io_apic,
            msrs,
            features,
        })
    }
}

#[cfg(any(test, feature = "script"))]
impl ProcessorState {
    /// One that was never read from KVM.
    pub fn of_zeroes() -> ProcessorState {
        ProcessorState {
            registers: Plain(kvm_regs::default()),
            system: Plain(kvm_sregs::default()),
            extended_control: Plain(kvm_xcrs::default()),
            extended: vec![0; size_of::<kvm_xsave>()],
            events: Plain(kvm_vcpu_events::default()),
            local_apic: Plain(kvm_lapic_state::default()),
            io_apic: Plain(kvm_irqchip { chip_id: KVM_IRQCHIP_IOAPIC, ..Default::default() }),
            msrs: vec![(MSRS[0], 1), (MSRS[10], 2)],
            features: vec![kvm_cpuid_entry2 { function: 1, ecx: 6, ..Default::default() }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_needs_the_features_that_it_had() {
        let here = |ecx| CpuId::from_entries(&[kvm_cpuid_entry2 { function: 1, ecx, ..Default::default() }]).unwrap();
        let state = ProcessorState::of_zeroes();
        assert!(state.check(&here(6)).is_ok() && state.check(&here(7)).is_ok());
        let error = state.check(&here(4)).unwrap_err().to_string();
        assert!(error.contains("0x1: 0x2"), "{error}");
    }

    #[test]
    fn the_counter_has_to_be_as_fast() {
        let mut state = ProcessorState::of_zeroes();
        state.features.push(kvm_cpuid_entry2 { function: TIMING_LEAF, eax: 2_500_000, ..Default::default() });
        assert!(state.check_rate(2_501_000).is_ok());
        assert!(state.check_rate(2_600_000).is_err());
    }
}
