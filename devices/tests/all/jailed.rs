//! What a device does for a correct guest, from inside of its jail.

use crate::model::{self, FLUSH, Guest, Model, NEXT, SIZE, WRITE, place, wait_until};
use glass_tests::folder::Folder;
use glass_tests::netns::{Namespace, obstacle};
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;

/// Types of a request (virtio 1.2, section 5.2.6).
const READ: u32 = 0;
const WRITE_DATA: u32 = 1;
const FLUSH_DISK: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;
const DATA: u64 = 0x10_0000;
const NO_STATUS: u8 = 0xee;

/// A guest's driver, which does one thing after the other.
struct Driver {
    guest: Guest,
    kick: OwnedFd,
    queue: u64,
    count: u16,
}

impl Driver {
    fn new(model: &Model, queue: usize) -> Driver {
        Driver { guest: model.guest.clone(), kick: model.kick(queue), queue: queue as u64, count: 0 }
    }

    /// Offers the chain at the first descriptor, and waits until it is given back.
    fn offer(&mut self) {
        let place = place(self.queue);
        self.guest.write(0_u16, place.available + 4 + u64::from(self.count % SIZE) * 2);
        self.count += 1;
        self.guest.write(self.count, place.available + 2);
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).unwrap();
        wait_until("the device gives the chain back", || self.guest.read::<u16>(place.used + 2) == self.count);
    }

    /// A request of a disk: its status.
    fn request(&mut self, kind: u32, sector: u64, read: &[u8], written: u32) -> u8 {
        let (table, guest) = (place(self.queue).descriptors, self.guest.clone());
        guest.write(u128::from(kind) | u128::from(sector) << 64, DATA);
        guest.write(NO_STATUS, DATA + 16);
        guest.descriptor(table, 0, DATA, 16, NEXT, 1);
        for (index, byte) in (0..).zip(read) {
            guest.write(*byte, DATA + 0x1000 + index);
        }
        let (bytes, flags) = if read.is_empty() { (written, WRITE) } else { (read.len() as u32, 0) };
        guest.descriptor(table, 1, DATA + 0x1000, bytes, NEXT | flags, 2);
        guest.descriptor(table, 2, DATA + 16, 1, WRITE, 0);
        self.offer();
        guest.read(DATA + 16)
    }
}

fn range(sector: u64, sectors: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &[0; 4]].concat()
}

/// All that this test can do as root; an ordinary user has no other user to become.
fn check_walls(model: &Model) {
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(model.status("NoNewPrivs"), "1");
    assert_eq!(u64::from_str_radix(&model.status("CapEff"), 16), Ok(0));
    assert_eq!(u64::from_str_radix(&model.status("CapPrm"), 16), Ok(0));
    let users: Vec<String> = model.status("Uid").split_whitespace().map(str::to_owned).collect();
    assert!(!is_root || users.iter().all(|user| user != "0"), "{users:?}");
    assert_eq!(model.status("Seccomp"), "2");
}

#[test]
fn a_disk_serves_all_requests() {
    if !model::has_disk() {
        return;
    }
    for (options, features) in [(&[][..], FLUSH), (&[], 0), (&["direct"], FLUSH), (&["direct"], 0)] {
        let folder = Folder::new("jailed-disk").unwrap();
        let path = model::disk(&folder);
        let model = Model::start(&folder, None, &[&["disk", &path][..], options].concat(), 1, features);
        let mut driver = Driver::new(&model, 0);
        let data: Vec<u8> = (0..=255).cycle().take(8192).collect();
        for (kind, sector, read, written) in [
            (WRITE_DATA, 8, &data[..], 0),
            (FLUSH_DISK, 0, &[], 0),
            (READ, 8, &[], 8192),
            (GET_ID, 0, &[], 20),
            (DISCARD, 0, &range(1024, 1024), 0),
            (WRITE_ZEROES, 0, &range(16, 8), 0),
            (FLUSH_DISK, 0, &[], 0),
        ] {
            let status = driver.request(kind, sector, read, written);
            assert_eq!(status, 0, "{options:?} {features:#x} {kind}: {}", model.device.output());
        }
        check_walls(&model);
        // The queue stops, and starts again.
        assert_eq!(model.stop(0), u32::from(driver.count));
        model.run(0, driver.count.into());
        assert_eq!(driver.request(READ, 8, &[], 512), 0);
        let first: u8 = driver.guest.read(DATA + 0x1001);
        assert_eq!(first, 1);
        let on_disk = fs::read(&path).unwrap();
        assert_eq!(on_disk[4096..8192], data[..4096]);
        assert_eq!(on_disk[8192..12288], [0; 4096]);
        assert_eq!(model.broken(0), 0);
        assert_eq!(model.end(), (Some(0), String::new()), "{options:?}");
    }
}

/// A block device of 16 MiB whose sectors have 4 KiB, over a file. Dropping it removes it.
struct LongSectors(String);

impl LongSectors {
    fn new(file: &str) -> Option<LongSectors> {
        let output = Command::new("losetup").args(["--find", "--show", "--sector-size", "4096", file]).output();
        let device = output.ok().filter(|output| output.status.success());
        device.map(|output| LongSectors(String::from_utf8(output.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for LongSectors {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// A guest's requests are of 512 bytes, whatever the host's disk has.
#[test]
fn a_disk_of_the_host_with_longer_sectors_is_written_and_zeroed() {
    if !model::has_disk() {
        return;
    }
    let folder = Folder::new("jailed-sectors").unwrap();
    let Some(device) = LongSectors::new(&model::disk(&folder)) else {
        println!("skipped: only root may make a loop device");
        return;
    };
    for (options, features) in [(&[][..], FLUSH), (&["direct"], 0)] {
        let folder = Folder::new("jailed-sectors-run").unwrap();
        let model = Model::start(&folder, None, &[&["disk", &device.0][..], options].concat(), 1, features);
        let mut driver = Driver::new(&model, 0);
        for (kind, sector, read, written, expected) in [
            (WRITE_DATA, 8, &[7; 4096][..], 0, None),
            (WRITE_ZEROES, 0, &range(9, 3), 0, None),
            (READ, 9, &[], 512, Some(0)),
            (READ, 12, &[], 512, Some(7)),
            (DISCARD, 0, &range(13, 1), 0, None),
        ] {
            let status = driver.request(kind, sector, read, written);
            assert_eq!(status, 0, "{options:?} {kind} {sector}: {}", model.device.output());
            let byte = expected.map(|_| driver.guest.read::<u8>(DATA + 0x1000));
            assert_eq!(byte, expected, "{options:?} {sector}");
        }
        assert_eq!(model.end(), (Some(0), String::new()), "{options:?}");
    }
}

#[test]
fn a_message_that_is_refused_ends_a_device_with_a_sentence() {
    if !model::has_disk() {
        return;
    }
    let folder = Folder::new("jailed-refused").unwrap();
    let model = Model::start(&folder, None, &["disk", &model::disk(&folder)], 1, FLUSH);
    model.send(99, &[], None);
    let (code, printed) = model.end();
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("QEMU sent the message 99, which this device does not know"), "{printed}");
}

#[test]
fn a_card_sends_frames() {
    if let Some(reason) = obstacle() {
        println!("skipped: {reason}");
        return;
    }
    let folder = Folder::new("jailed-card").unwrap();
    let namespace = Namespace::new().unwrap();
    let host = Ipv4Addr::new(10, 77, 0, 1);
    namespace.tap("tap0", host).unwrap();
    let receiver = namespace.inside(|| Ok(UdpSocket::bind((host, 7)).unwrap())).unwrap();
    receiver.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    // Checksums and segments of the guest, as its driver agrees to.
    let model = Model::start(&folder, Some(namespace.command("env")), &["tap", "tap0"], 2, 0b1_1001_1000_0011);
    let mut driver = Driver::new(&model, 1);
    let frame = datagram(host, b"text");
    for (index, byte) in (0..).zip(&frame) {
        driver.guest.write(*byte, DATA + index);
    }
    driver.guest.descriptor(place(1).descriptors, 0, DATA, frame.len() as u32, 0, 0);
    driver.offer();
    let mut bytes = [0; 16];
    assert_eq!(receiver.recv(&mut bytes).unwrap(), 4, "{}", model.device.output());
    assert_eq!(bytes[..4], *b"text");
    check_walls(&model);
    assert_eq!(model.end(), (Some(0), String::new()));
}

/// A frame with a datagram for port 7 of `host`, without a checksum of UDP.
fn datagram(host: Ipv4Addr, data: &[u8]) -> Vec<u8> {
    let mut ip = [0; 20];
    let bytes = 28 + data.len() as u16;
    (ip[0], ip[8], ip[9]) = (0x45, 64, 17);
    ip[2..4].copy_from_slice(&bytes.to_be_bytes());
    ip[12..16].copy_from_slice(&[10, 77, 0, 2]);
    ip[16..].copy_from_slice(&host.octets());
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    ip[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    let udp = [1000, 7, bytes - 20, 0].map(u16::to_be_bytes).concat();
    // The header of virtio, and a frame for all.
    [&[0; 12][..], &[0xff; 6], &[2, 0, 0, 0, 0, 2], &[8, 0], &ip, &udp, data].concat()
}
