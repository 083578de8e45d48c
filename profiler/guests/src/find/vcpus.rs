//! The vCPUs of a process that uses KVM, and those of them that a user chooses.

use std::fs;
use std::io;

use crate::error::GuestError;

/// The most vCPUs of a VM that are looked at.
pub(crate) const VCPUS_MAX: usize = 256;
/// The most descriptors of a process that are inspected.
const ENTRIES_MAX: usize = 65_536;

/// A vCPU's number and its descriptor in the VMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) index: u32,
    pub(crate) number: i32,
}

/// The vCPUs of a process and its descriptor of `/dev/kvm`.
pub(crate) fn descriptors(pid: u32) -> io::Result<(Vec<Descriptor>, Option<i32>)> {
    let (mut vcpus, mut kvm) = (Vec::new(), None);
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.take(ENTRIES_MAX) {
        let entry = entry?;
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let target = match fs::read_link(entry.path()) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            // It was closed since.
            Err(_) => continue,
        };
        let target = target.to_string_lossy();
        if target == "/dev/kvm" {
            kvm = Some(number);
        } else if let Some(index) = target.strip_prefix("anon_inode:kvm-vcpu:").and_then(|index| index.parse().ok())
            && vcpus.len() < VCPUS_MAX
        {
            vcpus.push(Descriptor { index, number });
        }
    }
    vcpus.sort_unstable_by_key(|vcpu| vcpu.index);
    Ok((vcpus, kvm))
}

/// The number of KVM's vCPUs of a process; fails if we may not inspect it.
pub(crate) fn count(pid: u32) -> io::Result<usize> {
    Ok(descriptors(pid)?.0.len())
}

/// The vCPUs to sample, of so many: all if none is wanted. Fails if one is wanted that does not exist.
pub(crate) fn choose_vcpus(wanted: &[u32], count: usize) -> Result<Vec<usize>, GuestError> {
    match wanted.iter().find(|wanted| **wanted as usize >= count) {
        Some(index) => Err(GuestError::NoSuchVcpu { index: *index, there: (0..count as u32).collect() }),
        None => Ok((0..count).filter(|vcpu| is_wanted(wanted, *vcpu as u32)).collect()),
    }
}

/// Whether a vCPU is to be sampled.
pub(crate) fn is_wanted(wanted: &[u32], vcpu: u32) -> bool {
    wanted.is_empty() || wanted.contains(&vcpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_process_has_no_vcpu() {
        assert_eq!(descriptors(std::process::id()).unwrap(), (Vec::new(), None));
        assert!(descriptors(1 << 22 | 1).is_err());
    }
}
