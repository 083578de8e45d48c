//! Messages between two ranks, by calls that return when they are done.

use crate::datatypes::buffer;
use crate::global::{comm, core_of, find, objects, world};
use crate::handles::{ANY_SOURCE, ANY_TAG, Count, Handle, Kind, MESSAGE_NO_PROC, MESSAGE_NULL, PROC_NULL, handle_of};
use crate::status::{RawStatus, put, put_nobody};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ffi::{c_int, c_void};
use glass_lib_mpi::{Buffer, Communicator, Error, Id, Message, Mode, Source, Status};

/// The rank to which a message goes; `None` is no rank.
pub fn destination(core: &Communicator, rank: c_int) -> Result<Option<usize>, Error> {
    match usize::try_from(rank) {
        Ok(rank) if rank < core.size() => Ok(Some(rank)),
        _ if rank == PROC_NULL => Ok(None),
        _ => Err(Error::Rank),
    }
}

/// The rank from which a message may come.
pub fn source(core: &Communicator, rank: c_int) -> Result<Source, Error> {
    match rank {
        ANY_SOURCE => Ok(Source::Any),
        rank => Ok(destination(core, rank)?.map_or(Source::Unheld, Source::Rank)),
    }
}

/// The tag of a message that is sent.
pub fn sent_tag(tag: c_int) -> Result<i32, Error> {
    if tag < 0 { Err(Error::Tag) } else { Ok(tag) }
}

/// The tags that a receive takes.
pub fn received_tag(tag: c_int) -> Result<Option<i32>, Error> {
    if tag == ANY_TAG { Ok(None) } else { sent_tag(tag).map(Some) }
}

/// Sends and waits.
pub unsafe fn send<C: Count>(
    start: *const c_void,
    count: C,
    datatype: Handle,
    to: c_int,
    tag: c_int,
    on: Handle,
    mode: Mode,
) -> Result<(), Error> {
    let core: *const Communicator = Rc::as_ptr(&comm(on)?.core);
    // SAFETY: a communicator is not freed during a call: one thread calls at a time.
    let core = unsafe { &*core };
    let (to, tag, buffer) = (destination(core, to)?, sent_tag(tag)?, unsafe { buffer(start, count, datatype) }?);
    match buffer.region() {
        Some(memory) => world()?.send(core, to, tag, memory, mode),
        None => {
            let id = start_packed(core, to, tag, &buffer, mode)?;
            world()?.wait(id).map(drop)
        }
    }
}

fn start_packed(core: &Communicator, to: Option<usize>, tag: i32, buffer: &Buffer, mode: Mode) -> Result<Id, Error> {
    let mut packed = Vec::with_capacity(buffer.bytes());
    buffer.datatype.pack(buffer.base, buffer.count, &mut packed);
    world()?.start_send_bytes(core, to, tag, &packed, mode)
}

/// Begins to send.
pub fn start_send(core: &Communicator, to: Option<usize>, tag: i32, buffer: &Buffer, mode: Mode) -> Result<Id, Error> {
    match buffer.region() {
        Some(memory) => world()?.start_send(core, to, tag, memory, mode),
        None => start_packed(core, to, tag, buffer, mode),
    }
}

/// Begins to send bytes that are kept for it: the program's buffer is free at once.
pub fn start_kept(core: &Communicator, to: Option<usize>, tag: i32, buffer: &Buffer) -> Result<Id, Error> {
    start_packed(core, to, tag, buffer, Mode::Standard)
}

/// Begins to receive.
pub fn start_receive(core: &Communicator, from: Source, tag: Option<i32>, buffer: &Buffer) -> Result<Id, Error> {
    match buffer.region() {
        Some(memory) => world()?.start_receive(core, from, tag, memory),
        None => world()?.start_receive_typed(core, from, tag, buffer.base, buffer.count, &buffer.datatype),
    }
}

/// Receives and waits.
pub unsafe fn receive<C: Count>(
    start: *mut c_void,
    count: C,
    datatype: Handle,
    from: c_int,
    tag: c_int,
    on: Handle,
    status: *mut RawStatus,
) -> Result<(), Error> {
    let core: *const Communicator = Rc::as_ptr(&comm(on)?.core);
    // SAFETY: as in `send`.
    let core = unsafe { &*core };
    let (from, tag, buffer) = (source(core, from)?, received_tag(tag)?, unsafe { buffer(start, count, datatype) }?);
    let found = match buffer.region() {
        Some(memory) => world()?.receive(core, from, tag, memory)?,
        None => {
            let id = start_receive(core, from, tag, &buffer)?;
            world()?.wait(id)?
        }
    };
    unsafe { finish(from, &found, status) }
}

unsafe fn finish(from: Source, found: &Status, status: *mut RawStatus) -> Result<(), Error> {
    match from {
        Source::Unheld => unsafe { put_nobody(status) },
        _ => unsafe { put(status, found) },
    }
    found.error.map_or(Ok(()), Err)
}

mpi_pair! {
    fn MPI_Send MPI_Send_c [C] (start: *const c_void, count: C, datatype: Handle, to: c_int, tag: c_int, comm: Handle) on comm; {
        send(start, count, datatype, to, tag, comm, Mode::Standard)
    }

    fn MPI_Rsend MPI_Rsend_c [C] (start: *const c_void, count: C, datatype: Handle, to: c_int, tag: c_int, comm: Handle) on comm; {
        send(start, count, datatype, to, tag, comm, Mode::Standard)
    }

    fn MPI_Ssend MPI_Ssend_c [C] (start: *const c_void, count: C, datatype: Handle, to: c_int, tag: c_int, comm: Handle) on comm; {
        send(start, count, datatype, to, tag, comm, Mode::Synchronous)
    }

    fn MPI_Bsend MPI_Bsend_c [C] (start: *const c_void, count: C, datatype: Handle, to: c_int, tag: c_int, comm: Handle) on comm; {
        let core = core_of(comm)?;
        let id = start_kept(&core, destination(&core, to)?, sent_tag(tag)?, &buffer(start, count, datatype)?)?;
        world()?.release(id)
    }

    fn MPI_Recv MPI_Recv_c [C] (start: *mut c_void, count: C, datatype: Handle, from: c_int, tag: c_int, comm: Handle, status: *mut RawStatus) on comm; {
        receive(start, count, datatype, from, tag, comm, status)
    }

    fn MPI_Sendrecv MPI_Sendrecv_c [C] (
        sent: *const c_void, sent_count: C, sent_type: Handle, to: c_int, tag: c_int,
        start: *mut c_void, count: C, datatype: Handle, from: c_int, from_tag: c_int, comm: Handle, status: *mut RawStatus,
    ) on comm; {
        let core = core_of(comm)?;
        let (to, from) = (destination(&core, to)?, source(&core, from)?);
        let (sent, into) = (buffer(sent, sent_count, sent_type)?, buffer(start, count, datatype)?);
        let receive = start_receive(&core, from, received_tag(from_tag)?, &into)?;
        let send = start_send(&core, to, sent_tag(tag)?, &sent, Mode::Standard)?;
        let found = world()?.wait(receive)?;
        world()?.wait(send)?;
        finish(from, &found, status)
    }

    fn MPI_Sendrecv_replace MPI_Sendrecv_replace_c [C] (
        start: *mut c_void, count: C, datatype: Handle, to: c_int, tag: c_int, from: c_int, from_tag: c_int,
        comm: Handle, status: *mut RawStatus,
    ) on comm; {
        let core = core_of(comm)?;
        let (to, from, both) = (destination(&core, to)?, source(&core, from)?, buffer(start, count, datatype)?);
        let send = start_kept(&core, to, sent_tag(tag)?, &both)?;
        let receive = start_receive(&core, from, received_tag(from_tag)?, &both)?;
        let found = world()?.wait(receive)?;
        world()?.wait(send)?;
        finish(from, &found, status)
    }

    fn MPI_Mrecv MPI_Mrecv_c [C] (start: *mut c_void, count: C, datatype: Handle, message: *mut Handle, status: *mut RawStatus) on crate::handles::COMM_SELF; {
        if *message == MESSAGE_NO_PROC {
            *message = MESSAGE_NULL;
            put_nobody(status);
            return Ok(());
        }
        let id = start_message(&mut *message, &buffer(start, count, datatype)?)?;
        let found = world()?.wait(id)?;
        put(status, &found);
        found.error.map_or(Ok(()), Err)
    }

    fn MPI_Buffer_attach MPI_Buffer_attach_c [C] (start: *mut c_void, bytes: C) on crate::handles::COMM_SELF; {
        // Messages of buffered sends are kept in memory of the library; the program's is only remembered.
        objects().buffer = (start as usize, bytes.wide());
        Ok(())
    }

    fn MPI_Comm_attach_buffer MPI_Comm_attach_buffer_c [C] (comm: Handle, start: *mut c_void, bytes: C) on comm; {
        core_of(comm)?;
        crate::global::comm(comm)?.buffer = (start as usize, bytes.wide());
        Ok(())
    }

    fn MPI_Comm_detach_buffer MPI_Comm_detach_buffer_c [C] (comm: Handle, start: *mut usize, bytes: *mut C) on comm; {
        let (address, length) = core::mem::take(&mut crate::global::comm(comm)?.buffer);
        world()?.drain()?;
        (*start, *bytes) = (address, C::of(length));
        Ok(())
    }

    fn MPI_Buffer_detach MPI_Buffer_detach_c [C] (start: *mut usize, bytes: *mut C) on crate::handles::COMM_SELF; {
        let (address, length) = core::mem::take(&mut objects().buffer);
        world()?.drain()?;
        (*start, *bytes) = (address, C::of(length));
        Ok(())
    }
}

/// Begins to receive a message that was probed, whose handle goes.
pub fn start_message(handle: &mut Handle, into: &Buffer) -> Result<Id, Error> {
    let (id, (message, core)) = find(&mut objects().messages, Kind::Message, *handle).ok_or(Error::Request)?;
    let (message, core) = (*message, Rc::clone(core));
    objects().messages.remove(id);
    *handle = MESSAGE_NULL;
    world()?.start_receive_message(&core, message, into.base, into.count, &into.datatype)
}

unsafe fn put_message(
    found: Option<(Message, Status)>,
    core: &Rc<Communicator>,
    handle: *mut Handle,
    status: *mut RawStatus,
) -> bool {
    let Some((message, found)) = found else { return false };
    unsafe {
        *handle = handle_of(Kind::Message, objects().messages.insert((message, Rc::clone(core))));
        put(status, &found);
    }
    true
}

mpi! {
    fn MPI_Probe(from: c_int, tag: c_int, comm: Handle, status: *mut RawStatus) on comm; {
        let core = core_of(comm)?;
        let from = source(&core, from)?;
        let found = world()?.probe(&core, from, received_tag(tag)?)?;
        finish(from, &found, status)
    }

    fn MPI_Iprobe(from: c_int, tag: c_int, comm: Handle, flag: *mut c_int, status: *mut RawStatus) on comm; {
        let core = core_of(comm)?;
        let from = source(&core, from)?;
        let found = world()?.probe_now(&core, from, received_tag(tag)?)?;
        *flag = found.is_some().into();
        found.map_or(Ok(()), |found| finish(from, &found, status))
    }

    fn MPI_Mprobe(from: c_int, tag: c_int, comm: Handle, message: *mut Handle, status: *mut RawStatus) on comm; {
        let core = core_of(comm)?;
        let (from, tag) = (source(&core, from)?, received_tag(tag)?);
        if from == Source::Unheld {
            *message = MESSAGE_NO_PROC;
            put_nobody(status);
            return Ok(());
        }
        world()?.probe(&core, from, tag)?;
        let found = world()?.take_message_now(&core, from, tag)?;
        put_message(found, &core, message, status);
        Ok(())
    }

    fn MPI_Improbe(from: c_int, tag: c_int, comm: Handle, flag: *mut c_int, message: *mut Handle, status: *mut RawStatus) on comm; {
        let core = core_of(comm)?;
        let (from, tag) = (source(&core, from)?, received_tag(tag)?);
        if from == Source::Unheld {
            (*flag, *message) = (1, MESSAGE_NO_PROC);
            put_nobody(status);
            return Ok(());
        }
        let found = world()?.take_message_now(&core, from, tag)?;
        *flag = put_message(found, &core, message, status).into();
        Ok(())
    }

    fn MPI_Comm_flush_buffer(comm: Handle) on comm; {
        core_of(comm)?;
        world()?.drain()
    }

    fn MPI_Comm_iflush_buffer(comm: Handle, request: *mut Handle) on comm; {
        core_of(comm)?;
        *request = crate::requests::add(crate::objects::Pending::done(Status::EMPTY));
        Ok(())
    }

    fn MPI_Buffer_iflush(request: *mut Handle) on crate::handles::COMM_SELF; {
        *request = crate::requests::add(crate::objects::Pending::done(Status::EMPTY));
        Ok(())
    }

    fn MPI_Buffer_flush() on crate::handles::COMM_SELF; { world()?.drain() }
}
