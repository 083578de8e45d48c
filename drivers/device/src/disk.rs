//! A disk for tasks: requests of any device behind `glass_api::Block`, and a [`Driver`] for the platform's loop.
//!
//! Requests beyond those that the disk can have in flight wait in order of arrival. A request whose
//! future is dropped continues; its buffer is freed when the device is done with it. So does a request that the device does not answer in time:
//! its task gets an error, and until the device has answered all such requests, others are refused. The device is not reset: a host whose disk hangs
//! stops the whole VM at a reset until the disk answers, and a write that was given up could happen after a newer one.

use crate::driver::{Driver, Notice};
use crate::error::{SetupError, Violation};
use crate::request::{Request, RequestId, SubmitError};
use crate::watch::Watch;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use glass_api::{Block, BlockError, BlockInfo, Buf, Instant, write_zeroes_as_bytes};
use glass_lib_trace::{BlockKind, Name};

/// What a request waits for that the disk has no room for.
static NO_SPACE: Name = Name::new("disk: no room for another request");

/// What becomes of a request: its result, and its buffer, which a flush has none of.
pub type Complete<'a> = &'a mut dyn FnMut(RequestId, Result<(), BlockError>, Option<Buf>);

/// A device of blocks without tasks, whatever its protocol: requests go in, completions come out.
pub trait BlockDevice {
    /// Size and limits.
    fn info(&self) -> BlockInfo;
    /// Whether it takes [`Request::WriteZeroes`].
    fn writes_zeroes(&self) -> bool;
    /// Requests that can be in flight: the numbers of all are below this.
    fn requests_max(&self) -> usize;
    /// Whether a request can be taken now.
    fn has_space(&self) -> bool;
    /// Takes a request; the device is notified at the next kick. On error the request comes back.
    fn submit(&mut self, request: Request) -> Result<RequestId, (SubmitError, Request)>;
    /// Hands one finished request to `complete`; all requests at once when the device has violated its protocol. Returns their
    /// number.
    fn poll_one(&mut self, complete: Complete) -> usize;
    /// As [`Driver::kick`].
    fn kick(&mut self);
    /// As [`Driver::arm`].
    fn arm(&mut self) -> bool;
    /// As [`Driver::disarm`].
    fn disarm(&mut self);
    /// As [`Driver::acknowledge`].
    fn acknowledge(&mut self);
    /// As [`Driver::violation`].
    fn violation(&self) -> Option<Violation>;
    /// As [`Driver::restart`]; all requests were taken out.
    fn restart(&mut self) -> Result<(), SetupError>;
    /// What the trace calls the device.
    fn trace_name(&self) -> u32;
    /// As [`Driver::set_trace_name`].
    fn set_trace_name(&mut self, name: u32);
    /// The number in the trace of a request in flight.
    fn traced_number(&self, id: RequestId) -> u64;
}

impl<B: BlockDevice + ?Sized> BlockDevice for Box<B> {
    fn info(&self) -> BlockInfo {
        (**self).info()
    }
    fn writes_zeroes(&self) -> bool {
        (**self).writes_zeroes()
    }
    fn requests_max(&self) -> usize {
        (**self).requests_max()
    }
    fn has_space(&self) -> bool {
        (**self).has_space()
    }
    fn submit(&mut self, request: Request) -> Result<RequestId, (SubmitError, Request)> {
        (**self).submit(request)
    }
    fn poll_one(&mut self, mut complete: Complete) -> usize {
        (**self).poll_one(&mut complete)
    }
    fn kick(&mut self) {
        (**self).kick();
    }
    fn arm(&mut self) -> bool {
        (**self).arm()
    }
    fn disarm(&mut self) {
        (**self).disarm();
    }
    fn acknowledge(&mut self) {
        (**self).acknowledge();
    }
    fn violation(&self) -> Option<Violation> {
        (**self).violation()
    }
    fn restart(&mut self) -> Result<(), SetupError> {
        (**self).restart()
    }
    fn trace_name(&self) -> u32 {
        (**self).trace_name()
    }
    fn set_trace_name(&mut self, name: u32) {
        (**self).set_trace_name(name);
    }
    fn traced_number(&self, id: RequestId) -> u64 {
        (**self).traced_number(id)
    }
}

/// A disk. Clones are handles to the same one: a task's, and the platform's own to drive it.
pub struct Disk<B: BlockDevice> {
    shared: Rc<RefCell<Shared<B>>>,
}

impl<B: BlockDevice> Clone for Disk<B> {
    fn clone(&self) -> Disk<B> {
        Disk { shared: self.shared.clone() }
    }
}

struct Shared<B: BlockDevice> {
    blk: B,
    /// Requests that were submitted and whose answer was not fetched: no more than live futures.
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Which slot a request of `blk` belongs to.
    slot_of: Vec<usize>,
    /// Who waits to submit, first come first served. As many as there are unsubmitted requests.
    waiting: VecDeque<(Ticket, Waker)>,
    tickets: Ticket,
    /// Kept for its memory.
    woken: Vec<Waker>,
    /// How long requests may take, if that is limited.
    watch: Option<Watch>,
    /// One took longer, and not all of those in flight then have completed: the words of the error for all others.
    silence: Option<&'static str>,
    notice: Option<Notice>,
}

type Ticket = u64;
type Answer = (Result<(), BlockError>, Option<Buf>);

enum Slot {
    /// No request.
    Free,
    /// In flight; wakes this when done.
    Busy(Waker),
    /// In flight, but its future was dropped.
    Abandoned,
    /// Done; not fetched yet.
    Done(Answer),
}

impl<B: BlockDevice> Disk<B> {
    /// Makes `blk` usable by tasks, whose requests may take any time.
    pub fn new(blk: B) -> Disk<B> {
        Disk::watched(blk, None)
    }

    /// Makes `blk` usable by tasks, whose requests fail if they take longer than `time` by the platform's `clock`.
    pub fn with_deadline(blk: B, time: Duration, clock: impl Fn() -> Instant + 'static) -> Disk<B> {
        let watch = Watch::new(blk.requests_max(), time, clock);
        Disk::watched(blk, Some(watch))
    }

    fn watched(blk: B, watch: Option<Watch>) -> Disk<B> {
        let slot_of = (0..blk.requests_max()).collect();
        let shared = Shared {
            blk,
            slots: Vec::new(),
            free: Vec::new(),
            slot_of,
            waiting: VecDeque::new(),
            tickets: 0,
            woken: Vec::new(),
            watch,
            silence: None,
            notice: None,
        };
        Disk { shared: Rc::new(RefCell::new(shared)) }
    }

    fn request(&self, request: Request) -> Pending<B> {
        Pending { disk: self.clone(), state: State::New(request) }
    }
}

impl<B: BlockDevice> Shared<B> {
    /// Takes one completion.
    fn poll_one(&mut self) -> bool {
        let Shared { blk, slots, free, slot_of, woken, watch, .. } = self;
        let finished = blk.poll_one(&mut |id: RequestId, result, buf| {
            if let Some(watch) = watch {
                watch.completed(id);
            }
            let index = slot_of[id.index()];
            match mem::replace(&mut slots[index], Slot::Free) {
                Slot::Busy(waker) => {
                    slots[index] = Slot::Done((result, buf));
                    woken.push(waker);
                }
                // The buffer was dropped with the future: it is freed here.
                Slot::Abandoned => free.push(index),
                Slot::Free | Slot::Done(_) => unreachable!("a request completes once"),
            }
        });
        finished > 0
    }

    /// Gives a request to the disk, which has room for it.
    fn submit(&mut self, request: Request, state: &mut State, waker: &Waker) -> Poll<Answer> {
        if let Some(words) = self.silence {
            return Poll::Ready((Err(BlockError::Broken(words)), request.into_buf()));
        }
        match self.blk.submit(request) {
            Ok(id) => {
                let slot = self.give_slot(id, Slot::Busy(waker.clone()));
                if let Some(watch) = &mut self.watch {
                    watch.submitted(id);
                }
                let number = self.blk.traced_number(id);
                self.block_on(number);
                *state = State::Submitted { slot, number };
                Poll::Pending
            }
            Err((SubmitError::Refused(error), request)) => Poll::Ready((Err(error), request.into_buf())),
            Err((SubmitError::Full, _)) => unreachable!("room was looked for first"),
        }
    }

    /// The place of a request's new slot.
    fn give_slot(&mut self, id: RequestId, slot: Slot) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            self.slots.len() - 1
        });
        self.slots[index] = slot;
        self.slot_of[id.index()] = index;
        index
    }

    /// Fails the requests in flight, if one of them takes too long, and those that wait. The device still has the buffers. Whether it
    /// did.
    fn give_up(&mut self) -> bool {
        let Some(watch) = self.watch.as_mut().filter(|_| self.silence.is_none()) else { return false };
        if !watch.is_late() {
            return false;
        }
        let (words, ids) = (watch.words(), watch.in_flight().collect::<Vec<_>>());
        (self.silence, self.notice) = (Some(words), Some(Notice::Silent(watch.time())));
        for id in ids {
            let index = self.slot_of[id.index()];
            if let Slot::Busy(waker) = mem::replace(&mut self.slots[index], Slot::Abandoned) {
                self.give_slot(id, Slot::Abandoned);
                self.slots[index] = Slot::Done((Err(BlockError::Broken(words)), None));
                self.woken.push(waker);
            }
        }
        self.admit();
        true
    }

    /// Ends the silence of a device that has answered all.
    fn end_silence(&mut self) {
        if self.silence.is_some() && self.watch.as_ref().is_none_or(|watch| watch.in_flight().next().is_none()) {
            self.silence = None;
            // If it broke instead, that is reported.
            self.notice = self.blk.violation().is_none().then_some(Notice::Answers);
        }
    }

    /// Records in the trace that the task waits for a request.
    fn block_on(&self, number: u64) {
        glass_lib_trace::block_numbered(BlockKind::Request, self.blk.trace_name(), number);
    }

    /// Records in the trace that the task is queued to submit.
    fn block_on_space(&self) {
        glass_lib_trace::block(BlockKind::Resource, &NO_SPACE, self.blk.trace_name().into());
    }

    /// Whether the disk is broken, or does not answer.
    fn refuses_all(&self) -> bool {
        self.silence.is_some() || self.blk.violation().is_some()
    }

    /// Whether a request gets an answer from `submit` other than "full".
    fn has_space(&self) -> bool {
        self.refuses_all() || self.blk.has_space()
    }

    /// Wakes the first in the queue, or all if none gets in.
    fn admit(&mut self) {
        let count = match self.refuses_all() {
            true => self.waiting.len(),
            false => usize::from(self.has_space()),
        };
        let wakers = self.waiting.iter().take(count).map(|(_, waker)| waker.clone());
        self.woken.extend(wakers);
    }
}

/// Wakes whom `work` put on the list, outside of the borrow: a waker may do anything.
fn with_wakes<B: BlockDevice, R>(shared: &RefCell<Shared<B>>, work: impl FnOnce(&mut Shared<B>) -> R) -> R {
    let (result, mut woken) = {
        let mut shared = shared.borrow_mut();
        let result = work(&mut shared);
        if shared.woken.is_empty() {
            return result;
        }
        (result, mem::take(&mut shared.woken))
    };
    woken.drain(..).for_each(Waker::wake);
    shared.borrow_mut().woken = woken;
    result
}

impl<B: BlockDevice> Driver for Disk<B> {
    fn poll(&mut self) -> bool {
        // One at a time: a wake follows its completion, so that a trace shows who was woken by what.
        let mut progress = false;
        while with_wakes(&self.shared, Shared::poll_one) {
            progress = true;
        }
        if progress {
            with_wakes(&self.shared, |shared| {
                shared.end_silence();
                shared.admit();
            });
        }
        progress
    }

    fn kick(&mut self) -> bool {
        self.shared.borrow_mut().blk.kick();
        // What was completed by now has been taken: a poll comes first in a round.
        with_wakes(&self.shared, Shared::give_up)
    }

    fn deadline(&mut self) -> Option<Instant> {
        let shared = self.shared.borrow();
        shared.watch.as_ref().filter(|_| shared.silence.is_none()).and_then(Watch::check_at)
    }

    fn take_notice(&mut self) -> Option<Notice> {
        self.shared.borrow_mut().notice.take()
    }

    fn arm(&mut self) -> bool {
        self.shared.borrow_mut().blk.arm()
    }

    fn disarm(&mut self) {
        self.shared.borrow_mut().blk.disarm();
    }

    fn acknowledge(&mut self) {
        self.shared.borrow_mut().blk.acknowledge();
    }

    fn violation(&self) -> Option<Violation> {
        self.shared.borrow().blk.violation()
    }

    fn restart(&mut self) -> Result<(), SetupError> {
        // Every task that waits for an answer gets one.
        self.poll();
        self.shared.borrow_mut().blk.restart()
    }

    fn set_trace_name(&mut self, name: u32) {
        self.shared.borrow_mut().blk.set_trace_name(name);
    }
}

impl<B: BlockDevice + 'static> Block for Disk<B> {
    fn info(&self) -> BlockInfo {
        self.shared.borrow().blk.info()
    }

    async fn read(&self, offset: u64, buf: Buf) -> (Result<(), BlockError>, Buf) {
        let bytes = buf.len();
        let (result, buf) = self.request(Request::Read { offset, buf }).await;
        (result, buf.unwrap_or_else(|| replacement(bytes)))
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), BlockError>, Buf) {
        let bytes = buf.len();
        let (result, buf) = self.request(Request::Write { offset, buf }).await;
        (result, buf.unwrap_or_else(|| replacement(bytes)))
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.request(Request::Flush).await.0
    }

    async fn discard(&self, offset: u64, len: usize) -> Result<(), BlockError> {
        self.request(Request::Discard { offset, len }).await.0
    }

    async fn write_zeroes(&self, offset: u64, len: usize) -> Result<(), BlockError> {
        let has_request = self.shared.borrow().blk.writes_zeroes();
        match has_request {
            true => self.request(Request::WriteZeroes { offset, len }).await.0,
            false => write_zeroes_as_bytes(self, offset, len).await,
        }
    }
}

/// A buffer in place of one that a device has not given back.
fn replacement(bytes: usize) -> Buf {
    Buf::zeroed(bytes).unwrap_or_else(|_| Buf::empty())
}

/// A request on its way.
struct Pending<B: BlockDevice> {
    disk: Disk<B>,
    state: State,
}

enum State {
    New(Request),
    Waiting(Request, Ticket),
    Submitted {
        slot: usize,
        /// The request's number in the trace.
        number: u64,
    },
    Ended,
}

impl<B: BlockDevice> Future for Pending<B> {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context) -> Poll<Answer> {
        let Pending { disk, state } = self.get_mut();
        with_wakes(&disk.shared, |shared| match mem::replace(state, State::Ended) {
            State::New(request) => {
                if shared.waiting.is_empty() && shared.has_space() {
                    return shared.submit(request, state, context.waker());
                }
                shared.tickets += 1;
                shared.waiting.push_back((shared.tickets, context.waker().clone()));
                *state = State::Waiting(request, shared.tickets);
                shared.block_on_space();
                Poll::Pending
            }
            State::Waiting(request, ticket) => {
                let place = shared.waiting.iter().position(|(waiting, _)| *waiting == ticket);
                let place = place.expect("a waiting request stands in the queue");
                if shared.has_space() && (place == 0 || shared.refuses_all()) {
                    shared.waiting.remove(place);
                    let poll = shared.submit(request, state, context.waker());
                    // Each lets in the next one, so that all get in, in order.
                    if shared.has_space() {
                        shared.admit();
                    }
                    return poll;
                }
                shared.waiting[place].1.clone_from(context.waker());
                *state = State::Waiting(request, ticket);
                shared.block_on_space();
                Poll::Pending
            }
            State::Submitted { slot, number } => match mem::replace(&mut shared.slots[slot], Slot::Free) {
                Slot::Done(answer) => {
                    shared.free.push(slot);
                    Poll::Ready(answer)
                }
                Slot::Busy(mut waker) => {
                    waker.clone_from(context.waker());
                    shared.slots[slot] = Slot::Busy(waker);
                    *state = State::Submitted { slot, number };
                    shared.block_on(number);
                    Poll::Pending
                }
                Slot::Free | Slot::Abandoned => unreachable!("a request in flight has a slot"),
            },
            State::Ended => panic!("a finished request was polled again"),
        })
    }
}

impl<B: BlockDevice> Drop for Pending<B> {
    fn drop(&mut self) {
        with_wakes(&self.disk.shared, |shared| match self.state {
            State::Waiting(_, ticket) => {
                shared.waiting.retain(|(waiting, _)| *waiting != ticket);
                if shared.has_space() {
                    shared.admit();
                }
            }
            State::Submitted { slot, .. } => match mem::replace(&mut shared.slots[slot], Slot::Abandoned) {
                Slot::Done(_) => {
                    shared.slots[slot] = Slot::Free;
                    shared.free.push(slot);
                }
                Slot::Busy(_) | Slot::Abandoned | Slot::Free => {}
            },
            State::New(_) | State::Ended => {}
        });
    }
}
