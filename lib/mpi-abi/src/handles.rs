//! Handles: the standard's numbers for predefined objects, and numbers above the first page for all others.

use core::ffi::c_int;
use glass_lib_mpi::{Error, Id};

/// A handle as C has it: a pointer that points to nothing.
pub type Handle = usize;

pub const OP_NULL: Handle = 0x20;
pub const COMM_NULL: Handle = 0x100;
pub const COMM_WORLD: Handle = 0x101;
pub const COMM_SELF: Handle = 0x102;
pub const GROUP_NULL: Handle = 0x108;
pub const GROUP_EMPTY: Handle = 0x109;
pub const MESSAGE_NULL: Handle = 0x128;
pub const MESSAGE_NO_PROC: Handle = 0x129;
pub const INFO_NULL: Handle = 0x130;
pub const INFO_ENV: Handle = 0x131;
pub const ERRHANDLER_NULL: Handle = 0x140;
pub const ERRORS_ARE_FATAL: Handle = 0x141;
pub const ERRORS_ABORT: Handle = 0x142;
pub const ERRORS_RETURN: Handle = 0x143;
pub const REQUEST_NULL: Handle = 0x180;
pub const DATATYPE_NULL: Handle = 0x200;

pub const ANY_SOURCE: c_int = -1;
pub const ANY_TAG: c_int = -2;
pub const PROC_NULL: c_int = -3;
pub const UNDEFINED: c_int = -32766;
/// The largest tag.
pub const TAG_UB: c_int = c_int::MAX;
/// The address that stands for "in place".
pub const IN_PLACE: usize = 1;

/// What an object is, in the top byte of its handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Communicator = 1,
    Group,
    Datatype,
    Operation,
    Request,
    Errhandler,
    Info,
    Message,
}

/// The handle of an object that the program made.
pub fn handle_of(kind: Kind, id: Id) -> Handle {
    (kind as usize) << 56 | (id.generation as usize & 0xffff) << 40 | (id.index as usize) << 12
}

/// The number of an object; `None` for another kind's handle, or a predefined one.
#[inline]
pub fn id_of(kind: Kind, handle: Handle) -> Option<(u32, u16)> {
    let is_ours = handle >> 56 == kind as usize && handle & 0xfff == 0;
    is_ours.then_some(((handle >> 12) as u32 & 0x0fff_ffff, (handle >> 40) as u16))
}

/// A count or displacement of either width.
pub trait Count: Copy {
    fn wide(self) -> i64;

    /// As a number of elements.
    fn size(self) -> Result<usize, Error> {
        usize::try_from(self.wide()).map_err(|_| Error::Count)
    }

    /// From a number that may be too large: then the standard's "undefined".
    fn of(number: i64) -> Self;
}

impl Count for c_int {
    fn wide(self) -> i64 {
        self.into()
    }

    fn of(number: i64) -> c_int {
        c_int::try_from(number).unwrap_or(UNDEFINED)
    }
}

impl Count for i64 {
    fn wide(self) -> i64 {
        self
    }

    fn of(number: i64) -> i64 {
        number
    }
}

/// Numbers of predefined types lie from here on.
pub const TYPE_FIRST: Handle = 0x200;
pub const TYPES: usize = 0x100;
