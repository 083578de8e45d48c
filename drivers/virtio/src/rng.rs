//! An entropy device (virtio 1.2, section 5.4): the host fills a buffer with random bytes, once for each start of the device and then every now and then.

use crate::queue::{Queue, QueueOptions, Segment};
use crate::session::Session;
use crate::transport::{Transport, device, feature};
use alloc::boxed::Box;
use core::time::Duration;
use glass_api::Instant;
use glass_drivers_device::{Dma, DmaMemory, Driver, SetupError, Users, Violation};

/// Bytes of entropy that are requested: a key of 256 bits.
const BYTES: usize = 32;

/// An entropy device. Dropping it resets the device.
pub struct Rng<T: Transport, D: Dma, F> {
    session: Session<T>,
    dma: D,
    queue: Queue,
    memory: DmaMemory,
    deliver: F,
    repeat: Option<Repeat>,
}

/// When the device is requested to fill the buffer once more.
struct Repeat {
    after: Duration,
    clock: Box<dyn Fn() -> Instant>,
    /// `None` while the device has the request.
    at: Option<Instant>,
}

/// Resets the device, makes it run, and requests entropy.
fn start<T: Transport>(session: &mut Session<T>, dma: &impl Dma) -> Result<(Queue, DmaMemory), SetupError> {
    let features = session.begin(device::RNG, feature::EVENT_IDX, 0, &[])?;
    let event_idx = features & feature::EVENT_IDX != 0;
    let mut queue = Queue::new(session, dma, 0, QueueOptions { size: 2, event_idx, table_entries: 0 })?;
    let memory = session.allocate(dma, BYTES, Users::DeviceWrites)?;
    session.go();
    request(session, &mut queue, &memory);
    Ok((queue, memory))
}

/// Requests entropy. The device has no request.
fn request<T: Transport>(session: &mut Session<T>, queue: &mut Queue, memory: &DmaMemory) {
    let segment = Segment { address: memory.device_address(0), bytes: BYTES as u32, device_writes: true };
    // SAFETY: the session keeps the memory until the device is reset, and it is only copied from.
    let added = unsafe { queue.add(&[segment]) };
    assert!(added.is_ok(), "a queue without a request has room");
    queue.kick(&mut session.transport);
}

impl<T: Transport, D: Dma, F: FnMut(&[u8])> Rng<T, D, F> {
    /// Starts the device behind `transport`. [`Driver::poll`] gives its bytes to `deliver` when they have arrived: 1 to 32, as many as the
    /// device has.
    pub fn new(transport: T, dma: D, deliver: F) -> Result<Rng<T, D, F>, SetupError> {
        let mut session = Session::new(transport);
        let (queue, memory) = start(&mut session, &dma)?;
        Ok(Rng { session, dma, queue, memory, deliver, repeat: None })
    }

    /// Requests bytes again so long after the last ones have arrived, by the platform's `clock`.
    pub fn repeat(self, after: Duration, clock: impl Fn() -> Instant + 'static) -> Rng<T, D, F> {
        Rng { repeat: Some(Repeat { after, clock: Box::new(clock), at: None }), ..self }
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
        if let Some(repeat) = &mut self.repeat {
            repeat.at = Some((repeat.clock)() + repeat.after);
        }
        true
    }

    fn kick(&mut self) -> bool {
        if let Some(repeat) = &mut self.repeat
            && self.queue.violation().is_none()
            && repeat.at.is_some_and(|at| at <= (repeat.clock)())
        {
            repeat.at = None;
            request(&mut self.session, &mut self.queue, &self.memory);
        }
        false
    }

    fn deadline(&mut self) -> Option<Instant> {
        self.repeat.as_ref().and_then(|repeat| repeat.at).filter(|_| self.queue.violation().is_none())
    }

    fn arm(&mut self) -> bool {
        if let Some(violation) = self.session.check_alive() {
            self.queue.break_with(violation);
        }
        self.queue.arm()
    }

    fn disarm(&mut self) {
        self.queue.disarm();
    }

    fn acknowledge(&mut self) {
        self.session.acknowledge(self.queue.explains_interrupt());
    }

    fn violation(&self) -> Option<Violation> {
        self.queue.violation()
    }

    fn restart(&mut self) -> Result<(), SetupError> {
        (self.queue, self.memory) = start(&mut self.session, &self.dma)?;
        if let Some(repeat) = &mut self.repeat {
            repeat.at = None;
        }
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
    use core::cell::{Cell, RefCell};

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
            assert!(!rng.poll() && rng.violation().is_some());
            rng.restart().unwrap();
        }
    }

    #[test]
    fn bytes_are_requested_again_after_a_while() {
        let fake = Fake::new(device::RNG, 0, &[]);
        let (count, now) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (sink, clock) = (count.clone(), now.clone());
        let rng = Rng::new(fake.clone(), GuardedDma, move |_: &[u8]| sink.set(sink.get() + 1)).unwrap();
        let mut rng = rng.repeat(Duration::from_nanos(100), move || Instant(clock.get()));
        for round in 0..3 {
            // The device may take as long as it wants.
            assert!(!rng.kick() && !rng.poll() && rng.deadline().is_none());
            let chain = fake.with(0, |queue| queue.take()).unwrap();
            fake.with(0, |queue| queue.complete(chain.head, 32));
            now.set(round * 1000);
            assert!(rng.poll());
            assert_eq!(rng.deadline(), Some(Instant(round * 1000 + 100)));
            now.set(round * 1000 + 99);
            assert!(!rng.kick() && fake.with(0, |queue| queue.take()).is_none());
            now.set(round * 1000 + 100);
            assert!(!rng.kick());
        }
        assert_eq!((count.get(), fake.notifications().len()), (3, 4));
        // What a broken device has promised does not wake the core.
        let chain = fake.with(0, |queue| queue.take()).unwrap();
        fake.with(0, |queue| queue.complete(chain.head, 32));
        assert!(rng.poll() && rng.deadline().is_some());
        fake.with(0, |queue| queue.put(0, 0));
        assert!(!rng.poll() && rng.deadline().is_none());
        now.set(1 << 20);
        assert!(!rng.kick());
        rng.restart().unwrap();
        assert_eq!(rng.deadline(), None);
    }

    #[test]
    fn a_device_that_has_given_up_is_noticed_when_it_interrupts() {
        let fake = Fake::new(device::RNG, 0, &[]);
        let mut rng = Rng::new(fake.clone(), GuardedDma, |_: &[u8]| ()).unwrap();
        fake.state().status |= status::NEEDS_RESET;
        assert!(!rng.arm() && rng.violation().is_none(), "the status is not read without a reason");
        rng.acknowledge();
        assert_eq!(fake.state().acknowledged, 1);
        rng.arm();
        assert_eq!(rng.violation(), Some(Violation::NeedsReset));
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
