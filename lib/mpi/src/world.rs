//! A rank's view of the job: its rings to and from the others, what is in progress, and how all of it moves on.

use crate::error::Error;
use crate::fabric::Fabric;
use crate::group::{Communicator, Group};
use crate::request::{Kind, Request, Status};
use crate::slab::{Id, Slab};
use crate::sys::{Consumer, Producer, Segment, Staging};
use crate::trace::Trace;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;

/// Slots taken from one rank before the next has its turn.
const BATCH: u32 = 64;

/// What goes to one rank.
pub(crate) struct Outgoing {
    pub ring: Producer,
    /// Answers of our side of a protocol.
    pub control: VecDeque<crate::sys::Body>,
    /// Messages in their order, of which the first may be sent in part.
    pub messages: VecDeque<u32>,
    /// Long messages that the receiver waits for.
    pub streams: VecDeque<u32>,
}

/// What comes from one rank.
pub(crate) struct Incoming {
    pub ring: Consumer,
    /// The message of which not all pieces are here.
    pub arriving: Option<Arriving>,
}

/// Where the pieces of a message go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Request(u32),
    Unexpected(u32),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Arriving {
    pub target: Target,
    pub offset: usize,
    pub total: usize,
}

/// Which messages a receive takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filter {
    pub context: u32,
    /// Rank of the job.
    pub source: Option<usize>,
    pub tag: Option<i32>,
}

impl Filter {
    #[inline]
    pub fn takes(&self, context: u32, source: usize, tag: i32) -> bool {
        self.context == context
            && self.source.is_none_or(|wanted| wanted == source)
            && self.tag.is_none_or(|wanted| wanted == tag)
    }
}

/// A message that arrived before its receive.
pub(crate) struct Unexpected {
    pub context: u32,
    pub source: usize,
    pub tag: i32,
    pub total: u64,
    /// The slot that it came in, of one from another rank.
    pub position: u32,
    pub content: Content,
}

pub(crate) enum Content {
    /// The bytes so far.
    Bytes(Vec<u8>),
    /// The sender waits, with its request and the address of its bytes.
    Offer { request: u32, address: u64 },
    /// A synchronous message of this rank to itself: the bytes, and the request to complete.
    Own { bytes: Vec<u8>, request: u32 },
}

/// The job as one rank sees it. Its functions are called by one thread at a time.
pub struct World {
    pub(crate) fabric: Box<dyn Fabric>,
    pub(crate) segment: Segment,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) outgoing: Vec<Outgoing>,
    pub(crate) incoming: Vec<Incoming>,
    /// Messages, streams and answers that wait for room in a ring.
    pub(crate) unsent: usize,
    pub(crate) requests: Slab<Request>,
    pub(crate) posted: Vec<(Filter, u32)>,
    pub(crate) unexpected: Slab<Unexpected>,
    /// The unexpected messages in the order in which they arrived.
    pub(crate) arrivals: VecDeque<u32>,
    /// Requests that are plans in progress.
    pub(crate) plans: Vec<u32>,
    /// Signals of barriers sent to and awaited from each rank.
    pub(crate) signals: Vec<(u32, u32)>,
    /// The number of the next communicator, as far as this rank is concerned.
    pub(crate) next_number: u32,
    /// The job is aborted, and a wait has failed: nothing moves any more.
    pub(crate) is_over: bool,
    /// Polls that only look, before another rank is given a chance to run.
    pub(crate) polls: u32,
    /// Memory for a piece of another rank's buffer that is combined with ours.
    pub(crate) fold_piece: Option<Staging>,
    pub(crate) trace: Trace,
}

impl World {
    /// The view of the rank whose segment this is.
    pub fn new(fabric: Box<dyn Fabric>, mut segment: Segment) -> World {
        let (rank, ranks) = (segment.rank(), segment.ranks());
        let (to, from) = segment.take_ends();
        let outgoing = to.into_iter().map(|ring| Outgoing {
            ring,
            control: VecDeque::new(),
            messages: VecDeque::new(),
            streams: VecDeque::new(),
        });
        let polls = fabric.polls().max(1);
        World {
            polls,
            fold_piece: None,
            trace: fabric.trace(),
            fabric,
            segment,
            rank,
            ranks,
            outgoing: outgoing.collect(),
            incoming: from.into_iter().map(|ring| Incoming { ring, arriving: None }).collect(),
            unsent: 0,
            requests: Slab::default(),
            posted: Vec::new(),
            unexpected: Slab::default(),
            arrivals: VecDeque::new(),
            plans: Vec::new(),
            signals: vec![(0, 0); ranks],
            // 0 is the communicator of all ranks, 1 that of this one alone.
            next_number: 2,
            is_over: false,
        }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The communicator of all ranks. Made once: each that is made counts its collective calls for itself.
    pub fn communicator_of_all(&self) -> Rc<Communicator> {
        let group = Rc::new(Group::new((0..self.ranks as u32).collect()));
        Rc::new(Communicator::new(0, group, self.rank))
    }

    /// The communicator of this rank alone. Made once, as [`World::communicator_of_all`].
    pub fn communicator_of_self(&self) -> Rc<Communicator> {
        Rc::new(Communicator::new(1, Rc::new(Group::new(vec![self.rank as u32])), 0))
    }

    /// Nanoseconds from a fixed moment on.
    pub fn now_ns(&self) -> u64 {
        self.fabric.now_ns()
    }

    /// The launcher's page of the shared memory.
    pub fn header(&self) -> &crate::sys::Header {
        self.segment.header()
    }

    /// Moves everything on as far as it goes without waiting; whether anything moved.
    pub fn progress(&mut self) -> bool {
        if self.is_over {
            return false;
        }
        let mut has_moved = false;
        for source in 0..self.ranks {
            if source != self.rank {
                let mut taken = 0;
                while taken < BATCH && self.take(source) {
                    taken += 1;
                }
                has_moved |= taken > 0;
            }
        }
        if self.unsent > 0 {
            (0..self.ranks).for_each(|peer| has_moved |= self.flush(peer));
        }
        if !self.plans.is_empty() {
            has_moved |= self.advance_plans();
        }
        has_moved
    }

    /// Moves everything on until `is_done`, and no longer than until the job is aborted.
    pub fn wait_until(&mut self, mut is_done: impl FnMut(&mut World) -> bool) -> Result<(), Error> {
        let mut fruitless = 0;
        loop {
            if is_done(self) {
                return Ok(());
            }
            if self.progress() {
                fruitless = 0;
                continue;
            }
            fruitless += 1;
            self.pause(fruitless)?;
        }
    }

    /// Between two polls in a row that found nothing.
    #[inline]
    pub(crate) fn pause(&mut self, fruitless: u32) -> Result<(), Error> {
        if fruitless < self.polls {
            core::hint::spin_loop();
            return Ok(());
        }
        if self.segment.header().aborted().is_some() {
            // Memory that was lent to a wait which fails is not touched any more.
            self.is_over = true;
            return Err(Error::ProcAborted);
        }
        self.fabric.wait(fruitless - self.polls);
        Ok(())
    }

    /// Whether the request is done; an unknown one is an error.
    pub fn is_done(&self, id: Id) -> Result<bool, Error> {
        self.requests.get(id).map(|request| request.is_done).ok_or(Error::Request)
    }

    /// What became of a request that is done, which is forgotten.
    pub fn take_status(&mut self, id: Id) -> Option<Status> {
        if !self.requests.get(id)?.is_done {
            return None;
        }
        self.requests.remove(id).map(|request| request.status)
    }

    /// Waits until the request is done. An error in the status is the operation's.
    pub fn wait(&mut self, id: Id) -> Result<Status, Error> {
        self.is_done(id)?;
        self.wait_until(|world| world.requests.get(id).is_none_or(|request| request.is_done))?;
        self.take_status(id).ok_or(Error::Request)
    }

    /// As [`World::wait`], without waiting: `None` if it is not done.
    pub fn test(&mut self, id: Id) -> Result<Option<Status>, Error> {
        if !self.is_done(id)? {
            self.progress();
            if self.header().aborted().is_some() {
                return Err(Error::ProcAborted);
            }
        }
        Ok(self.take_status(id))
    }

    /// What the request would report; `None` if it is not done. The request stays.
    pub fn peek_status(&self, id: Id) -> Result<Option<Status>, Error> {
        let request = self.requests.get(id).ok_or(Error::Request)?;
        Ok(request.is_done.then_some(request.status))
    }

    /// Forgets the request when it is done.
    pub fn release(&mut self, id: Id) -> Result<(), Error> {
        let request = self.requests.get_mut(id).ok_or(Error::Request)?;
        if request.is_done {
            self.requests.remove(id);
        } else {
            request.is_released = true;
        }
        Ok(())
    }

    /// Cancels a receive that no message was matched to; anything else continues.
    pub fn cancel(&mut self, id: Id) -> Result<(), Error> {
        let request = self.requests.get_mut(id).ok_or(Error::Request)?;
        let Some(place) = self.posted.iter().position(|(_, posted)| *posted == id.index) else { return Ok(()) };
        self.posted.remove(place);
        request.status.is_cancelled = true;
        request.unpack = None;
        request.finish();
        self.forget_released(id.index);
        Ok(())
    }

    pub(crate) fn finish(&mut self, index: u32) {
        if let Some(request) = self.requests.at_mut(index) {
            let (message, bytes) = (request.message, request.status.bytes);
            request.finish();
            self.forget_released(index);
            if let Some(message) = message {
                self.received(message, bytes);
            }
        }
    }

    fn forget_released(&mut self, index: u32) {
        if self.requests.at(index).is_some_and(|request| request.is_released) {
            self.requests.remove_at(index);
        }
    }

    /// A request that is done at once.
    pub(crate) fn done_request(&mut self, group: &Rc<Group>, status: Status) -> Id {
        let mut request = Request::new(Kind::Receive, crate::sys::Memory::EMPTY, group.clone());
        request.status = status;
        request.is_done = true;
        self.requests.insert(request)
    }

    /// Waits until nothing of ours waits for room in a ring, before the rank leaves.
    pub fn drain(&mut self) -> Result<(), Error> {
        self.wait_until(|world| world.unsent == 0)
    }
}
