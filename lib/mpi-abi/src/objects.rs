//! The objects behind the handles, as plain data.

use crate::handles::Handle;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ffi::{c_int, c_void};
use glass_lib_mpi::{Communicator, Datatype, Error, Group, Id, Message, Slab, Status};

/// Keys and values in the order in which they were attached.
pub type Attributes = Vec<(c_int, usize)>;

/// How a type was made: what `MPI_Type_get_contents` returns.
#[derive(Default)]
pub struct Recipe {
    pub combiner: c_int,
    pub integers: Vec<i64>,
    pub addresses: Vec<i64>,
    pub types: Vec<Type>,
    /// Which of the numbers are counts, by their variant for large counts.
    pub is_large: bool,
}

/// A datatype and what C attaches to it.
#[derive(Clone)]
pub struct Type {
    pub core: Rc<Datatype>,
    pub recipe: Rc<Recipe>,
    pub name: Vec<u8>,
    pub attributes: Attributes,
    /// The standard's number, if it has one.
    pub number: Option<Handle>,
}

/// Begins the operation of a persistent request.
pub type Start = dyn Fn() -> Result<Pending, Error>;

/// Where an operation stands.
#[derive(Clone, Copy)]
pub enum Stage {
    /// A persistent request that is not started.
    Inactive,
    Running(Id),
    Done(Status),
}

/// A request of the program.
pub struct Pending {
    pub stage: Stage,
    /// Whether it received from no rank, which its status shows.
    pub is_nobody: bool,
    pub persistent: Option<Rc<Start>>,
}

impl Pending {
    /// An operation of the engine.
    pub fn running(id: Id) -> Pending {
        Pending { stage: Stage::Running(id), is_nobody: false, persistent: None }
    }

    /// One that is over.
    pub fn done(status: Status) -> Pending {
        Pending { stage: Stage::Done(status), is_nobody: false, persistent: None }
    }

    /// One that can be started again and again.
    pub fn persistent(start: Rc<Start>) -> Pending {
        Pending { stage: Stage::Inactive, is_nobody: false, persistent: Some(start) }
    }
}

/// A communicator and what C attaches to it.
pub struct Comm {
    pub core: Rc<Communicator>,
    pub errhandler: Handle,
    pub name: Vec<u8>,
    pub attributes: Attributes,
    pub info: Vec<(Vec<u8>, Vec<u8>)>,
    /// Memory that the program attached for buffered sends.
    pub buffer: (usize, i64),
}

/// An error handler of the program.
pub type Handler = unsafe extern "C" fn(*mut Handle, *mut c_int, ...);

/// A key of attributes.
pub struct Keyval {
    pub copy: usize,
    pub delete: usize,
    pub extra: *mut c_void,
    pub is_freed: bool,
}

/// The objects behind the handles.
#[derive(Default)]
pub struct Objects {
    pub comms: Slab<Comm>,
    pub groups: Slab<Rc<Group>>,
    pub types: Slab<Type>,
    pub predefined: Vec<Option<Type>>,
    pub operations: Slab<glass_lib_mpi::Operation>,
    pub requests: Slab<Pending>,
    pub handlers: Slab<Handler>,
    pub keyvals: Vec<Keyval>,
    pub infos: Slab<Vec<(Vec<u8>, Vec<u8>)>>,
    pub messages: Slab<(Message, Rc<Communicator>)>,
    /// Error codes of the program: class and text, or nothing where one was removed.
    pub codes: Vec<Option<(c_int, Vec<u8>)>>,
    pub buffer: (usize, i64),
    /// Handles that have a number for Fortran.
    pub numbered: Vec<Handle>,
}
