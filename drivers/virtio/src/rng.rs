//! An entropy device (virtio 1.2, section 5.4): the host fills a buffer with random bytes, once for each start of the device.

use crate::Driver;
use crate::dma::{Dma, DmaMemory, Users};
use crate::error::{Lie, SetupError};
use crate::queue::{Queue, QueueOptions, Segment};
use crate::session::Session;
use crate::transport::{Transport, device, feature};

/// Bytes of entropy that are requested: a key of 256 bits.
const BYTES: usize = 32;

/// An entropy device. Dropping it resets the device.
pub struct Rng<T: Transport, D: Dma, F> {
    session: Session<T>,
    dma: D,
    queue: Queue,
    memory: DmaMemory,
    deliver: F,
}

/// Resets the device, makes it run, and requests entropy.
fn start<T: Transport>(session: &mut Session<T>, dma: &impl Dma) -> Result<(Queue, DmaMemory), SetupError> {
    let features = session.begin(device::RNG, feature::EVENT_IDX, 0, &[])?;
    let event_idx = features & feature::EVENT_IDX != 0;
    let mut queue = Queue::new(session, dma, 0, QueueOptions { size: 2, event_idx, table_entries: 0 })?;
    let memory = session.allocate(dma, BYTES, Users::DeviceWrites)?;
    session.go();
    let segment = Segment { address: memory.device_address(0), bytes: BYTES as u32, device_writes: true };
    // SAFETY: the session keeps the memory until the device is reset, and it is only copied from.
    let added = unsafe { queue.add(&[segment]) };
    assert!(added.is_ok(), "a new queue has room");
    queue.kick(&mut session.transport);
    Ok((queue, memory))
}

impl<T: Transport, D: Dma, F: FnMut(&[u8])> Rng<T, D, F> {
    /// Starts the device behind `transport`. [`Driver::poll`] gives its bytes to `deliver` when they have arrived: 1 to 32, as many as the
    /// device has.
    pub fn new(transport: T, dma: D, deliver: F) -> Result<Rng<T, D, F>, SetupError> {
        let mut session = Session::new(transport);
        let (queue, memory) = start(&mut session, &dma)?;
        Ok(Rng { session, dma, queue, memory, deliver })
    }
}

impl<T: Transport, D: Dma, F: FnMut(&[u8])> Driver for Rng<T, D, F> {
    fn poll(&mut self) -> bool {
        let popped = self.queue.pop();
        if popped.is_err() {
            self.session.end();
        }
        let Ok(Some(used)) = popped else { return false };
        let mut bytes = [0; BYTES];
        self.memory.copy_to(0, &mut bytes);
        (self.deliver)(&bytes[..used.bytes_written as usize]);
        true
    }

    fn arm(&mut self) -> bool {
        if let Some(lie) = self.session.check_alive() {
            self.queue.break_with(lie);
        }
        self.queue.arm()
    }

    fn disarm(&mut self) {
        self.queue.disarm();
    }

    fn acknowledge(&mut self) {
        self.session.acknowledge(self.queue.explains_interrupt());
    }

    fn lie(&self) -> Option<Lie> {
        self.queue.lie()
    }

    fn restart(&mut self) -> Result<(), SetupError> {
        (self.queue, self.memory) = start(&mut self.session, &self.dma)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, GuardedDma};
    use crate::transport::status;
    use alloc::rc::Rc;
    use alloc::vec::Vec;
    use core::cell::RefCell;

    #[test]
    fn bytes_are_delivered_once_for_each_start() {
        let fake = Fake::new(device::RNG, feature::EVENT_IDX, &[]);
        let delivered = Rc::new(RefCell::new(Vec::new()));
        let sink = delivered.clone();
        let mut rng =
            Rng::new(fake.clone(), GuardedDma, move |bytes: &[u8]| sink.borrow_mut().push(bytes.to_vec())).unwrap();
        for round in 1..4 {
            assert!(!rng.poll() && !rng.arm());
            fake.with(0, |queue| {
                let chain = queue.take().unwrap();
                assert_eq!((chain.writable_bytes(), queue.take()), (32, None));
                chain.write(&[round; 32]);
                assert!(queue.complete(chain.head, round.into()));
            });
            assert!(rng.arm() && rng.poll() && !rng.poll());
            assert_eq!(delivered.borrow_mut().pop(), Some(vec_of(round)));
            // An answer to nothing.
            fake.with(0, |queue| queue.put(0, 0));
            assert!(!rng.poll() && rng.lie().is_some());
            rng.restart().unwrap();
        }
    }

    #[test]
    fn a_device_that_has_given_up_is_noticed_when_it_interrupts() {
        let fake = Fake::new(device::RNG, 0, &[]);
        let mut rng = Rng::new(fake.clone(), GuardedDma, |_: &[u8]| ()).unwrap();
        fake.state().status |= status::NEEDS_RESET;
        assert!(!rng.arm() && rng.lie().is_none(), "the status is not read without a reason");
        rng.acknowledge();
        assert_eq!(fake.state().acknowledged, 1);
        rng.arm();
        assert_eq!(rng.lie(), Some(Lie::NeedsReset));
    }

    #[test]
    fn a_device_that_has_its_request_leaves_a_core_in_peace() {
        let fake = Fake::new(device::RNG, 0, &[]);
        let mut rng = Rng::new(fake.clone(), GuardedDma, |_: &[u8]| ()).unwrap();
        assert_eq!(fake.notifications(), [0]);
        assert!(!rng.kick() && !rng.has_work() && !rng.is_delivering());
        assert_eq!((rng.deadline(), fake.notifications()), (None, alloc::vec![]));
    }

    #[test]
    fn interrupts_come_only_while_it_is_armed() {
        for features in [feature::EVENT_IDX, 0] {
            let fake = Fake::new(device::RNG, features, &[]);
            let mut rng = Rng::new(fake.clone(), GuardedDma, |_: &[u8]| ()).unwrap();
            for is_armed in [true, false] {
                assert!(!rng.arm());
                if !is_armed {
                    rng.disarm();
                }
                let chain = fake.with(0, |queue| queue.take()).unwrap();
                assert_eq!(fake.with(0, |queue| queue.complete(chain.head, 1)), is_armed, "{features:#x}");
                rng.restart().unwrap();
            }
        }
    }

    fn vec_of(round: u8) -> Vec<u8> {
        alloc::vec![round; round.into()]
    }
}
