//! Collective operations: blocking, as requests, and as persistent requests, of one description each.

use crate::datatypes::buffer;
use crate::global::{core_of, world};
use crate::handles::{Count, Handle, IN_PLACE};
use crate::memory::slice_of;
use crate::objects::Pending;
use crate::operations::operation;
use crate::requests::{self};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ffi::{c_int, c_void};
use glass_lib_mpi::{Buffer, Communicator, Error, Id};

type Core = Rc<Communicator>;

fn root_of(core: &Core, root: c_int) -> Result<usize, Error> {
    usize::try_from(root).ok().filter(|root| *root < core.size()).ok_or(Error::Root)
}

/// A buffer that is left out where the program requests "in place".
unsafe fn optional<C: Count>(start: *const c_void, count: C, datatype: Handle) -> Result<Option<Buffer>, Error> {
    if start as usize == IN_PLACE { Ok(None) } else { unsafe { buffer(start, count, datatype) }.map(Some) }
}

/// Equal parts of a buffer, one for each rank.
unsafe fn equal<C: Count>(core: &Core, start: *const c_void, count: C, datatype: Handle) -> Result<Vec<Buffer>, Error> {
    let first = unsafe { buffer(start, count, datatype) }?;
    Ok((0..core.size()).map(|rank| first.part(rank * first.count, first.count)).collect())
}

/// Unequal parts: counts and displacements in elements.
unsafe fn unequal<C: Count>(
    core: &Core,
    start: *const c_void,
    counts: *const C,
    places: *const C,
    datatype: Handle,
) -> Result<Vec<Buffer>, Error> {
    let (counts, places) = unsafe { (slice_of(counts, core.size()), slice_of(places, core.size())) };
    let parts = counts.iter().zip(places).map(|(count, place)| {
        let mut part = unsafe { buffer(start, *count, datatype) }?;
        part.base = part.base.at(place.wide() as isize * part.datatype.extent());
        Ok(part)
    });
    parts.collect()
}

/// Parts of their own types: displacements in bytes.
unsafe fn typed<C: Count>(
    core: &Core,
    start: *const c_void,
    counts: *const C,
    places: *const C,
    types: *const Handle,
) -> Result<Vec<Buffer>, Error> {
    let size = core.size();
    let (counts, places, types) = unsafe { (slice_of(counts, size), slice_of(places, size), slice_of(types, size)) };
    let parts = counts.iter().zip(places).zip(types).map(|((count, place), datatype)| {
        let mut part = unsafe { buffer(start, *count, *datatype) }?;
        part.base = part.base.at(place.wide() as isize);
        Ok(part)
    });
    parts.collect()
}

fn wait(id: Id) -> Result<(), Error> {
    world()?.wait(id)?.error.map_or(Ok(()), Err)
}

unsafe fn begin(start: impl Fn() -> Result<Id, Error>, request: *mut Handle) -> Result<(), Error> {
    unsafe { *request = requests::add(Pending::running(start()?)) };
    Ok(())
}

unsafe fn keep(start: impl Fn() -> Result<Id, Error> + 'static, request: *mut Handle) -> Result<(), Error> {
    unsafe { *request = requests::add(Pending::persistent(Rc::new(move || start().map(Pending::running)))) };
    Ok(())
}

/// Each line: the blocking call, the one with a request, the persistent one, their variants for large counts, and what `starter`
/// makes of the arguments: a function that begins the operation. `unless` does a blocking call without it and returns true, where it can.
macro_rules! collectives {
    ($([$blocking:ident $blocking_c:ident $request:ident $request_c:ident $initial:ident $initial_c:ident]
        [$count:ident] ($($argument:ident: $type:ty),* $(,)?) $starter:block $(unless $short:block)?)*) => {
        mpi_pair! { $(
            fn $blocking $blocking_c [$count] ($($argument: $type,)* comm: Handle) on comm; {
                let core = core_of(comm)?;
                if false $(|| $short(&core)?)? {
                    return Ok(());
                }
                let starter = $starter(core)?;
                wait(starter()?)
            }
            fn $request $request_c [$count] ($($argument: $type,)* comm: Handle, request: *mut Handle) on comm; {
                let core = core_of(comm)?;
                begin($starter(core)?, request)
            }
            fn $initial $initial_c [$count] ($($argument: $type,)* comm: Handle, _info: Handle, request: *mut Handle) on comm; {
                let core = core_of(comm)?;
                keep($starter(core)?, request)
            }
        )* }
    };
}

collectives! {
    [MPI_Gather MPI_Gather_c MPI_Igather MPI_Igather_c MPI_Gather_init MPI_Gather_init_c] [C]
    (from: *const c_void, count: C, datatype: Handle, into: *mut c_void, into_count: C, into_type: Handle, root: c_int) {
        |core: Core| {
            let root = root_of(&core, root)?;
            let from = optional(from, count, datatype)?;
            let parts = if core.rank() == root { equal(&core, into, into_count, into_type)? } else { Vec::new() };
            Ok::<_, Error>(move || world()?.start_gather(&core, from.as_ref(), &parts, root))
        }
    }

    [MPI_Gatherv MPI_Gatherv_c MPI_Igatherv MPI_Igatherv_c MPI_Gatherv_init MPI_Gatherv_init_c] [C]
    (from: *const c_void, count: C, datatype: Handle, into: *mut c_void, counts: *const C, places: *const C, into_type: Handle, root: c_int) {
        |core: Core| {
            let root = root_of(&core, root)?;
            let from = optional(from, count, datatype)?;
            let parts = if core.rank() == root { unequal(&core, into, counts, places, into_type)? } else { Vec::new() };
            Ok::<_, Error>(move || world()?.start_gather(&core, from.as_ref(), &parts, root))
        }
    }

    [MPI_Scatter MPI_Scatter_c MPI_Iscatter MPI_Iscatter_c MPI_Scatter_init MPI_Scatter_init_c] [C]
    (from: *const c_void, count: C, datatype: Handle, into: *mut c_void, into_count: C, into_type: Handle, root: c_int) {
        |core: Core| {
            let root = root_of(&core, root)?;
            let into = optional(into, into_count, into_type)?;
            let parts = if core.rank() == root { equal(&core, from, count, datatype)? } else { Vec::new() };
            Ok::<_, Error>(move || world()?.start_scatter(&core, &parts, into.as_ref(), root))
        }
    }

    [MPI_Scatterv MPI_Scatterv_c MPI_Iscatterv MPI_Iscatterv_c MPI_Scatterv_init MPI_Scatterv_init_c] [C]
    (from: *const c_void, counts: *const C, places: *const C, datatype: Handle, into: *mut c_void, into_count: C, into_type: Handle, root: c_int) {
        |core: Core| {
            let root = root_of(&core, root)?;
            let into = optional(into, into_count, into_type)?;
            let parts = if core.rank() == root { unequal(&core, from, counts, places, datatype)? } else { Vec::new() };
            Ok::<_, Error>(move || world()?.start_scatter(&core, &parts, into.as_ref(), root))
        }
    }

    [MPI_Allgather MPI_Allgather_c MPI_Iallgather MPI_Iallgather_c MPI_Allgather_init MPI_Allgather_init_c] [C]
    (from: *const c_void, count: C, datatype: Handle, into: *mut c_void, into_count: C, into_type: Handle) {
        |core: Core| {
            let (from, parts) = (optional(from, count, datatype)?, equal(&core, into, into_count, into_type)?);
            Ok::<_, Error>(move || world()?.start_allgather(&core, from.as_ref(), &parts))
        }
    } unless {
        |core: &Core| {
            let into = buffer(into, into_count, into_type)?;
            let own = optional(from, count, datatype)?.unwrap_or_else(|| into.part(core.rank() * into.count, into.count));
            world()?.short_allgather(core, &own, &into)
        }
    }

    [MPI_Allgatherv MPI_Allgatherv_c MPI_Iallgatherv MPI_Iallgatherv_c MPI_Allgatherv_init MPI_Allgatherv_init_c] [C]
    (from: *const c_void, count: C, datatype: Handle, into: *mut c_void, counts: *const C, places: *const C, into_type: Handle) {
        |core: Core| {
            let (from, parts) = (optional(from, count, datatype)?, unequal(&core, into, counts, places, into_type)?);
            Ok::<_, Error>(move || world()?.start_allgather(&core, from.as_ref(), &parts))
        }
    }

    [MPI_Alltoall MPI_Alltoall_c MPI_Ialltoall MPI_Ialltoall_c MPI_Alltoall_init MPI_Alltoall_init_c] [C]
    (from: *const c_void, count: C, datatype: Handle, into: *mut c_void, into_count: C, into_type: Handle) {
        |core: Core| {
            let parts = equal(&core, into, into_count, into_type)?;
            let from = if from as usize == IN_PLACE { None } else { Some(equal(&core, from, count, datatype)?) };
            Ok::<_, Error>(move || world()?.start_alltoall(&core, from.as_deref(), &parts))
        }
    } unless {
        |core: &Core| match optional(from, count, datatype)? {
            Some(from) => world()?.short_alltoall(core, &from, &buffer(into, into_count, into_type)?),
            None => Ok::<_, Error>(false),
        }
    }

    [MPI_Alltoallv MPI_Alltoallv_c MPI_Ialltoallv MPI_Ialltoallv_c MPI_Alltoallv_init MPI_Alltoallv_init_c] [C]
    (from: *const c_void, from_counts: *const C, from_places: *const C, datatype: Handle,
        into: *mut c_void, counts: *const C, places: *const C, into_type: Handle) {
        |core: Core| {
            let parts = unequal(&core, into, counts, places, into_type)?;
            let from = if from as usize == IN_PLACE { None } else { Some(unequal(&core, from, from_counts, from_places, datatype)?) };
            Ok::<_, Error>(move || world()?.start_alltoall(&core, from.as_deref(), &parts))
        }
    }

    [MPI_Alltoallw MPI_Alltoallw_c MPI_Ialltoallw MPI_Ialltoallw_c MPI_Alltoallw_init MPI_Alltoallw_init_c] [C]
    (from: *const c_void, from_counts: *const C, from_places: *const C, from_types: *const Handle,
        into: *mut c_void, counts: *const C, places: *const C, types: *const Handle) {
        |core: Core| {
            let parts = typed(&core, into, counts, places, types)?;
            let from = if from as usize == IN_PLACE { None } else { Some(typed(&core, from, from_counts, from_places, from_types)?) };
            Ok::<_, Error>(move || world()?.start_alltoall(&core, from.as_deref(), &parts))
        }
    }

    [MPI_Scan MPI_Scan_c MPI_Iscan MPI_Iscan_c MPI_Scan_init MPI_Scan_init_c] [C]
    (from: *const c_void, into: *mut c_void, count: C, datatype: Handle, op: Handle) {
        |core: Core| {
            let (from, into, op) = (optional(from, count, datatype)?, buffer(into, count, datatype)?, operation(op)?);
            Ok::<_, Error>(move || world()?.start_scan(&core, from.as_ref(), &into, &op, false))
        }
    }

    [MPI_Exscan MPI_Exscan_c MPI_Iexscan MPI_Iexscan_c MPI_Exscan_init MPI_Exscan_init_c] [C]
    (from: *const c_void, into: *mut c_void, count: C, datatype: Handle, op: Handle) {
        |core: Core| {
            let (from, into, op) = (optional(from, count, datatype)?, buffer(into, count, datatype)?, operation(op)?);
            Ok::<_, Error>(move || world()?.start_scan(&core, from.as_ref(), &into, &op, true))
        }
    }

    [MPI_Reduce_scatter MPI_Reduce_scatter_c MPI_Ireduce_scatter MPI_Ireduce_scatter_c MPI_Reduce_scatter_init MPI_Reduce_scatter_init_c] [C]
    (from: *const c_void, into: *mut c_void, counts: *const C, datatype: Handle, op: Handle) {
        |core: Core| {
            let counts: Result<Vec<usize>, Error> = slice_of(counts, core.size()).iter().map(|count| count.size()).collect();
            reduce_scatter(core, from, into, counts?, datatype, op)
        }
    }

    [MPI_Reduce_scatter_block MPI_Reduce_scatter_block_c MPI_Ireduce_scatter_block MPI_Ireduce_scatter_block_c
        MPI_Reduce_scatter_block_init MPI_Reduce_scatter_block_init_c] [C]
    (from: *const c_void, into: *mut c_void, count: C, datatype: Handle, op: Handle) {
        |core: Core| {
            let counts = alloc::vec![count.size()?; core.size()];
            reduce_scatter(core, from, into, counts, datatype, op)
        }
    }
}

unsafe fn reduce_scatter(
    core: Core,
    from: *const c_void,
    into: *mut c_void,
    counts: Vec<usize>,
    datatype: Handle,
    op: Handle,
) -> Result<impl Fn() -> Result<Id, Error> + 'static, Error> {
    let total: usize = counts.iter().sum();
    let start = if from as usize == IN_PLACE { into.cast_const() } else { from };
    let from = unsafe { buffer(start, total as i64, datatype) }?;
    let into = unsafe { buffer(into, counts[core.rank()] as i64, datatype) }?;
    let op = operation(op)?;
    Ok(move || world()?.start_reduce_scatter(&core, &from, &into, &counts, &op))
}

/// The buffers of a reduction to a root: at the root "in place" leaves out the first, elsewhere there is no second.
unsafe fn rooted<C: Count>(
    core: &Core,
    from: *const c_void,
    into: *mut c_void,
    count: C,
    datatype: Handle,
    root: usize,
) -> Result<(Option<Buffer>, Option<Buffer>), Error> {
    let from = unsafe { optional(from, count, datatype) }?;
    let into = if core.rank() == root { Some(unsafe { buffer(into, count, datatype) }?) } else { None };
    Ok((from, into))
}

// Those of which short ones take a shorter way than a plan.
mpi_pair! {
    fn MPI_Bcast MPI_Bcast_c [C] (start: *mut c_void, count: C, datatype: Handle, root: c_int, comm: Handle) on comm; {
        let core = core_of(comm)?;
        let root = root_of(&core, root)?;
        let buffer = buffer(start, count, datatype)?;
        world()?.broadcast(&core, &buffer, root)
    }
    fn MPI_Ibcast MPI_Ibcast_c [C] (start: *mut c_void, count: C, datatype: Handle, root: c_int, comm: Handle, request: *mut Handle) on comm; {
        let core = core_of(comm)?;
        let (root, buffer) = (root_of(&core, root)?, buffer(start, count, datatype)?);
        begin(|| Ok(world()?.start_broadcast(&core, &buffer, root)), request)
    }
    fn MPI_Bcast_init MPI_Bcast_init_c [C] (start: *mut c_void, count: C, datatype: Handle, root: c_int, comm: Handle, _info: Handle, request: *mut Handle) on comm; {
        let core = core_of(comm)?;
        let (root, buffer) = (root_of(&core, root)?, buffer(start, count, datatype)?);
        keep(move || Ok(world()?.start_broadcast(&core, &buffer, root)), request)
    }
    fn MPI_Reduce MPI_Reduce_c [C] (from: *const c_void, into: *mut c_void, count: C, datatype: Handle, op: Handle, root: c_int, comm: Handle) on comm; {
        let core = core_of(comm)?;
        let root = root_of(&core, root)?;
        let (from, into) = rooted(&core, from, into, count, datatype, root)?;
        world()?.reduce(&core, from.as_ref(), into.as_ref(), &operation(op)?, root)
    }
    fn MPI_Ireduce MPI_Ireduce_c [C] (from: *const c_void, into: *mut c_void, count: C, datatype: Handle, op: Handle, root: c_int, comm: Handle, request: *mut Handle) on comm; {
        let core = core_of(comm)?;
        let root = root_of(&core, root)?;
        let ((from, into), op) = (rooted(&core, from, into, count, datatype, root)?, operation(op)?);
        begin(|| world()?.start_reduce(&core, from.as_ref(), into.as_ref(), &op, root), request)
    }
    fn MPI_Reduce_init MPI_Reduce_init_c [C] (from: *const c_void, into: *mut c_void, count: C, datatype: Handle, op: Handle, root: c_int, comm: Handle, _info: Handle, request: *mut Handle) on comm; {
        let core = core_of(comm)?;
        let root = root_of(&core, root)?;
        let ((from, into), op) = (rooted(&core, from, into, count, datatype, root)?, operation(op)?);
        keep(move || world()?.start_reduce(&core, from.as_ref(), into.as_ref(), &op, root), request)
    }
    fn MPI_Allreduce MPI_Allreduce_c [C] (from: *const c_void, into: *mut c_void, count: C, datatype: Handle, op: Handle, comm: Handle) on comm; {
        let core = core_of(comm)?;
        let (from, into) = (optional(from, count, datatype)?, buffer(into, count, datatype)?);
        world()?.allreduce(&core, from.as_ref(), &into, &operation(op)?)
    }
    fn MPI_Iallreduce MPI_Iallreduce_c [C] (from: *const c_void, into: *mut c_void, count: C, datatype: Handle, op: Handle, comm: Handle, request: *mut Handle) on comm; {
        let core = core_of(comm)?;
        let (from, into, op) = (optional(from, count, datatype)?, buffer(into, count, datatype)?, operation(op)?);
        begin(|| world()?.start_allreduce(&core, from.as_ref(), &into, &op), request)
    }
    fn MPI_Allreduce_init MPI_Allreduce_init_c [C] (from: *const c_void, into: *mut c_void, count: C, datatype: Handle, op: Handle, comm: Handle, _info: Handle, request: *mut Handle) on comm; {
        let core = core_of(comm)?;
        let (from, into, op) = (optional(from, count, datatype)?, buffer(into, count, datatype)?, operation(op)?);
        keep(move || world()?.start_allreduce(&core, from.as_ref(), &into, &op), request)
    }
}

mpi! {
    fn MPI_Barrier(comm: Handle) on comm; {
        let core = core_of(comm)?;
        world()?.barrier(&core)
    }

    fn MPI_Ibarrier(comm: Handle, request: *mut Handle) on comm; {
        let core = core_of(comm)?;
        begin(|| Ok(world()?.start_barrier(&core)), request)
    }

    fn MPI_Barrier_init(comm: Handle, _info: Handle, request: *mut Handle) on comm; {
        let core = core_of(comm)?;
        keep(move || Ok(world()?.start_barrier(&core)), request)
    }
}
