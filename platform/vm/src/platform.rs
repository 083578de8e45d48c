//! The api as a service in a VM sees it.

use crate::devices::{VmConsole, VmDisk};
use crate::{clock, random, serial};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;
use glass_api::{Clock, Console, Instant, Platform, Random, Spawn, SpawnError};
use glass_executor::Executor;
use glass_executor::sync::Notify;
use glass_net::Sockets;
use glass_trace::Name;
use glass_virtio::Driver;

/// What a task waits for that prints more than the host reads.
pub static CONSOLE_ROOM: Name = Name::new("console: no room until the host reads");

/// The machine, for a service. Clones are handles.
#[derive(Clone)]
pub struct VmPlatform {
    pub(crate) world: Rc<World>,
}

pub(crate) struct World {
    pub args: Vec<String>,
    pub executor: Executor,
    pub disks: Vec<VmDisk>,
    pub sockets: Sockets,
    pub console: RefCell<Option<VmConsole>>,
    /// Told when the host has read something.
    pub console_room: Notify,
}

impl Platform for VmPlatform {
    type Block = VmDisk;
    type Net = Sockets;

    fn args(&self) -> &[String] {
        &self.world.args
    }

    fn block(&self, index: usize) -> Option<VmDisk> {
        self.world.disks.get(index).cloned()
    }

    fn net(&self) -> Sockets {
        self.world.sockets.clone()
    }
}

impl Clock for VmPlatform {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + 'static {
        self.world.executor.sleep_until(deadline)
    }
}

impl Console for VmPlatform {
    /// Through the virtio console if there is one: the host gets the line at once, without an exit
    /// for each character.
    fn print(&self, line: fmt::Arguments) {
        match &mut *self.world.console.borrow_mut() {
            Some(console) => {
                console.write(format!("{line}\n").as_bytes());
                console.kick();
            }
            None => serial::print_line(line),
        }
    }

    /// The serial port takes each line at once, one exit after the other.
    async fn room(&self, bytes: usize) {
        loop {
            let read = self.world.console_room.notified();
            if let Some(console) = &mut *self.world.console.borrow_mut() {
                if console.has_room(bytes) {
                    return;
                }
                console.want_room();
            } else {
                return;
            }
            read.await;
        }
    }
}

impl Random for VmPlatform {
    fn fill_random(&self, bytes: &mut [u8]) {
        random::fill(bytes);
    }
}

impl Spawn for VmPlatform {
    fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + 'static) -> Result<(), SpawnError> {
        self.world.executor.spawn(name, task)
    }
}
