//! A disk that does not answer in time.

use crate::blk::Blk;
use crate::blk_tests::{ALL, Count, Platter, Task, config, reads};
use crate::fake::{Fake, GuardedDma};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use glass_api::{Block, BlockError, Buf, Instant};
use glass_drivers_device::{BlockDevice, Disk, Driver, Notice};

const TIME: Duration = Duration::from_secs(30);
const LATE: Result<(), BlockError> = Err(BlockError::Broken("it has not answered a request for 30 s"));

struct Site {
    platter: Platter,
    disk: Disk<Blk<Fake, GuardedDma>>,
    requests_max: usize,
    now: Rc<Cell<u64>>,
    wakes: Arc<Count>,
}

impl Site {
    fn new() -> Site {
        let (platter, blk) = Platter::new(ALL, &config(0, 126, 512));
        let (now, requests_max) = (Rc::new(Cell::new(0)), blk.requests_max());
        let clock = now.clone();
        let clock = move || Instant(0) + Duration::from_secs(clock.get());
        Site { platter, disk: Disk::with_deadline(blk, TIME, clock), requests_max, now, wakes: Arc::default() }
    }

    fn poll(&self, task: &mut Task) -> Poll<Result<(), BlockError>> {
        task.as_mut().poll(&mut Context::from_waker(&Waker::from(self.wakes.clone())))
    }

    /// A round of the core's loop at this second. Whether there is work.
    fn round(&mut self, second: u64) -> bool {
        self.now.set(second);
        self.disk.poll() | self.disk.kick()
    }

    fn woken(&self) -> usize {
        self.wakes.0.swap(0, Ordering::SeqCst)
    }

    fn deadline(&mut self) -> Option<u64> {
        self.disk.deadline().map(|deadline| deadline.0 / 1_000_000_000)
    }
}

#[test]
fn requests_that_are_not_answered_in_time_fail_and_the_disk_recovers_when_it_has_answered_them() {
    let mut site = Site::new();
    let count = site.requests_max + 2;
    let mut tasks: Vec<Task> = (0..count).map(|_| reads(&site.disk, 7)).collect();
    for task in &mut tasks {
        assert!(site.poll(task).is_pending());
    }
    assert_eq!(site.deadline(), Some(30));
    assert!(!site.round(29) && site.disk.take_notice().is_none());
    // The core sleeps until then, runs the tasks, and does not wake for it again.
    assert!(site.round(30));
    assert_eq!((site.woken(), site.deadline()), (count, None));
    for task in &mut tasks {
        assert_eq!(site.poll(task), Poll::Ready(LATE));
    }
    assert_eq!((site.disk.take_notice(), site.disk.take_notice()), (Some(Notice::Silent(TIME)), None));
    site.woken();
    // It was not reset, and new requests are refused at once.
    assert_eq!((site.disk.violation(), site.platter.fake.state().resets), (None, 1));
    assert_eq!(site.poll(&mut reads(&site.disk, 1)), Poll::Ready(LATE));
    // A part of the answers is not enough: a write that was given up could still happen.
    site.platter.take();
    site.platter.answer(0, None);
    assert!(site.round(50));
    assert_eq!((site.poll(&mut reads(&site.disk, 1)), site.disk.take_notice()), (Poll::Ready(LATE), None));
    site.platter.answer_all();
    assert!(site.round(60));
    assert_eq!((site.disk.take_notice(), site.woken()), (Some(Notice::Answers), 0));
    let mut task = reads(&site.disk, 1);
    assert!(site.poll(&mut task).is_pending());
    assert_eq!(site.deadline(), Some(90));
    site.platter.answer_all();
    assert!(site.round(61));
    assert_eq!(site.poll(&mut task), Poll::Ready(Ok(())));
    assert!(!site.round(200) && site.disk.take_notice().is_none() && site.deadline().is_none());
}

/// A late answer is written into, and read from, the memory that the request was given.
#[test]
fn the_device_keeps_the_buffers_of_requests_that_were_given_up() {
    let mut site = Site::new();
    let kept = Buf::copy_of(&[5; 512]).unwrap();
    let (disk, written) = (site.disk.clone(), kept.clone());
    let mut write: Task = Box::pin(async move {
        let (result, buf) = disk.write(512, written).await;
        // Another buffer, as long: the device may still read the one of the request.
        assert_eq!(buf.len(), 512);
        result
    });
    let disk = site.disk.clone();
    let mut read: Task = Box::pin(async move {
        let (result, mut buf) = disk.read(0, Buf::zeroed(1024).unwrap()).await;
        assert_eq!(buf.as_mut().map(|bytes| bytes.len()), Some(1024));
        result
    });
    assert!(site.poll(&mut write).is_pending() && site.poll(&mut read).is_pending());
    site.round(30);
    assert_eq!((site.poll(&mut write), site.poll(&mut read)), (Poll::Ready(LATE), Poll::Ready(LATE)));
    let mut kept = kept;
    assert!(kept.as_mut().is_none(), "the request still shares the buffer");
    site.platter.answer_all();
    site.round(31);
    assert!(kept.as_mut().is_some());
    assert_eq!(site.platter.bytes[512..1024], [5; 512]);
}

#[test]
fn a_request_that_completes_takes_its_deadline_with_it() {
    let mut site = Site::new();
    let (mut first, mut second) = (reads(&site.disk, 1), reads(&site.disk, 2));
    assert!(site.poll(&mut first).is_pending());
    assert!(!site.round(20));
    assert!(site.poll(&mut second).is_pending());
    site.platter.take();
    site.platter.answer(0, None);
    assert!(site.round(21));
    assert_eq!(site.poll(&mut first), Poll::Ready(Ok(())));
    // One early look, which finds what the oldest request in flight has left.
    assert_eq!(site.deadline(), Some(30));
    assert!(!site.round(30) && site.disk.take_notice().is_none());
    assert_eq!(site.deadline(), Some(50));
    // What was completed before the deadline is taken first.
    site.platter.answer_all();
    assert!(site.round(70));
    assert_eq!((site.poll(&mut second), site.disk.take_notice()), (Poll::Ready(Ok(())), None));
}

#[test]
fn a_silent_disk_that_breaks_is_started_again() {
    let mut site = Site::new();
    let mut task = reads(&site.disk, 7);
    let forgotten = site.poll(&mut task).is_pending();
    assert!(forgotten && site.round(30) && site.poll(&mut task) == Poll::Ready(LATE));
    assert_eq!(site.disk.take_notice(), Some(Notice::Silent(TIME)));
    site.platter.fake.with(0, |queue| queue.put(9999, 0));
    assert!(site.round(31) && site.disk.violation().is_some() && site.disk.take_notice().is_none());
    site.disk.restart().unwrap();
    let mut task = reads(&site.disk, 1);
    assert!(site.poll(&mut task).is_pending());
    site.platter.answer_all();
    site.disk.poll();
    assert_eq!(site.poll(&mut task), Poll::Ready(Ok(())));
}
