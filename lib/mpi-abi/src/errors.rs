//! Errors: what each communicator does with them, and their texts.

use crate::global::{self, end_all, find, host, objects};
use crate::handles::{
    COMM_SELF, ERRHANDLER_NULL, ERRORS_ABORT, ERRORS_ARE_FATAL, ERRORS_RETURN, Handle, Kind, handle_of,
};
use crate::memory::{put_text, text_of};
use crate::objects::Handler;
use alloc::format;
use alloc::vec::Vec;
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicI32, Ordering};
use glass_lib_mpi::Error;

/// Codes of the program begin here, behind the standard's last one; a class of the program is a code of its own.
const CODES_FIRST: c_int = 0x4000;
/// The last code in use, to which an attribute of `MPI_COMM_WORLD` points.
static LAST_USED: AtomicI32 = AtomicI32::new(CODES_FIRST - 1);

/// The address of the last code in use.
pub fn last_used() -> usize {
    let used = objects().codes.iter().rposition(Option::is_some).map_or(0, |place| place + 1);
    LAST_USED.store(CODES_FIRST - 1 + used as c_int, Ordering::Relaxed);
    LAST_USED.as_ptr() as usize
}
const STRING_BYTES_MAX: usize = 512;

/// What an error becomes for the caller: the code, unless the communicator's handler ends the job.
#[cold]
pub fn raise(on: Handle, error: Error) -> c_int {
    raise_code(on, error.code())
}

fn raise_code(on: Handle, code: c_int) -> c_int {
    // An error without a communicator belongs to that of this rank alone.
    let mut comm = if global::comm(on).is_ok() { on } else { COMM_SELF };
    let handler = global::comm(comm).map_or(ERRORS_ARE_FATAL, |comm| comm.errhandler);
    match handler {
        ERRORS_RETURN => {}
        ERRORS_ARE_FATAL | ERRORS_ABORT => {
            let text = Error::from_code(code).map_or("error of the program", Error::text);
            let rank = global::world().map_or(0, |world| world.rank());
            host().print(&format!("MPI: rank {rank}: {text} (error {code})"));
            end_all(code);
        }
        other => {
            let function = find(&mut objects().handlers, Kind::Errhandler, other).map(|(_, function)| *function);
            let mut code = code;
            if let Some(function) = function {
                // SAFETY: the program gave the function for this.
                unsafe { function(&mut comm, &mut code) };
            }
        }
    }
    code
}

fn class_of(code: c_int) -> Result<c_int, Error> {
    if code == 0 || Error::from_code(code).is_some() || (1..=62).contains(&code) {
        return Ok(code);
    }
    own_code(code).map(|(class, _)| *class)
}

/// A code of the program.
fn own_code(code: c_int) -> Result<&'static mut (c_int, Vec<u8>), Error> {
    let index = usize::try_from(code - CODES_FIRST).map_err(|_| Error::Arg)?;
    objects().codes.get_mut(index).and_then(Option::as_mut).ok_or(Error::Arg)
}

mpi! {
    fn MPI_Error_class(code: c_int, class: *mut c_int) on COMM_SELF; {
        *class = class_of(code)?;
        Ok(())
    }

    fn MPI_Error_string(code: c_int, text: *mut c_char, length: *mut c_int) on COMM_SELF; {
        class_of(code)?;
        let own = own_code(code).ok();
        let known: &[u8] = match (code, Error::from_code(code), own) {
            (0, ..) => b"no error",
            (_, Some(error), _) => error.text().as_bytes(),
            (.., Some((_, text))) => text.as_slice(),
            _ => b"an error of a part of MPI that is not supported",
        };
        put_text(known, text, length, STRING_BYTES_MAX);
        Ok(())
    }

    fn MPI_Add_error_class(class: *mut c_int) on COMM_SELF; {
        let code = CODES_FIRST + objects().codes.len() as c_int;
        objects().codes.push(Some((code, Vec::new())));
        *class = code;
        Ok(())
    }

    fn MPI_Add_error_code(class: c_int, code: *mut c_int) on COMM_SELF; {
        class_of(class)?;
        *code = CODES_FIRST + objects().codes.len() as c_int;
        objects().codes.push(Some((class, Vec::new())));
        Ok(())
    }

    fn MPI_Add_error_string(code: c_int, text: *const c_char) on COMM_SELF; {
        own_code(code)?.1 = text_of(text);
        Ok(())
    }

    fn MPI_Remove_error_class(class: c_int) on COMM_SELF; {
        let is_of_it = |entry: &Option<(c_int, Vec<u8>)>| entry.as_ref().is_some_and(|(other, _)| *other == class);
        // A class goes after its codes.
        if objects().codes.iter().filter(|entry| is_of_it(entry)).count() > 1 {
            return Err(Error::Arg);
        }
        forget(class)
    }

    fn MPI_Remove_error_code(code: c_int) on COMM_SELF; { forget(code) }
    fn MPI_Remove_error_string(code: c_int) on COMM_SELF; {
        own_code(code)?.1.clear();
        Ok(())
    }

    fn MPI_Comm_create_errhandler(function: Handler, handler: *mut Handle) on COMM_SELF; {
        *handler = handle_of(Kind::Errhandler, objects().handlers.insert(function));
        Ok(())
    }

    fn MPI_Errhandler_free(handler: *mut Handle) on COMM_SELF; {
        if !matches!(*handler, ERRORS_ARE_FATAL | ERRORS_ABORT | ERRORS_RETURN) {
            // It stays for communicators that have it; the program's name of it goes.
            find(&mut objects().handlers, Kind::Errhandler, *handler).ok_or(Error::Errhandler)?;
        }
        *handler = ERRHANDLER_NULL;
        Ok(())
    }

    fn MPI_Comm_set_errhandler(comm: Handle, handler: Handle) on comm; {
        let is_known = matches!(handler, ERRORS_ARE_FATAL | ERRORS_ABORT | ERRORS_RETURN)
            || find(&mut objects().handlers, Kind::Errhandler, handler).is_some();
        if !is_known {
            return Err(Error::Errhandler);
        }
        global::comm(comm)?.errhandler = handler;
        Ok(())
    }

    fn MPI_Comm_get_errhandler(comm: Handle, handler: *mut Handle) on comm; {
        *handler = global::comm(comm)?.errhandler;
        Ok(())
    }

    fn MPI_Comm_call_errhandler(comm: Handle, code: c_int) on comm; {
        global::comm(comm)?;
        raise_code(comm, code);
        Ok(())
    }
}

fn forget(code: c_int) -> Result<(), Error> {
    own_code(code)?;
    let index = usize::try_from(code - CODES_FIRST).map_err(|_| Error::Arg)?;
    objects().codes[index] = None;
    Ok(())
}
