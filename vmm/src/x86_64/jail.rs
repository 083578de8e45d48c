//! What the process may still do when the guest runs its first instruction (decision 34).

use anyhow::{Context, Result};
use glass_devices::{UserNetwork, allow_control};
use glass_lib_jail::{Jail, SystemCalls};

use crate::Network;

/// `KVM_RUN` (`linux/kvm.h`).
const KVM_RUN: libc::Ioctl = 0xae80;
/// `KVM_GET_REGS`, `_SREGS`, `_XCRS`, `_XSAVE`, `_VCPU_EVENTS`, `_LAPIC`, `_MSRS`, `_MP_STATE` and, of the VM, `_IRQCHIP`.
const KVM_READS: [libc::Ioctl; 9] = [
    0x8090_ae81,
    0x8138_ae83,
    0x8188_aea6,
    0x9000_aea4,
    0x8040_ae9f,
    0x8400_ae8e,
    0xc008_ae88,
    0x8004_ae98,
    0xc208_ae62,
];
/// Memory of its own, beside the guest's, and what each processor adds, most of it the stack of a thread.
const OWN_BYTES: u64 = 64 << 20;
const PROCESSOR_BYTES: u64 = 4 << 20;
/// It has some 40, of which a device uses a few once more while it runs.
const DESCRIPTORS: u64 = 512;

/// What a VM needs beside its devices.
pub struct Needs<'a> {
    pub cores: u8,
    pub network: &'a Network,
    /// Bytes of RAM that are the process's own, as those of a copy are, and of its devices.
    pub private_bytes: u64,
    /// Whether it writes snapshots.
    pub is_template: bool,
    /// Whether it reports page faults, with the registers of its processor.
    pub reports_faults: bool,
}

/// Enters: it runs processors, and does for its devices what `of_devices` has. A wall that this host does not have is reported.
pub fn enter(of_devices: SystemCalls, needs: &Needs) -> Result<()> {
    let Needs { cores, network, private_bytes, is_template, reports_faults } = *needs;
    // Threads of devices; copies of descriptors for them.
    let copy = glass_lib_jail::Condition { argument: 1, mask: u32::MAX, value: libc::F_DUPFD_CLOEXEC as u32 };
    let system_calls = allow_control(of_devices, &[KVM_RUN]).with_threads().allow_where(libc::SYS_fcntl, &[copy]);
    let system_calls = if is_template { allow_snapshots(system_calls) } else { system_calls };
    let system_calls = if reports_faults { allow_control(system_calls, &KVM_READS[..2]) } else { system_calls };
    let own_bytes = OWN_BYTES + PROCESSOR_BYTES * u64::from(cores);
    let (mut memory, mut descriptors) = (own_bytes + private_bytes, DESCRIPTORS);
    let mut jail = Jail::new().own_user().system_calls(system_calls);
    if let Network::User(_) = network {
        (memory, descriptors) = (memory + UserNetwork::MEMORY_BYTES_MAX, descriptors + UserNetwork::DESCRIPTORS_MAX);
        jail = jail.tcp_connections();
    }
    let report = jail.memory_bytes(memory).descriptors(descriptors).enter().context("cannot jail the VM")?;
    if let Some(sentence) = report.sentence("the process of the VM") {
        eprintln!("{sentence}");
    }
    Ok(())
}

/// Allows what a snapshot takes: a file from its client, and to read what KVM has of this VM.
fn allow_snapshots(system_calls: SystemCalls) -> SystemCalls {
    let system_calls = system_calls.allow(&[
        libc::SYS_accept4,
        libc::SYS_recvmsg,
        libc::SYS_recvfrom,
        libc::SYS_sendto,
        libc::SYS_pwrite64,
        libc::SYS_poll,
        libc::SYS_ppoll,
    ]);
    allow_control(system_calls, &KVM_READS)
}
