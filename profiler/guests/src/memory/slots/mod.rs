//! The memory slots of a VM: which of its VMM's memory is at which physical address, as KVM itself has it.
//!
//! No file shows them. Where the kernel lets us run BPF programs (root, or CAP_BPF and CAP_PERFMON) and describes its types (BTF), they are read
//! out of the kernel's memory ([decision 41](../../../../../docs/decisions/0041-memory-slots.md)). If anything is missing, or other than expected, they are
//! not shown, and the memory is found in the VMM's mappings.

mod walk;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use glass_profiler_core::linux::btf::Btf;
use walk::Offsets;

use crate::proc::living;
use crate::sys::{FileOffsets, KernelReader, KernelTypes, open_files};

/// Descriptions of types that are larger are not read: that of Linux 6.18 has 5.5 MB.
const BTF_BYTES_MAX: u64 = 64 << 20;
/// The most descriptors of a process that are inspected.
const DESCRIPTORS_MAX: usize = 65_536;
/// The most VMs of a process that are looked at.
const VMS_MAX: usize = 8;

/// A range of physical addresses, and where the VMM has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// Its address in the VMM.
    pub(super) host: u64,
    /// The guest may write to it: it is RAM, not firmware.
    pub(super) is_writable: bool,
}

/// The slots of each VM of a process, by address. None where the kernel does not show them.
pub(super) fn of(pid: u32) -> Vec<Vec<Slot>> {
    shown(pid).unwrap_or_default()
}

fn shown(pid: u32) -> Option<Vec<Vec<Slot>>> {
    let wanted = descriptors(pid)?;
    if wanted.is_empty() {
        return None;
    }
    // Megabytes: most of what attaching to a small VM would take is to copy them.
    let mapped = KernelTypes::map().ok();
    let read = if mapped.is_none() { read_btf("vmlinux") } else { None };
    let kernel = Btf::parse(mapped.as_deref().or(read.as_deref())?, None)?;
    // Where KVM is a module its types are in a file of its own.
    let module = read_btf("kvm");
    let module = module.as_deref().and_then(|module| Btf::parse(module, Some(&kernel)));
    let types = module.as_ref().unwrap_or(&kernel);
    let offsets = Offsets::of(types)?;
    let offset = |structure, member| kernel.member(structure, member).map(|member| member.offset);
    let of_files = FileOffsets {
        iterator: kernel.function("bpf_iter_task_file")?,
        process: offset("task_struct", "tgid")?,
        memory: offset("task_struct", "mm")?,
        private: offset("file", "private_data")?,
    };
    let files = open_files(living(pid), of_files).ok()?;
    let of_one = files.windows(2).all(|pair| pair[0].process == pair[1].process);
    // Kernels before 6.1 list the files of all processes, by numbers that are ours unless we are in a namespace of them: then the descriptors
    // would have to be the same by accident, and the address space too.
    let files: Vec<_> = files.into_iter().filter(|file| of_one || file.process == pid).collect();
    let vms: Vec<_> = files.iter().filter(|file| wanted.contains(&file.number)).take(VMS_MAX).collect();
    // A descriptor that was closed meanwhile may be another file now.
    if vms.len() != wanted.len().min(VMS_MAX) || descriptors(pid)? != wanted {
        return None;
    }
    let reader = KernelReader::open().ok()?;
    let read = |address: u64, into: &mut [u8]| reader.read(address, into);
    let slots = vms.iter().map(|vm| walk::slots(&read, vm.private, vm.memory, &offsets));
    // A VM without memory is none yet.
    Some(slots.collect::<Option<Vec<_>>>()?.into_iter().filter(|slots| !slots.is_empty()).collect())
}

/// The descriptors of VMs that a process has.
fn descriptors(pid: u32) -> Option<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).ok()?.take(DESCRIPTORS_MAX).flatten() {
        let is_vm = fs::read_link(entry.path()).is_ok_and(|target| target == Path::new("anon_inode:kvm-vm"));
        if is_vm {
            found.extend(entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
    }
    Some(found)
}

fn read_btf(name: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(format!("/sys/kernel/btf/{name}")).ok()?.take(BTF_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_a_vm_has_no_slots() {
        assert_eq!(of(std::process::id()), Vec::<Vec<Slot>>::new());
        assert_eq!(of(1 << 22 | 1), Vec::<Vec<Slot>>::new());
    }
}
