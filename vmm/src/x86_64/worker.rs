//! A device on a thread of its own, from its driver's start of it to a reset.

use std::fs::File;
use std::io::Write as _;
use std::mem;
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail};
use glass_devices::{Device, Position, Served, Started};
use rustix::event::{EventfdFlags, eventfd};
use vm_memory::GuestMemoryMmap;

use crate::x86_64::end;
use crate::x86_64::registers::Agreed;

/// A device as its registers start and stop it.
pub trait Attached: Send {
    /// Starts it. It is with its queues as far as `positions` has them, and at the start of those that are not there.
    ///
    /// # Errors
    /// The driver has set it up in a way in which it cannot run. It stays stopped.
    fn start(&mut self, agreed: &Agreed, positions: &[Position]) -> Result<()>;

    /// Stops it, if it runs: it does not use the guest's memory any more. Returns how far it is with its queues.
    fn stop(&mut self) -> Result<Vec<Position>>;
}

/// Descriptors between a device and KVM.
pub struct Signals {
    /// Of each queue: readable, without blocking, when the driver has notified.
    pub notifications: Vec<File>,
    /// Written to for an interrupt.
    pub interrupt: File,
}

/// A device and its thread.
pub struct Worker<D> {
    memory: GuestMemoryMmap,
    signals: Signals,
    /// Written to for its end.
    stop: OwnedFd,
    state: State<D>,
}

enum State<D> {
    Stopped(Served<D>),
    Running(JoinHandle<Served<D>>),
    /// Its thread has ended by itself, and ends the VM.
    Lost,
}

impl<D: Device + Send + 'static> Worker<D> {
    /// A device that is stopped.
    pub fn new(device: D, memory: &GuestMemoryMmap, signals: Signals) -> Result<Worker<D>> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("there are no descriptors")?;
        Ok(Worker { memory: memory.clone(), signals, stop, state: State::Stopped(Served::new(device)) })
    }

    fn spawn(&self, mut served: Served<D>) -> Result<JoinHandle<Served<D>>> {
        let stop = self.stop.try_clone().context("there are no descriptors")?;
        let serve = move || {
            let _guard = end::with_thread(D::NAME);
            served.begin();
            match serve(&mut served, &stop) {
                Ok(()) => served,
                Err(error) => end::failed(&format!("the {} does not work any more: {error:#}", D::NAME)),
            }
        };
        thread::Builder::new().name(D::NAME.to_owned()).spawn(serve).context("there are no threads")
    }
}

impl<D: Device + Send + 'static> Attached for Worker<D> {
    fn start(&mut self, agreed: &Agreed, positions: &[Position]) -> Result<()> {
        let State::Stopped(served) = &mut self.state else { bail!("it runs") };
        let is_continued = !positions.is_empty();
        let mut positions = positions.iter().copied();
        let queues = agreed.queues.iter().zip(&self.signals.notifications).map(|(place, kick)| {
            let position = positions.next().unwrap_or_default();
            let Some(place) = *place else { return Ok(None) };
            let (kick, call) = (kick.try_clone()?, self.signals.interrupt.try_clone()?);
            Ok(Some(Started { place, position, kick, call }))
        });
        let queues = queues.collect::<std::io::Result<_>>().context("there are no descriptors")?;
        served.start(&self.memory, agreed.features, queues)?;
        let State::Stopped(served) = mem::replace(&mut self.state, State::Lost) else { unreachable!("it is stopped") };
        self.state = State::Running(self.spawn(served)?);
        if is_continued {
            // KVM may not have seen the last interrupt before the VM was copied.
            (&self.signals.interrupt).write_all(&1_u64.to_ne_bytes()).context("cannot interrupt the guest")?;
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<Vec<Position>> {
        let served = match mem::replace(&mut self.state, State::Lost) {
            State::Running(thread) => {
                rustix::io::write(&self.stop, &1_u64.to_ne_bytes()).context("cannot stop a device")?;
                let Ok(served) = thread.join() else { bail!("the thread of the {} has ended", D::NAME) };
                served
            }
            State::Stopped(served) => served,
            State::Lost => bail!("the thread of the {} has ended", D::NAME),
        };
        let positions = served.positions();
        self.state = State::Stopped(served);
        Ok(positions)
    }
}

/// Serves a device until `stop` is written to.
fn serve<D: Device>(served: &mut Served<D>, stop: &OwnedFd) -> Result<()> {
    let mut turn = served.work()?;
    while !served.wait(stop, turn)? {
        turn = served.work()?;
    }
    let _ = rustix::io::read(stop, &mut [0; 8]);
    served.stop()
}
