//! `MPI_Status` in the standard's layout, and what can be read of it.

use crate::global::datatype;
use crate::handles::{ANY_SOURCE, ANY_TAG, COMM_SELF, Count, Handle, PROC_NULL, UNDEFINED};
use core::ffi::c_int;
use glass_lib_mpi::{Error, Status};

/// As C has it. `internal` has the bytes received and whether it was cancelled.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RawStatus {
    pub source: c_int,
    pub tag: c_int,
    pub error: c_int,
    internal: [c_int; 5],
}

impl RawStatus {
    fn bytes(&self) -> u64 {
        u64::from(self.internal[0] as u32) | u64::from(self.internal[1] as u32) << 32
    }

    fn set_bytes(&mut self, bytes: u64) {
        (self.internal[0], self.internal[1]) = (bytes as c_int, (bytes >> 32) as c_int);
    }
}

/// Writes a status, unless the program ignores it. The field of the error is set only where the standard requires it.
pub unsafe fn put(to: *mut RawStatus, status: &Status) {
    let Some(to) = (unsafe { to.as_mut() }) else { return };
    to.source = status.source.map_or(ANY_SOURCE, |source| source as c_int);
    to.tag = status.tag.unwrap_or(ANY_TAG);
    to.set_bytes(status.bytes);
    to.internal[2] = status.is_cancelled.into();
    if *status == Status::EMPTY {
        // The standard's empty status has no error.
        to.error = 0;
    }
}

/// The status of a receive from no rank.
pub unsafe fn put_nobody(to: *mut RawStatus) {
    unsafe {
        put(to, &Status::EMPTY);
        if let Some(to) = to.as_mut() {
            to.source = PROC_NULL;
        }
    }
}

/// The error in a status, for calls that complete several requests.
pub unsafe fn put_error(to: *mut RawStatus, code: c_int) {
    if let Some(to) = unsafe { to.as_mut() } {
        to.error = code;
    }
}

mpi_pair! {
    fn MPI_Get_count MPI_Get_count_c [C] (status: *const RawStatus, handle: Handle, count: *mut C) on COMM_SELF; {
        let (bytes, size) = ((*status).bytes() as usize, datatype(handle)?.core.size());
        *count = match size {
            0 if bytes == 0 => C::of(0),
            size if size > 0 && bytes % size == 0 => C::of((bytes / size) as i64),
            _ => C::of(UNDEFINED.into()),
        };
        Ok(())
    }

    fn MPI_Get_elements MPI_Get_elements_c [C] (status: *const RawStatus, handle: Handle, count: *mut C) on COMM_SELF; {
        let elements = datatype(handle)?.core.elements((*status).bytes() as usize);
        *count = C::of(elements.map_or(UNDEFINED.into(), |count| count as i64));
        Ok(())
    }

    fn MPI_Status_set_elements MPI_Status_set_elements_c [C] (status: *mut RawStatus, handle: Handle, count: C) on COMM_SELF; {
        set_elements(&mut *status, handle, count.size()?)
    }
}

fn set_elements(status: &mut RawStatus, handle: Handle, count: usize) -> Result<(), Error> {
    let core = &datatype(handle)?.core;
    let per_element = core.elements(core.size()).unwrap_or(1).max(1);
    status.set_bytes((count * core.size() / per_element) as u64);
    Ok(())
}

mpi! {
    fn MPI_Get_elements_x(status: *const RawStatus, handle: Handle, count: *mut i64) on COMM_SELF; {
        let elements = datatype(handle)?.core.elements((*status).bytes() as usize);
        *count = elements.map_or(UNDEFINED.into(), |count| count as i64);
        Ok(())
    }

    fn MPI_Status_set_elements_x(status: *mut RawStatus, handle: Handle, count: i64) on COMM_SELF; {
        set_elements(&mut *status, handle, count.size()?)
    }

    fn MPI_Test_cancelled(status: *const RawStatus, flag: *mut c_int) on COMM_SELF; {
        *flag = (*status).internal[2];
        Ok(())
    }

    fn MPI_Status_set_cancelled(status: *mut RawStatus, flag: c_int) on COMM_SELF; {
        (*status).internal[2] = flag;
        Ok(())
    }

    fn MPI_Status_get_source(status: *const RawStatus, value: *mut c_int) on COMM_SELF; { *value = (*status).source; Ok(()) }
    fn MPI_Status_get_tag(status: *const RawStatus, value: *mut c_int) on COMM_SELF; { *value = (*status).tag; Ok(()) }
    fn MPI_Status_get_error(status: *const RawStatus, value: *mut c_int) on COMM_SELF; { *value = (*status).error; Ok(()) }
    fn MPI_Status_set_source(status: *mut RawStatus, value: c_int) on COMM_SELF; { (*status).source = value; Ok(()) }
    fn MPI_Status_set_tag(status: *mut RawStatus, value: c_int) on COMM_SELF; { (*status).tag = value; Ok(()) }
    fn MPI_Status_set_error(status: *mut RawStatus, value: c_int) on COMM_SELF; { (*status).error = value; Ok(()) }
}
