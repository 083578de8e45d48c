//! What the process of a device may still do when it reads the first byte of a guest (decision 34).

use anyhow::{Context, Result};
use glass_lib_jail::{Condition, Jail, SystemCalls};

/// Memory of its own, of which the rings of a guest can make it take 8 MiB: the pieces of 256 requests of a disk, or of the buffers of a card.
const MEMORY_BYTES: u64 = 48 << 20;
/// It has some 12, and QEMU sends eight with a message.
const DESCRIPTORS: u64 = 64;

/// Enters, with so many bytes of memory beside what every device has. A wall that this host does not have is reported.
pub(crate) fn enter(name: &str, of_device: SystemCalls, memory_bytes: u64) -> Result<()> {
    // Messages of QEMU, with files, and answers.
    let system_calls = of_device.allow(&[libc::SYS_recvmsg, libc::SYS_recvfrom, libc::SYS_sendto]);
    let system_calls = allow_control(system_calls, &[libc::FIONBIO]);
    let memory_bytes = MEMORY_BYTES + memory_bytes;
    let jail = Jail::new().own_user().memory_bytes(memory_bytes).descriptors(DESCRIPTORS).system_calls(system_calls);
    let report = jail.enter().with_context(|| format!("cannot jail the process of the {name}"))?;
    if let Some(sentence) = report.sentence(&format!("the process of the {name}")) {
        eprintln!("{sentence}");
    }
    Ok(())
}

/// Allows `ioctl` with these commands.
pub fn allow_control(system_calls: SystemCalls, commands: &[libc::Ioctl]) -> SystemCalls {
    commands.iter().fold(system_calls, |system_calls, command| {
        let is_command = Condition { argument: 1, mask: u32::MAX, value: *command as u32 };
        system_calls.allow_where(libc::SYS_ioctl, &[is_command])
    })
}
