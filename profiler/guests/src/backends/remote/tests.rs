//! A reader and a holder in two threads, with a VM that is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use glass_profiler_core::arch::Width;
use glass_profiler_core::arch::x86_64::Registers;
use glass_profiler_core::arch::{Paging, x86_64};
use glass_profiler_core::event::{Event, RawSample, Segment};

use super::client::RemoteVm;
use super::server::Link;
use crate::arch::CoreState;
use crate::backends::access::{View, VmAccess};
use crate::error::GuestError;
use crate::sys::Packets;
use crate::systems::plan::CopyPlan;
use crate::{Attempt, Flow, Guest, Source};

const PATIENCE: Duration = Duration::from_secs(30);
const PAGING: Paging = Paging::X86_64(x86_64::paging::Paging { cr0: 1, cr3: 2, cr4: 3, efer: None });

/// What happened to a VM.
#[derive(Default)]
struct Seen {
    samples: AtomicU64,
    detached: AtomicU64,
    looked_after: AtomicU64,
}

struct Fake {
    seen: Arc<Seen>,
    plan: CopyPlan,
    samples_max: u64,
}

impl VmAccess for Fake {
    fn vcpus(&self) -> Vec<u32> {
        vec![4, 7]
    }

    fn state(&mut self, vcpu: usize) -> Result<Option<CoreState>, GuestError> {
        let registers = Registers { rip: vcpu as u64, ..Default::default() };
        let (width, is_privileged) = (Width::Bits64, true);
        Ok(Some(CoreState {
            registers: registers.into(),
            paging: PAGING,
            width,
            is_privileged,
            is_at_reset: false,
            interrupt_table: None,
        }))
    }

    fn memories(&self) -> usize {
        3
    }

    /// Its memory at each address is the address's last byte, and ends at 1 MiB.
    fn read(&mut self, view: View, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        assert_eq!(view.paging, PAGING);
        let there = (1u64 << 20).saturating_sub(address).min(into.len() as u64) as usize;
        into[..there].iter_mut().zip(address..).for_each(|(byte, address)| *byte = address as u8);
        Ok(there)
    }

    fn set_plan(&mut self, plan: CopyPlan) -> Result<(), GuestError> {
        self.plan = plan;
        Ok(())
    }

    fn wait(&mut self, _time: Duration) -> Result<(), GuestError> {
        self.seen.looked_after.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn give_up(&mut self) {
        let _ = self.detach();
    }
}

impl Guest for Fake {
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        sink(Event::Warning("a warning".to_owned()));
        Ok(())
    }

    fn sample(&mut self, _all: usize) -> Result<Attempt, GuestError> {
        let number = self.seen.samples.fetch_add(1, Ordering::Relaxed);
        let segment = Segment { stack: vec![(1, self.plan.room().stack)], ..Default::default() };
        let sample = RawSample { time_ns: number, segments: vec![segment], ..Default::default() };
        Ok(if number < self.samples_max { Attempt::of(vec![sample]) } else { Attempt::Ended })
    }

    fn tracks(&self) -> u64 {
        1
    }

    fn detach(&mut self) -> Result<(), GuestError> {
        self.seen.detached.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn start(samples_max: u64) -> (RemoteVm, Arc<Seen>, JoinHandle<Option<bool>>) {
    let (packets, its_end) = Packets::pair().unwrap();
    let seen = Arc::new(Seen::default());
    let fake = Fake { seen: seen.clone(), plan: CopyPlan::default(), samples_max };
    let holder = std::thread::spawn(move || Link::new(its_end).hold(Ok(fake), 20_000));
    (RemoteVm::of(packets, None).unwrap(), seen, holder)
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn registers_and_memory_come_through() {
    let (mut vm, seen, holder) = start(u64::MAX);
    assert_eq!((vm.vcpus(), vm.memories()), (vec![4, 7], 3));
    assert_eq!(vm.state(1).unwrap().unwrap().registers.ip(), 1);
    assert!(vm.state(2).is_err(), "there is no third");
    let view = View { memory: 0, vcpu: 0, paging: PAGING };
    let mut into = vec![0; 100_000];
    assert_eq!(vm.read(view, 5, &mut into).unwrap(), into.len());
    assert!(into.iter().zip(5u64..).all(|(byte, address)| *byte == address as u8));
    assert_eq!(vm.read(view, (1 << 20) - 40_000, &mut into).unwrap(), 40_000, "up to its end");
    // While the reader has nothing to request, the VM is looked after.
    let before = seen.looked_after.load(Ordering::Relaxed);
    wait_until("the VM is not looked after", || seen.looked_after.load(Ordering::Relaxed) > before + 5);
    vm.give_up();
    holder.join().unwrap();
    assert_eq!((seen.detached.load(Ordering::Relaxed), seen.samples.load(Ordering::Relaxed)), (1, 0));
}

#[test]
fn samples_come_until_the_guest_ends() {
    let (mut vm, seen, holder) = start(100);
    vm.set_plan(CopyPlan { stack_bytes: 100, ..Default::default() }).unwrap();
    let mut events = Vec::new();
    vm.announce(&mut |_| ()).unwrap();
    let start = Instant::now();
    while vm.collect(Duration::from_millis(10), &mut |event| events.push(event)).unwrap() == Flow::More {
        assert!(start.elapsed() < PATIENCE);
    }
    Source::detach(&mut vm, &mut |event| events.push(event)).unwrap();
    holder.join().unwrap();
    assert_eq!(seen.detached.load(Ordering::Relaxed), 1);
    assert!(events.contains(&Event::Warning("a warning".to_owned())));
    let samples: Vec<_> =
        events.iter().filter_map(|event| if let Event::Sample(sample) = event { Some(sample) } else { None }).collect();
    assert!(samples.iter().map(|sample| sample.time_ns).eq(0..100));
    assert!(samples.iter().all(|sample| sample.segments[0].stack[0].1.len() == 100));
    let counts = vm.counts();
    assert!(counts.expected() > 0 && counts.helpers_cpu_ns > 0, "{counts:?}");
}

/// A reader that was stopped must not stop the holder, and what found no room is counted.
#[test]
fn a_reader_that_does_not_read_costs_samples_and_no_waiting() {
    let (mut vm, seen, holder) = start(u64::MAX);
    vm.set_plan(CopyPlan { stack_bytes: 60 << 10, ..Default::default() }).unwrap();
    vm.announce(&mut |_| ()).unwrap();
    // More than 16 MiB that wait, and 8 MiB in the socket.
    wait_until("the holder waits", || seen.samples.load(Ordering::Relaxed) > 1000);
    let mut received = 0;
    let mut count = |event| received += u64::from(matches!(event, Event::Sample(_)));
    assert_eq!(vm.collect(Duration::from_millis(100), &mut count).unwrap(), Flow::More);
    Source::detach(&mut vm, &mut count).unwrap();
    holder.join().unwrap();
    let made = seen.samples.load(Ordering::Relaxed);
    let lost = vm.counts().losses.samples();
    assert!(received > 0 && received < made, "{received} of {made}");
    assert!(lost >= made - received, "{made} made, {received} received, {lost} lost");
    assert_eq!(seen.detached.load(Ordering::Relaxed), 1);
}

#[test]
fn a_reader_that_is_gone_or_misbehaves_is_left_and_the_vm_released() {
    // Before sampling, and while it samples; the first one is dropped without a word, as by SIGKILL.
    for is_sampling in [false, true] {
        let (packets, its_end) = Packets::pair().unwrap();
        let seen = Arc::new(Seen::default());
        let fake = Fake { seen: seen.clone(), plan: CopyPlan::default(), samples_max: u64::MAX };
        let holder = std::thread::spawn(move || Link::new(its_end).hold(Ok(fake), 1000));
        if is_sampling {
            assert!(packets.send(&super::messages::Request::Start.to_bytes()).unwrap());
            wait_until("it does not sample", || seen.samples.load(Ordering::Relaxed) > 0);
        }
        drop(packets);
        holder.join().unwrap();
        assert_eq!(seen.detached.load(Ordering::Relaxed), 1);
    }
    let (packets, its_end) = Packets::pair().unwrap();
    let seen = Arc::new(Seen::default());
    let fake = Fake { seen: seen.clone(), plan: CopyPlan::default(), samples_max: u64::MAX };
    let holder = std::thread::spawn(move || Link::new(its_end).hold(Ok(fake), 1000));
    assert!(packets.send(&[99; 40]).unwrap(), "no request");
    holder.join().unwrap();
    assert_eq!(seen.detached.load(Ordering::Relaxed), 1);
}

#[test]
fn a_holder_that_is_gone_is_an_error() {
    let (packets, its_end) = Packets::pair().unwrap();
    let fake = Fake { seen: Arc::default(), plan: CopyPlan::default(), samples_max: 0 };
    let holder = std::thread::spawn(move || Link::new(its_end).hold(Ok(fake), 1000));
    let mut vm = RemoteVm::of(packets, None).unwrap();
    vm.announce(&mut |_| ()).unwrap();
    let start = Instant::now();
    while vm.collect(Duration::from_millis(10), &mut |_| ()).unwrap() == Flow::More {
        assert!(start.elapsed() < PATIENCE);
    }
    Source::detach(&mut vm, &mut |_| ()).unwrap();
    holder.join().unwrap();
    let error = vm.collect(Duration::from_secs(1), &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("has ended unexpectedly"), "{error}");
}
