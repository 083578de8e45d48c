//! Operations of reductions.

use crate::datatypes::{self, buffer};
use crate::global::{find, objects};
use crate::handles::{COMM_SELF, Handle, Kind, OP_NULL, handle_of};
use alloc::rc::Rc;
use core::ffi::{c_int, c_void};
use glass_lib_mpi::{Error, Operation, Predefined};

type Function = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut Handle);
type LargeFunction = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut i64, *mut Handle);

/// The operation of a handle.
pub fn operation(handle: Handle) -> Result<Operation, Error> {
    Ok(Operation::Predefined(match handle {
        0x21 => Predefined::Sum,
        0x22 => Predefined::Min,
        0x23 => Predefined::Max,
        0x24 => Predefined::Prod,
        0x28 => Predefined::BitAnd,
        0x29 => Predefined::BitOr,
        0x2a => Predefined::BitXor,
        0x30 => Predefined::And,
        0x31 => Predefined::Or,
        0x32 => Predefined::Xor,
        0x38 => Predefined::MinLoc,
        0x39 => Predefined::MaxLoc,
        0x3c => Predefined::Replace,
        0x3d => Predefined::NoOp,
        other => {
            let found = find(&mut objects().operations, Kind::Operation, other);
            return found.map(|(_, operation)| operation.clone()).ok_or(Error::Op);
        }
    }))
}

/// The engine's view of a function of the program, which `call` calls with two buffers and a handle.
fn add(commutes: c_int, call: impl Fn(*mut c_void, *mut c_void, usize, *mut Handle) + 'static) -> Handle {
    let function = move |first: &mut [u8], second: &mut [u8], count: usize, datatype: &Rc<glass_lib_mpi::Datatype>| {
        let (mut handle, mapped) = datatypes::mapped(datatype);
        // The slices begin at the first byte of data, the program's view where the first element does.
        let start = datatype.span(count).0;
        let of = |slice: &mut [u8]| slice.as_mut_ptr().wrapping_offset(-start).cast();
        call(of(first), of(second), count, &mut handle);
        if let Some(id) = mapped {
            objects().types.remove(id);
        }
    };
    handle_of(Kind::Operation, objects().operations.insert(Operation::User(Rc::new(function), commutes != 0)))
}

mpi! {
    fn MPI_Op_create(function: Function, commutes: c_int, new: *mut Handle) on COMM_SELF; {
        *new = add(commutes, move |first, second, count, datatype| {
            let mut count = count as c_int;
            // SAFETY: the program gave the function for this.
            function(first, second, &mut count, datatype);
        });
        Ok(())
    }

    fn MPI_Op_create_c(function: LargeFunction, commutes: c_int, new: *mut Handle) on COMM_SELF; {
        *new = add(commutes, move |first, second, count, datatype| {
            let mut count = count as i64;
            // SAFETY: the program gave the function for this.
            function(first, second, &mut count, datatype);
        });
        Ok(())
    }

    fn MPI_Op_free(handle: *mut Handle) on COMM_SELF; {
        let (id, _) = find(&mut objects().operations, Kind::Operation, *handle).ok_or(Error::Op)?;
        objects().operations.remove(id);
        *handle = OP_NULL;
        Ok(())
    }

    fn MPI_Op_commutative(handle: Handle, flag: *mut c_int) on COMM_SELF; {
        *flag = operation(handle)?.commutes().into();
        Ok(())
    }
}

mpi_pair! {
    fn MPI_Reduce_local MPI_Reduce_local_c [C] (first: *const c_void, second: *mut c_void, count: C, handle: Handle, op: Handle) on COMM_SELF; {
        let operation = operation(op)?;
        let (first, second) = (buffer(first, count, handle)?, buffer(second, count, handle)?);
        operation.check(&first.datatype)?;
        let (start, bytes) = first.datatype.span(first.count);
        let slice = |of: &glass_lib_mpi::Buffer| {
            let memory = of.base.memory(start, bytes);
            core::slice::from_raw_parts_mut(memory.address() as *mut u8, memory.bytes())
        };
        operation.combine(slice(&first), slice(&second), first.count, &first.datatype);
        Ok(())
    }
}
