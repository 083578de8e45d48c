//! Devices of a running VM that break: the console and the trace have a report of each, the device is started again once, and the service
//! continues. Over PCI, where a change of the configuration has a message of its own (decision 13). The VM's memory is changed from outside in such a way that QEMU's own card gives up, and that a disk's answers are invalid.

use crate::buses::PCI;
use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::qmp::{Memory, Qmp};
use glass_tests::queue::{self, Options, World, service_pid};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

glass_tests::in_worlds!(kvm Kvm: a_device_that_breaks_is_reported_and_started_again_once within 300;);
glass_tests::in_worlds!(tcg Tcg: a_device_that_breaks_is_reported_and_started_again_once within 300;);

/// How long a loaded machine may take for anything.
const PATIENCE: Duration = Duration::from_secs(240);
const DESCRIPTOR_BYTES: u64 = 16;
/// Offset of the flags in a descriptor; the index of the next one follows them.
const DESCRIPTOR_FLAGS: u64 = 12;
/// `VIRTQ_DESC_F_NEXT | VIRTQ_DESC_F_WRITE`, and an index that no table has.
const CHAIN_WITHOUT_END: [u8; 4] = [3, 0, 0xff, 0xff];
/// Offset of the index in the used ring.
const USED_INDEX: u64 = 2;

const CARD_AGAIN: &str = "net broke: it requested a reset; it was started again";
const DISK_AGAIN: &str = "; it was started again, and its requests in flight have failed";
const DISK_GIVEN_UP: &str = "; it is not used any more, because it broke before";

struct Vm {
    process: Process,
    qemu: u32,
    address: SocketAddr,
}

impl Vm {
    /// Waits until the console has a line with all of `words`.
    fn wait_for_line(&mut self, words: &[&str]) {
        let end = Instant::now() + PATIENCE;
        while !self.process.output().lines().any(|line| words.iter().all(|word| line.contains(word))) {
            let ended = self.process.ended();
            assert!(ended.is_none() && Instant::now() < end, "no {words:?}: {}", self.process.output());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for an answer to a request, which a card that is started again may lose.
    fn wait_for_answer(&mut self) {
        let end = Instant::now() + PATIENCE;
        while queue::answer(self.address, Duration::from_secs(2)).is_none() {
            let ended = self.process.ended();
            assert!(ended.is_none() && Instant::now() < end, "no answer: {}", self.process.output());
        }
    }

    fn put(&self, seed: u64) -> u16 {
        let item = item(seed);
        let mut client = Client::connect(self.address).unwrap();
        client.put("/uploader", item.length_bytes, &mut item.reader()).unwrap().status()
    }

    fn take(&self, seed: u64) {
        let mut checker = item(seed).checker();
        let response = Client::connect(self.address).unwrap().get_into("/downloader", &mut checker).unwrap();
        assert_eq!((response.status(), checker.verdict()), (200, Ok(())));
        let removed = Client::connect(self.address).unwrap().request_if_match("DELETE", "/downloader", response.etag());
        assert_eq!(removed.unwrap().status(), 200);
    }

    /// Has the card find chains of descriptors that lead out of their table: QEMU gives such a device up at the next frame, and requests
    /// its reset.
    fn break_card(&self) {
        let rings = Qmp::of_glass_run(self.qemu).unwrap().queue("virtio-net", 0).unwrap();
        let memory = Memory::of(self.qemu).unwrap();
        for index in 0..rings.size {
            let flags = rings.descriptors + index * DESCRIPTOR_BYTES + DESCRIPTOR_FLAGS;
            memory.write(flags, &CHAIN_WITHOUT_END).unwrap();
        }
    }

    /// Has the disk answer more requests than there are.
    fn break_disk(&self) {
        let rings = Qmp::of_glass_run(self.qemu).unwrap().queue("virtio-blk", 0).unwrap();
        let memory = Memory::of(self.qemu).unwrap();
        let index = memory.read_u16(rings.used + USED_INDEX).unwrap();
        memory.write(rings.used + USED_INDEX, &index.wrapping_add(5000).to_le_bytes()).unwrap();
    }
}

fn item(seed: u64) -> Content {
    Content { seed, length_bytes: 100_000 }
}

fn a_device_that_breaks_is_reported_and_started_again_once(world: World) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let folder = Folder::new("broken").unwrap();
    let recording = folder.file("broken.pftrace");
    let port = glass_tests::port::free_port().unwrap();
    let options = Options { disk_size: "16M".into(), vm: PCI.to_vec(), ..Options::default() };
    let Some(command) = queue::command(world, &folder.file("queue.img"), port, &options) else { return };
    // The options of `glass run` come before the service's arguments.
    let mut traced = Command::new(command.get_program());
    let words: Vec<_> = command.get_args().collect();
    let (run, service) = words.split_at(words.iter().position(|word| *word == "--").unwrap());
    traced.args(run).arg("--trace=spans").arg("--output").arg(&recording).args(service);
    let process = Process::spawn(&mut traced, &folder.file("log")).unwrap();
    let mut vm = Vm { process, qemu: 0, address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)) };
    vm.wait_for_answer();
    vm.qemu = service_pid(world, &vm.process).unwrap();
    assert_eq!(vm.put(1), 200);

    vm.break_card();
    vm.wait_for_answer();
    vm.wait_for_line(&[CARD_AGAIN]);
    assert_eq!(vm.put(2), 200);

    vm.break_disk();
    // Its requests in flight fail; there need be none yet.
    let status = vm.put(3);
    assert!([200, 500].contains(&status), "{status}");
    vm.wait_for_line(&["disk 0 broke: ", DISK_AGAIN]);
    assert_eq!(vm.put(4), 200);
    vm.take(1);
    vm.take(2);
    if status == 200 {
        vm.take(3);
    }
    vm.take(4);

    vm.break_disk();
    let status = vm.put(5);
    assert_eq!(status, 500, "{}", vm.process.output());
    vm.wait_for_line(&["disk 0 broke: ", DISK_GIVEN_UP]);
    let health = Client::connect(vm.address).unwrap().request("GET", "/is-it-up").unwrap();
    assert_eq!(health.status(), 404, "the service runs without its disk");
    vm.process.interrupt(PATIENCE);

    let exported = folder.file("broken.json");
    let mut export = Command::new(programs::built("glass").unwrap());
    export.args(["export", "--format", "chrome"]).arg(&recording).arg("--output").arg(&exported);
    let output = export.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let trace = std::fs::read_to_string(exported).unwrap();
    for report in [CARD_AGAIN, DISK_AGAIN, DISK_GIVEN_UP] {
        assert!(trace.contains(report), "the trace lacks {report:?}");
    }
}
