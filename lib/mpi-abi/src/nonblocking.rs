//! Messages between two ranks, by calls that return a request, and persistent requests.

use crate::blocking::{
    destination, received_tag, sent_tag, source, start_kept, start_message, start_receive, start_send,
};
use crate::datatypes::buffer;
use crate::global::core_of;
use crate::handles::{COMM_SELF, Count, Handle, MESSAGE_NO_PROC, MESSAGE_NULL};
use crate::objects::Pending;
use crate::requests::{self};
use alloc::rc::Rc;
use core::ffi::{c_int, c_void};
use glass_lib_mpi::{Error, Mode, Source, Status};

/// How a send keeps its bytes.
#[derive(Clone, Copy)]
enum Kept {
    InPlace(Mode),
    Copied,
}

/// The start of a send, which may be repeated.
unsafe fn sender<C: Count>(
    start: *const c_void,
    count: C,
    datatype: Handle,
    to: c_int,
    tag: c_int,
    comm: Handle,
    kept: Kept,
) -> Result<impl Fn() -> Result<Pending, Error> + 'static, Error> {
    let core = core_of(comm)?;
    let (to, tag, buffer) = (destination(&core, to)?, sent_tag(tag)?, unsafe { buffer(start, count, datatype) }?);
    Ok(move || {
        let id = match kept {
            Kept::InPlace(mode) => start_send(&core, to, tag, &buffer, mode)?,
            Kept::Copied => start_kept(&core, to, tag, &buffer)?,
        };
        Ok(Pending::running(id))
    })
}

/// The start of a receive, which may be repeated.
unsafe fn receiver<C: Count>(
    start: *mut c_void,
    count: C,
    datatype: Handle,
    from: c_int,
    tag: c_int,
    comm: Handle,
) -> Result<impl Fn() -> Result<Pending, Error> + 'static, Error> {
    let core = core_of(comm)?;
    let (from, tag, buffer) = (source(&core, from)?, received_tag(tag)?, unsafe { buffer(start, count, datatype) }?);
    Ok(move || {
        let mut pending = Pending::running(start_receive(&core, from, tag, &buffer)?);
        pending.is_nobody = from == Source::Unheld;
        Ok(pending)
    })
}

unsafe fn begin(start: impl Fn() -> Result<Pending, Error>, request: *mut Handle) -> Result<(), Error> {
    unsafe { *request = requests::add(start()?) };
    Ok(())
}

unsafe fn keep(start: impl Fn() -> Result<Pending, Error> + 'static, request: *mut Handle) -> Result<(), Error> {
    unsafe { *request = requests::add(Pending::persistent(Rc::new(start))) };
    Ok(())
}

const STANDARD: Kept = Kept::InPlace(Mode::Standard);
const SYNCHRONOUS: Kept = Kept::InPlace(Mode::Synchronous);

macro_rules! sends {
    ($($name:ident $large:ident $initial:ident $initial_large:ident $kept:expr;)*) => {
        mpi_pair! { $(
            fn $name $large [C] (start: *const c_void, count: C, datatype: Handle, to: c_int, tag: c_int, comm: Handle, request: *mut Handle) on comm; {
                begin(sender(start, count, datatype, to, tag, comm, $kept)?, request)
            }
            fn $initial $initial_large [C] (start: *const c_void, count: C, datatype: Handle, to: c_int, tag: c_int, comm: Handle, request: *mut Handle) on comm; {
                keep(sender(start, count, datatype, to, tag, comm, $kept)?, request)
            }
        )* }
    };
}

sends! {
    MPI_Isend MPI_Isend_c MPI_Send_init MPI_Send_init_c STANDARD;
    MPI_Irsend MPI_Irsend_c MPI_Rsend_init MPI_Rsend_init_c STANDARD;
    MPI_Issend MPI_Issend_c MPI_Ssend_init MPI_Ssend_init_c SYNCHRONOUS;
    MPI_Ibsend MPI_Ibsend_c MPI_Bsend_init MPI_Bsend_init_c Kept::Copied;
}

mpi_pair! {
    fn MPI_Irecv MPI_Irecv_c [C] (start: *mut c_void, count: C, datatype: Handle, from: c_int, tag: c_int, comm: Handle, request: *mut Handle) on comm; {
        begin(receiver(start, count, datatype, from, tag, comm)?, request)
    }

    fn MPI_Recv_init MPI_Recv_init_c [C] (start: *mut c_void, count: C, datatype: Handle, from: c_int, tag: c_int, comm: Handle, request: *mut Handle) on comm; {
        keep(receiver(start, count, datatype, from, tag, comm)?, request)
    }

    fn MPI_Imrecv MPI_Imrecv_c [C] (start: *mut c_void, count: C, datatype: Handle, message: *mut Handle, request: *mut Handle) on COMM_SELF; {
        if *message == MESSAGE_NO_PROC {
            let mut pending = Pending::done(Status::EMPTY);
            pending.is_nobody = true;
            (*message, *request) = (MESSAGE_NULL, requests::add(pending));
            return Ok(());
        }
        let id = start_message(&mut *message, &buffer(start, count, datatype)?)?;
        *request = requests::add(Pending::running(id));
        Ok(())
    }

    fn MPI_Isendrecv MPI_Isendrecv_c [C] (
        sent: *const c_void, sent_count: C, sent_type: Handle, to: c_int, tag: c_int,
        start: *mut c_void, count: C, datatype: Handle, from: c_int, from_tag: c_int, comm: Handle, request: *mut Handle,
    ) on comm; {
        let receive = receiver(start, count, datatype, from, from_tag, comm)?;
        let core = core_of(comm)?;
        // The bytes are kept, so that the request is the receive's alone.
        let pending = receive()?;
        let id = start_kept(&core, destination(&core, to)?, sent_tag(tag)?, &buffer(sent, sent_count, sent_type)?)?;
        crate::global::world()?.release(id)?;
        *request = requests::add(pending);
        Ok(())
    }

    fn MPI_Isendrecv_replace MPI_Isendrecv_replace_c [C] (
        start: *mut c_void, count: C, datatype: Handle, to: c_int, tag: c_int, from: c_int, from_tag: c_int,
        comm: Handle, request: *mut Handle,
    ) on comm; {
        let core = core_of(comm)?;
        let id = start_kept(&core, destination(&core, to)?, sent_tag(tag)?, &buffer(start, count, datatype)?)?;
        crate::global::world()?.release(id)?;
        begin(receiver(start, count, datatype, from, from_tag, comm)?, request)
    }
}
