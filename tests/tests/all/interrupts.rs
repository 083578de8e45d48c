//! An interrupt where interrupts are off, as an emulator delivers it that repeats one: it is ignored.

use glass_tests::folder::Folder;
use glass_tests::limit::within;
use glass_tests::programs;
use glass_tests::qemu::Qemu;
use object::{Object, ObjectSymbol};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(480);
const PATIENCE: Duration = Duration::from_secs(240);
/// Interrupts at random moments.
const INTERRUPTS: usize = 20;
/// The vector of the timer, and the distance of the vectors' stubs.
const TIMER: u64 = 0x40;
const STUB_BYTES: u64 = 16;
/// Selectors of ring 0 and of ring 3, in the image's table of segments.
const KERNEL: [u32; 2] = [0x08, 0x10];
const USER_CODE: u32 = 0x33;

/// Offsets in the registers of QEMU's debugger interface: general registers of 8 bytes, rip, then words of 4 bytes.
const RSP: usize = 7 * 8;
const RIP: usize = 16 * 8;
const FLAGS: usize = 17 * 8;
const CODE: usize = FLAGS + 4;
const STACK: usize = CODE + 4;

/// QEMU's debugger interface; the VM is stopped while this exists.
struct Debugger(UnixStream);

impl Debugger {
    fn connect(socket: &Path) -> Debugger {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Debugger(stream)
    }

    /// Sends a command and returns the answer to it.
    fn command(&mut self, text: &str) -> String {
        let sum = text.bytes().fold(0, u8::wrapping_add);
        write!(self.0, "${text}#{sum:02x}").unwrap();
        loop {
            let packet = self.packet();
            // Not the answer, but the report that the VM has stopped.
            if !packet.starts_with('T') {
                return packet;
            }
        }
    }

    fn packet(&mut self) -> String {
        let mut bytes = Vec::new();
        while !matches!(bytes[..], [.., b'#', _, _]) {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            bytes.extend(byte);
        }
        write!(self.0, "+").unwrap();
        let begin = bytes.iter().position(|byte| *byte == b'$').unwrap() + 1;
        String::from_utf8(bytes[begin..bytes.len() - 3].to_vec()).unwrap()
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Does what a processor does that takes the timer's interrupt, if ring 3 runs. Returns whether it does.
fn interrupt(socket: &Path, stubs: u64) -> bool {
    let mut debugger = Debugger::connect(socket);
    let mut registers = bytes(&debugger.command("g"));
    let long = |registers: &[u8], at: usize| u64::from_le_bytes(registers[at..at + 8].try_into().unwrap());
    let word = |registers: &[u8], at: usize| u32::from_le_bytes(registers[at..at + 4].try_into().unwrap());
    let runs_service = word(&registers, CODE) == USER_CODE;
    if runs_service {
        let words = |at: usize| u64::from(word(&registers, at));
        // The frame, in a part of the service's stack that is not in use.
        let frame = (long(&registers, RSP) - 8192) & !15;
        let values = [long(&registers, RIP), words(CODE), words(FLAGS), long(&registers, RSP), words(STACK)];
        let content = hex(&values.map(u64::to_le_bytes).concat());
        assert_eq!(debugger.command(&format!("M{frame:x},{:x}:{content}", 8 * values.len())), "OK");
        registers[RSP..RSP + 8].copy_from_slice(&frame.to_le_bytes());
        registers[RIP..RIP + 8].copy_from_slice(&(stubs + TIMER * STUB_BYTES).to_le_bytes());
        registers[CODE..CODE + 4].copy_from_slice(&KERNEL[0].to_le_bytes());
        registers[STACK..STACK + 4].copy_from_slice(&KERNEL[1].to_le_bytes());
        assert_eq!(debugger.command(&format!("G{}", hex(&registers))), "OK");
    }
    assert_eq!(debugger.command("D"), "OK");
    runs_service
}

fn address_of(image: &Path, symbol: &str) -> u64 {
    let file = std::fs::read(image).unwrap();
    let file = object::File::parse(&*file).unwrap();
    file.symbols().find(|found| found.name() == Ok(symbol)).expect("a symbol of the image").address()
}

#[test]
fn an_interrupt_elsewhere_than_in_the_idle_service_is_ignored() {
    within(LIMIT, || {
        let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("busy")) else { return };
        let folder = Folder::new("interrupts").unwrap();
        let mut command = Command::new(glass);
        command.arg("run").arg(&image).args(["--accel", "tcg", "--net", "none"]);
        let mut qemu = Qemu::start(&mut command, &[], &[], &folder).unwrap();
        let lines = |text: &str| text.matches(" rounds until ").count();
        qemu.process.wait_for_text(" rounds until ", PATIENCE, || ());
        let stubs = address_of(&image, "glass_vector_stubs");
        let mut interrupts = 0;
        while interrupts < INTERRUPTS {
            interrupts += usize::from(interrupt(&folder.file("gdb"), stubs));
            // It computes on: one more line, without a report of a fault.
            let before = lines(&qemu.process.output());
            let end = std::time::Instant::now() + PATIENCE;
            while lines(&qemu.process.output()) == before {
                let said = qemu.process.output();
                assert!(qemu.process.ended().is_none() && std::time::Instant::now() < end, "{said}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
}
