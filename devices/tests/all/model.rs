//! A model of QEMU: it starts the process of a device, gives it the guest's memory and queues, and stops and starts those
//! (QEMU, docs/interop/vhost-user.rst). The guest's memory is shared with threads that play the guest.

use glass_tests::folder::Folder;
use glass_tests::process::Process;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::{self, File};
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

pub const MEMORY_BYTES: usize = 32 << 20;
pub const SIZE: u16 = 256;
/// Flags of a descriptor: another follows, the device writes, it is a table.
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const TABLE: u16 = 4;
/// Where the model has the guest's memory.
const QEMU: u64 = 0x7f00_0000_0000;
/// How long an answer may take on a busy host: far longer than any needs.
const LIMIT: Duration = Duration::from_secs(20);
/// Features: version 1 of virtio, indirect descriptors, messages that enable queues, and flushes of a disk.
const FEATURES: u64 = 1 << 32 | 1 << 28 | 1 << 30;
pub const FLUSH: u64 = 1 << 9;

/// A queue's place in the guest's memory.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
}

pub const fn place(queue: u64) -> Place {
    let start = 0x10000 + queue * 0x10000;
    Place { descriptors: start, available: start + 0x4000, used: start + 0x8000 }
}

/// The guest's memory, as its cores use it: several threads at once.
#[derive(Clone)]
pub struct Guest(pub Arc<GuestMemoryMmap>);

impl Guest {
    pub fn write<T: vm_memory::ByteValued>(&self, value: T, address: u64) {
        self.0.write_obj(value, GuestAddress(address)).unwrap();
    }

    pub fn read<T: vm_memory::ByteValued>(&self, address: u64) -> T {
        self.0.read_obj(GuestAddress(address)).unwrap()
    }

    pub fn descriptor(&self, at: u64, index: u64, address: u64, bytes: u32, flags: u16, next: u16) {
        let at = at + index * 16;
        self.write(address, at);
        self.write(bytes, at + 8);
        self.write(flags, at + 12);
        self.write(next, at + 14);
    }
}

/// The model, and the device.
pub struct Model {
    pub guest: Guest,
    pub device: Process,
    stream: UnixStream,
    memory: File,
    pub queues: u32,
    features: u64,
    kicks: Vec<OwnedFd>,
    calls: Vec<OwnedFd>,
    errors: Vec<OwnedFd>,
}

impl Model {
    /// Starts the process of a device with `queues` queues by `arguments` and a socket in `folder`, and connects to it.
    pub fn start(folder: &Folder, wrapper: Option<Command>, arguments: &[&str], queues: u32, features: u64) -> Model {
        let socket = folder.file("socket");
        let program = env!("CARGO_BIN_EXE_device-server");
        let mut command = match wrapper {
            Some(mut wrapper) => {
                wrapper.arg(program);
                wrapper
            }
            None => Command::new(program),
        };
        command.args(&arguments[..2]).arg(&socket).args(&arguments[2..]);
        let device = Process::spawn_with_socket(&mut command, &socket, &folder.file("log")).unwrap();
        let mut stream = UnixStream::connect(&socket);
        // The socket is made a moment before it listens.
        wait_until("the device listens", || {
            if stream.is_err() {
                stream = UnixStream::connect(&socket);
            }
            stream.is_ok()
        });
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&memory, MEMORY_BYTES as u64).unwrap();
        let region = MmapRegion::from_file(FileOffset::new(memory.try_clone().unwrap(), 0), MEMORY_BYTES).unwrap();
        let region = GuestRegionMmap::new(region, GuestAddress(0)).unwrap();
        let guest = Guest(Arc::new(GuestMemoryMmap::from_regions(vec![region]).unwrap()));
        let events =
            || (0..queues).map(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()).collect();
        let (kicks, calls, errors) = (events(), events(), events());
        let mut model = Model { guest, device, stream, memory, queues, features, kicks, calls, errors };
        model.begin();
        model
    }

    fn begin(&mut self) {
        self.send(3, &[], None);
        assert_ne!(self.features() & FEATURES, 0);
        self.send(2, &(FEATURES | self.features).to_le_bytes(), None);
        let table = [1, 0, MEMORY_BYTES as u64, QEMU, 0].map(u64::to_le_bytes).concat();
        self.send(5, &table, Some(self.memory.as_fd()));
        for queue in 0..self.queues {
            self.run(queue, 0);
        }
    }

    /// Starts a queue, whose next chain is `next`.
    pub fn run(&self, queue: u32, next: u32) {
        let state = |number: u32| [queue, number].map(u32::to_le_bytes).concat();
        let index = queue as usize;
        let word = u64::from(queue).to_le_bytes();
        let Place { descriptors, available, used } = place(queue.into());
        let addresses = [queue.into(), QEMU + descriptors, QEMU + used, QEMU + available, 0_u64];
        self.send(8, &state(SIZE.into()), None);
        self.send(10, &state(next), None);
        self.send(9, &addresses.map(u64::to_le_bytes).concat(), None);
        self.send(13, &word, Some(self.calls[index].as_fd()));
        self.send(14, &word, Some(self.errors[index].as_fd()));
        self.send(12, &word, Some(self.kicks[index].as_fd()));
        self.send(18, &state(1), None);
    }

    /// Stops a queue, as QEMU does when the VM stops or its driver is reset: its next chain.
    pub fn stop(&self, queue: u32) -> u32 {
        let payload = [queue, 0].map(u32::to_le_bytes).concat();
        self.send(11, &payload, None);
        u32::from_le_bytes(*self.answer()[4..].first_chunk().unwrap())
    }

    pub fn features(&self) -> u64 {
        self.send(1, &[], None);
        u64::from_le_bytes(*self.answer().first_chunk().unwrap())
    }

    pub fn send(&self, request: u32, payload: &[u8], file: Option<BorrowedFd<'_>>) {
        let bytes = [&[request, 1, payload.len() as u32].map(u32::to_le_bytes).concat(), payload].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = file.map(|file| [file]);
        if let Some(files) = &files {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        let sent = sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
        assert_eq!(sent, Ok(bytes.len()), "message {request}: {}", self.device.output());
    }

    fn answer(&self) -> Vec<u8> {
        let mut header = [0; 12];
        let read = (&self.stream).read_exact(&mut header);
        assert!(read.is_ok(), "no answer ({read:?}): {}", self.device.output());
        let mut payload = vec![0; u32::from_le_bytes(*header.last_chunk().unwrap()) as usize];
        (&self.stream).read_exact(&mut payload).unwrap();
        payload
    }

    /// The guest's end of a queue's notifications.
    pub fn kick(&self, queue: usize) -> OwnedFd {
        self.kicks[queue].try_clone().unwrap()
    }

    /// How often the device has reported a broken queue since the last call.
    pub fn broken(&self, queue: usize) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(&self.errors[queue], &mut count).map_or(0, |_| u64::from_le_bytes(count))
    }

    /// A line of `/proc/PID/status`, behind its name.
    pub fn status(&self, name: &str) -> String {
        let text = fs::read_to_string(format!("/proc/{}/status", self.device.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("there is no {name} in {text}")).trim().to_owned()
    }

    /// Disconnects: how the device ended, and what it printed.
    pub fn end(mut self) -> (Option<i32>, String) {
        drop(self.stream);
        let status = self.device.wait(LIMIT).expect("the device ends with its QEMU");
        (status.code(), self.device.output())
    }
}

/// Waits until `is_done`.
pub fn wait_until(what: &str, mut is_done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A file for a disk, of 16 MiB.
pub fn disk(folder: &Folder) -> String {
    let path = folder.file("disk");
    File::create(&path).unwrap().set_len(16 << 20).unwrap();
    path.display().to_string()
}

/// Whether there is io_uring; prints that the test is skipped otherwise.
pub fn has_disk() -> bool {
    let has_io_uring = glass_devices::has_io_uring();
    if !has_io_uring {
        println!("skipped: this host has no io_uring");
    }
    has_io_uring
}
