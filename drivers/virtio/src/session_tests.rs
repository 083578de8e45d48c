//! The start of a device, against devices that do not keep to it, and what its end frees.

use crate::fake::{Fake, GuardedDma, State};
use crate::queue::{Queue, QueueOptions};
use crate::session::Session;
use crate::test_allocator::page_bytes_in_use;
use crate::transport::{Transport, device, feature, status};
use alloc::boxed::Box;
use glass_drivers_device::{Dma, IdentityDma, SetupError, Users, Violation};

const BASES: [(u64, u64); 1] = [(feature::INDIRECT, feature::EVENT_IDX)];
const QUEUE: QueueOptions = QueueOptions { size: 8, event_idx: false, table_entries: 2 };

#[test]
fn a_device_that_does_not_start_says_why() {
    let start = |change: fn(&mut State)| {
        let fake = Fake::new(device::BLK, feature::EVENT_IDX, &[0; 4]);
        change(&mut fake.state());
        let boxed: Box<dyn Transport> = Box::new(fake.clone());
        let mut session = Session::new(boxed);
        let result = session.begin(device::BLK, feature::EVENT_IDX | feature::INDIRECT, 0, &[]);
        let result =
            result.and_then(|features| session.read_config(|device| device.read_config_u32(0)).map(|_| features));
        drop(session);
        let failed = fake.state().status & status::FAILED != 0;
        (result, failed)
    };
    assert_eq!(start(|_| {}).0, Ok(feature::EVENT_IDX | feature::VERSION_1));
    // A device that is not ours is left alone; all others get the bit that we have given up.
    assert_eq!(start(|fake| fake.id = 1), (Err(SetupError::WrongDevice { wanted: 2, found: 1 }), false));
    assert_eq!(start(|fake| fake.offered = 0), (Err(SetupError::MissingFeatures(feature::VERSION_1)), true));
    assert!(matches!(start(|fake| fake.refuses = true), (Err(SetupError::FeaturesRefused(_)), true)));
    assert!(matches!(start(|fake| fake.restless = true), (Err(SetupError::BadConfig(_)), true)));
    let stuck = start(|fake| {
        fake.stuck = true;
        fake.status = 4;
    });
    assert_eq!(stuck, (Err(SetupError::ResetIgnored), false));
}

#[test]
fn a_transport_in_a_box_passes_everything_on() {
    let fake = Fake::new(device::BLK, 0, &[1, 2, 3, 4]);
    let mut boxed: Box<dyn Transport> = Box::new(fake.clone());
    let config = (boxed.read_config_u8(3), boxed.read_config_u16(2), boxed.read_config_u32(0));
    assert_eq!(config, (4, 0x0403, 0x0403_0201));
    boxed.notify(5);
    boxed.acknowledge_interrupt();
    assert_eq!((fake.notifications(), fake.state().acknowledged), (alloc::vec![5], 1));
    fake.state().queue_size_max = 4;
    let mut session = Session::new(boxed);
    session.begin(device::BLK, 0, 0, &[]).unwrap();
    assert_eq!(fake.state().accepted, feature::VERSION_1);
    assert_eq!(Queue::new(&mut session, &GuardedDma, 3, QUEUE).unwrap().size(), 4);
    assert_eq!(fake.with(3, |queue| queue.addresses().size), 4);
    fake.state().refuses_interrupts = true;
    let refused = Queue::new(&mut session, &GuardedDma, 5, QUEUE).err();
    assert_eq!(refused, Some(SetupError::InterruptRefused { queue: 5 }));
}

#[test]
fn a_feature_needs_its_base() {
    let both = feature::INDIRECT | feature::EVENT_IDX;
    for (offered, agreed) in [(both, both), (feature::INDIRECT, 0), (feature::EVENT_IDX, feature::EVENT_IDX)] {
        let mut session = Session::new(Fake::new(device::BLK, offered, &[]));
        assert_eq!(session.begin(device::BLK, both, 0, &BASES), Ok(agreed | feature::VERSION_1));
    }
}

/// The bits of the steps that were done stay beside the one for giving up.
#[test]
fn giving_up_clears_no_other_bit() {
    let fake = Fake::new(device::BLK, 0, &[]);
    let mut session = Session::new(fake.clone());
    session.begin(device::BLK, 0, 0, &[]).unwrap();
    drop(session);
    let agreed = status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK;
    assert_eq!(fake.state().status, agreed | status::FAILED);
}

#[test]
fn memory_is_freed_after_the_reset_or_never() {
    for is_stuck in [false, true] {
        let fake = Fake::new(device::BLK, 0, &[]);
        let mut session = Session::new(fake.clone());
        session.begin(device::BLK, 0, 0, &[]).unwrap();
        let queue = Queue::new(&mut session, &GuardedDma, 0, QUEUE).unwrap();
        let memory = session.allocate(&GuardedDma, 64, Users::DeviceWrites).unwrap();
        let bytes = page_bytes_in_use();
        session.go();
        fake.state().stuck = is_stuck;
        // The session keeps them although they are dropped: the device can still write here.
        drop((queue, memory));
        fake.with(0, |device| device.put(1, 1));
        assert_eq!(page_bytes_in_use(), bytes);
        assert_eq!(session.end(), !is_stuck);
        assert_eq!(page_bytes_in_use(), if is_stuck { bytes } else { 0 });
        assert!(session.has_ended() && session.end(), "only once");
        assert_eq!(fake.state().resets, 2);
    }
}

#[test]
fn only_an_interrupt_without_a_completion_makes_it_ask() {
    let fake = Fake::new(device::BLK, 0, &[]);
    let mut session = Session::new(fake.clone());
    session.begin(device::BLK, 0, 0, &[]).unwrap();
    session.go();
    fake.state().status |= status::NEEDS_RESET;
    for (has_used, expected) in [(true, None), (false, Some(Violation::NeedsReset))] {
        session.acknowledge(has_used);
        assert_eq!((session.check_alive(), session.check_alive()), (expected, None));
    }
}

#[test]
fn memory_is_freed_when_nothing_keeps_it_any_more() {
    let memory = IdentityDma.allocate(5000, Users::DeviceReads).unwrap();
    let kept = memory.keep();
    drop(memory);
    assert_eq!(page_bytes_in_use(), 8192);
    drop(kept);
    assert_eq!(page_bytes_in_use(), 0);
}
