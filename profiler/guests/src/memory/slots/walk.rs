//! Reads KVM's memory slots out of the kernel's memory.
//!
//! KVM has two sets of the slots of an address space, of which one is in use; a change is made in the other one, which then takes its place
//! (`kvm_swap_active_memslots` in virt/kvm/kvm_main.c of Linux). We read without a lock, so a walk counts only if the set in use and its
//! generation are the same afterwards.

use super::Slot;
use glass_profiler_core::linux::btf::Btf;

/// The most slots of a VM that are read. QEMU has a few, and one for each piece of hotplugged memory.
pub(super) const SLOTS_MAX: usize = 4096;
/// How often a walk is repeated while slots change.
const WALKS_MAX: u32 = 16;
/// Address spaces have at most 52 bits, so many pages.
const PAGES_MAX: u64 = 1 << 40;
const PAGE_BYTES: u64 = 4096;
/// A change is in progress (`KVM_MEMSLOT_GEN_UPDATE_IN_PROGRESS` in linux/kvm_host.h).
const GENERATION_CHANGES: u64 = 1 << 63;
/// Flags: read-only (`KVM_MEM_READONLY`), and not valid while it is changed (`KVM_MEMSLOT_INVALID`).
const FLAG_READ_ONLY: u32 = 1 << 1;
const FLAG_INVALID: u32 = 1 << 16;

/// Where KVM has its slots: offsets in its structures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offsets {
    /// `kvm.mm`: the address space of the VMM.
    memory: u64,
    /// `kvm.memslots[0]`: the set in use, of the address space that is not system management mode.
    in_use: u64,
    /// `kvm_memslots.generation`.
    generation: u64,
    set: Set,
    slot: SlotOffsets,
}

/// How a set keeps its slots.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Set {
    /// In a tree by address (since Linux 5.17). A slot has a node for each of the two sets.
    Tree { root: u64, which: u64, node: u64, node_bytes: u64, left: u64, right: u64 },
    /// In an array.
    Array { used: u64, first: u64, slot_bytes: u64 },
}

/// Members of `kvm_memory_slot`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SlotOffsets {
    address: u64,
    pages: u64,
    host: u64,
    flags: u64,
}

impl Offsets {
    /// `None` if the kernel's structures are others than those known here.
    pub(super) fn of(btf: &Btf<'_>) -> Option<Offsets> {
        let offset = |structure, member| btf.member(structure, member).map(|member| u64::from(member.offset));
        let tree = || {
            Some(Set::Tree {
                root: offset("kvm_memslots", "gfn_tree")? + offset("rb_root", "rb_node")?,
                which: offset("kvm_memslots", "node_idx")?,
                node: offset("kvm_memory_slot", "gfn_node")?,
                node_bytes: u64::from(btf.bytes_of("rb_node")?),
                left: offset("rb_node", "rb_left")?,
                right: offset("rb_node", "rb_right")?,
            })
        };
        let array = || {
            Some(Set::Array {
                used: offset("kvm_memslots", "used_slots")?,
                first: offset("kvm_memslots", "memslots")?,
                slot_bytes: u64::from(btf.bytes_of("kvm_memory_slot")?),
            })
        };
        let slot = |member| offset("kvm_memory_slot", member);
        Some(Offsets {
            memory: offset("kvm", "mm")?,
            in_use: offset("kvm", "memslots")?,
            generation: offset("kvm_memslots", "generation")?,
            set: tree().or_else(array)?,
            slot: SlotOffsets {
                address: slot("base_gfn")?,
                pages: slot("npages")?,
                host: slot("userspace_addr")?,
                flags: slot("flags")?,
            },
        })
    }
}

/// The kernel's memory: copies from an address, false if that is not possible.
type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> bool;

fn number<const BYTES: usize>(read: Read<'_>, base: u64, offset: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    // A pointer that is none.
    let address = base.checked_add(offset).filter(|_| base >> 63 != 0)?;
    read(address, &mut bytes[..BYTES]).then(|| u64::from_le_bytes(bytes))
}

/// The slots of the `struct kvm` at an address, by their addresses. `None` if it belongs to another address space than `memory`, or is not
/// what it should be.
pub(super) fn slots(read: Read<'_>, kvm: u64, memory: u64, offsets: &Offsets) -> Option<Vec<Slot>> {
    if number::<8>(read, kvm, offsets.memory)? != memory {
        return None;
    }
    (0..WALKS_MAX).find_map(|_| {
        let set = number::<8>(read, kvm, offsets.in_use)?;
        let generation = number::<8>(read, set, offsets.generation)?;
        let slots = walk(read, set, offsets)?;
        let is_same = number::<8>(read, kvm, offsets.in_use)? == set
            && number::<8>(read, set, offsets.generation)? == generation
            && generation & GENERATION_CHANGES == 0;
        is_same.then_some(slots)
    })
}

fn walk(read: Read<'_>, set: u64, offsets: &Offsets) -> Option<Vec<Slot>> {
    let mut slots = Vec::new();
    match &offsets.set {
        Set::Tree { root, which, node, node_bytes, left, right } => {
            let which = number::<4>(read, set, *which).filter(|which| *which < 2)?;
            let node = node + which * node_bytes;
            let mut open = vec![number::<8>(read, set, *root)?];
            while let Some(at) = open.pop() {
                if at == 0 {
                    continue;
                }
                // A tree of others than slots, or one that changes, may lead in circles.
                if slots.len() == SLOTS_MAX {
                    return None;
                }
                slots.push(slot(read, at.checked_sub(node)?, &offsets.slot)?);
                open.extend([number::<8>(read, at, *right)?, number::<8>(read, at, *left)?]);
            }
        }
        Set::Array { used, first, slot_bytes } => {
            let count = number::<4>(read, set, *used).filter(|count| *count <= SLOTS_MAX as u64)?;
            for index in 0..count {
                slots.push(slot(read, set.checked_add(first + index * slot_bytes)?, &offsets.slot)?);
            }
        }
    }
    slots.sort_unstable_by_key(|slot| slot.address);
    let are_apart = slots.windows(2).all(|pair| pair[0].address + pair[0].bytes <= pair[1].address);
    are_apart.then_some(slots)
}

fn slot(read: Read<'_>, at: u64, offsets: &SlotOffsets) -> Option<Slot> {
    let first = number::<8>(read, at, offsets.address)?;
    let pages = number::<8>(read, at, offsets.pages)?;
    let host = number::<8>(read, at, offsets.host)?;
    let flags = number::<4>(read, at, offsets.flags)? as u32;
    let is_sound = first < PAGES_MAX
        && (1..PAGES_MAX).contains(&pages)
        && host % PAGE_BYTES == 0
        && host.checked_add(pages * PAGE_BYTES).is_some_and(|end| end >> 63 == 0)
        && flags & FLAG_INVALID == 0;
    is_sound.then_some(Slot {
        address: first * PAGE_BYTES,
        bytes: pages * PAGE_BYTES,
        host,
        is_writable: flags & FLAG_READ_ONLY == 0,
    })
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use super::*;
    use glass_tests::btf::Builder;

    /// The kernel's memory, by words of 8 bytes.
    #[derive(Default)]
    struct Kernel {
        words: RefCell<BTreeMap<u64, u64>>,
        reads: Cell<u32>,
    }

    const BASE: u64 = 0xffff_8880_0000_0000;
    const KVM: u64 = BASE;
    const SET: u64 = BASE + 0x1000;
    const MEMORY: u64 = BASE + 0x5000;

    impl Kernel {
        fn set(&self, address: u64, value: u64) {
            self.words.borrow_mut().insert(address, value);
        }

        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            self.reads.set(self.reads.get() + 1);
            let word = self.words.borrow().get(&address).copied();
            word.map(|word| into.copy_from_slice(&word.to_le_bytes()[..into.len()])).is_some()
        }

        fn slots(&self, offsets: &Offsets) -> Option<Vec<Slot>> {
            slots(&|address, into: &mut [u8]| self.read(address, into), KVM, MEMORY, offsets)
        }

        /// `kvm`, and an empty set in use.
        fn new() -> Kernel {
            let kernel = Kernel::default();
            [(KVM + 8, MEMORY), (KVM + 16, SET), (SET, 2)].iter().for_each(|(at, value)| kernel.set(*at, *value));
            kernel
        }

        fn set_slot(&self, at: u64, [first, pages, host, flags]: [u64; 4]) {
            [first, pages, host, flags].iter().zip(0..).for_each(|(value, index)| self.set(at + index * 8, *value));
        }
    }

    fn offsets(of: &str) -> Offsets {
        let mut kernel = Builder::new(0);
        kernel.other("long", 1 << 24, &[8, 64]);
        kernel.structure("kvm", 32, 0, &[("mm", 1, 64), ("memslots", 1, 128)]);
        kernel.structure("rb_root", 8, 0, &[("rb_node", 1, 0)]);
        kernel.structure("rb_node", 24, 0, &[("rb_right", 1, 64), ("rb_left", 1, 128)]);
        if of == "tree" {
            kernel.structure("kvm_memslots", 24, 0, &[("generation", 1, 0), ("gfn_tree", 1, 64), ("node_idx", 1, 128)]);
        } else {
            kernel.structure(
                "kvm_memslots",
                16,
                0,
                &[("generation", 1, 0), ("used_slots", 1, 64), ("memslots", 1, 128)],
            );
        }
        let members = [
            ("base_gfn", 1, 0),
            ("npages", 1, 64),
            ("userspace_addr", 1, 128),
            ("flags", 1, 192),
            ("gfn_node", 1, 256),
        ];
        kernel.structure("kvm_memory_slot", 80, 0, &members[..if of == "tree" { 5 } else { 4 }]);
        let file = kernel.file();
        Offsets::of(&Btf::parse(&file, None).unwrap()).unwrap()
    }

    /// Three slots, the nodes of the second set.
    fn tree() -> Kernel {
        let kernel = Kernel::new();
        kernel.set(SET + 16, 1);
        let node = |index: u64| BASE + 0x2000 + index * 0x100 + 32 + 24;
        kernel.set(SET + 8, node(1));
        for (index, right, left) in [(0, 0, 0), (1, node(2), node(0)), (2, 0, 0)] {
            kernel.set(node(index) + 8, right);
            kernel.set(node(index) + 16, left);
        }
        kernel.set_slot(BASE + 0x2000, [0, 0x10, 0x7f00_0000_0000, 0]);
        kernel.set_slot(BASE + 0x2100, [0x100, 0x100, 0x7f10_0000_0000, 2]);
        kernel.set_slot(BASE + 0x2200, [0x10_0000, 0x200, 0x7f20_0000_0000, 1]);
        kernel
    }

    const EXPECTED: [Slot; 3] = [
        Slot { address: 0, bytes: 0x1_0000, host: 0x7f00_0000_0000, is_writable: true },
        Slot { address: 0x10_0000, bytes: 0x10_0000, host: 0x7f10_0000_0000, is_writable: false },
        Slot { address: 0x1_0000_0000, bytes: 0x20_0000, host: 0x7f20_0000_0000, is_writable: true },
    ];

    #[test]
    fn a_tree_of_slots() {
        assert_eq!(tree().slots(&offsets("tree")).unwrap(), EXPECTED);
    }

    #[test]
    fn an_array_of_slots() {
        let kernel = Kernel::new();
        kernel.set(SET + 8, 2);
        kernel.set_slot(SET + 16 + 80, [0, 0x10, 0x7f00_0000_0000, 0]);
        kernel.set_slot(SET + 16, [0x100, 0x100, 0x7f10_0000_0000, 2]);
        assert_eq!(kernel.slots(&offsets("array")).unwrap(), EXPECTED[..2]);
        kernel.set(SET + 8, u64::from(u32::MAX));
        assert_eq!(kernel.slots(&offsets("array")), None);
    }

    #[test]
    fn what_is_no_vm_of_the_process_or_changes_is_not_read() {
        let offsets = offsets("tree");
        // Another address space; a change in progress; a word that cannot be read; nodes in a circle; slots on each other.
        let cases: [&dyn Fn(&Kernel); 8] = [
            &|kernel| kernel.set(KVM + 8, MEMORY + 8),
            &|kernel| kernel.set(SET, GENERATION_CHANGES | 2),
            &|kernel| assert!(kernel.words.borrow_mut().remove(&(BASE + 0x2208)).is_some()),
            &|kernel| kernel.set(BASE + 0x2000 + 56 + 16, BASE + 0x2100 + 56),
            &|kernel| kernel.set(BASE + 0x2000 + 8, 0x101),
            &|kernel| kernel.set(BASE + 0x2000 + 24, u64::from(FLAG_INVALID)),
            &|kernel| kernel.set(BASE + 0x2000 + 16, u64::MAX << 12),
            &|kernel| kernel.set(SET + 8, 0x7f00_0000_0000),
        ];
        for (index, change) in cases.iter().enumerate() {
            let kernel = tree();
            change(&kernel);
            assert_eq!(kernel.slots(&offsets), None, "{index}");
            assert!(kernel.reads.get() < 1_000_000, "{index}: {} reads", kernel.reads.get());
        }
    }

    /// A slot is added while the first walk is made: a new set takes the place of the old one.
    #[test]
    fn a_set_that_is_replaced_is_read_again() {
        let kernel = tree();
        let offsets = offsets("tree");
        let other = SET + 0x100;
        [(other, 3), (other + 8, BASE + 0x2000 + 32), (other + 16, 0)]
            .iter()
            .for_each(|(at, value)| kernel.set(*at, *value));
        [(0x2028, 0), (0x2030, 0)].iter().for_each(|(at, value)| kernel.set(BASE + at, *value));
        let read = |address: u64, into: &mut [u8]| {
            if address == BASE + 0x2210 {
                kernel.set(KVM + 16, other);
            }
            kernel.read(address, into)
        };
        assert_eq!(slots(&read, KVM, MEMORY, &offsets).unwrap(), EXPECTED[..1]);
    }
}
