//! The console: one handle prints, another is driven by the core's loop.

use super::{Devices, EndRequests, Settings, Started};
use crate::bus::VmTransport;
use crate::clock;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::string::ToString;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use glass_api::Instant;
use glass_drivers_device::{Driver, IdentityDma, SetupError, Violation};
use glass_drivers_virtio::{Console, ConsoleConfig};
use glass_lib_executor::sync::Notify;
use glass_lib_trace::Name;

/// What a task waits for that prints more than the host reads.
static CONSOLE_FULL: Name = Name::new("console: no room until the host reads");

/// Printed lines wait for more of them until they are so many bytes, or for so long after the last notification.
const UNSENT_BYTES_MAX: usize = 4096;
const UNSENT_TIME_MAX: Duration = Duration::from_millis(1);

/// The character that requests the end of the service: what a terminal sends for Ctrl-C.
const INTERRUPT: u8 = 3;

/// The console. Clones are handles to the same one.
#[derive(Clone)]
pub struct SharedConsole {
    shared: Rc<Shared>,
}

struct Shared {
    console: RefCell<Console<VmTransport, IdentityDma>>,
    /// Bytes that were printed since the host was notified last, and when that was.
    unsent: Cell<(usize, Instant)>,
    /// Notified when the host has read something.
    space: Notify,
    end_requests: Rc<EndRequests>,
}

pub fn start(
    transport: VmTransport,
    settings: &Settings,
    devices: &mut Devices,
) -> Result<Option<Started>, SetupError> {
    if devices.console.is_some() {
        return Ok(None);
    }
    let config = ConsoleConfig { port: settings.console_port, receive: true, ..ConsoleConfig::default() };
    let console = RefCell::new(Console::new(transport, IdentityDma, config)?);
    let (space, end_requests) = (Notify::of_resource(&CONSOLE_FULL), devices.end_requests.clone());
    let unsent = Cell::new((0, Instant(0)));
    let console = SharedConsole { shared: Rc::new(Shared { console, unsent, space, end_requests }) };
    devices.console = Some(console.clone());
    Ok(Some(("console".to_string(), Box::new(console))))
}

impl SharedConsole {
    /// Prints a line. The host gets the first one at once and those that follow soon after it together, at the end of the core's round at
    /// the latest: a notification costs as much as a hundred lines.
    pub fn print(&self, line: &[u8]) {
        let mut console = self.shared.console.borrow_mut();
        console.write(line);
        let (bytes, notified_at) = self.shared.unsent.get();
        let (bytes, now) = (bytes + line.len(), clock::now());
        if bytes < UNSENT_BYTES_MAX && now.since(notified_at) < UNSENT_TIME_MAX {
            return self.shared.unsent.set((bytes, notified_at));
        }
        self.shared.unsent.set((0, now));
        console.kick();
    }

    /// Gives the host what was printed, and waits for up to `polls` polls until it has that. Without effect if the console is in use, as it
    /// may be in a crash.
    pub fn flush(&self, polls: usize) {
        if let Ok(mut console) = self.shared.console.try_borrow_mut() {
            console.drain(polls);
        }
    }

    /// Completes when there is room for `bytes` bytes.
    pub async fn writable(&self, bytes: usize) {
        loop {
            let read = self.shared.space.notified();
            {
                let mut console = self.shared.console.borrow_mut();
                if console.has_space(bytes) {
                    return;
                }
                console.want_space();
            }
            read.await;
        }
    }

    /// Counts the interrupt characters that the host has written. Other input is dropped.
    fn read_requests(&self) {
        let mut input = [0; 64];
        // What is not read now is there in the next round.
        let count = self.shared.console.borrow_mut().read(&mut input);
        let interrupts = input[..count].iter().filter(|byte| **byte == INTERRUPT).count() as u32;
        let before = &self.shared.end_requests.interrupts;
        before.set(before.get().saturating_add(interrupts));
    }
}

impl Driver for SharedConsole {
    fn poll(&mut self) -> bool {
        let progress = self.shared.console.borrow_mut().poll();
        if self.shared.console.borrow_mut().take_space_freed() {
            self.shared.space.notify_all();
        }
        self.read_requests();
        progress
    }

    fn kick(&mut self) -> bool {
        if self.shared.unsent.get().0 > 0 {
            self.shared.unsent.set((0, clock::now()));
        }
        self.shared.console.borrow_mut().kick()
    }

    fn arm(&mut self) -> bool {
        self.shared.console.borrow_mut().arm()
    }

    fn disarm(&mut self) {
        self.shared.console.borrow_mut().disarm();
    }

    fn acknowledge(&mut self) {
        self.shared.console.borrow_mut().acknowledge();
    }

    fn violation(&self) -> Option<Violation> {
        self.shared.console.borrow().violation()
    }

    fn restart(&mut self) -> Result<(), SetupError> {
        self.shared.console.borrow_mut().restart()
    }

    fn set_trace_name(&mut self, name: u32) {
        self.shared.console.borrow_mut().set_trace_name(name);
    }
}
