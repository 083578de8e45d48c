//! Sleds in code that is only inspected, never run.

extern crate std;

use super::*;
use std::cell::RefCell;
use std::vec::Vec;

const RECORDERS: [usize; 3] = [0x1000, 0x2000, 0x3000];

/// Code at address 0x10000: a sled each 16 bytes.
struct Code {
    bytes: RefCell<Vec<u8>>,
    sleds: Vec<Sled>,
    is_alone: bool,
    can_write: bool,
    unseen: Vec<usize>,
}

fn sled(index: usize, number: u32, place: Place) -> Sled {
    Sled { address: 0x1_0000 + 16 * index, number, place, recorder: RECORDERS[place as usize] }
}

impl Code {
    fn new() -> Code {
        let places =
            [(0, Place::Begin), (0, Place::Return), (1, Place::Begin), (1, Place::TailCall), (2, Place::Begin)];
        let sleds: Vec<Sled> =
            places.into_iter().enumerate().map(|(index, (number, place))| sled(index, number, place)).collect();
        let bytes = sleds.iter().flat_map(|sled| sled.at_rest().into_iter().chain([0x90; 5])).collect();
        Code { bytes: RefCell::new(bytes), sleds, is_alone: true, can_write: true, unseen: Vec::new() }
    }

    fn switch(&mut self, wanted: &[u32]) -> u32 {
        let sleds = self.sleds.clone();
        let bytes = RefCell::new(core::mem::take(&mut *self.bytes.borrow_mut()));
        let read = |address: usize| {
            let start = address - 0x1_0000;
            bytes.borrow()[start..start + SLED_BYTES].try_into().unwrap()
        };
        let mut text = Memory { bytes: &bytes, code: self };
        let count = switch_sleds(|| sleds.clone().into_iter(), |number| wanted.contains(&number), read, &mut text);
        *self.bytes.borrow_mut() = bytes.into_inner();
        count
    }

    fn sled_bytes(&self, index: usize) -> [u8; SLED_BYTES] {
        self.bytes.borrow()[16 * index..16 * index + SLED_BYTES].try_into().unwrap()
    }
}

struct Memory<'a> {
    bytes: &'a RefCell<Vec<u8>>,
    code: &'a mut Code,
}

impl Text for Memory<'_> {
    fn write(&mut self, address: usize, bytes: &[u8]) -> bool {
        if !self.code.can_write {
            return false;
        }
        let start = address - 0x1_0000;
        for (index, byte) in (start..).zip(bytes) {
            self.bytes.borrow_mut()[index] = *byte;
            self.code.unseen.push(index);
            // Another thread could run every sled now.
            for (index, sled) in self.code.sleds.iter().enumerate() {
                let now = &self.bytes.borrow()[16 * index..16 * index + SLED_BYTES];
                let lead = sled.lead();
                let Some(traced) = sled.traced() else { continue };
                if now[lead] == traced[lead] {
                    assert_eq!(now, traced, "{sled:?} runs bytes that are not there yet");
                    let unseen = |byte: &usize| (16 * index + lead + 1..16 * index + SLED_BYTES).contains(byte);
                    assert!(!self.code.unseen.iter().any(unseen), "{sled:?} runs bytes that a core may not have seen");
                } else {
                    assert_eq!(now[..=lead], sled.at_rest()[..=lead]);
                }
            }
        }
        true
    }

    fn synchronize(&mut self) -> bool {
        self.code.unseen.clear();
        true
    }

    fn is_alone(&self) -> bool {
        self.code.is_alone
    }
}

#[test]
fn exactly_the_chosen_functions_are_traced_and_restored() {
    let mut code = Code::new();
    let before = code.bytes.borrow().clone();
    assert_eq!(code.switch(&[1]), 1);
    for index in [0, 1, 4] {
        assert_eq!(code.sled_bytes(index), code.sleds[index].at_rest());
    }
    // At 0x10020: jmp 0; call 0x1000; jmp 2; 1. At 0x10030: the same with 0x3000.
    assert_eq!(code.sled_bytes(2), [0xeb, 0, 0xe8, 0xd9, 0x0f, 0xff, 0xff, 0xeb, 2, 1, 0]);
    assert_eq!(code.sled_bytes(3), [0xeb, 0, 0xe8, 0xc9, 0x2f, 0xff, 0xff, 0xeb, 2, 1, 0]);
    assert_eq!(code.switch(&[0, 2]), 2);
    // At 0x10010: call 0x2000; ret; 0.
    assert_eq!(code.sled_bytes(1), [0xe8, 0xeb, 0x1f, 0xff, 0xff, 0xc3, 0, 0, 2, 0, 0]);
    assert_eq!(code.sled_bytes(2), AT_REST);
    assert_eq!(code.switch(&[]), 0);
    assert_eq!(*code.bytes.borrow(), before);
}

#[test]
fn beside_other_threads_only_leads_are_restored() {
    let mut code = Code::new();
    code.is_alone = false;
    assert_eq!(code.switch(&[0]), 1);
    let traced = code.sled_bytes(1);
    assert_eq!(code.switch(&[]), 0);
    assert_eq!(code.sled_bytes(0)[..2], AT_REST[..2]);
    assert_eq!(code.sled_bytes(1)[0], 0xc3);
    assert_eq!(code.sled_bytes(1)[1..], traced[1..]);
    assert_eq!(code.switch(&[0, 1, 2]), 3);
    assert_eq!(code.sled_bytes(1), traced);
}

#[test]
fn what_is_no_sled_or_out_of_reach_is_left_alone() {
    let mut code = Code::new();
    code.bytes.borrow_mut()[5] = 0xcc;
    code.sleds[2].recorder = 1 << 40;
    let before = code.bytes.borrow().clone();
    assert_eq!(code.switch(&[0, 1]), 2, "each has another sled");
    assert_eq!(code.sled_bytes(0), before[..SLED_BYTES]);
    assert_eq!(code.sled_bytes(2), AT_REST);
    code.switch(&[]);
    assert_eq!(*code.bytes.borrow(), before);
}

#[test]
fn code_that_cannot_be_written_is_not_traced() {
    let mut code = Code::new();
    code.can_write = false;
    assert_eq!(code.switch(&[0, 1, 2]), 0);
}

#[test]
fn the_table_is_read_as_the_compiler_writes_it() {
    let functions = [0x20_0000_usize, 0x20_0000, 0x1000, 0x1000, 0x3000];
    let mut table = [[0_u8; 32]; 5];
    for (index, function) in functions.into_iter().enumerate() {
        let address = table[index].as_ptr() as usize;
        let sled = function + 64 * index;
        table[index][..8].copy_from_slice(&sled.wrapping_sub(address).to_le_bytes());
        table[index][8..16].copy_from_slice(&function.wrapping_sub(address + 8).to_le_bytes());
        table[index][16] = [0, 1, 0, 2, 3][index];
    }
    let found: Vec<Sled> = sleds_of(&table, RECORDERS).collect();
    let numbers: Vec<u32> = found.iter().map(|sled| sled.number).collect();
    assert_eq!(numbers, [0, 0, 1, 1, 2]);
    assert_eq!(found[3], Sled { address: 0x1000 + 192, number: 1, place: Place::TailCall, recorder: 0x3000 });
    assert_eq!((found[1].place, found[4].place), (Place::Return, Place::Begin));
    assert_eq!(count_of(sleds_of(&table, RECORDERS)), 3);
    assert_eq!(count(), 0, "tests are not built for it");
}

#[test]
fn the_host_chooses_functions_by_bits_and_the_group_switches_them() {
    let (functions, others) = (Group::Functions as u32, Group::Tasks as u32 | Group::Net as u32);
    let chosen = |groups| (0..200).filter(|number| is_wanted(groups, *number)).collect::<Vec<u32>>();
    CONTROL.functions_wanted[0].store(1 << 63 | 1 << 5, Ordering::Relaxed);
    CONTROL.functions_wanted[2].store(1, Ordering::Relaxed);
    assert_eq!(chosen(functions | others), [5, 63, 128]);
    assert_eq!(chosen(others), []);
    choose_all();
    assert_eq!(chosen(functions), (0..200).collect::<Vec<u32>>());
    assert!(is_wanted(functions, FUNCTIONS_MAX as u32 - 1) && !is_wanted(functions, FUNCTIONS_MAX as u32));
    // The result is the number of traced functions: none in a program without sleds.
    CONTROL.functions_on.store(7, Ordering::Relaxed);
    let mut code = Code::new();
    switch(functions, &mut Memory { bytes: &RefCell::default(), code: &mut code });
    assert_eq!(CONTROL.functions_on.load(Ordering::Relaxed), 0);
}

#[test]
fn functions_beyond_the_maximum_have_no_sleds() {
    // In a table of zeros each entry names another function.
    let table = std::vec![[0; 32]; FUNCTIONS_MAX + 1];
    assert_eq!(sleds_of(&table, RECORDERS).count(), FUNCTIONS_MAX);
}
