//! The state of this rank's MPI: the engine, and the objects behind the handles.
//!
//! They are apart because a function of the program that an operation calls may look at objects while the engine runs.

use crate::handles::{COMM_SELF, COMM_WORLD, Handle, Kind, TYPE_FIRST, TYPES, handle_of, id_of};
use crate::objects::{Attributes, Comm, Objects, Type};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::string::String;
use core::cell::UnsafeCell;

use glass_lib_mpi::{Communicator, Error, Fabric, Id, Segment, Slab, World};

/// What the C functions need of the place where they run.
pub trait Host: Sync {
    /// Joins the job: called once.
    fn join(&self) -> Result<(Box<dyn Fabric>, Segment), String>;

    /// Prints a line for the user.
    fn print(&self, line: &str);

    /// Ends this rank.
    fn exit(&self, code: i32) -> !;

    /// The name of the machine.
    fn machine(&self) -> String;

    /// A number for this process.
    fn process(&self) -> u32;

    /// Nanoseconds from a fixed moment on.
    fn now_ns(&self) -> u64;
}

unsafe extern "Rust" {
    /// The crate that links this one defines it.
    safe fn glass_mpi_host() -> &'static dyn Host;
}

/// The host.
pub fn host() -> &'static dyn Host {
    glass_mpi_host()
}

/// Where the life of MPI stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    Before,
    Inside,
    After,
}

struct Global {
    world: UnsafeCell<Option<World>>,
    objects: UnsafeCell<Option<Objects>>,
    life: UnsafeCell<Life>,
}

// SAFETY: one thread calls at a time, which is what `MPI_Init_thread` reports.
unsafe impl Sync for Global {}

static GLOBAL: Global =
    Global { world: UnsafeCell::new(None), objects: UnsafeCell::new(None), life: UnsafeCell::new(Life::Before) };

/// Where the life of MPI stands.
pub fn life() -> Life {
    // SAFETY: one thread calls at a time.
    unsafe { *GLOBAL.life.get() }
}

/// Sets it.
pub fn set_life(life: Life) {
    // SAFETY: one thread calls at a time.
    unsafe { *GLOBAL.life.get() = life };
}

/// The engine. A function of the program that the engine calls must not communicate, by the standard, so it does not get here.
#[inline]
pub fn world() -> Result<&'static mut World, Error> {
    // SAFETY: one thread calls at a time, and no caller keeps the reference over a call that gets another.
    unsafe { (*GLOBAL.world.get()).as_mut() }.ok_or(Error::Other)
}

/// A call of the program, which a trace shows.
pub struct Call(u16);

impl Call {
    /// Records its start; `number` is that of [`mpi_call`](glass_lib_mpi::trace::mpi_call), 0 for a function that is not traced.
    #[inline(always)]
    pub fn start(number: u16) -> Call {
        let is_on = number != 0 && world().is_ok_and(|world| world.call_starts(number));
        Call(if is_on { number } else { 0 })
    }

    /// It returns.
    #[inline(always)]
    pub fn end(self) {
        if self.0 != 0
            && let Ok(world) = world()
        {
            world.call_returns(self.0);
        }
    }
}

/// The objects. No caller keeps the reference while the engine or a function of the program runs.
#[inline]
pub fn objects() -> &'static mut Objects {
    // SAFETY: as for `world`.
    unsafe { (*GLOBAL.objects.get()).get_or_insert_default() }
}

/// Sets or removes the engine.
pub fn set_world(world: Option<World>) {
    // SAFETY: as for `world`.
    unsafe { *GLOBAL.world.get() = world };
}

/// What a handle of a slab means.
pub fn find<T>(slab: &mut Slab<T>, kind: Kind, handle: Handle) -> Option<(Id, &mut T)> {
    let (index, generation) = id_of(kind, handle)?;
    let id = slab.id_at(index).filter(|id| id.generation as u16 == generation)?;
    slab.get_mut(id).map(|value| (id, value))
}

/// The communicator of a handle.
#[inline]
pub fn comm(handle: Handle) -> Result<&'static mut Comm, Error> {
    let comms = &mut objects().comms;
    let found = match handle {
        COMM_WORLD => comms.at_mut(0),
        COMM_SELF => comms.at_mut(1),
        other => find(comms, Kind::Communicator, other).map(|(_, comm)| comm),
    };
    found.ok_or(Error::Comm)
}

/// The core of the communicator of a handle, which the engine may use while objects change.
#[inline]
pub fn core_of(handle: Handle) -> Result<Rc<Communicator>, Error> {
    comm(handle).map(|comm| Rc::clone(&comm.core))
}

/// Keeps a new communicator with the handler of its parent.
pub fn add_comm(core: Rc<Communicator>, errhandler: Handle) -> Handle {
    let (name, attributes, info, buffer) = Default::default();
    let comm = Comm { core, errhandler, name, attributes, info, buffer };
    handle_of(Kind::Communicator, objects().comms.insert(comm))
}

/// The datatype of a handle.
#[inline]
pub fn datatype(handle: Handle) -> Result<&'static mut Type, Error> {
    let objects = objects();
    let found = match handle.checked_sub(TYPE_FIRST) {
        Some(index @ 1..TYPES) => objects.predefined.get_mut(index).and_then(Option::as_mut),
        _ => find(&mut objects.types, Kind::Datatype, handle).map(|(_, found)| found),
    };
    found.ok_or(Error::Type)
}

/// The attributes of a datatype.
pub fn attributes(handle: Handle) -> Result<&'static mut Attributes, Error> {
    datatype(handle).map(|found| &mut found.attributes)
}

/// Ends all ranks and this one.
pub fn end_all(code: i32) -> ! {
    if let Ok(world) = world() {
        world.header().abort(world.rank(), code);
    }
    host().exit(if code & 0xff == 0 { 1 } else { code & 0xff })
}
