//! The api as a service in a VM sees it.

use crate::devices::{SharedConsole, VmDisk, VmFiles};
use crate::{clock, generation, heap, random, serial, wall};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::Cell;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use glass_api::{
    Clock, Console, CoreHandle, Cores, Instant, JoinHandle, MemoryUse, Panicked, Platform, Random, Spawn, SpawnError,
    SpawnOnError, WallTime,
};
use glass_lib_cores::Mailboxes;
use glass_lib_executor::sync::Latch;
use glass_lib_executor::{Executor, Uncontained};
use glass_lib_net::Sockets;
use glass_lib_trace::Name;
use glass_lib_vsock::Joined;

/// What a task waits for until the service is to end.
pub static SHUTDOWN: Name = Name::new("shutdown");
/// Lines of other cores that the first one had no room for, since it printed this number last.
static LINES_LOST: AtomicU64 = AtomicU64::new(0);

/// The machine, for a service. Clones are handles.
#[derive(Clone)]
pub struct VmPlatform {
    pub(crate) world: Rc<World>,
}

pub(crate) struct World {
    pub args: Vec<String>,
    /// Processors of the host, if that is known.
    pub cpus: Option<usize>,
    pub core: VmCore,
    pub disks: Vec<VmDisk>,
    pub files: Option<VmFiles>,
    pub net: Joined<Sockets>,
    /// Opened when the host requests the end of the service.
    pub shutdown: Latch,
    /// The service waits for that request.
    pub watches_shutdown: Cell<bool>,
}

impl Platform for VmPlatform {
    type Block = VmDisk;
    type Files = VmFiles;
    type Net = Joined<Sockets>;

    fn args(&self) -> &[String] {
        &self.world.args
    }

    fn block(&self, index: usize) -> Option<VmDisk> {
        self.world.disks.get(index).cloned()
    }

    fn files(&self) -> Option<VmFiles> {
        self.world.files.clone()
    }

    fn net(&self) -> Joined<Sockets> {
        self.world.net.clone()
    }

    fn shutdown(&self) -> impl Future<Output = ()> + 'static {
        self.world.watches_shutdown.set(true);
        self.world.shutdown.wait()
    }

    fn memory(&self) -> MemoryUse {
        heap::memory()
    }

    fn generation(&self) -> u64 {
        generation::number()
    }
}

/// A core, for the tasks on it. Clones are handles.
#[derive(Clone)]
pub struct VmCore {
    inner: Rc<Inner>,
}

struct Inner {
    number: usize,
    executor: Executor,
    mailboxes: &'static Mailboxes<VmCore>,
    /// The console's device; another core prints through the first one.
    console: Option<SharedConsole>,
}

impl VmCore {
    pub(crate) fn new(
        number: usize,
        executor: Executor,
        mailboxes: &'static Mailboxes<VmCore>,
        console: Option<SharedConsole>,
    ) -> VmCore {
        VmCore { inner: Rc::new(Inner { number, executor, mailboxes, console }) }
    }

    pub(crate) fn executor(&self) -> &Executor {
        &self.inner.executor
    }

    pub(crate) fn mailboxes(&self) -> &'static Mailboxes<VmCore> {
        self.inner.mailboxes
    }

    pub(crate) fn console(&self) -> Option<&SharedConsole> {
        self.inner.console.as_ref()
    }

    /// On the first core: prints a line of another one. A line is lost only while others wait here, so each loss is reported.
    fn print_for_another(&self, text: &str) {
        let lost = LINES_LOST.swap(0, Ordering::Relaxed);
        if lost > 0 {
            self.print_text(&format!("({lost} lines lost)\n"));
        }
        self.print_text(text);
    }

    /// `text` ends with a line end.
    fn print_text(&self, text: &str) {
        match self.console() {
            Some(console) => console.print(text.as_bytes()),
            None => serial::print_line(format_args!("{}", text.trim_end_matches('\n'))),
        }
    }
}

impl Clock for VmCore {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + 'static {
        self.executor().sleep_until(deadline)
    }

    fn wall(&self) -> Option<WallTime> {
        wall::now()
    }
}

impl Console for VmCore {
    /// Through the virtio console if there is one: the host gets the line at once, without an exit
    /// for each character.
    fn print(&self, line: fmt::Arguments) {
        // Before the console is borrowed: what is printed may print itself.
        let text = format!("{line}\n");
        match self.core() {
            0 => self.print_text(&text),
            // A core that prints more than the first one takes does not wait: `writable` does.
            _ => {
                if self.mailboxes().post(0, move |first| first.print_for_another(&text)).is_err() {
                    LINES_LOST.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// The serial port takes each line at once, one exit after the other.
    async fn writable(&self, bytes: usize) {
        if self.core() != 0 {
            let printed =
                self.spawn_on(0, "room on the console", move |first| async move { first.writable(bytes).await });
            if let Ok(printed) = printed {
                let _ = printed.await;
            }
        } else if let Some(console) = self.console() {
            console.writable(bytes).await;
        }
    }
}

impl Random for VmCore {
    fn fill_random(&self, bytes: &mut [u8]) {
        random::fill(bytes);
    }
}

impl Spawn for VmCore {
    fn spawn<T: 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + 'static,
    ) -> Result<JoinHandle<T>, SpawnError> {
        self.executor().spawn(name, task)
    }

    fn contain<F: Future>(&self, task: F) -> impl Future<Output = Result<F::Output, Panicked>> + use<F> {
        Uncontained::new(task)
    }
}

impl Cores for VmCore {
    type Core = VmCore;

    fn cores(&self) -> usize {
        self.mailboxes().cores()
    }

    fn core(&self) -> usize {
        self.inner.number
    }

    fn spawn_on<T, F>(
        &self,
        core: usize,
        name: &'static str,
        start: impl FnOnce(VmCore) -> F + Send + 'static,
    ) -> Result<CoreHandle<T>, SpawnOnError>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        self.mailboxes().spawn_on(core, name, start)
    }
}

glass_lib_cores::forward_to_core!(VmPlatform, VmCore, |platform| &platform.world.core);
