//! Handles as integers, for Fortran: predefined ones as they are, others by their place in a list.

use crate::global::objects;
use crate::handles::Handle;
use core::ffi::c_int;

/// Numbers of handles that are not predefined begin here.
const FIRST: usize = 0x1000;

extern "C" fn to_int(handle: Handle) -> c_int {
    if handle < FIRST {
        return handle as c_int;
    }
    let numbered = &mut objects().numbered;
    let known = numbered.iter().position(|other| *other == handle);
    let place = known.unwrap_or_else(|| {
        numbered.push(handle);
        numbered.len() - 1
    });
    (FIRST + place) as c_int
}

extern "C" fn from_int(number: c_int) -> Handle {
    let number = number as usize;
    // What is no number of a handle becomes a handle of nothing.
    number.checked_sub(FIRST).map_or(number, |place| objects().numbered.get(place).copied().unwrap_or(0))
}

macro_rules! numbers {
    ($($to:ident $from:ident)*) => { $(
        const _: () = {
            #[unsafe(export_name = stringify!($to))]
            extern "C" fn own_to(handle: Handle) -> c_int {
                to_int(handle)
            }
            #[unsafe(export_name = concat!("P", stringify!($to)))]
            extern "C" fn profiled_to(handle: Handle) -> c_int {
                to_int(handle)
            }
            #[unsafe(export_name = stringify!($from))]
            extern "C" fn own_from(number: c_int) -> Handle {
                from_int(number)
            }
            #[unsafe(export_name = concat!("P", stringify!($from)))]
            extern "C" fn profiled_from(number: c_int) -> Handle {
                from_int(number)
            }
        };
    )* };
}

numbers! {
    MPI_Comm_toint MPI_Comm_fromint
    MPI_Errhandler_toint MPI_Errhandler_fromint
    MPI_File_toint MPI_File_fromint
    MPI_Group_toint MPI_Group_fromint
    MPI_Info_toint MPI_Info_fromint
    MPI_Message_toint MPI_Message_fromint
    MPI_Op_toint MPI_Op_fromint
    MPI_Request_toint MPI_Request_fromint
    MPI_Session_toint MPI_Session_fromint
    MPI_Type_toint MPI_Type_fromint
    MPI_Win_toint MPI_Win_fromint
}
