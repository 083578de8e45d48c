//! The RAM layout of QEMU's machines, also above the hole below 4 GiB: words that QEMU itself writes
//! at physical addresses have to be found there. The VMs never run.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use glass_profiler_guests::memory::{Physical, Ram};
use glass_tests::programs::skip;

const PATIENCE: Duration = Duration::from_secs(30);
const GIB: u64 = 1 << 30;

struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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
    let read = |ram: &Ram, address: u64| {
        let mut bytes = [0; 8];
        ram.read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    };
    let ram = loop {
        assert!(qemu.0.try_wait().unwrap().is_none(), "QEMU ended: {machine}");
        assert!(start.elapsed() < PATIENCE, "{machine}: no memory holds {addresses:x?}");
        let candidates = Ram::candidates(qemu.0.id()).unwrap_or_default();
        let fits = |ram: &Ram| addresses.iter().all(|address| read(ram, *address) == Some(word(*address)));
        if let Some(ram) = candidates.into_iter().find(fits) {
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
