//! A device between a QEMU and a guest that do what a script of bytes has, one step after the other, for fuzzing.

use crate::card::{Card, Tap};
use crate::device::Device;
use crate::disk::{Disk, DiskOptions};
use crate::vhost_user::Backend;
use crate::vhost_user::Message;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// The guest's memory.
pub const MEMORY_BYTES: u64 = 64 << 10;
/// Steps of a script that give the device a turn, at most.
const TURNS_MAX: usize = 32;

/// The first byte of a step.
pub mod step {
    /// A message of QEMU: its number, what file it has (0 none, 1 the guest's memory, 2 an eventfd), the length of its payload, and that.
    pub const MESSAGE: u8 = 0;
    /// The guest writes: address (two bytes, little endian), number of bytes, and those.
    pub const WRITE: u8 = 1;
    /// The device has a turn.
    pub const TURN: u8 = 2;
    /// The network sends a frame to a card: number of bytes, and those.
    pub const FRAME: u8 = 3;
}

/// Runs a disk, over the file `disk`, until the script ends or a message is refused: how often the guest has violated the specification,
/// `None` if the script was not done to its end. Nothing without io_uring.
pub fn run_disk(script: &[u8], disk: &Path) -> Option<u64> {
    if !crate::has_io_uring() {
        return Some(0);
    }
    run(Disk::open(disk, &DiskOptions::default()).expect("the file is a disk"), script, |_| ())
}

/// The same for a network card.
pub fn run_card(script: &[u8]) -> Option<u64> {
    let (ours, network) = UnixDatagram::pair().expect("there are descriptors");
    for socket in [&ours, &network] {
        socket.set_nonblocking(true).expect("it is a socket");
    }
    run(Card::new(Tap::from_file(OwnedFd::from(ours).into())), script, |frame| _ = network.send(frame))
}

fn run<D: Device>(device: D, script: &[u8], send: impl Fn(&[u8])) -> Option<u64> {
    let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).expect("there is memory"));
    ftruncate(&memory, MEMORY_BYTES).expect("there is memory");
    let mut backend = Backend::new(device);
    let mut turns = 0;
    let mut rest = script;
    let mut done = Some(());
    while done.is_some()
        && let Some(bytes) = next(&mut rest, 1)
    {
        done = match bytes[0] % 4 {
            step::MESSAGE => message(&mut backend, &mut rest, &memory),
            step::WRITE => next(&mut rest, 3).and_then(|head| {
                let bytes = next(&mut rest, head[2].into())?;
                let address = u16::from_le_bytes([head[0], head[1]]).into();
                // What is behind its end would make the file longer.
                let bytes = &bytes[..bytes.len().min((MEMORY_BYTES - address) as usize)];
                memory.write_all_at(bytes, address).ok()
            }),
            step::FRAME => next(&mut rest, 1).and_then(|count| next(&mut rest, count[0].into())).map(&send),
            _ => {
                turns += 1;
                (turns <= TURNS_MAX && backend.served.work().is_ok()).then_some(())
            }
        };
    }
    backend.served.finish().expect("requests end");
    done.map(|()| backend.served.violations())
}

/// The next bytes of a script.
fn next<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (bytes, after) = rest.split_at_checked(count)?;
    *rest = after;
    Some(bytes)
}

fn message<D: Device>(backend: &mut Backend<D>, rest: &mut &[u8], memory: &File) -> Option<()> {
    let head = next(rest, 3)?;
    let payload = next(rest, head[2].into())?;
    let files = match head[1] % 3 {
        0 => Vec::new(),
        1 => vec![memory.try_clone().ok()?],
        _ => vec![eventfd(0, EventfdFlags::CLOEXEC).ok()?.into()],
    };
    backend.obey(Message::of(head[0].into(), payload, files)).ok().map(|_| ())
}
