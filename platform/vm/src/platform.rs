//! The api as a service in a VM sees it.

use crate::devices::{SharedConsole, VmDisk};
use crate::{clock, heap, random, serial, wall};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::Cell;
use core::fmt;
use glass_api::{Clock, Console, Instant, JoinHandle, MemoryUse, Platform, Random, Spawn, SpawnError, WallTime};
use glass_executor::Executor;
use glass_executor::sync::Latch;
use glass_net::Sockets;
use glass_trace::Name;

/// What a task waits for until the service is to end.
pub static SHUTDOWN: Name = Name::new("shutdown");

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
    pub console: Option<SharedConsole>,
    /// Opened when the host requests the end of the service.
    pub shutdown: Latch,
    /// The service waits for that request.
    pub watches_shutdown: Cell<bool>,
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

    fn shutdown(&self) -> impl Future<Output = ()> + 'static {
        self.world.watches_shutdown.set(true);
        self.world.shutdown.wait()
    }

    fn memory(&self) -> MemoryUse {
        heap::memory()
    }
}

impl Clock for VmPlatform {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + 'static {
        self.world.executor.sleep_until(deadline)
    }

    fn wall(&self) -> Option<WallTime> {
        wall::now()
    }
}

impl Console for VmPlatform {
    /// Through the virtio console if there is one: the host gets the line at once, without an exit
    /// for each character.
    fn print(&self, line: fmt::Arguments) {
        // Before the console is borrowed: what is printed may print itself.
        let text = format!("{line}\n");
        match &self.world.console {
            Some(console) => console.print(text.as_bytes()),
            None => serial::print_line(format_args!("{}", text.trim_end_matches('\n'))),
        }
    }

    /// The serial port takes each line at once, one exit after the other.
    async fn room(&self, bytes: usize) {
        if let Some(console) = &self.world.console {
            console.room(bytes).await;
        }
    }
}

impl Random for VmPlatform {
    fn fill_random(&self, bytes: &mut [u8]) {
        random::fill(bytes);
    }
}

impl Spawn for VmPlatform {
    fn spawn<T: 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + 'static,
    ) -> Result<JoinHandle<T>, SpawnError> {
        self.world.executor.spawn(name, task)
    }
}
