//! Communicators: what they are, and how new ones are made.

use crate::attributes;
use crate::global::{add_comm, comm, core_of, find, objects, world};
use crate::groups::{group, number_of};
use crate::handles::{COMM_NULL, COMM_SELF, COMM_WORLD, Handle, Kind, UNDEFINED};
use crate::memory::{put_text, text_of};
use crate::objects::Pending;
use crate::requests::{self};
use alloc::rc::Rc;
use core::ffi::{c_char, c_int};
use glass_lib_mpi::{Communicator, Error, Status};

const OBJECT_NAME_BYTES: usize = 128;
const TYPE_SHARED: c_int = 221;
/// This and the next are guided by an info object.
const TYPE_GUIDED: c_int = 223;

fn wants_shared_memory(info: Handle) -> bool {
    let texts = find(&mut objects().infos, Kind::Info, info);
    texts.is_some_and(|(_, texts)| {
        texts.iter().any(|(key, value)| key == b"mpi_hw_resource_type" && value == b"mpi_shared_memory")
    })
}

/// The handle of what came of a call that makes a communicator for some of its ranks.
fn made(parent: Handle, core: Option<Rc<Communicator>>) -> Result<Handle, Error> {
    let errhandler = comm(parent)?.errhandler;
    Ok(core.map_or(COMM_NULL, |core| add_comm(core, errhandler)))
}

fn duplicate(parent: Handle) -> Result<Handle, Error> {
    let core = world()?.duplicate(&core_of(parent)?)?;
    let new = made(parent, Some(core))?;
    attributes::copy_to(parent, new)?;
    Ok(new)
}

fn free(handle: &mut Handle) -> Result<(), Error> {
    if *handle == COMM_WORLD || *handle == COMM_SELF {
        return Err(Error::Comm);
    }
    comm(*handle)?;
    attributes::delete_all(*handle)?;
    let (id, _) = find(&mut objects().comms, Kind::Communicator, *handle).ok_or(Error::Comm)?;
    objects().comms.remove(id);
    *handle = COMM_NULL;
    Ok(())
}

mpi! {
    fn MPI_Comm_rank(handle: Handle, rank: *mut c_int) on handle; {
        *rank = comm(handle)?.core.rank() as c_int;
        Ok(())
    }

    fn MPI_Comm_size(handle: Handle, size: *mut c_int) on handle; {
        *size = comm(handle)?.core.size() as c_int;
        Ok(())
    }

    fn MPI_Comm_test_inter(handle: Handle, flag: *mut c_int) on handle; {
        comm(handle)?;
        *flag = 0;
        Ok(())
    }

    fn MPI_Comm_remote_size(_handle: Handle, _size: *mut c_int) on COMM_SELF; { Err(Error::Comm) }
    fn MPI_Comm_remote_group(_handle: Handle, _group: *mut Handle) on COMM_SELF; { Err(Error::Comm) }

    fn MPI_Comm_get_parent(parent: *mut Handle) on COMM_SELF; { *parent = COMM_NULL; Ok(()) }

    fn MPI_Comm_compare(first: Handle, second: Handle, result: *mut c_int) on first; {
        *result = number_of(comm(first)?.core.compare(&core_of(second)?.clone()));
        Ok(())
    }

    fn MPI_Comm_dup(parent: Handle, new: *mut Handle) on parent; { *new = duplicate(parent)?; Ok(()) }

    fn MPI_Comm_dup_with_info(parent: Handle, _info: Handle, new: *mut Handle) on parent; {
        *new = duplicate(parent)?;
        Ok(())
    }

    fn MPI_Comm_idup(parent: Handle, new: *mut Handle, request: *mut Handle) on parent; {
        *new = duplicate(parent)?;
        *request = requests::add(Pending::done(Status::EMPTY));
        Ok(())
    }

    fn MPI_Comm_idup_with_info(parent: Handle, _info: Handle, new: *mut Handle, request: *mut Handle) on parent; {
        *new = duplicate(parent)?;
        *request = requests::add(Pending::done(Status::EMPTY));
        Ok(())
    }

    fn MPI_Comm_split(parent: Handle, color: c_int, key: c_int, new: *mut Handle) on parent; {
        if color < 0 && color != UNDEFINED {
            return Err(Error::Arg);
        }
        let core = world()?.split(&core_of(parent)?, u32::try_from(color).ok(), key)?;
        *new = made(parent, core)?;
        Ok(())
    }

    fn MPI_Comm_split_type(parent: Handle, kind: c_int, key: c_int, info: Handle, new: *mut Handle) on parent; {
        if !(TYPE_SHARED..=TYPE_SHARED + 3).contains(&kind) && kind != UNDEFINED {
            return Err(Error::Arg);
        }
        // All ranks share their memory; finer kinds of hardware are not known, and then the standard wants none.
        let is_shared = kind == TYPE_SHARED || kind >= TYPE_GUIDED && wants_shared_memory(info);
        let core = world()?.split(&core_of(parent)?, is_shared.then_some(0), key)?;
        *new = made(parent, core)?;
        Ok(())
    }

    fn MPI_Comm_create(parent: Handle, members: Handle, new: *mut Handle) on parent; {
        let members = group(members)?;
        let core = world()?.create(&core_of(parent)?, &members)?;
        *new = made(parent, core)?;
        Ok(())
    }

    fn MPI_Comm_create_group(parent: Handle, members: Handle, tag: c_int, new: *mut Handle) on parent; {
        let members = group(members)?;
        let core = world()?.create_of_group(&core_of(parent)?, &members, tag)?;
        *new = made(parent, core)?;
        Ok(())
    }

    fn MPI_Comm_free(handle: *mut Handle) on COMM_SELF; { free(&mut *handle) }

    fn MPI_Comm_disconnect(handle: *mut Handle) on COMM_SELF; {
        let core = core_of(*handle)?;
        world()?.barrier(&core)?;
        free(&mut *handle)
    }

    fn MPI_Comm_set_name(handle: Handle, name: *const c_char) on handle; {
        let mut name = text_of(name);
        name.truncate(OBJECT_NAME_BYTES - 1);
        comm(handle)?.name = name;
        Ok(())
    }

    fn MPI_Comm_get_name(handle: Handle, name: *mut c_char, length: *mut c_int) on handle; {
        if handle == COMM_NULL {
            put_text(b"MPI_COMM_NULL", name, length, OBJECT_NAME_BYTES);
            return Ok(());
        }
        put_text(&comm(handle)?.name, name, length, OBJECT_NAME_BYTES);
        Ok(())
    }

    fn MPI_Topo_test(handle: Handle, status: *mut c_int) on handle; {
        comm(handle)?;
        *status = UNDEFINED;
        Ok(())
    }
}
