//! The network card of a VM in front of a TAP device of the host, served outside of QEMU (vhost-user).
//!
//! QEMU's own card reads each frame into a buffer and copies it from there to the VM, in the thread that serves everything else. Here the
//! host's kernel reads a frame directly into the VM's buffers, in a process that does nothing else. Any guest with a driver for virtio-net
//! can have it.

mod card;
mod datagrams;
mod messages;
mod moves;
mod rings;
mod tap;
#[cfg(test)]
mod tests;

use anyhow::{Context, Result, ensure};
use card::Card;
use messages::Connection;
use moves::Turn;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use tap::Tap;
pub use tap::check;

/// Serves the card of one VM until its QEMU ends. `name` is an existing TAP device; QEMU connects to the unix socket `socket`, which is
/// made here, as its `-netdev vhost-user`.
pub fn serve(name: &str, socket: &Path) -> Result<()> {
    let tap = Tap::open(name)?;
    let listener = UnixListener::bind(socket).with_context(|| format!("cannot make {}", socket.display()))?;
    let (stream, _) = listener.accept().context("no QEMU connects")?;
    // One VM, one card.
    let _ = fs::remove_file(socket);
    let connection = Connection::new(stream);
    let mut card = Card::new(tap);
    let mut turn = Turn::Starved;
    loop {
        // Even while frames are moved, so that the VM can be stopped.
        if wait(&connection, &card, turn)? {
            let Some(message) = connection.receive()? else { return Ok(()) };
            let request = message.request;
            if let Some(answer) = card.obey(message)? {
                connection.answer(request, &answer)?;
            }
        }
        turn = card.work();
    }
}

/// Waits until there is something to do after a turn that ended so. Whether QEMU has sent a message.
fn wait(connection: &Connection, card: &Card, turn: Turn) -> Result<bool> {
    let mut polled = vec![PollFd::new(connection, PollFlags::IN)];
    polled.extend(card.notifications().map(|notification| PollFd::from_borrowed_fd(notification, PollFlags::IN)));
    let notifications = 1..polled.len();
    if turn == Turn::Done {
        polled.push(PollFd::new(card.tap(), PollFlags::IN));
    }
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let limit = if turn == Turn::Busy { Some(&now) } else { None };
    match poll(&mut polled, limit) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error).context("cannot wait for frames"),
    }
    for notification in &polled[notifications.clone()] {
        if !notification.revents().is_empty() {
            // What it counts does not matter.
            let _ = rustix::io::read(notification, &mut [0; 8]);
        }
    }
    let tap = polled.get(notifications.end).map_or(PollFlags::empty(), PollFd::revents);
    ensure!(!tap.contains(PollFlags::ERR), "the TAP device has been removed");
    Ok(!polled[0].revents().is_empty())
}
