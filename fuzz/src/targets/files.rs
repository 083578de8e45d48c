//! A malicious virtio-fs device for the driver of files: the input is, step by step, what tasks do with files and what the host answers.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use fastrand::Rng;
use glass_api::{Buf, File, Files, Instant, Open};
use glass_virtio::fake::{Chain, DAMAGED, Fake, GuardedDma};
use glass_virtio::{Driver, Fs, HostFiles, device, feature};

use super::Target;
use crate::mutate;

/// The tag of the directory and the number of request queues.
const CONFIG: [u8; 40] = {
    let mut config = [0; 40];
    (config[0], config[36]) = (b'f', 1);
    config
};
const FEATURES_BYTES: usize = 1;
/// A step: what, a choice, a number, four bytes of an answer.
const STEP_BYTES: usize = 8;
const STEPS_MAX: usize = 300;
/// Operations in progress, and open files.
const TASKS_MAX: usize = 8;
const FORGETS: u16 = 0;
const REQUESTS: u16 = 1;
const ANSWER_HEADER_BYTES: usize = 16;
const INIT: u32 = 26;
const GET_ATTRIBUTES: u32 = 3;
const READ_DIRECTORY: u32 = 28;
/// Longer than the driver waits for an answer.
const LONG_NANOS: u64 = 31_000_000_000;

/// Files of a malicious host.
pub struct HostDirectory;

type HostFile = <HostFiles<Fake, GuardedDma> as Files>::File;
type Task = Pin<Box<dyn Future<Output = Option<HostFile>>>>;

struct Step {
    what: u8,
    choice: u8,
    small: u16,
    large: u32,
}

struct World {
    fake: Fake,
    files: HostFiles<Fake, GuardedDma>,
    now: Rc<Cell<u64>>,
    tasks: Vec<Task>,
    open: Vec<Rc<HostFile>>,
    held: Vec<Chain>,
}

impl World {
    fn start(&mut self, step: &Step) {
        if self.tasks.len() >= TASKS_MAX {
            return;
        }
        let files = self.files.clone();
        let path = ["a", "b/c", "b/d/e", "../a", "b//c", ""][usize::from(step.small) % 6];
        let how = [Open::Read, Open::Write, Open::Create, Open::CreateNew][usize::from(step.choice) % 4];
        let file = self.open.get(usize::from(step.small) % self.open.len().max(1)).cloned();
        let (offset, bytes) = (u64::from(step.large), usize::from(step.small) * 4);
        let task: Task = match (step.what, file) {
            (0..=2, _) => Box::pin(async move { files.open(path, how).await.ok() }),
            (3, _) => Box::pin(async move {
                let _ = files.read_dir(path).await;
                None
            }),
            (4, _) => Box::pin(async move {
                let _ = files.metadata(path).await;
                let _ = files.create_dir(path).await;
                let _ = files.rename(path, "b/x").await;
                let _ = files.remove_file(path).await;
                let _ = files.remove_dir("b/x").await;
                None
            }),
            (5, Some(file)) => Box::pin(async move {
                let Ok(buf) = Buf::zeroed(bytes) else { return None };
                let (count, buf) = file.read(offset, buf).await;
                assert!(count.is_ok_and(|count| count <= buf.len()) || count.is_err());
                None
            }),
            (6, Some(file)) => Box::pin(async move {
                let Ok(buf) = Buf::zeroed(bytes) else { return None };
                let _ = file.write(offset, buf).await;
                let _ = file.sync().await;
                None
            }),
            (7, Some(file)) => Box::pin(async move {
                let _ = file.metadata().await;
                let _ = file.truncate(offset).await;
                None
            }),
            _ => return,
        };
        self.tasks.push(task);
    }

    /// Everything of the guest once.
    fn poll(&mut self) {
        self.files.poll();
        let mut context = Context::from_waker(Waker::noop());
        let mut opened = Vec::new();
        self.tasks.retain_mut(|task| match task.as_mut().poll(&mut context) {
            std::task::Poll::Ready(file) => {
                opened.extend(file);
                false
            }
            std::task::Poll::Pending => true,
        });
        self.open.extend(opened.into_iter().map(Rc::new));
        if self.open.len() > TASKS_MAX {
            self.open.remove(0);
        }
        self.files.kick();
    }

    /// Answers a request in a form that is valid but for what the step changes.
    fn answer(&mut self, step: &Step) {
        let mut taken = None;
        self.with(REQUESTS, |queue| taken = queue.take());
        self.held.extend(taken);
        if self.held.is_empty() {
            return;
        }
        let chain = self.held.swap_remove(usize::from(step.choice) % self.held.len());
        let request = chain.read();
        let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap_or_default());
        let room = (chain.writable_bytes() as usize).saturating_sub(ANSWER_HEADER_BYTES);
        let mut body = match word(4) {
            INIT => init(),
            READ_DIRECTORY => directory(),
            opcode => node(opcode, request.get(40..).unwrap_or_default()),
        };
        if let (13..=16, Some(byte)) = (step.what, body.get_mut(usize::from(step.small) % 128)) {
            *byte = step.large as u8;
        }
        if step.what == 14 {
            body.truncate(usize::from(step.small));
        } else if step.what < 14 {
            body.truncate(room);
        }
        let errno = if step.what == 17 { -i32::from(step.small % 200) } else { 0 };
        let length = if step.what == 18 { step.large } else { (ANSWER_HEADER_BYTES + body.len()) as u32 };
        let mut answer = [length.to_le_bytes(), errno.to_le_bytes()].concat();
        answer.extend_from_slice(&request[8..16]);
        if step.what == 19 {
            answer[8] ^= step.large as u8;
        }
        answer.extend(if errno == 0 { body } else { Vec::new() });
        if errno != 0 {
            answer[..4].copy_from_slice(&(ANSWER_HEADER_BYTES as u32).to_le_bytes());
        }
        let written = chain.write(&answer);
        self.with(REQUESTS, |queue| {
            queue.complete(chain.head, written);
        });
    }

    fn with(&self, number: u16, work: impl FnOnce(&mut glass_virtio::fake::DeviceQueue)) {
        let mut state = self.fake.state();
        if let Some(queue) = state.queues.iter_mut().find(|queue| queue.number == number) {
            work(queue);
        }
    }

    fn step(&mut self, step: &Step) {
        match step.what {
            0..=7 => self.start(step),
            8 | 9 => self.poll(),
            10 if !self.tasks.is_empty() => drop(self.tasks.swap_remove(usize::from(step.choice) % self.tasks.len())),
            11 if !self.open.is_empty() => drop(self.open.swap_remove(usize::from(step.choice) % self.open.len())),
            12..=19 => self.answer(step),
            20 => self.with(FORGETS, |queue| {
                if let Some(chain) = queue.take() {
                    queue.complete(chain.head, step.large);
                }
            }),
            21 => self.with(u16::from(step.choice % 2), |queue| queue.put(step.large, step.small.into())),
            22 => self.now.set(self.now.get() + u64::from(step.large) * 8),
            23 if self.files.lie().is_some() => {
                // Nothing waits for a device that is broken.
                self.poll();
                let _ = self.files.restart();
                self.held.clear();
            }
            _ => {}
        }
        if self.fake.state().queues.is_empty() {
            self.held.clear();
        }
    }
}

/// A host with pages of 4 KiB, two a request.
fn init() -> Vec<u8> {
    let mut answer = vec![0; 64];
    (answer[0], answer[4], answer[14], answer[21], answer[28]) = (7, 36, 1 << 6, 0x20, 2);
    answer
}

/// The answer about a node, with a length that holds any: number 2, a directory if it is called `b`, otherwise a file.
fn node(opcode: u32, name: &[u8]) -> Vec<u8> {
    let mut answer = vec![0; 256];
    let mode_at = if opcode == GET_ATTRIBUTES { 16 + 60 } else { 40 + 60 };
    (answer[0], answer[mode_at + 1]) = (2, if name.starts_with(b"b\0") { 0x41 } else { 0x81 });
    answer
}

/// Two entries.
fn directory() -> Vec<u8> {
    let entry = |node: u64, name: &[u8; 8]| {
        [&node.to_le_bytes()[..], &node.to_le_bytes(), &8u32.to_le_bytes(), &8u32.to_le_bytes(), name].concat()
    };
    [entry(2, b"eight-by"), entry(3, b"tes-each")].concat()
}

impl Target for HostDirectory {
    fn name(&self) -> &'static str {
        "virtio-fs"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let with = |features: u8, tasks: [u8; 4]| {
            let mut bytes = vec![features];
            let mut push = |what: u8, small: u16, large: u32| {
                bytes.extend([what, 0]);
                bytes.extend(small.to_le_bytes());
                bytes.extend(large.to_le_bytes());
            };
            // INIT and its answer; then each task with correct answers.
            for (what, small, large) in [(8, 0, 0), (12, 0, 0), (8, 0, 0)] {
                push(what, small, large);
            }
            for task in tasks {
                push(task, 0, 0);
                for _ in 0..4 {
                    push(8, 0, 0);
                    push(12, 0, 0);
                }
                push(8, 0, 0);
            }
            bytes
        };
        vec![with(3, [0, 5, 6, 7]), with(0, [2, 6, 3, 5]), with(1, [3, 4, 0, 7])]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        match rng.u32(..4) {
            0 => mutate::plain(bytes, corpus, rng),
            1 => {
                let count = bytes.len().saturating_sub(FEATURES_BYTES) / STEP_BYTES;
                if count > 0 {
                    bytes[FEATURES_BYTES + STEP_BYTES * rng.usize(..count)] = rng.u8(..24);
                }
            }
            _ => mutate::words(bytes, FEATURES_BYTES, STEP_BYTES, rng),
        }
    }

    fn bytes_max(&self) -> usize {
        FEATURES_BYTES + STEP_BYTES * STEPS_MAX
    }

    fn run(&self, input: &[u8]) {
        let Some((chosen, rest)) = input.split_first() else { return };
        let features = [feature::INDIRECT, feature::EVENT_IDX].into_iter().enumerate();
        let features = features.filter(|(index, _)| chosen & 1 << index != 0).fold(0, |all, (_, bit)| all | bit);
        let fake = Fake::new(device::FS, features, &CONFIG);
        let Ok(fs) = Fs::new(fake.clone(), GuardedDma) else { return };
        let now = Rc::new(Cell::new(1));
        let clock = now.clone();
        let files = HostFiles::new(fs, move || Instant(clock.get()));
        let mut world = World { fake, files, now, tasks: Vec::new(), open: Vec::new(), held: Vec::new() };
        for bytes in rest.as_chunks::<STEP_BYTES>().0 {
            world.step(&Step {
                what: bytes[0] % 24,
                choice: bytes[1],
                small: u16::from_le_bytes([bytes[2], bytes[3]]),
                large: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            });
        }
        // A host that answers nothing any more breaks the device, and then no task waits for it. A task may consist of several operations.
        for _ in 0..8 {
            world.poll();
            world.now.set(world.now.get() + LONG_NANOS);
        }
        assert!(world.tasks.is_empty(), "{} tasks wait for a host that does not answer", world.tasks.len());
        drop(world);
        assert_eq!(DAMAGED.load(Ordering::SeqCst), 0, "a device made the driver write where it must not");
    }
}
