//! A source of random bytes of the host (virtio 1.2, section 5.4).

use crate::device::{Device, Host, Turn};
use crate::rings::{Ring, copy_to};
use anyhow::{Context, Result};
use glass_lib_jail::SystemCalls;
use rustix::rand::{GetRandomFlags, getrandom};
use virtio_queue::QueueT;
use vm_memory::GuestMemoryMmap;

/// What a buffer gets at most: a device may fill less than there is room for.
const BYTES_MAX: usize = 256;
/// Buffers in a turn.
const TURN: usize = 16;

/// The source.
#[derive(Default)]
pub struct Entropy;

impl Device for Entropy {
    const NAME: &'static str = "source of entropy";
    const ID: u32 = 4;
    const QUEUES: usize = 1;

    fn allow(system_calls: SystemCalls) -> SystemCalls {
        system_calls
    }

    fn features(&self) -> u64 {
        0
    }

    fn config(&self) -> Option<&[u8]> {
        None
    }

    fn agree(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn work(&mut self, memory: &GuestMemoryMmap, rings: &mut [Ring]) -> Result<Turn> {
        let [ring] = rings else { unreachable!("there is one queue") };
        if !ring.is_running() {
            return Ok(Turn::NeedsGuest);
        }
        let mut round = ring.round(memory);
        let (mut pieces, mut used) = (Vec::new(), Vec::new());
        while used.len() < TURN
            && let Some(buffer) = ring.next_buffer(memory, &mut round, true, &mut pieces)
        {
            let mut bytes = [0; BYTES_MAX];
            let bytes = &mut bytes[..buffer.bytes.min(BYTES_MAX)];
            let random = rustix::io::retry_on_intr(|| getrandom(&mut *bytes, GetRandomFlags::empty()));
            // So few bytes are never cut short.
            random.context("the host has no random bytes")?;
            // SAFETY: the pieces are memory of the guest, to which there are no references.
            unsafe { copy_to(&pieces, &[bytes]) };
            pieces.clear();
            used.push((buffer.head, bytes.len() as u32));
        }
        if !used.is_empty() && ring.complete(memory, &used) {
            ring.interrupt();
        }
        let has_more = ring.is_running() && (round.is_cut() || ring.queue.enable_notification(memory).unwrap_or(false));
        Ok(if has_more { Turn::Busy } else { Turn::NeedsGuest })
    }

    fn finish(&mut self, _: &GuestMemoryMmap, _: &mut [Ring]) -> Result<()> {
        Ok(())
    }

    fn host(&self) -> Option<Host<'_>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_guest::{DATA, Guest, NEXT, WRITE};

    #[test]
    fn a_buffer_of_two_pieces_is_filled_and_nothing_behind_it() {
        let mut guest = Guest::new(true);
        guest.descriptor(0, DATA, 40, WRITE | NEXT, 1);
        guest.descriptor(1, DATA + 100, 60, WRITE, 0);
        guest.descriptor(2, DATA + 1000, 4000, WRITE, 0);
        guest.offer(0);
        guest.offer(2);
        let memory = guest.memory.clone();
        let turn = Entropy.work(&memory, std::slice::from_mut(&mut guest.ring)).unwrap();
        assert_eq!((turn, guest.used()), (Turn::NeedsGuest, vec![(0, 100), (2, BYTES_MAX as u32)]));
        let count = |address, bytes| guest.bytes(address, bytes).iter().filter(|byte| **byte != 0).count();
        // That 30 of 40 random bytes are zero happens once in 10^60.
        assert!(count(DATA, 40) > 10 && count(DATA + 100, 60) > 10 && count(DATA + 1000, BYTES_MAX) > 10);
        assert_eq!(count(DATA + 40, 60) + count(DATA + 160, 840) + count(DATA + 1000 + BYTES_MAX as u64, 3744), 0);
    }
}
