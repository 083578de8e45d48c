//! The RAM of VMs in a VMM that lays it out as others do: words that the VMM has written all over it have to be found at their physical
//! addresses, as KVM shows the memory and as the VMM's mappings do. The guests never run.

use std::time::Instant;

use glass_profiler_core::arch::Architecture;
use glass_profiler_guests::memory::{MemorySource, Physical, Ram};
use glass_tests::programs::skip;
use glass_tests::vmm::{Vmm, marks};

fn read(ram: &Ram, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    ram.read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
}

/// How many marks are found, if all are.
fn found(ram: &Ram, of: &Vmm) -> Option<usize> {
    let (mut count, mut is_all) = (0, true);
    for (address, word) in marks(&of.ram()) {
        is_all &= read(ram, address) == Some(word);
        count += 1;
    }
    is_all.then_some(count)
}

/// Addresses before, between and behind the ranges have no RAM.
fn assert_holes(ram: &Ram, of: &Vmm, what: &str) {
    let mut ranges = of.ram();
    ranges.sort_unstable();
    let is_ram = |address: &u64| ranges.iter().any(|(start, bytes)| (*start..start + bytes).contains(address));
    let ends = ranges.iter().flat_map(|(start, bytes)| [start.saturating_sub(8), start + bytes]);
    for address in ends.chain([0xf000_0000, 1 << 40, u64::MAX - 7]).filter(|address| !is_ram(address)) {
        assert_eq!(read(ram, address), None, "{what}: {address:#x}");
    }
}

/// Whether KVM's slots can be read here.
fn can_read_slots() -> bool {
    use std::os::unix::fs::MetadataExt;
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let shows_types = std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
    if !is_root || !shows_types {
        skip("only root may see KVM's memory slots, and only where the kernel describes its types");
    }
    is_root && shows_types
}

fn check_slots(vmm: &Vmm, what: &str) {
    if !can_read_slots() {
        return;
    }
    let start = Instant::now();
    let candidates = Ram::candidates(vmm.pid(), Architecture::X86_64).unwrap();
    let took = start.elapsed();
    assert_eq!(candidates.len(), 1, "{what}: one VM");
    let count = found(&candidates[0], vmm).unwrap_or_else(|| panic!("{what}: a mark is not where it is by KVM"));
    assert!(candidates[0].is_whole() && count > 0, "{what}");
    assert_holes(&candidates[0], vmm, what);
    eprintln!("{what}: {count} marks by KVM's slots, which took {took:?}; {}", candidates[0]);
}

fn check_mappings(vmm: &Vmm, what: &str) {
    let candidates = Ram::candidates_of(vmm.pid(), Architecture::X86_64, MemorySource::Mappings).unwrap();
    let proposals: Vec<Ram> = candidates.iter().flat_map(Ram::proposals).collect();
    let all: Vec<&Ram> = candidates.iter().chain(&proposals).collect();
    let right: Vec<&&Ram> = all.iter().filter(|ram| found(ram, vmm).is_some()).collect();
    let first = right.first().unwrap_or_else(|| panic!("{what}: none of {} layouts has all marks", all.len()));
    assert!(right.iter().any(|ram| ram.is_whole()), "{what}");
    assert_holes(first, vmm, what);
    eprintln!("{what}: {} marks by one of {} layouts", found(first, vmm).unwrap(), all.len());
}

fn check(layout: &str, memory_mib: u64, adds: bool) {
    let Some(mut vmm) = Vmm::start(layout, memory_mib, 1, None).unwrap() else { return };
    let what = format!("{layout} with {memory_mib} MiB");
    check_slots(&vmm, &what);
    check_mappings(&vmm, &what);
    if adds {
        let before = vmm.ram().len();
        vmm.add_memory().unwrap();
        assert_eq!(vmm.ram().len(), before + 1);
        check_slots(&vmm, &format!("{what} and more"));
        check_mappings(&vmm, &format!("{what} and more"));
    }
}

#[test]
fn one_block() {
    check("plain", 64, false);
}

#[test]
fn firecracker() {
    check("firecracker", 128, false);
    check("firecracker", 4096, false);
}

#[test]
fn cloud_hypervisor() {
    check("cloud-hypervisor", 64, true);
    check("cloud-hypervisor", 3584, true);
}

#[test]
fn libkrun() {
    check("libkrun", 96, false);
    check("libkrun", 3584, false);
}
