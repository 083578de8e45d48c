//! A snapshot of no VM, for tests and for fuzzing.

use glass_devices::{Place, Position};

use super::{Origin, ProcessorState, STATE_OFFSET, VmState};
use crate::x86_64::bus::Paused;
use crate::x86_64::registers::{Queue, State};

/// An origin.
pub fn origin() -> Origin {
    Origin { image: "/images/hello".into(), build_id: (1..21).collect(), disk_bytes: 1 << 24 }
}

/// A VM with a card.
pub fn state() -> VmState {
    let place = Place { size: 64, descriptors: 0x1000, available: 0x2000, used: 0x3000 };
    let queues = vec![Queue { place, is_ready: true }, Queue::default()];
    let state = State {
        status: 15,
        device_features_select: 1,
        driver_features_select: 1,
        driver_features: 1 << 32,
        queue_select: 1,
        queues,
    };
    let positions = vec![Position { next_available: 3, next_used: 2 }, Position::default()];
    let devices = vec![Paused { id: 1, state, positions }];
    VmState { memory_bytes: 1 << 20, processor: ProcessorState::of_zeroes(), devices }
}

/// All of a file but its RAM.
pub fn bytes() -> Vec<u8> {
    let mut bytes = origin().encode().unwrap();
    bytes.resize(STATE_OFFSET as usize, 0);
    bytes.extend(state().encode().unwrap());
    bytes
}
