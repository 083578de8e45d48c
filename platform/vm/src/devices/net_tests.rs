//! Two virtio cards with a TCP stack each, joined by a wire in memory.

use super::StackCard;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use glass_drivers_device::Driver;
use glass_drivers_virtio::fake::{DAMAGED, Fake, GuardedDma};
use glass_drivers_virtio::{Net, NetConfig, device, feature};
use glass_lib_net::FrameDevice;
use glass_lib_net::smoltcp::iface::{Config, Interface, SocketSet};
use glass_lib_net::smoltcp::socket::tcp;
use glass_lib_net::smoltcp::time::Instant;
use glass_lib_net::smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};

const PLAIN: u64 = feature::EVENT_IDX | feature::NET_MAC;
const CHECKSUMS: u64 = PLAIN | feature::NET_CSUM | feature::NET_GUEST_CSUM;
const ALL: u64 = CHECKSUMS | feature::NET_HOST_TSO4 | feature::NET_GUEST_TSO4;
const NOW: Instant = Instant::ZERO;
const HEADER_BYTES: usize = 12;

/// One end: a driver and a TCP stack.
struct Host {
    fake: Fake,
    device: FrameDevice<StackCard<Net<Fake, GuardedDma>>>,
    interface: Interface,
    sockets: SocketSet<'static>,
    largest_sent: usize,
}

fn host(features: u64, number: u8) -> Host {
    let fake = Fake::new(device::NET, features, &[2, 0, 0, 0, 0, number]);
    let net = Net::new(fake.clone(), GuardedDma, NetConfig::default()).unwrap();
    let mac = EthernetAddress(net.mac());
    let mut device = FrameDevice(StackCard(net));
    let mut interface = Interface::new(Config::new(mac.into()), &mut device, NOW);
    interface.update_ip_addrs(|list| list.push(IpCidr::new(IpAddress::v4(10, 0, 0, number), 24)).unwrap());
    let buffer = || tcp::SocketBuffer::new(vec![0; 256 << 10]);
    let mut sockets = SocketSet::new(Vec::new());
    let mut socket = tcp::Socket::new(buffer(), buffer());
    // The default depends on features that other crates of the workspace enable.
    socket.set_congestion_control(tcp::CongestionControl::None);
    sockets.add(socket);
    Host { fake, device, interface, sockets, largest_sent: 0 }
}

/// Carries frames from one to the other as a TAP bridge does: a frame whose checksum or
/// segmentation is left to a device passes as it is. Every `lose`th frame is lost.
fn carry(from: &mut Host, to: &mut Host, carried: &mut usize, lose: usize) {
    while let Some(chain) = from.fake.with(1, |queue| queue.take()) {
        from.fake.with(1, |queue| queue.complete(chain.head, 0));
        let bytes = chain.read();
        from.largest_sent = from.largest_sent.max(bytes.len());
        *carried += 1;
        if carried.is_multiple_of(lose) {
            continue;
        }
        to.fake.with(0, |queue| {
            if let Some(chain) = queue.take() {
                let written = chain.write(&bytes);
                assert_eq!(written as usize, bytes.len());
                queue.complete(chain.head, written);
            }
        });
    }
}

#[test]
fn tcp_passes_with_and_without_offload() {
    const TOTAL: usize = 3 << 20;
    for (features, lose) in [(PLAIN, 1000), (CHECKSUMS, 1000), (ALL, usize::MAX), (ALL, 40)] {
        let (mut a, mut b) = (host(features, 1), host(features, 2));
        let handle = a.sockets.iter().next().unwrap().0;
        b.sockets.get_mut::<tcp::Socket>(handle).listen(80).unwrap();
        let remote = (IpAddress::v4(10, 0, 0, 2), 80);
        a.sockets.get_mut::<tcp::Socket>(handle).connect(a.interface.context(), remote, 4000).unwrap();
        let (mut sent, mut received, mut carried) = (0, 0, 0);
        for round in 0..40_000 {
            let now = Instant::from_millis(round);
            for host in [&mut a, &mut b] {
                host.device.0.0.poll();
                host.interface.poll(now, &mut host.device, &mut host.sockets);
                host.device.0.0.kick();
            }
            let socket = a.sockets.get_mut::<tcp::Socket>(handle);
            if sent < TOTAL && socket.can_send() {
                sent += socket
                    .send(|buffer| {
                        let count = buffer.len().min(TOTAL - sent);
                        buffer[..count].iter_mut().enumerate().for_each(|(at, byte)| *byte = ((sent + at) % 251) as u8);
                        (count, count)
                    })
                    .unwrap();
            }
            let socket = b.sockets.get_mut::<tcp::Socket>(handle);
            if socket.can_recv() {
                received += socket
                    .recv(|bytes| {
                        let right = |(at, &byte): (usize, &u8)| byte == ((received + at) % 251) as u8;
                        assert!(bytes.iter().enumerate().all(right));
                        (bytes.len(), bytes.len())
                    })
                    .unwrap();
            }
            if received == TOTAL {
                break;
            }
            carry(&mut a, &mut b, &mut carried, lose);
            carry(&mut b, &mut a, &mut carried, lose);
        }
        assert_eq!(received, TOTAL, "features {features:#x}, one in {lose} lost");
        // Segmentation by the device: frames far longer than the wire's.
        assert_eq!(a.largest_sent > 30_000, features == ALL, "{} bytes", a.largest_sent);
        assert!(a.largest_sent <= 65535 + HEADER_BYTES);
    }
    assert_eq!(DAMAGED.load(Ordering::SeqCst), 0);
}
