//! What the process may still do when the guest runs its first instruction (decision 34).

use anyhow::{Context, Result};
use glass_devices::allow_control;
use glass_lib_jail::{Jail, SystemCalls};

/// `KVM_RUN` (`linux/kvm.h`).
const KVM_RUN: libc::Ioctl = 0xae80;
/// Memory of its own, beside the guest's, and what each processor adds, most of it the stack of a thread.
const OWN_BYTES: u64 = 64 << 20;
const PROCESSOR_BYTES: u64 = 4 << 20;
/// It has some 40, of which a device uses a few once more while it runs.
const DESCRIPTORS: u64 = 512;

/// Enters: it runs processors, and does for its devices what `of_devices` has. A wall that this host does not have is reported.
pub fn enter(of_devices: SystemCalls, cores: u8) -> Result<()> {
    // Threads of devices; copies of descriptors for them.
    let copy = glass_lib_jail::Condition { argument: 1, mask: u32::MAX, value: libc::F_DUPFD_CLOEXEC as u32 };
    let system_calls = allow_control(of_devices, &[KVM_RUN]).with_threads().allow_where(libc::SYS_fcntl, &[copy]);
    let memory = OWN_BYTES + PROCESSOR_BYTES * u64::from(cores);
    let jail = Jail::new().own_user().memory_bytes(memory).descriptors(DESCRIPTORS).system_calls(system_calls);
    let report = jail.enter().context("cannot jail the VM")?;
    if let Some(sentence) = report.sentence("the process of the VM") {
        eprintln!("{sentence}");
    }
    Ok(())
}
