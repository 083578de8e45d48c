//! The RAM layout of QEMU's machines, also above the hole below 4 GiB: words that QEMU itself writes
//! at physical addresses have to be found there. The VMs never run.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use glass_profiler_core::arch::Architecture;
use glass_profiler_guests::memory::{Physical, Ram};
use glass_tests::folder::Folder;
use glass_tests::programs::skip;
use glass_tests::qmp::Qmp;
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(120);
const GIB: u64 = 1 << 30;

struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn read(ram: &Ram, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    ram.read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
}

/// What may be the RAM of a process, the likeliest first.
fn layouts(pid: u32) -> Vec<Ram> {
    let candidates = Ram::candidates(pid, Architecture::X86_64).unwrap_or_default();
    let proposals: Vec<Ram> = candidates.iter().flat_map(Ram::proposals).collect();
    candidates.into_iter().chain(proposals).collect()
}

/// Starts a stopped VM, with a different word at each address; checks that they are read.
fn expect_words(machine: &str, addresses: &[u64], is_file: bool) {
    let word = |address: u64| address ^ 0x5a5a_1234_5678_a5a5;
    let mut command = Command::new("qemu-system-x86_64");
    command.args(machine.split(' ')).args([
        "-S",
        "-accel",
        "tcg",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
    ]);
    for address in addresses {
        command.arg("-device").arg(format!("loader,addr={address:#x},data={:#x},data-len=8", word(*address)));
    }
    let Ok(child) = command.stdin(Stdio::null()).spawn() else {
        return skip("there is no qemu-system-x86_64");
    };
    let mut qemu = Qemu(child);
    let start = Instant::now();
    let ram = loop {
        assert!(qemu.0.try_wait().unwrap().is_none(), "QEMU ended: {machine}");
        assert!(start.elapsed() < PATIENCE, "{machine}: no memory holds {addresses:x?}");
        let fits = |ram: &Ram| addresses.iter().all(|address| read(ram, *address) == Some(word(*address)));
        if let Some(ram) = layouts(qemu.0.id()).into_iter().find(fits) {
            break ram;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(ram.is_whole(), "{machine}");
    assert_eq!(ram.is_file(), is_file, "{machine}");
    // Addresses without RAM are not read: devices, the hole, addresses after the end.
    for address in [0xa_0000, 0xf_0000, 4 * GIB - 0x1000, 1 << 40] {
        assert_eq!(read(&ram, address), None, "{machine}: {address:#x}");
    }
    // Much at once is read in another way.
    let mut bytes = vec![0; 1 << 20];
    for address in addresses.iter().filter(|address| address.is_multiple_of(1 << 21)) {
        assert!(
            ram.read(*address, &mut bytes) && bytes[..8] == word(*address).to_le_bytes(),
            "{machine}: {address:#x}"
        );
    }
    assert!(!ram.read(4 * GIB - 0x1000, &mut bytes), "{machine}: more than there is");
}

fn memfd(machine: &str, gib: u64) -> String {
    format!("-M {machine},memory-backend=ram -m {gib}G -object memory-backend-memfd,id=ram,size={gib}G,share=on")
}

#[test]
fn q35_splits_at_2_gib() {
    expect_words(&memfd("q35", 5), &[0x20_0000, 2 * GIB - 4096, 4 * GIB, 7 * GIB - 8], true);
}

#[test]
fn pc_splits_at_3_gib() {
    expect_words(&memfd("pc", 5), &[0x20_0000, 3 * GIB - 4096, 4 * GIB, 6 * GIB - 8], true);
}

#[test]
fn microvm_splits_at_3_gib() {
    expect_words(&memfd("microvm", 5), &[0x20_0000, 3 * GIB - 4096, 4 * GIB, 6 * GIB - 8], true);
}

#[test]
fn memory_of_the_vmm_alone() {
    expect_words("-M q35 -m 3G", &[0x20_0000, 2 * GIB - 4096, 4 * GIB, 5 * GIB - 8], false);
}

#[test]
fn two_nodes() {
    let backend = |id: &str, gib: u64| format!("-object memory-backend-memfd,id={id},size={gib}G,share=on");
    let machine = format!(
        "-M q35 -m 4G -smp 2 {} {} -numa node,memdev=a,cpus=0 -numa node,memdev=b,cpus=1",
        backend("a", 1),
        backend("b", 3)
    );
    expect_words(&machine, &[0x20_0000, GIB - 8, GIB, 2 * GIB - 4096, 4 * GIB, 6 * GIB - 8], true);
}

#[test]
fn three_nodes() {
    let backend = |id: &str, gib: u64| format!("-object memory-backend-memfd,id={id},size={gib}G,share=on");
    let machine = format!(
        "-M q35 -m 6G -smp 3 {} {} {} -numa node,memdev=a,cpus=0 -numa node,memdev=b,cpus=1 -numa node,memdev=c,cpus=2",
        backend("a", 1),
        backend("b", 3),
        backend("c", 2)
    );
    let addresses = [0x20_0000, GIB - 8, GIB, 2 * GIB - 4096, 4 * GIB, 6 * GIB - 8, 6 * GIB, 8 * GIB - 8];
    expect_words(&machine, &addresses, true);
}

/// QEMU itself reports where memory is that was added while it runs; a word in its file has to be found there.
fn check_added_memory(accel: &str) {
    let folder = Folder::new("added").unwrap();
    let socket = folder.file("monitor");
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-S", "-accel", accel, "-cpu", "qemu64", "-nodefaults", "-no-user-config", "-display", "none"]);
    command.args(["-M", "q35,memory-backend=ram", "-m", "3G,slots=2,maxmem=8G"]);
    command.args(["-object", "memory-backend-memfd,id=ram,size=3G,share=on", "-qmp"]);
    let Ok(child) = command.arg(format!("unix:{},server=on,wait=off", socket.display())).stdin(Stdio::null()).spawn()
    else {
        return skip("there is no qemu-system-x86_64");
    };
    let qemu = Qemu(child);
    let mut monitor = Qmp::connect(&socket).unwrap();
    const BYTES: u64 = GIB;
    let backend = json!({ "qom-type": "memory-backend-memfd", "id": "more", "size": BYTES, "share": true });
    monitor.execute("object-add", backend).unwrap();
    monitor.execute("device_add", json!({ "driver": "pc-dimm", "id": "dimm", "memdev": "more" })).unwrap();
    let devices = monitor.execute("query-memory-devices", json!({})).unwrap();
    let address = devices[0]["data"]["addr"].as_u64().unwrap();
    let file = std::fs::read_dir(format!("/proc/{}/fd", qemu.0.id())).unwrap().map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|data| data.is_file() && data.len() == BYTES)
            && std::fs::read_link(path).is_ok_and(|link| link.to_string_lossy().contains("memfd"))
    };
    let file = File::options().write(true).open({ file }.find(is_it).unwrap()).unwrap();
    let words = [(0, 0x1234_5678), (BYTES / 2, 0x2345_6789), (BYTES - 8, 0x3456_789a)];
    words.iter().for_each(|(at, word)| file.write_all_at(&u64::to_le_bytes(*word), *at).unwrap());
    let fits = |ram: &Ram| words.iter().all(|(at, word)| read(ram, address + at) == Some(*word));
    let all = layouts(qemu.0.id());
    let ram = all.iter().find(|ram| fits(ram)).unwrap_or_else(|| panic!("{accel}: none of {} fits", all.len()));
    assert!(ram.is_whole() && ram.is_file(), "{accel}");
    for hole in [5 * GIB / 2, address + BYTES] {
        assert_eq!(read(ram, hole), None, "{accel}: {hole:#x}");
    }
    eprintln!("{accel}: the added memory is at {address:#x}, in one of {} layouts", all.len());
}

#[test]
fn memory_that_is_added_while_qemu_runs() {
    check_added_memory("tcg");
}

/// With KVM its memory slots show the memory.
#[test]
fn memory_that_is_added_while_qemu_runs_with_kvm() {
    if File::options().read(true).write(true).open("/dev/kvm").is_err() {
        return skip("/dev/kvm cannot be used");
    }
    check_added_memory("kvm");
}
