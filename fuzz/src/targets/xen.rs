//! Malicious back ends of Xen's devices, and a malicious xenstore: the input is, step by step, the actions of both sides.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use fastrand::Rng;
use glass_api::{BlockInfo, Buf, Instant};
use glass_drivers_device::{BlockDevice, Driver, NetDevice, NetTransmit, Request};
use glass_drivers_xen::{
    BlkLimits, Events, Frames, Grants, IdentityFrames, NetOffers, RING_HEADER_BYTES, SharedPages, Store,
};
use glass_drivers_xen::{PAGE_BYTES, fake};

use super::Target;
use super::devices::{STEP_BYTES, STEPS_MAX, Step, change};

/// Kind of device, and what it offers.
const HEAD_BYTES: usize = 4;
/// Bytes of an entry: a request of a disk; one for a received frame, and one for a frame that is sent.
const DISK_ENTRY_BYTES: usize = 112;
const CARD_ENTRY_BYTES: [usize; 2] = [8, 12];
/// Their responses.
const DISK_RESPONSE_BYTES: usize = 16;
const CARD_RESPONSE_BYTES: [usize; 2] = [8, 4];
/// Entries of the rings, a page each.
const DISK_ENTRIES: u32 = 32;
const CARD_ENTRIES: u32 = 256;
/// Where the indices are.
const REQUESTS: usize = 0;
const RESPONSES: usize = 8;
/// Requests to xenstore at a time.
const TASKS_MAX: usize = 40;
const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// Disk, network card and xenstore.
pub struct BackEnds;

struct NoEvents;

impl Events for NoEvents {
    fn notify(&self, _port: u32) {}
}

/// The other side of a ring.
struct Back {
    /// The page of the ring.
    ring: SharedPages,
    entry_bytes: usize,
    entries: u32,
    consumed: u32,
    produced: u32,
    /// Requests without an answer.
    held: Vec<Vec<u8>>,
    /// It has done nothing wrong.
    is_correct: bool,
}

impl Back {
    fn new(ring: SharedPages, entry_bytes: usize, entries: u32) -> Back {
        Back { ring, entry_bytes, entries, consumed: 0, produced: 0, held: Vec::new(), is_correct: true }
    }

    fn index(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        self.ring.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn entry(&self, number: u32) -> usize {
        RING_HEADER_BYTES + (number % self.entries) as usize * self.entry_bytes
    }

    fn take(&mut self) -> bool {
        if self.consumed == self.index(REQUESTS) || self.held.len() >= self.entries as usize {
            return false;
        }
        let mut request = vec![0; self.entry_bytes];
        self.ring.read(self.entry(self.consumed), &mut request);
        self.consumed = self.consumed.wrapping_add(1);
        self.held.push(request);
        true
    }

    fn put(&mut self, response: &[u8]) {
        self.ring.write(self.entry(self.produced), response);
        self.produced = self.produced.wrapping_add(1);
        self.ring.write(RESPONSES, &self.produced.to_le_bytes());
    }

    /// Plays a step; `response` makes the answer to a request.
    fn step(&mut self, step: &Step, response: impl Fn(&[u8]) -> Vec<u8>) {
        let chosen = usize::from(step.small) % self.held.len().max(1);
        self.is_correct &= step.what < 4;
        match step.what {
            0 => while self.take() {},
            1 => _ = self.take(),
            2 if chosen < self.held.len() => {
                let request = self.held.remove(chosen);
                self.put(&response(&request));
            }
            2 => {}
            3 => std::mem::take(&mut self.held).iter().for_each(|request| self.put(&response(request))),
            // The same answer twice later, an answer to nothing, indices, and bytes anywhere.
            4 if chosen < self.held.len() => self.put(&response(&self.held[chosen].clone())),
            4 | 5 => self.put(&response(&vec![step.large as u8; self.entry_bytes])),
            6 => self.ring.write(usize::from(step.small % 4) * 4, &step.large.to_le_bytes()),
            7 => self.ring.write(RESPONSES, &self.produced.wrapping_add(step.small.into()).to_le_bytes()),
            _ => self.ring.write(usize::from(step.small) % (PAGE_BYTES - 4), &step.large.to_le_bytes()),
        }
    }
}

fn disk(head: &[u8; HEAD_BYTES], steps: &[Step]) {
    let info = BlockInfo { sector_bytes: 512, size_bytes: 4 << 20, read_only: head[1] & 1 != 0 };
    let (has_flush, has_barrier) = (head[1] & 2 != 0, head[1] & 4 != 0);
    let limits = BlkLimits { info, indirect_segments: u64::from(head[2]), has_flush, has_barrier };
    let Some(ring) = fake::SmallNumbers::default().allocate(1) else { return };
    let Some(table) = IdentityFrames.allocate(32) else { return };
    let mut blk = fake::blk(ring.clone(), &Grants::new(table), limits, NoEvents, usize::from(head[3] % 16) + 1);
    let mut back = Back::new(ring, DISK_ENTRY_BYTES, DISK_ENTRIES);
    let (mut taken, mut ended, mut is_kicked) = (0, 0, true);
    for step in steps {
        match step.what {
            20..=27 => {
                let Ok(buf) = Buf::zeroed(512 * usize::from(step.small % 256)) else { continue };
                let offset = u64::from(step.large % 10_000) * 512;
                let request = match step.what % 3 {
                    0 => Request::Read { offset, buf },
                    1 => Request::Write { offset, buf },
                    _ => Request::Flush,
                };
                taken += usize::from(blk.submit(request).is_ok());
                is_kicked = false;
            }
            28..=35 => {
                // As a core does: after tasks it notifies, and before it sleeps it only polls.
                if !is_kicked {
                    blk.kick();
                    is_kicked = true;
                }
                while blk.poll_one(&mut |_, _, _| ended += 1) > 0 {}
                let is_asleep = !blk.arm();
                let has_nothing = back.held.is_empty() && back.consumed == back.index(REQUESTS);
                assert!(
                    !(is_asleep && back.is_correct && has_nothing && taken > ended && blk.violation().is_none()),
                    "both sides wait, and {} requests have not ended",
                    taken - ended
                );
            }
            _ => back.step(step, |request| {
                let status = if step.large & 7 == 7 { step.large as i16 } else { 0 };
                let mut response = vec![0; DISK_RESPONSE_BYTES];
                response[..8].copy_from_slice(&request[8..16]);
                response[8..10].copy_from_slice(&status.to_le_bytes());
                response
            }),
        }
        assert!(ended <= taken, "{ended} ends of {taken} requests");
    }
    blk.closed().set(true);
    while blk.poll_one(&mut |_, _, _| ended += 1) > 0 {}
    assert_eq!(taken, ended, "a request to a back end that is gone never ends");
}

fn card(head: &[u8; HEAD_BYTES], steps: &[Step]) {
    let has = |bit: u8| head[1] & 1 << bit != 0;
    let mtu = 1500 + 8 * usize::from(head[2]);
    let offers = NetOffers { parts: has(0), checksums: has(1), segments_v4: has(2), segments_v6: has(3), mtu };
    let Some(table) = IdentityFrames.allocate(4) else { return };
    let (mut net, pages) = fake::net(offers, &Grants::new(table), NoEvents);
    let [receive, send] = pages.map(|pages| pages.part(CARD_ENTRIES as usize, 1));
    let [receive_bytes, send_bytes] = CARD_ENTRY_BYTES;
    let mut backs = [Back::new(receive, receive_bytes, CARD_ENTRIES), Back::new(send, send_bytes, CARD_ENTRIES)];
    for step in steps {
        match step.what {
            20..=25 => {
                if let Some(transmit) = net.transmit() {
                    transmit.send(usize::from(step.small) % 1515, None, |frame| frame.fill(step.large as u8));
                }
                Driver::kick(&mut net);
            }
            26..=35 => {
                net.poll();
                for _ in 0..CARD_ENTRIES {
                    let Some((frame, _)) = net.receive() else { break };
                    assert!(frame.len() <= 65_550, "a frame of {} bytes", frame.len());
                }
                net.arm();
            }
            _ => {
                let ring = usize::from(step.queue & 1);
                backs[ring].step(step, |request| {
                    let [a, b, c, d] = step.large.to_le_bytes();
                    // The page; of a received part also its place, flags and length.
                    let response = match ring {
                        0 => [request[0], request[1], a & 0x7f, 0, b & 0xf, 0, c, d & 0x1f],
                        _ => [request[8], request[9], a & 1, 0, 0, 0, 0, 0],
                    };
                    response[..CARD_RESPONSE_BYTES[ring]].to_vec()
                });
            }
        }
    }
}

type StoreTask = Pin<Box<dyn Future<Output = ()>>>;

/// Xenstore moves bytes through two rings of 1 KiB in a page: requests from offset 0 on, answers from 1024 on, then the four indices.
fn xenstore(steps: &[Step]) {
    const ANSWERS: usize = 1024;
    const ANSWERS_PRODUCED: usize = 2060;
    const INDICES: usize = 2048;
    let Some(page) = IdentityFrames.allocate(1) else { return };
    let mut now = Instant(0);
    let store = Store::new(page.clone(), 1, NoEvents, now, STORE_PATIENCE);
    let (mut tasks, mut produced) = (Vec::<StoreTask>::new(), 0_u32);
    let mut put = |bytes: &[u8]| {
        for byte in bytes {
            page.write(ANSWERS + (produced % 1024) as usize, &[*byte]);
            produced = produced.wrapping_add(1);
        }
        page.write(ANSWERS_PRODUCED, &produced.to_le_bytes());
    };
    for step in steps {
        match step.what {
            20..=28 if tasks.len() < TASKS_MAX => {
                let (store, path) = (store.clone(), format!("device/vbd/{}", step.small));
                let what = step.what;
                tasks.push(Box::pin(async move {
                    let _ = match what % 4 {
                        0 => store.read(&path).await.map(drop),
                        1 => store.write(&path, "4").await,
                        2 => store.list(&path).await.map(drop),
                        _ => store.remove(&path).await,
                    };
                }));
            }
            29..=35 => {
                now = Instant(now.0 + u64::from(step.small) * 1_000_000);
                store.poll(now);
            }
            // An answer in form: kind, request, transaction, length, and the beginning of its text.
            0..=3 => {
                let words = [u32::from(step.queue % 24), u32::from(step.small % 64), 0, step.large % 16];
                put(&words.map(u32::to_le_bytes).concat());
                put(&b"ENOENT\0 a value"[..(step.large % 16).min(15) as usize]);
            }
            4 | 5 => put(&step.large.to_le_bytes()),
            6 => page.write(INDICES + usize::from(step.small % 4) * 4, &step.large.to_le_bytes()),
            _ => page.write(usize::from(step.small) % INDICES, &step.large.to_le_bytes()),
        }
        tasks.retain_mut(|task| task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    // Each request ends by its answer, its deadline or a violation; a task makes one request.
    for _ in 0..3 {
        now = Instant(now.0 + 2 * STORE_PATIENCE.as_nanos() as u64);
        for _ in 0..STEPS_MAX {
            store.poll(now);
        }
        tasks.retain_mut(|task| task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert!(tasks.is_empty(), "{} requests to xenstore never end", tasks.len());
}

impl Target for BackEnds {
    fn name(&self) -> &'static str {
        "xen"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let with = |kind: u8, offers: u8, segments: u8, steps: &[(u8, u8)]| {
            let mut bytes = vec![kind, offers, segments, 1];
            for (index, (what, queue)) in steps.iter().cycle().take(4 * steps.len()).enumerate() {
                bytes.extend([*what, *queue, 64 + index as u8, 0, 0, index as u8, 0, 0]);
            }
            bytes
        };
        // Some work of the driver, and of a correct other side; and many long requests, of which all pieces are answered at once.
        let some = [(21, 0), (22, 0), (20, 1), (28, 0), (0, 0), (0, 1), (2, 0), (2, 1), (2, 0), (30, 0)];
        let many = [(22, 0), (22, 0), (22, 0), (22, 0), (22, 0), (22, 0), (28, 0), (0, 0), (3, 0), (30, 0)];
        vec![
            with(0, 2, 0, &some),
            with(0, 4, 64, &some),
            with(0, 2, 0, &many),
            with(1, 0xf, 0, &some),
            with(1, 0, 0, &some),
            with(2, 0, 0, &some),
        ]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        change(bytes, corpus, HEAD_BYTES, rng);
    }

    fn bytes_max(&self) -> usize {
        HEAD_BYTES + STEP_BYTES * STEPS_MAX
    }

    fn run(&self, input: &[u8]) {
        let Some((head, rest)) = input.split_first_chunk::<HEAD_BYTES>() else { return };
        let mut steps = Step::all(rest);
        steps.truncate(STEPS_MAX);
        match head[0] % 3 {
            0 => disk(head, &steps),
            1 => card(head, &steps),
            _ => xenstore(&steps),
        }
    }
}
