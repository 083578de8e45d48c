//! The life of MPI in this rank: joining, leaving, aborting, and what it reports of itself.

use crate::global::{self, Life, end_all, host, life, objects, set_life, set_world, world};
use crate::handles::{COMM_SELF, COMM_WORLD, ERRORS_ARE_FATAL, Handle};
use crate::memory::put_text;
use crate::objects::Comm;
use crate::{attributes, datatypes};
use alloc::alloc::{Layout, alloc, dealloc};
use alloc::format;
use alloc::rc::Rc;
use core::ffi::{c_char, c_double, c_int, c_void};
use glass_lib_mpi::{Communicator, Error, World};

const THREAD_SINGLE: c_int = 0;
/// What we allow: any thread calls, one at a time.
const THREAD_SERIALIZED: c_int = 2048;
const LIBRARY_VERSION_BYTES: usize = 8192;
const PROCESSOR_NAME_BYTES: usize = 256;

/// States of a rank in the launcher's page (docs/formats/mpi-ranks.md).
const STATE_INSIDE: u32 = 1;
const STATE_LEFT: u32 = 2;

fn add(core: Rc<Communicator>, name: &[u8], errhandler: Handle) {
    let (attributes, info, buffer) = Default::default();
    objects().comms.insert(Comm { core, errhandler, name: name.to_vec(), attributes, info, buffer });
}

fn join() -> Result<(), Error> {
    if life() != Life::Before {
        return Err(Error::Other);
    }
    let (fabric, segment) = match host().join() {
        Ok(joined) => joined,
        Err(reason) => {
            host().print(&format!("MPI: cannot join the job: {reason}"));
            host().exit(1);
        }
    };
    let mut own = World::new(fabric, segment);
    own.header().set_state(own.rank(), STATE_INSIDE, host().process());
    let (all, alone) = (own.communicator_of_all(), own.communicator_of_self());
    // No rank's memory is read before its number is known.
    own.barrier(&all)?;
    set_world(Some(own));
    datatypes::define();
    add(all, b"MPI_COMM_WORLD", ERRORS_ARE_FATAL);
    add(alone, b"MPI_COMM_SELF", ERRORS_ARE_FATAL);
    set_life(Life::Inside);
    Ok(())
}

mpi! {
    fn MPI_Init(_count: *mut c_int, _arguments: *mut c_void) on COMM_SELF; { join() }

    fn MPI_Init_thread(_count: *mut c_int, _arguments: *mut c_void, required: c_int, provided: *mut c_int) on COMM_SELF; {
        *provided = required.clamp(THREAD_SINGLE, THREAD_SERIALIZED);
        join()
    }

    fn MPI_Initialized(flag: *mut c_int) on COMM_SELF; { *flag = (life() != Life::Before).into(); Ok(()) }
    fn MPI_Finalized(flag: *mut c_int) on COMM_SELF; { *flag = (life() == Life::After).into(); Ok(()) }
    fn MPI_Query_thread(provided: *mut c_int) on COMM_SELF; { *provided = THREAD_SERIALIZED; Ok(()) }
    fn MPI_Is_thread_main(flag: *mut c_int) on COMM_SELF; { *flag = 1; Ok(()) }

    fn MPI_Finalize() on COMM_SELF; {
        if life() != Life::Inside {
            return Err(Error::Other);
        }
        attributes::delete_all(COMM_SELF)?;
        let all = global::core_of(COMM_WORLD)?;
        let own = world()?;
        own.drain()?;
        own.barrier(&all)?;
        own.header().set_state(own.rank(), STATE_LEFT, host().process());
        set_life(Life::After);
        Ok(())
    }

    fn MPI_Abort(_comm: Handle, code: c_int) on COMM_SELF; {
        let rank = world().map_or(0, |world| world.rank());
        host().print(&format!("MPI: rank {rank} called MPI_Abort with code {code}"));
        end_all(code)
    }

    fn MPI_Get_version(version: *mut c_int, subversion: *mut c_int) on COMM_SELF; {
        (*version, *subversion) = (5, 0);
        Ok(())
    }

    fn MPI_Abi_get_version(version: *mut c_int, subversion: *mut c_int) on COMM_SELF; {
        (*version, *subversion) = (1, 0);
        Ok(())
    }

    fn MPI_Get_library_version(text: *mut c_char, length: *mut c_int) on COMM_SELF; {
        put_text(concat!("Glasshouse MPI ", env!("CARGO_PKG_VERSION")).as_bytes(), text, length, LIBRARY_VERSION_BYTES);
        Ok(())
    }

    fn MPI_Get_processor_name(text: *mut c_char, length: *mut c_int) on COMM_SELF; {
        put_text(host().machine().as_bytes(), text, length, PROCESSOR_NAME_BYTES);
        Ok(())
    }

    fn MPI_Pcontrol(_level: c_int) on COMM_SELF; { Ok(()) }

    fn MPI_Get_address(place: *const c_void, address: *mut isize) on COMM_SELF; {
        *address = place as isize;
        Ok(())
    }

    fn MPI_Alloc_mem(bytes: isize, _info: Handle, place: *mut *mut c_void) on COMM_SELF; {
        let bytes = usize::try_from(bytes).map_err(|_| Error::Arg)?;
        let layout = layout_of(bytes)?;
        let start = alloc(layout);
        if start.is_null() {
            return Err(Error::NoMem);
        }
        start.cast::<usize>().write(bytes);
        *place = start.add(PREFIX_BYTES).cast();
        Ok(())
    }

    fn MPI_Free_mem(place: *mut c_void) on COMM_SELF; {
        if !place.is_null() {
            let start = place.cast::<u8>().sub(PREFIX_BYTES);
            dealloc(start, layout_of(start.cast::<usize>().read())?);
        }
        Ok(())
    }
}

/// Before memory of `MPI_Alloc_mem` stands its length; the memory begins at a line.
const PREFIX_BYTES: usize = 64;

fn layout_of(bytes: usize) -> Result<Layout, Error> {
    let bytes = bytes.checked_add(PREFIX_BYTES).ok_or(Error::NoMem)?;
    Layout::from_size_align(bytes, PREFIX_BYTES).map_err(|_| Error::NoMem)
}

#[unsafe(no_mangle)]
extern "C" fn MPI_Wtime() -> c_double {
    host().now_ns() as f64 * 1e-9
}

#[unsafe(no_mangle)]
extern "C" fn PMPI_Wtime() -> c_double {
    MPI_Wtime()
}

#[unsafe(no_mangle)]
extern "C" fn MPI_Wtick() -> c_double {
    1e-9
}

#[unsafe(no_mangle)]
extern "C" fn PMPI_Wtick() -> c_double {
    MPI_Wtick()
}

#[unsafe(no_mangle)]
extern "C" fn MPI_Aint_add(base: isize, displacement: isize) -> isize {
    base.wrapping_add(displacement)
}

#[unsafe(no_mangle)]
extern "C" fn PMPI_Aint_add(base: isize, displacement: isize) -> isize {
    MPI_Aint_add(base, displacement)
}

#[unsafe(no_mangle)]
extern "C" fn MPI_Aint_diff(first: isize, second: isize) -> isize {
    first.wrapping_sub(second)
}

#[unsafe(no_mangle)]
extern "C" fn PMPI_Aint_diff(first: isize, second: isize) -> isize {
    MPI_Aint_diff(first, second)
}
