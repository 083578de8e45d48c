//! Attributes: values that a program attaches to communicators and datatypes, with functions for copying and deleting them.

use crate::global::{self, comm, objects, world};
use crate::handles::{COMM_SELF, COMM_WORLD, Handle, TAG_UB};
use crate::objects::{Attributes, Keyval};
use alloc::vec::Vec;
use core::ffi::{c_int, c_void};
use glass_lib_mpi::Error;

/// Keys of the program begin here.
const KEYVAL_FIRST: c_int = 10_000;
const KEYVAL_INVALID: c_int = 0;
const TAG_UB_KEY: c_int = 501;
const IO_KEY: c_int = 502;
const HOST_KEY: c_int = 503;
const WTIME_IS_GLOBAL_KEY: c_int = 504;
const APPNUM_KEY: c_int = 505;
const LASTUSEDCODE_KEY: c_int = 506;
const UNIVERSE_SIZE_KEY: c_int = 507;
/// Addresses that stand for the standard's own copy functions.
const NULL_COPY: usize = 0;
const DUP: usize = 1;

type Copy = unsafe extern "C" fn(Handle, c_int, *mut c_void, usize, *mut usize, *mut c_int) -> c_int;
type Delete = unsafe extern "C" fn(Handle, c_int, usize, *mut c_void) -> c_int;

fn keyval(key: c_int) -> Result<&'static mut Keyval, Error> {
    let index = usize::try_from(key - KEYVAL_FIRST).map_err(|_| Error::Keyval)?;
    objects().keyvals.get_mut(index).ok_or(Error::Keyval)
}

fn create(copy: usize, delete: usize, key: *mut c_int, extra: *mut c_void) {
    let keyvals = &mut objects().keyvals;
    keyvals.push(Keyval { copy, delete, extra, is_freed: false });
    unsafe { *key = KEYVAL_FIRST + keyvals.len() as c_int - 1 };
}

/// Deletes one value: its function may refuse.
fn delete_one(owner: Handle, key: c_int, value: usize) -> Result<(), Error> {
    let keyval = keyval(key)?;
    let (delete, extra) = (keyval.delete, keyval.extra);
    if delete == 0 {
        return Ok(());
    }
    // SAFETY: the program gave the function for this.
    let code = unsafe { core::mem::transmute::<usize, Delete>(delete)(owner, key, value, extra) };
    if code == 0 { Ok(()) } else { Err(Error::from_code(code).unwrap_or(Error::Other)) }
}

/// Deletes all attributes of a communicator, the last attached first.
pub fn delete_all(owner: Handle) -> Result<(), Error> {
    while let Some((key, value)) = comm(owner)?.attributes.last().copied() {
        delete_one(owner, key, value)?;
        comm(owner)?.attributes.pop();
    }
    Ok(())
}

/// As [`delete_all`], of values of a datatype that goes.
pub fn delete_values(owner: Handle, mut attributes: Attributes) -> Result<(), Error> {
    while let Some((key, value)) = attributes.pop() {
        delete_one(owner, key, value)?;
    }
    Ok(())
}

/// What a copy of the owner of these gets.
pub fn copied(owner: Handle, attributes: &Attributes) -> Result<Attributes, Error> {
    let mut copies = Vec::new();
    for (key, value) in attributes {
        let keyval = keyval(*key)?;
        let (copy, extra) = (keyval.copy, keyval.extra);
        match copy {
            NULL_COPY => {}
            DUP => copies.push((*key, *value)),
            function => {
                let (mut result, mut flag) = (0, 0);
                // SAFETY: the program gave the function for this.
                let function = unsafe { core::mem::transmute::<usize, Copy>(function) };
                let code = unsafe { function(owner, *key, extra, *value, &mut result, &mut flag) };
                if code != 0 {
                    return Err(Error::from_code(code).unwrap_or(Error::Other));
                }
                if flag != 0 {
                    copies.push((*key, result));
                }
            }
        }
    }
    Ok(copies)
}

/// Attaches a value in place of the one that is there.
fn set(
    owner: Handle,
    attributes: impl Fn() -> Result<&'static mut Attributes, Error>,
    key: c_int,
    value: usize,
) -> Result<(), Error> {
    if keyval(key)?.is_freed {
        return Err(Error::Keyval);
    }
    let before = attributes()?.iter().position(|(other, _)| *other == key);
    match before {
        Some(place) => {
            delete_one(owner, key, attributes()?[place].1)?;
            attributes()?[place].1 = value;
        }
        None => attributes()?.push((key, value)),
    }
    Ok(())
}

fn remove(
    owner: Handle,
    attributes: impl Fn() -> Result<&'static mut Attributes, Error>,
    key: c_int,
) -> Result<(), Error> {
    keyval(key)?;
    let place = attributes()?.iter().position(|(other, _)| *other == key).ok_or(Error::Keyval)?;
    delete_one(owner, key, attributes()?[place].1)?;
    attributes()?.remove(place);
    Ok(())
}

unsafe fn get(attributes: &Attributes, key: c_int, value: *mut usize, flag: *mut c_int) -> Result<(), Error> {
    keyval(key)?;
    let found = attributes.iter().find(|(other, _)| *other == key);
    unsafe {
        *flag = found.is_some().into();
        if let Some((_, found)) = found {
            *value = *found;
        }
    }
    Ok(())
}

/// The predefined attributes are addresses of numbers.
fn predefined(key: c_int) -> Option<usize> {
    if key == LASTUSEDCODE_KEY {
        return Some(crate::errors::last_used());
    }
    static TAG_UB_VALUE: c_int = TAG_UB;
    static IO_VALUE: c_int = -1;
    static HOST_VALUE: c_int = crate::handles::PROC_NULL;
    static WTIME_VALUE: c_int = 1;
    static APPNUM: c_int = 0;
    static SIZES: [c_int; glass_lib_mpi::RANKS_MAX + 1] = {
        let mut sizes = [0; glass_lib_mpi::RANKS_MAX + 1];
        let mut size = 0;
        while size < sizes.len() {
            sizes[size] = size as c_int;
            size += 1;
        }
        sizes
    };
    let number: &'static c_int = match key {
        TAG_UB_KEY => &TAG_UB_VALUE,
        IO_KEY => &IO_VALUE,
        HOST_KEY => &HOST_VALUE,
        WTIME_IS_GLOBAL_KEY => &WTIME_VALUE,
        APPNUM_KEY => &APPNUM,
        UNIVERSE_SIZE_KEY => &SIZES[world().ok()?.ranks()],
        _ => return None,
    };
    Some(core::ptr::from_ref(number) as usize)
}

unsafe fn comm_get(owner: Handle, key: c_int, value: *mut usize, flag: *mut c_int) -> Result<(), Error> {
    let found = comm(owner)?;
    match predefined(key) {
        Some(number) => unsafe {
            *flag = (owner == COMM_WORLD || owner == COMM_SELF || key == TAG_UB_KEY).into();
            if *flag != 0 {
                *value = number;
            }
            Ok(())
        },
        None => unsafe { get(&found.attributes, key, value, flag) },
    }
}

fn free(key: *mut c_int) -> Result<(), Error> {
    unsafe {
        keyval(*key)?.is_freed = true;
        *key = KEYVAL_INVALID;
    }
    Ok(())
}

mpi! {
    fn MPI_Comm_create_keyval(copy: usize, delete: usize, key: *mut c_int, extra: *mut c_void) on COMM_SELF; {
        create(copy, delete, key, extra);
        Ok(())
    }
    fn MPI_Keyval_create(copy: usize, delete: usize, key: *mut c_int, extra: *mut c_void) on COMM_SELF; {
        create(copy, delete, key, extra);
        Ok(())
    }
    fn MPI_Type_create_keyval(copy: usize, delete: usize, key: *mut c_int, extra: *mut c_void) on COMM_SELF; {
        create(copy, delete, key, extra);
        Ok(())
    }
    fn MPI_Comm_free_keyval(key: *mut c_int) on COMM_SELF; { free(key) }
    fn MPI_Keyval_free(key: *mut c_int) on COMM_SELF; { free(key) }
    fn MPI_Type_free_keyval(key: *mut c_int) on COMM_SELF; { free(key) }

    fn MPI_Comm_set_attr(owner: Handle, key: c_int, value: usize) on owner; {
        set(owner, || comm(owner).map(|comm| &mut comm.attributes), key, value)
    }
    fn MPI_Attr_put(owner: Handle, key: c_int, value: usize) on owner; {
        set(owner, || comm(owner).map(|comm| &mut comm.attributes), key, value)
    }
    fn MPI_Comm_get_attr(owner: Handle, key: c_int, value: *mut usize, flag: *mut c_int) on owner; {
        comm_get(owner, key, value, flag)
    }
    fn MPI_Attr_get(owner: Handle, key: c_int, value: *mut usize, flag: *mut c_int) on owner; {
        comm_get(owner, key, value, flag)
    }
    fn MPI_Comm_delete_attr(owner: Handle, key: c_int) on owner; {
        remove(owner, || comm(owner).map(|comm| &mut comm.attributes), key)
    }
    fn MPI_Attr_delete(owner: Handle, key: c_int) on owner; {
        remove(owner, || comm(owner).map(|comm| &mut comm.attributes), key)
    }
    fn MPI_Type_set_attr(owner: Handle, key: c_int, value: usize) on COMM_SELF; {
        set(owner, || global::attributes(owner), key, value)
    }
    fn MPI_Type_get_attr(owner: Handle, key: c_int, value: *mut usize, flag: *mut c_int) on COMM_SELF; {
        get(global::attributes(owner)?, key, value, flag)
    }
    fn MPI_Type_delete_attr(owner: Handle, key: c_int) on COMM_SELF; {
        remove(owner, || global::attributes(owner), key)
    }
}

/// Copies the attributes of a communicator to a new one.
pub fn copy_to(owner: Handle, new: Handle) -> Result<(), Error> {
    let before = global::comm(owner)?.attributes.clone();
    let copies = copied(owner, &before)?;
    global::comm(new)?.attributes = copies;
    Ok(())
}
