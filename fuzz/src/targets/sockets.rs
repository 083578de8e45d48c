//! A malicious host behind a socket device, with the connections above it: the input is, step by step, what tasks do and which packets
//! the host sends.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use fastrand::Rng;
use glass_api::{Buf, Instant, Listener, MessageListener, Messages, NetError, Stream, VsockAddress};
use glass_drivers_device::Driver;
use glass_drivers_virtio::fake::{Fake, GuardedDma};
use glass_drivers_virtio::{Vsock, VsockConfig, device, feature};
use glass_lib_vsock::{Config, HEADER_BYTES, Header, Sockets};

use super::Target;
use super::devices::{MalfunctioningDevice, STEP_BYTES, STEPS_MAX, Step, assert_undamaged, change};

/// The features.
const HEAD_BYTES: usize = 1;
const TASKS_MAX: usize = 16;
const CONNECTIONS_MAX: usize = 8;
const BUFFER_BYTES: u32 = 16 << 10;
const OUR_CID: u32 = 3;
const PORT: u32 = 80;
/// The feature of a device that carries messages too.
const SEQPACKET: u64 = 1 << 1;
const RECEIVE_QUEUE: u16 = 0;
const DEVICE: VsockConfig = VsockConfig { receive_buffers: 8, receive_bytes: 4096 };
/// Longer than a connection may take to end.
const BEYOND_CLOSE: Duration = Duration::from_secs(20);

/// The sockets of a machine.
pub struct HostSockets;

type SocketTask = Pin<Box<dyn Future<Output = ()>>>;

/// What a service does with a connection.
async fn talk(mut stream: impl Stream, what: u16, bytes: usize) -> Result<(), NetError> {
    let mut received = vec![0; bytes];
    for _ in 0..what % 4 {
        if what & 4 == 0 {
            let data = Buf::zeroed(bytes).map_err(|_| NetError::TooMany)?;
            assert!(stream.write_buf(&data).await? <= bytes);
        }
        if what & 8 == 0 {
            assert!(stream.read(&mut received).await? <= bytes);
        }
    }
    stream.close().await?;
    if what & 16 == 0 { stream.read(&mut received).await.map(drop) } else { Ok(()) }
}

/// The same with a connection of messages.
async fn talk_in_messages(mut messages: impl Messages, what: u16, bytes: usize) -> Result<(), NetError> {
    let message = vec![0; bytes];
    for _ in 0..what % 4 {
        if what & 4 == 0 {
            messages.send(&message).await?;
        }
        if what & 8 == 0
            && let Some(received) = messages.receive().await?
        {
            assert!(received.len() <= BUFFER_BYTES as usize, "a message is longer than the window");
        }
    }
    messages.close().await?;
    if what & 16 == 0 { messages.receive().await.map(drop) } else { Ok(()) }
}

/// A machine with a socket device.
struct Machine {
    device: Vsock<Fake, GuardedDma>,
    sockets: Sockets,
    tasks: Vec<SocketTask>,
}

impl Machine {
    /// What the loop of a core does once.
    fn round(&mut self) {
        self.device.poll();
        if self.device.take_reset() {
            self.sockets.reset_all(self.device.cid());
        }
        while let Some(packet) = self.device.receive() {
            match self.sockets.receive(Header::parse(&packet.header), packet.buffer, packet.bytes) {
                Some(buffer) => self.device.give(buffer),
                None => self.device.give_new(),
            }
        }
        self.tasks.retain_mut(|task| task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        self.sockets.poll();
        while self.device.has_space() {
            let Some(packet) = self.sockets.next_packet() else { break };
            if !self.device.send(&packet.header.bytes(), packet.data) {
                break;
            }
        }
        self.device.kick();
        if self.device.arm() {
            self.device.disarm();
        }
    }
}

/// Sends a packet. The ports of connections that the machine has opened are in `ports`.
fn deliver(malfunctioning: &MalfunctioningDevice, ports: &[u32], step: &Step) {
    let mut state = malfunctioning.fake.state();
    let Some(queue) = state.queues.iter_mut().find(|queue| queue.number == RECEIVE_QUEUE) else { return };
    let Some(chain) = queue.take() else { return };
    let count = ports.len().max(1);
    let opened = ports.get(usize::from(step.queue >> 4) % count).copied();
    let (our_port, peer_port) = match opened.filter(|_| step.queue & 8 != 0) {
        Some(port) => (port, PORT),
        None => (PORT, 1000 + u32::from(step.queue % 4)),
    };
    let data_bytes = if step.small & 0xf == 5 { step.large >> 16 & 0xfff } else { 0 };
    let mut header = [0; HEADER_BYTES];
    header[0] = VsockAddress::HOST as u8;
    header[8] = OUR_CID as u8;
    header[16..20].copy_from_slice(&peer_port.to_le_bytes());
    header[20..24].copy_from_slice(&our_port.to_le_bytes());
    header[24..28].copy_from_slice(&data_bytes.to_le_bytes());
    header[28] = 1 + (step.small >> 15) as u8;
    header[30] = (step.small & 0xf) as u8;
    header[32] = (step.small >> 4 & 3) as u8;
    header[36..40].copy_from_slice(&(step.large & 0xffff).to_le_bytes());
    header[40..44].copy_from_slice(&(u32::from(step.small >> 6 & 0xff)).to_le_bytes());
    if step.what == 19 {
        let place = step.large as usize % HEADER_BYTES;
        header[place] ^= step.small as u8;
    }
    let written = chain.write(&[&header[..], &vec![step.large as u8; data_bytes as usize]].concat());
    queue.complete(chain.head, written);
}

/// Takes what the machine has sent, and the ports of its connections.
fn take(malfunctioning: &MalfunctioningDevice, ports: &mut Vec<u32>) {
    let mut state = malfunctioning.fake.state();
    for queue in state.queues.iter_mut().filter(|queue| queue.number == 1) {
        while let Some(chain) = queue.take() {
            let packet = chain.read();
            if let Some(header) = packet.first_chunk::<HEADER_BYTES>() {
                let header = Header::parse(header);
                assert_eq!(
                    header.data_bytes as usize,
                    packet.len() - HEADER_BYTES,
                    "a packet is as long as its header reports"
                );
                if !ports.contains(&header.source_port) && header.source_port != PORT {
                    ports.push(header.source_port);
                }
            }
            queue.complete(chain.head, 0);
        }
    }
}

fn run(fake: Fake, steps: &[Step]) {
    let mut malfunctioning = MalfunctioningDevice { fake: fake.clone(), held: Vec::new() };
    let now = Rc::new(Cell::new(Instant(1 << 40)));
    let clock = now.clone();
    let Ok(device) = Vsock::new(fake, GuardedDma, DEVICE) else { return };
    let config = Config {
        connections_max: CONNECTIONS_MAX,
        buffer_bytes: BUFFER_BYTES,
        has_messages: device.has_messages(),
        ..Config::default()
    };
    let sockets = Sockets::new(device.cid(), config, 7, move || clock.get());
    let mut machine = Machine { device, sockets, tasks: Vec::new() };
    let mut ports = Vec::new();
    for step in steps {
        match step.what {
            11..=13 => take(&malfunctioning, &mut ports),
            14..=19 => deliver(&malfunctioning, &ports, step),
            20..=25 if machine.tasks.len() < TASKS_MAX => {
                let (sockets, what, bytes) = (machine.sockets.clone(), step.small, 1 + step.large as usize % 20_000);
                let is_server = step.queue & 1 == 0;
                let remote = VsockAddress { cid: VsockAddress::HOST, port: PORT };
                if step.queue & 2 != 0 {
                    machine.tasks.push(Box::pin(async move {
                        let messages = if is_server {
                            let Ok(mut listener) = sockets.listen_messages(PORT) else { return };
                            listener.accept().await
                        } else {
                            sockets.connect_messages(remote).await
                        };
                        if let Ok(messages) = messages {
                            let _ = talk_in_messages(messages, what, bytes).await;
                        }
                    }));
                    continue;
                }
                machine.tasks.push(Box::pin(async move {
                    let stream = if is_server {
                        let Ok(mut listener) = sockets.listen(PORT) else { return };
                        listener.accept().await
                    } else {
                        sockets.connect(remote).await
                    };
                    if let Ok(stream) = stream {
                        let _ = talk(stream, what, bytes).await;
                    }
                }));
            }
            26 if !machine.tasks.is_empty() => {
                let count = machine.tasks.len();
                drop(machine.tasks.swap_remove(usize::from(step.small) % count));
            }
            27 => now.set(now.get() + Duration::from_millis(step.small.into())),
            20..=35 => {
                machine.round();
                if machine.device.violation().is_some() && step.small & 1 == 0 {
                    let _ = machine.device.restart();
                    machine.sockets.reset_all(machine.device.cid());
                    // A device that was reset has no requests.
                    malfunctioning.held.clear();
                }
            }
            _ => malfunctioning.step(step),
        }
        let count = machine.sockets.connection_count();
        assert!(count <= CONNECTIONS_MAX + TASKS_MAX, "{count} connections");
    }
    machine.tasks.clear();
    for _ in 0..4 {
        machine.round();
        now.set(now.get() + BEYOND_CLOSE);
    }
    assert_eq!(machine.sockets.connection_count(), 0, "connections are left that nothing uses");
}

impl Target for HostSockets {
    fn name(&self) -> &'static str {
        "vsock"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let packet = |queue: u8, operation: u8, bytes: u8| [14, queue, operation, 0, 0xff, 0x7f, bytes, 0];
        // Of a connection of messages.
        let part = |queue: u8, operation: u8, bytes: u8| [14, queue, operation, 0x80, 0xff, 0x7f, bytes, 0];
        let round = [30, 0, 1, 0, 0, 0, 0, 0];
        let take = [11, 0, 0, 0, 0, 0, 0, 0];
        let served = [[20, 0, 1, 0, 50, 0, 0, 0], round, packet(0, 1, 0), round, take, packet(0, 5, 99), round, take];
        let opened = [[20, 1, 2, 0, 50, 0, 0, 0], round, take, packet(8, 2, 0), round, take, packet(8, 5, 50), round];
        let ends = [take, packet(0, 6, 0), packet(0, 0x34, 0), round, packet(8, 0x34, 0), packet(8, 3, 0), round, take];
        let in_messages =
            [[20, 2, 1, 0, 50, 0, 0, 0], round, part(0, 1, 0), round, take, part(0, 0x15, 99), round, take];
        let opened_in_messages =
            [[20, 3, 2, 0, 50, 0, 0, 0], round, take, part(8, 2, 0), round, take, part(8, 0x15, 50), round];
        [served, opened, in_messages, opened_in_messages]
            .into_iter()
            .enumerate()
            .map(|(index, steps)| [&[index as u8][..], steps.as_flattened(), ends.as_flattened()].concat())
            .collect()
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        change(bytes, corpus, HEAD_BYTES, rng);
    }

    fn bytes_max(&self) -> usize {
        HEAD_BYTES + STEP_BYTES * STEPS_MAX
    }

    fn run(&self, input: &[u8]) {
        let Some((head, rest)) = input.split_first() else { return };
        let event_idx = if head & 1 == 0 { 0 } else { feature::EVENT_IDX };
        let features = event_idx | if head & 2 == 0 { 0 } else { SEQPACKET };
        run(Fake::new(device::VSOCK, features, &u64::from(OUR_CID).to_le_bytes()), &Step::all(rest));
        assert_undamaged();
    }
}
