//! Requests as C sees them: operations in progress, persistent ones between their starts, and waiting for one, some or all.

use crate::global::{find, objects, world};
use crate::handles::{COMM_SELF, Handle, Kind, REQUEST_NULL, UNDEFINED, handle_of};
use crate::memory::slice_of;
use crate::objects::{Pending, Stage};
use crate::status::{RawStatus, put, put_error};
use alloc::vec::Vec;
use core::ffi::c_int;
use glass_lib_mpi::{Error, Status};

/// Keeps a request.
pub fn add(pending: Pending) -> Handle {
    handle_of(Kind::Request, objects().requests.insert(pending))
}

fn pending(handle: Handle) -> Result<&'static mut Pending, Error> {
    find(&mut objects().requests, Kind::Request, handle).map(|(_, pending)| pending).ok_or(Error::Request)
}

/// Whether a request counts as active: null ones and inactive ones complete at once with an empty status.
fn is_active(handle: Handle) -> Result<bool, Error> {
    Ok(handle != REQUEST_NULL && !matches!(pending(handle)?.stage, Stage::Inactive))
}

/// What became of a request, if it is done; it stays.
fn status_of(handle: Handle) -> Result<Option<Status>, Error> {
    if handle == REQUEST_NULL {
        return Ok(Some(Status::EMPTY));
    }
    match pending(handle)?.stage {
        Stage::Inactive => Ok(Some(Status::EMPTY)),
        Stage::Done(status) => Ok(Some(status)),
        Stage::Running(id) => world()?.peek_status(id),
    }
}

/// Takes a request that is done from the program: writes its status, and returns its error.
unsafe fn complete(handle: &mut Handle, status: &Status, to: *mut RawStatus) -> Option<Error> {
    unsafe { put(to, status) };
    if *handle == REQUEST_NULL {
        return None;
    }
    let found = find(&mut objects().requests, Kind::Request, *handle);
    let Some((id, pending)) = found else { return Some(Error::Request) };
    if pending.is_nobody && !matches!(pending.stage, Stage::Inactive) {
        unsafe { crate::status::put_nobody(to) };
    }
    let stage = core::mem::replace(&mut pending.stage, Stage::Inactive);
    if pending.persistent.is_none() {
        objects().requests.remove(id);
        *handle = REQUEST_NULL;
    }
    if let (Stage::Running(id), Ok(world)) = (stage, world()) {
        world.take_status(id);
    }
    status.error
}

/// Waits until `is_done`, which checks requests, returns true.
fn wait_until(mut is_done: impl FnMut() -> Result<bool, Error>) -> Result<(), Error> {
    let mut outcome = Ok(());
    world()?.wait_until(|world| {
        let _ = world;
        match is_done() {
            Ok(is_done) => is_done,
            Err(error) => {
                outcome = Err(error);
                true
            }
        }
    })?;
    outcome
}

/// Waits for one request and completes it.
pub unsafe fn wait_for(handle: &mut Handle, to: *mut RawStatus) -> Result<(), Error> {
    let status = wait_status(*handle)?;
    unsafe { complete(handle, &status, to) }.map_or(Ok(()), Err)
}

fn wait_status(handle: Handle) -> Result<Status, Error> {
    if let Some(status) = status_of(handle)? {
        return Ok(status);
    }
    if let Stage::Running(id) = pending(handle)?.stage {
        world()?.wait_until(|world| !matches!(world.is_done(id), Ok(false)))?;
    }
    status_of(handle)?.ok_or(Error::Request)
}

fn progress() -> Result<(), Error> {
    let world = world()?;
    world.progress();
    if world.header().aborted().is_some() { Err(Error::ProcAborted) } else { Ok(()) }
}

/// The place of a status in an array that may be ignored.
unsafe fn place(statuses: *mut RawStatus, index: usize) -> *mut RawStatus {
    if statuses.is_null() { statuses } else { unsafe { statuses.add(index) } }
}

unsafe fn handles<'a>(count: c_int, requests: *mut Handle) -> Result<&'a mut [Handle], Error> {
    let count = usize::try_from(count).map_err(|_| Error::Count)?;
    Ok(if count == 0 { &mut [] } else { unsafe { core::slice::from_raw_parts_mut(requests, count) } })
}

/// Completes all of them, which are done. One error makes the call fail, and each status then has its own.
unsafe fn complete_all(handles: &mut [Handle], statuses: *mut RawStatus) -> Result<(), Error> {
    let mut errors = Vec::new();
    for (index, handle) in handles.iter_mut().enumerate() {
        let status = status_of(*handle)?.ok_or(Error::Request)?;
        errors.push(unsafe { complete(handle, &status, place(statuses, index)) });
    }
    if errors.iter().all(Option::is_none) {
        return Ok(());
    }
    for (index, error) in errors.iter().enumerate() {
        unsafe { put_error(place(statuses, index), error.map_or(0, Error::code)) };
    }
    Err(Error::InStatus)
}

/// The places of active requests that are done; `None` if none is active.
fn done_places(handles: &[Handle]) -> Result<Option<Vec<usize>>, Error> {
    let mut has_active = false;
    let mut done = Vec::new();
    for (index, handle) in handles.iter().enumerate() {
        if is_active(*handle)? {
            has_active = true;
            if status_of(*handle)?.is_some() {
                done.push(index);
            }
        }
    }
    Ok(has_active.then_some(done))
}

/// Completes the first of `done`.
unsafe fn complete_any(
    handles: &mut [Handle],
    done: &[usize],
    index: *mut c_int,
    to: *mut RawStatus,
) -> Result<(), Error> {
    let first = *done.first().ok_or(Error::Intern)?;
    unsafe { *index = first as c_int };
    let status = status_of(handles[first])?.ok_or(Error::Request)?;
    unsafe { complete(&mut handles[first], &status, to) }.map_or(Ok(()), Err)
}

unsafe fn complete_some(
    handles: &mut [Handle],
    done: &[usize],
    count: *mut c_int,
    indices: *mut c_int,
    statuses: *mut RawStatus,
) -> Result<(), Error> {
    unsafe { *count = done.len() as c_int };
    let mut has_failed = false;
    for (place_out, place_in) in done.iter().enumerate() {
        unsafe { *indices.add(place_out) = *place_in as c_int };
        let status = status_of(handles[*place_in])?.ok_or(Error::Request)?;
        let to = unsafe { place(statuses, place_out) };
        if let Some(error) = unsafe { complete(&mut handles[*place_in], &status, to) } {
            has_failed = true;
            unsafe { put_error(to, error.code()) };
        } else if has_failed {
            unsafe { put_error(to, 0) };
        }
    }
    if has_failed { Err(Error::InStatus) } else { Ok(()) }
}

fn start(handle: Handle) -> Result<(), Error> {
    let found = pending(handle)?;
    let (Stage::Inactive, Some(start)) = (found.stage, found.persistent.clone()) else { return Err(Error::Request) };
    let started = start()?;
    let found = pending(handle)?;
    found.stage = started.stage;
    found.is_nobody = started.is_nobody;
    Ok(())
}

mpi! {
    fn MPI_Wait(request: *mut Handle, status: *mut RawStatus) on COMM_SELF; { wait_for(&mut *request, status) }

    fn MPI_Test(request: *mut Handle, flag: *mut c_int, status: *mut RawStatus) on COMM_SELF; {
        if status_of(*request)?.is_none() {
            progress()?;
        }
        let found = status_of(*request)?;
        *flag = found.is_some().into();
        match found {
            Some(found) => complete(&mut *request, &found, status).map_or(Ok(()), Err),
            None => Ok(()),
        }
    }

    fn MPI_Waitall(count: c_int, requests: *mut Handle, statuses: *mut RawStatus) on COMM_SELF; {
        let handles = handles(count, requests)?;
        for handle in handles.iter() {
            wait_status(*handle)?;
        }
        complete_all(handles, statuses)
    }

    fn MPI_Testall(count: c_int, requests: *mut Handle, flag: *mut c_int, statuses: *mut RawStatus) on COMM_SELF; {
        let handles = handles(count, requests)?;
        progress()?;
        let mut is_done = true;
        for handle in handles.iter() {
            is_done &= status_of(*handle)?.is_some();
        }
        *flag = is_done.into();
        if is_done { complete_all(handles, statuses) } else { Ok(()) }
    }

    fn MPI_Waitany(count: c_int, requests: *mut Handle, index: *mut c_int, status: *mut RawStatus) on COMM_SELF; {
        let handles = handles(count, requests)?;
        *index = UNDEFINED;
        wait_until(|| Ok(done_places(handles)?.is_none_or(|done| !done.is_empty())))?;
        match done_places(handles)? {
            Some(done) => complete_any(handles, &done, index, status),
            None => { put(status, &Status::EMPTY); Ok(()) }
        }
    }

    fn MPI_Testany(count: c_int, requests: *mut Handle, index: *mut c_int, flag: *mut c_int, status: *mut RawStatus) on COMM_SELF; {
        let handles = handles(count, requests)?;
        progress()?;
        (*index, *flag) = (UNDEFINED, 1);
        match done_places(handles)? {
            None => { put(status, &Status::EMPTY); Ok(()) }
            Some(done) if done.is_empty() => { *flag = 0; Ok(()) }
            Some(done) => complete_any(handles, &done, index, status),
        }
    }

    fn MPI_Waitsome(count: c_int, requests: *mut Handle, out: *mut c_int, indices: *mut c_int, statuses: *mut RawStatus) on COMM_SELF; {
        let handles = handles(count, requests)?;
        *out = UNDEFINED;
        wait_until(|| Ok(done_places(handles)?.is_none_or(|done| !done.is_empty())))?;
        match done_places(handles)? {
            Some(done) => complete_some(handles, &done, out, indices, statuses),
            None => Ok(()),
        }
    }

    fn MPI_Testsome(count: c_int, requests: *mut Handle, out: *mut c_int, indices: *mut c_int, statuses: *mut RawStatus) on COMM_SELF; {
        let handles = handles(count, requests)?;
        progress()?;
        *out = UNDEFINED;
        match done_places(handles)? {
            Some(done) => complete_some(handles, &done, out, indices, statuses),
            None => Ok(()),
        }
    }

    fn MPI_Request_get_status(request: Handle, flag: *mut c_int, status: *mut RawStatus) on COMM_SELF; {
        progress()?;
        let found = status_of(request)?;
        *flag = found.is_some().into();
        if let Some(found) = found {
            put(status, &found);
        }
        Ok(())
    }

    fn MPI_Request_get_status_all(count: c_int, requests: *const Handle, flag: *mut c_int, statuses: *mut RawStatus) on COMM_SELF; {
        let handles = slice_of(requests, usize::try_from(count).map_err(|_| Error::Count)?);
        progress()?;
        *flag = 1;
        for (index, handle) in handles.iter().enumerate() {
            match status_of(*handle)? {
                Some(found) => put(place(statuses, index), &found),
                None => *flag = 0,
            }
        }
        Ok(())
    }

    fn MPI_Request_get_status_any(count: c_int, requests: *const Handle, index: *mut c_int, flag: *mut c_int, status: *mut RawStatus) on COMM_SELF; {
        let handles = slice_of(requests, usize::try_from(count).map_err(|_| Error::Count)?);
        progress()?;
        (*index, *flag) = (UNDEFINED, 1);
        match done_places(handles)? {
            None => put(status, &Status::EMPTY),
            Some(done) => match done.first() {
                None => *flag = 0,
                Some(first) => {
                    *index = *first as c_int;
                    put(status, &status_of(handles[*first])?.unwrap_or(Status::EMPTY));
                }
            },
        }
        Ok(())
    }

    fn MPI_Request_get_status_some(count: c_int, requests: *const Handle, out: *mut c_int, indices: *mut c_int, statuses: *mut RawStatus) on COMM_SELF; {
        let handles = slice_of(requests, usize::try_from(count).map_err(|_| Error::Count)?);
        progress()?;
        *out = UNDEFINED;
        if let Some(done) = done_places(handles)? {
            *out = done.len() as c_int;
            for (to, from) in done.iter().enumerate() {
                *indices.add(to) = *from as c_int;
                put(place(statuses, to), &status_of(handles[*from])?.unwrap_or(Status::EMPTY));
            }
        }
        Ok(())
    }

    fn MPI_Request_free(request: *mut Handle) on COMM_SELF; {
        let (id, found) = find(&mut objects().requests, Kind::Request, *request).ok_or(Error::Request)?;
        let stage = found.stage;
        objects().requests.remove(id);
        *request = REQUEST_NULL;
        if let Stage::Running(id) = stage {
            world()?.release(id)?;
        }
        Ok(())
    }

    fn MPI_Cancel(request: *mut Handle) on COMM_SELF; {
        if let Stage::Running(id) = pending(*request)?.stage {
            world()?.cancel(id)?;
        }
        Ok(())
    }

    fn MPI_Start(request: *mut Handle) on COMM_SELF; { start(*request) }

    fn MPI_Startall(count: c_int, requests: *mut Handle) on COMM_SELF; {
        handles(count, requests)?.iter().try_for_each(|handle| start(*handle))
    }
}
