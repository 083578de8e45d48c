//! Malicious devices for our drivers: the input is a configuration and then, step by step, the actions of driver and device.

use std::sync::atomic::Ordering;

use fastrand::Rng;
use glass_api::Buf;
use glass_drivers_device::{BlockDevice, Driver, NetDevice, NetTransmit, Request};
use glass_drivers_virtio::fake::{Chain, DAMAGED, DeviceQueue, Fake, GuardedDma};
use glass_drivers_virtio::{Blk, Console, ConsoleConfig, Net, NetConfig, device, feature};

use super::Target;
use crate::mutate;

/// Kind of device and its features, then its configuration.
const HEAD_BYTES: usize = 64;
/// A step: what, which queue, two numbers.
pub(super) const STEP_BYTES: usize = 8;
/// More than there are kinds of steps.
const KINDS: u8 = 40;
pub(super) const STEPS_MAX: usize = 400;
const FEATURES: [u64; 12] = [
    feature::INDIRECT,
    feature::EVENT_IDX,
    feature::BLK_FLUSH,
    feature::BLK_SEG_MAX,
    feature::BLK_SIZE_MAX,
    feature::BLK_BLK_SIZE,
    feature::NET_MAC,
    feature::NET_CSUM,
    feature::NET_GUEST_CSUM,
    feature::NET_HOST_TSO4,
    feature::NET_GUEST_TSO4,
    feature::BLK_RO,
];

/// Disk, network card and console.
pub struct Devices;

pub(super) struct Step {
    pub what: u8,
    pub queue: u8,
    pub small: u16,
    pub large: u32,
}

impl Step {
    /// The steps of an input without its head.
    pub fn all(bytes: &[u8]) -> Vec<Step> {
        let step = |bytes: &[u8; STEP_BYTES]| Step {
            what: bytes[0] % KINDS,
            queue: bytes[1],
            small: u16::from_le_bytes([bytes[2], bytes[3]]),
            large: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        };
        bytes.as_chunks::<STEP_BYTES>().0.iter().map(step).collect()
    }
}

/// Changes steps behind a head of `head_bytes`: as bytes, their kinds, or their words and order.
pub(super) fn change(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], head_bytes: usize, rng: &mut Rng) {
    match rng.u32(..6) {
        0 => mutate::plain(bytes, corpus, rng),
        1 | 2 => mutate::kinds(bytes, head_bytes, STEP_BYTES, KINDS, rng),
        _ => mutate::words(bytes, head_bytes, STEP_BYTES, rng),
    }
}

/// Panics when a device has written outside of what a driver gave it.
pub(super) fn assert_undamaged() {
    assert_eq!(DAMAGED.load(Ordering::SeqCst), 0, "a device made the driver write where it must not");
}

/// The device's side, which may delay completions and complete twice.
pub(super) struct MalfunctioningDevice {
    pub fake: Fake,
    pub held: Vec<(u16, Chain)>,
}

impl MalfunctioningDevice {
    /// Lets `work` play the device on a queue; returns its number.
    fn with(&self, queue: u8, work: impl FnOnce(&mut DeviceQueue)) -> Option<u16> {
        let mut state = self.fake.state();
        let count = state.queues.len().max(1);
        let queue = state.queues.get_mut(usize::from(queue) % count)?;
        work(queue);
        Some(queue.number)
    }

    /// A device that was reset has no requests: the memory of those is not the driver's any more.
    pub fn check_reset(&mut self) {
        if self.fake.state().queues.is_empty() {
            self.held.clear();
        }
    }

    pub fn step(&mut self, step: &Step) {
        self.check_reset();
        let held = self.held.len().max(1);
        let chosen = self.held.get(usize::from(step.small) % held).cloned();
        match step.what {
            0 | 1 => {
                let mut taken = Vec::new();
                let _ = self.with(step.queue, |queue| taken.extend(queue.take().map(|chain| (queue.number, chain))));
                self.held.extend(taken);
            }
            // An answer that is valid in form: bytes, and as many as were written.
            2..=4 => {
                let Some((number, chain)) = chosen else { return };
                self.held.swap_remove(usize::from(step.small) % held);
                let fill = vec![step.large as u8; chain.writable_bytes() as usize];
                let written = chain.write(&fill[..(step.large >> 8) as usize % (fill.len() + 1)]);
                let mut state = self.fake.state();
                if let Some(queue) = state.queues.iter_mut().find(|queue| queue.number == number) {
                    queue.complete(chain.head, written);
                }
            }
            // An id that may be valid, with any length; the same completion twice. The driver may take the memory back by that, so
            // the device must not write there any more.
            5 | 6 => {
                let head = chosen.filter(|_| step.what == 5).map(|(_, chain)| u32::from(chain.head));
                let (id, bytes) = match head {
                    Some(head) => (head, step.large),
                    None => (step.large, u32::from(step.small)),
                };
                let number = self.with(step.queue, |queue| queue.put(id, bytes));
                self.held.retain(|(of, chain)| Some(*of) != number || u32::from(chain.head) != id);
            }
            7 => {
                let number = self.with(step.queue, |queue| queue.publish(step.small));
                self.held.retain(|(of, _)| Some(*of) != number);
            }
            8 => _ = self.with(step.queue, |queue| queue.set_available_event(step.small)),
            9 => _ = self.with(step.queue, |queue| queue.set_no_notify(step.small & 1 == 0)),
            10 => {
                let mut state = self.fake.state();
                let length = state.config.len().max(1);
                if let Some(byte) = state.config.get_mut(usize::from(step.small) % length) {
                    *byte = step.large as u8;
                }
                state.generation = state.generation.wrapping_add(1);
            }
            _ => self.fake.state().status = step.small as u8,
        }
    }
}

fn blk(fake: Fake, steps: &[Step]) {
    let mut malfunctioning = MalfunctioningDevice { fake: fake.clone(), held: Vec::new() };
    let Ok(mut blk) = Blk::new(fake, GuardedDma) else { return };
    let (mut submitted, mut completed) = (0, 0);
    for step in steps {
        match step.what {
            20..=29 => {
                let Ok(buf) = Buf::zeroed(512 * usize::from(step.small % 64)) else { continue };
                let offset = u64::from(step.large) * 512;
                let request = match step.what % 3 {
                    0 => Request::Read { offset, buf },
                    1 => Request::Write { offset, buf },
                    _ => Request::Flush,
                };
                submitted += usize::from(blk.submit(request).is_ok());
                blk.kick();
            }
            30..=35 => {
                completed += blk.poll(&mut |_, _, _| {});
                if blk.arm() {
                    blk.disarm();
                }
            }
            _ => malfunctioning.step(step),
        }
        assert!(completed <= submitted, "{completed} completions of {submitted} requests");
    }
    // A task that waits for a request of a broken device is woken.
    completed += blk.poll(&mut |_, _, _| {});
    if blk.violation().is_some() {
        completed += blk.poll(&mut |_, _, _| {});
        assert_eq!(completed, submitted, "a request of a broken device never ends");
    }
}

fn net(fake: Fake, steps: &[Step]) {
    let mut malfunctioning = MalfunctioningDevice { fake: fake.clone(), held: Vec::new() };
    let config = NetConfig { memory_bytes: 256 << 10, ..NetConfig::default() };
    let Ok(mut net) = Net::new(fake, GuardedDma, config) else { return };
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
                while let Some((frame, _)) = net.receive() {
                    assert!(frame.len() <= 65_536);
                }
                if net.violation().is_some() {
                    let _ = net.restart();
                    // A device that was reset has no requests.
                    malfunctioning.held.clear();
                }
                if net.arm() {
                    net.disarm();
                }
            }
            _ => malfunctioning.step(step),
        }
    }
}

fn console(fake: Fake, steps: &[Step]) {
    let mut malfunctioning = MalfunctioningDevice { fake: fake.clone(), held: Vec::new() };
    let config = ConsoleConfig { buffers: 4, buffer_bytes: 256, receive: true, port: 0 };
    let Ok(mut console) = Console::new(fake, GuardedDma, config) else { return };
    for step in steps {
        match step.what {
            20..=25 => {
                let text = vec![step.large as u8; usize::from(step.small) % 600];
                assert!(console.write(&text) <= text.len());
                console.kick();
            }
            26..=35 => {
                console.poll();
                let mut bytes = [0; 100];
                assert!(console.read(&mut bytes) <= bytes.len());
                console.drain(3);
                if console.arm() {
                    console.disarm();
                }
            }
            _ => malfunctioning.step(step),
        }
    }
}

impl Target for Devices {
    fn name(&self) -> &'static str {
        "virtio"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let with = |kind: u8, features: u16, config: &[u8]| {
            let mut bytes = vec![kind];
            bytes.extend(features.to_le_bytes());
            bytes.extend(config);
            bytes.resize(HEAD_BYTES, 0);
            // Some work of the driver, some of a correct device, three times.
            let steps =
                [(22u8, 0u8), (24, 0), (21, 1), (0, 0), (0, 1), (0, 0), (2, 0), (2, 1), (3, 0), (30, 0), (26, 0)];
            for (index, (what, queue)) in steps.iter().cycle().take(3 * steps.len()).enumerate() {
                bytes.extend([*what, *queue, index as u8, 0, index as u8, 0xff, 0xff, 0]);
            }
            bytes
        };
        let disk =
            [&64u64.to_le_bytes()[..], &4096u32.to_le_bytes(), &8u32.to_le_bytes(), &[0; 4], &512u32.to_le_bytes()]
                .concat();
        let mac = [2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0xdc, 5];
        vec![with(0, 0xfff, &disk), with(0, 0, &disk), with(1, 0xfff, &mac), with(1, 2, &mac), with(2, 2, &[])]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        match rng.u32(..8) {
            0 => mutate::plain(bytes, corpus, rng),
            1 => mutate::fields(bytes, &[(0, 1), (1, 2), (3, 8), (11, 4), (15, 4), (23, 4)], rng),
            2 | 3 => mutate::kinds(bytes, HEAD_BYTES, STEP_BYTES, KINDS, rng),
            _ => mutate::words(bytes, HEAD_BYTES, STEP_BYTES, rng),
        }
    }

    fn bytes_max(&self) -> usize {
        HEAD_BYTES + STEP_BYTES * STEPS_MAX
    }

    fn run(&self, input: &[u8]) {
        let Some((head, rest)) = input.split_first_chunk::<HEAD_BYTES>() else { return };
        let chosen = u16::from_le_bytes([head[1], head[2]]);
        let features = FEATURES.iter().enumerate().filter(|(index, _)| chosen & 1 << index != 0);
        let features = features.fold(0, |all, (_, feature)| all | feature);
        let steps = Step::all(rest);
        match head[0] % 3 {
            0 => blk(Fake::new(device::BLK, features, &head[3..]), &steps),
            1 => net(Fake::new(device::NET, features, &head[3..]), &steps),
            _ => console(Fake::new(device::CONSOLE, features, &head[3..]), &steps),
        }
        assert_undamaged();
    }
}
