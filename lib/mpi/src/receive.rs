//! The receiving side: matching messages to receives, and taking what the rings bring.

use crate::error::Error;
use crate::fabric::Fabric;
use crate::group::Communicator;
use crate::operation::Fold;
use crate::request::{Kind, Request, Status, Unpack};
use crate::send::{DONE, FIRST, MORE, OFFER, PIECE, WANTED};
use crate::slab::Id;
use crate::sys::{Base, Body, Memory, Staging};
use crate::trace::Other;
use crate::world::{Arriving, Content, Filter, Target, Unexpected, World};
use alloc::rc::Rc;
use alloc::vec::Vec;
use glass_formats::trace::MpiRole;

/// A short receive polls one ring so many times as often as other waits, before it looks at everything else too.
const SHORT_POLLS: u32 = 4;
/// A multiple of every element's bytes.
const FOLD_PIECE_BYTES: usize = 64 << 10;

/// From which rank of the communicator a message may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// From any.
    Any,
    /// From this one.
    Rank(usize),
    /// From one that does not exist: nothing is received.
    Unheld,
}

/// A message that was probed and waits for its receive, which nothing else can match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Message(pub Id);

impl World {
    /// What a receive of the program takes, of up to `bytes` bytes; the event about it.
    fn filter(
        &self,
        communicator: &Communicator,
        source: Source,
        tag: Option<i32>,
        bytes: usize,
    ) -> Result<Option<Filter>, Error> {
        let source = match source {
            Source::Any => None,
            Source::Rank(rank) => Some(communicator.group().member(rank).ok_or(Error::Rank)?),
            Source::Unheld => {
                self.about_message(MpiRole::Receive, communicator, Other::None, tag, 0);
                return Ok(None);
            }
        };
        self.about_message(MpiRole::Receive, communicator, source.map_or(Other::Any, Other::Rank), tag, bytes);
        Ok(Some(Filter { context: communicator.context, source, tag }))
    }

    /// Receives one message into `memory`; the error of a message that is too long is in the status. No tag is any tag.
    pub fn receive(
        &mut self,
        communicator: &Communicator,
        source: Source,
        tag: Option<i32>,
        memory: Memory,
    ) -> Result<Status, Error> {
        let Some(filter) = self.filter(communicator, source, tag, memory.bytes())? else { return Ok(Status::EMPTY) };
        let short = self.try_receive_short(&filter, memory.bytes(), |bytes| {
            memory.write(0, bytes);
        });
        if let Some((tag, bytes)) = short {
            let Source::Rank(source) = source else { return Err(Error::Intern) };
            let (source, tag, bytes) = (Some(source), Some(tag), bytes as u64);
            return Ok(Status { source, tag, bytes, ..Status::EMPTY });
        }
        let id = self.start_receive_in(communicator, filter, memory);
        self.wait(id)
    }

    /// Begins to receive; the memory is lent until the request is done.
    pub fn start_receive(
        &mut self,
        communicator: &Communicator,
        source: Source,
        tag: Option<i32>,
        memory: Memory,
    ) -> Result<Id, Error> {
        match self.filter(communicator, source, tag, memory.bytes())? {
            Some(filter) => Ok(self.start_receive_in(communicator, filter, memory)),
            None => Ok(self.done_request(communicator.group(), Status::EMPTY)),
        }
    }

    /// Receives up to `bytes` bytes into memory of the library; when all are there they become `count` elements at `base`.
    #[allow(clippy::too_many_arguments)] // A receive is what these are.
    pub fn start_receive_typed(
        &mut self,
        communicator: &Communicator,
        source: Source,
        tag: Option<i32>,
        base: Base,
        count: usize,
        datatype: &Rc<crate::datatype::Datatype>,
    ) -> Result<Id, Error> {
        let Some(filter) = self.filter(communicator, source, tag, datatype.size() * count)? else {
            return Ok(self.done_request(communicator.group(), Status::EMPTY));
        };
        let request = typed_request(communicator, base, count, datatype);
        let id = self.requests.insert(request);
        self.post(id.index, filter);
        Ok(id)
    }

    pub(crate) fn start_receive_in(&mut self, communicator: &Communicator, filter: Filter, memory: Memory) -> Id {
        let id = self.requests.insert(Request::new(Kind::Receive, memory, Rc::clone(communicator.group())));
        self.post(id.index, filter);
        id
    }

    /// The tag and length of a message of one slot that is next in the ring of its sender, whose bytes, `bytes_max` at most, go to
    /// `accept`; looks for a moment. Only while nothing else could match it or is in progress.
    #[inline]
    pub(crate) fn try_receive_short(
        &mut self,
        filter: &Filter,
        bytes_max: usize,
        accept: impl FnOnce(&[u8]),
    ) -> Option<(i32, usize)> {
        let source = filter.source.filter(|source| *source != self.rank)?;
        if !self.posted.is_empty() || !self.arrivals.is_empty() || self.unsent > 0 || !self.plans.is_empty() {
            return None;
        }
        let ring = &mut self.incoming[source].ring;
        for _ in 0..SHORT_POLLS * self.polls {
            let Some(body) = ring.peek() else {
                core::hint::spin_loop();
                continue;
            };
            let bytes = body.total() as usize;
            if body.kind != FIRST || bytes > bytes_max || !filter.takes(body.context, source, body.tag) {
                return None;
            }
            let (tag, inline) = (body.tag, usize::from(body.inline));
            let slot = (source as u32, ring.position());
            if bytes == inline {
                accept(&body.data[..bytes]);
                ring.advance(None);
                self.received(slot, bytes as u64);
                return Some((tag, bytes));
            }
            let piece = piece_of(body.word(0));
            if piece.1 != bytes {
                return None;
            }
            accept(ring.bulk(piece.0, piece.1));
            ring.advance(Some(piece));
            self.received(slot, bytes as u64);
            return Some((tag, bytes));
        }
        None
    }

    /// Matches a receive to the first message that arrived for it, or to the first that will.
    pub(crate) fn post(&mut self, index: u32, filter: Filter) {
        let found = self.arrivals.iter().position(|arrival| {
            self.unexpected.at(*arrival).is_some_and(|it| filter.takes(it.context, it.source, it.tag))
        });
        match found.and_then(|place| self.arrivals.remove(place)) {
            Some(entry) => self.receive_unexpected(index, entry),
            None => self.posted.push((filter, index)),
        }
    }

    /// A receive takes a message that arrived before it.
    fn receive_unexpected(&mut self, index: u32, entry: u32) {
        let Some(message) = self.unexpected.remove_at(entry) else { return };
        let Some(request) = self.requests.at_mut(index) else { return };
        if message.source == self.rank {
            request.begin(message.source, message.tag, message.total);
        } else {
            request.begin_from(message.source, message.position, message.tag, message.total);
        }
        match message.content {
            Content::Bytes(bytes) => {
                request.accept(0, &bytes);
                if bytes.len() as u64 == message.total {
                    self.finish(index);
                } else if let Some(arriving) = &mut self.incoming[message.source].arriving {
                    arriving.target = Target::Request(index);
                }
            }
            Content::Own { bytes, request: sender } => {
                request.accept(0, &bytes);
                self.finish(index);
                self.finish(sender);
            }
            Content::Offer { request: sender, address } => {
                self.accept_offer(index, &message_of(&message, sender, address))
            }
        }
    }

    /// Fetches a long message, or requests it.
    fn accept_offer(&mut self, index: u32, offer: &Offer) {
        let Some(request) = self.requests.at_mut(index) else { return };
        let memory = request.memory.part(0, request.status.bytes as usize);
        let is_worth_it = memory.bytes() >= self.fabric.one_copy_bytes_min();
        let is_here = memory.bytes() == 0
            || is_worth_it
                && match request.fold {
                    None => self.fabric.read_peer(offer.source, offer.address, memory),
                    Some(fold) => fold_peer(&mut *self.fabric, &mut self.fold_piece, offer, memory, fold)
                        .unwrap_or_else(|error| {
                            request.status.error = Some(error);
                            true
                        }),
                };
        let mut answer = Body::new(if is_here { DONE } else { WANTED }, 0, 0, 0);
        answer.set_word(0, offer.sender.into());
        answer.set_word(1, index.into());
        if is_here {
            self.finish(index);
        }
        self.answer(offer.source, answer);
    }

    pub(crate) fn take_posted(&mut self, context: u32, source: usize, tag: i32) -> Option<u32> {
        let place = self.posted.iter().position(|(filter, _)| filter.takes(context, source, tag))?;
        Some(self.posted.remove(place).1)
    }

    /// Takes the next slot from `source`; false if there is none.
    pub(crate) fn take(&mut self, source: usize) -> bool {
        let Some(body) = self.incoming[source].ring.peek() else { return false };
        #[allow(clippy::clone_on_copy)] // A reference, but in a model of the ring a value.
        let body = body.clone();
        let piece = match body.kind {
            FIRST if body.total() == u64::from(body.inline) => None,
            FIRST | MORE => Some(piece_of(body.word(0))),
            PIECE if body.total() > 0 => Some(piece_of(body.word(2))),
            _ => None,
        };
        match body.kind {
            FIRST => self.take_first(source, &body, piece),
            MORE => self.take_more(source, piece),
            OFFER => self.take_offer(source, &body),
            WANTED => self.begin_stream(source, body.word(0) as u32, body.word(1) as u32),
            PIECE => self.take_piece(source, &body, piece),
            DONE => self.finish(body.word(0) as u32),
            _ => {}
        }
        self.incoming[source].ring.advance(piece);
        true
    }

    fn take_first(&mut self, source: usize, body: &Body, piece: Option<(u32, usize)>) {
        let (total, position) = (body.total(), self.incoming[source].ring.position());
        let target = match self.take_posted(body.context, source, body.tag) {
            Some(index) => {
                if let Some(request) = self.requests.at_mut(index) {
                    request.begin_from(source, position, body.tag, total);
                }
                Target::Request(index)
            }
            None => {
                let content = Content::Bytes(Vec::with_capacity(total as usize));
                let entry = Unexpected { context: body.context, source, tag: body.tag, total, position, content };
                let index = self.unexpected.insert(entry).index;
                self.arrivals.push_back(index);
                Target::Unexpected(index)
            }
        };
        self.incoming[source].arriving = Some(Arriving { target, offset: 0, total: total as usize });
        match piece {
            Some(_) => self.take_more(source, piece),
            None => self.deliver(source, &body.data[..body.inline.into()]),
        }
    }

    fn take_more(&mut self, source: usize, piece: Option<(u32, usize)>) {
        let Some((position, length)) = piece else { return };
        // The bytes are copied out of the ring before it advances, so they outlive the borrow of the ring.
        let Some(arriving) = self.incoming[source].arriving else { return };
        let bytes = self.incoming[source].ring.bulk(position, length);
        accept(&mut self.requests, &mut self.unexpected, arriving, bytes);
        self.arrived(source, length);
    }

    fn deliver(&mut self, source: usize, bytes: &[u8]) {
        let Some(arriving) = self.incoming[source].arriving else { return };
        accept(&mut self.requests, &mut self.unexpected, arriving, bytes);
        self.arrived(source, bytes.len());
    }

    /// So many more bytes of the message that arrives are here.
    fn arrived(&mut self, source: usize, bytes: usize) {
        let Some(arriving) = &mut self.incoming[source].arriving else { return };
        arriving.offset += bytes;
        if arriving.offset >= arriving.total {
            let target = arriving.target;
            self.incoming[source].arriving = None;
            if let Target::Request(index) = target {
                self.finish(index);
            }
        }
    }

    fn take_offer(&mut self, source: usize, body: &Body) {
        let (sender, address, total) = (body.word(0) as u32, body.word(1), body.total());
        let position = self.incoming[source].ring.position();
        if let Some(index) = self.take_posted(body.context, source, body.tag) {
            if let Some(request) = self.requests.at_mut(index) {
                request.begin_from(source, position, body.tag, total);
            }
            return self.accept_offer(index, &Offer { source, sender, address });
        }
        let content = Content::Offer { request: sender, address };
        let entry = Unexpected { context: body.context, source, tag: body.tag, total, position, content };
        self.arrivals.push_back(self.unexpected.insert(entry).index);
    }

    fn take_piece(&mut self, source: usize, body: &Body, piece: Option<(u32, usize)>) {
        let index = body.word(0) as u32;
        let Some(request) = self.requests.at_mut(index) else { return };
        if let Some((position, length)) = piece {
            request.accept(body.word(1) as usize, self.incoming[source].ring.bulk(position, length));
        }
        if request.offset as u64 >= body.total() {
            self.finish(index);
        }
    }

    /// What the first message that matches would report, if one is there. It stays.
    pub fn probe_now(
        &mut self,
        communicator: &Communicator,
        source: Source,
        tag: Option<i32>,
    ) -> Result<Option<Status>, Error> {
        let Some(filter) = self.filter(communicator, source, tag, 0)? else { return Ok(Some(Status::EMPTY)) };
        self.progress();
        if self.header().aborted().is_some() {
            return Err(Error::ProcAborted);
        }
        Ok(self.find(&filter).map(|(_, entry)| self.status_of(communicator, entry)))
    }

    /// Waits for a message that matches, and returns what it would report. It stays.
    pub fn probe(&mut self, communicator: &Communicator, source: Source, tag: Option<i32>) -> Result<Status, Error> {
        let Some(filter) = self.filter(communicator, source, tag, 0)? else { return Ok(Status::EMPTY) };
        self.wait_until(|world| world.find(&filter).is_some())?;
        let (_, entry) = self.find(&filter).ok_or(Error::Intern)?;
        Ok(self.status_of(communicator, entry))
    }

    /// As [`World::probe_now`]; the message is set aside for [`World::start_receive_message`].
    pub fn take_message_now(
        &mut self,
        communicator: &Communicator,
        source: Source,
        tag: Option<i32>,
    ) -> Result<Option<(Message, Status)>, Error> {
        let Some(filter) = self.filter(communicator, source, tag, 0)? else { return Err(Error::Rank) };
        self.progress();
        if self.header().aborted().is_some() {
            return Err(Error::ProcAborted);
        }
        let Some((place, entry)) = self.find(&filter) else { return Ok(None) };
        self.arrivals.remove(place);
        let status = self.status_of(communicator, entry);
        Ok(self.unexpected.id_at(entry).map(|id| (Message(id), status)))
    }

    /// Begins to receive a message that was set aside.
    pub fn start_receive_message(
        &mut self,
        communicator: &Communicator,
        message: Message,
        base: Base,
        count: usize,
        datatype: &Rc<crate::datatype::Datatype>,
    ) -> Result<Id, Error> {
        self.unexpected.get(message.0).ok_or(Error::Request)?;
        let request = match datatype.region(base, count) {
            Some(memory) => Request::new(Kind::Receive, memory, Rc::clone(communicator.group())),
            None => typed_request(communicator, base, count, datatype),
        };
        let id = self.requests.insert(request);
        self.receive_unexpected(id.index, message.0.index);
        Ok(id)
    }

    fn find(&self, filter: &Filter) -> Option<(usize, u32)> {
        let mut arrivals = self.arrivals.iter().copied().enumerate();
        arrivals
            .find(|(_, entry)| self.unexpected.at(*entry).is_some_and(|it| filter.takes(it.context, it.source, it.tag)))
    }

    fn status_of(&self, communicator: &Communicator, entry: u32) -> Status {
        self.unexpected.at(entry).map_or(Status::EMPTY, |message| Status {
            source: communicator.group().rank_of(message.source),
            tag: Some(message.tag),
            bytes: message.total,
            ..Status::EMPTY
        })
    }
}

fn typed_request(
    communicator: &Communicator,
    base: Base,
    count: usize,
    datatype: &Rc<crate::datatype::Datatype>,
) -> Request {
    let staging = Staging::new(datatype.size() * count);
    let mut request = Request::new(Kind::Receive, staging.memory(), Rc::clone(communicator.group()));
    request.unpack = Some(Unpack { base, count, datatype: Rc::clone(datatype) });
    request.staging = Some(staging);
    request
}

/// Combines the memory of another rank with ours, in pieces that stay in the cache. False if it cannot be read; fails if it can be read
/// no more after a piece, which cannot be combined again. `staging` is made at the first use and kept: an allocation of its size can be
/// a system call.
fn fold_peer(
    fabric: &mut dyn Fabric,
    staging: &mut Option<Staging>,
    offer: &Offer,
    mut memory: Memory,
    fold: Fold,
) -> Result<bool, Error> {
    let staging = staging.get_or_insert_with(|| Staging::new(FOLD_PIECE_BYTES));
    for start in (0..memory.bytes()).step_by(FOLD_PIECE_BYTES) {
        let piece = staging.memory().part(0, FOLD_PIECE_BYTES.min(memory.bytes() - start));
        if !fabric.read_peer(offer.source, offer.address + start as u64, piece) {
            return if start == 0 { Ok(false) } else { Err(Error::ProcAborted) };
        }
        fold(piece.as_slice(), &mut memory.as_mut_slice()[start..start + piece.bytes()]);
    }
    Ok(true)
}

/// A long message that its sender offers.
struct Offer {
    source: usize,
    sender: u32,
    address: u64,
}

fn message_of(message: &Unexpected, sender: u32, address: u64) -> Offer {
    Offer { source: message.source, sender, address }
}

fn piece_of(word: u64) -> (u32, usize) {
    (word as u32, (word >> 32) as usize)
}

fn accept(
    requests: &mut crate::slab::Slab<Request>,
    unexpected: &mut crate::slab::Slab<Unexpected>,
    arriving: Arriving,
    bytes: &[u8],
) {
    match arriving.target {
        Target::Request(index) => {
            if let Some(request) = requests.at_mut(index) {
                request.accept(arriving.offset, bytes);
            }
        }
        Target::Unexpected(index) => {
            if let Some(Unexpected { content: Content::Bytes(so_far), .. }) = unexpected.at_mut(index) {
                so_far.extend_from_slice(bytes);
            }
        }
    }
}
