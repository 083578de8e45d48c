//! The signals that request the end of a process.

use crate::cores::LinuxCore;
use crate::reactor::{Interest, Role};
use glass_lib_executor::sync::Latch;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};
use std::future::poll_fn;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The signals, and the exit codes that a shell gives them.
const SIGNALS: [(i32, i32); 2] = [(SIGTERM, 128 + SIGTERM), (SIGINT, 128 + SIGINT)];

/// Lets the first signal open `latch`, and a second one end the process at once.
pub(crate) fn watch(core: &LinuxCore, latch: Latch) -> io::Result<()> {
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    let reader = core.reactor().watch(reader.into(), Role::Signals, false)?;
    let task = async move {
        let mut byte = [0];
        let mut read = || rustix::io::read(reader.fd(), &mut byte);
        // It cannot fail while the handlers have the other end, which is as long as the process lives.
        let _ = poll_fn(|context| reader.poll(Interest::Read, context, &mut read)).await;
        latch.open();
    };
    core.executor().spawn("signals", task).map_err(io::Error::other)?;
    let is_asked = Arc::new(AtomicBool::new(false));
    for (signal, code) in SIGNALS {
        // They run in this order.
        flag::register_conditional_shutdown(signal, code, is_asked.clone())?;
        flag::register(signal, is_asked.clone())?;
        low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(())
}
