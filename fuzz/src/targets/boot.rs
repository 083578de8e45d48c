//! Input of an image at its start: the command line, and tables of the firmware.

use fastrand::Rng;

use super::Target;
use crate::mutate;

// These modules belong to a crate that does not run on a host, and depend on nothing else of it.
#[allow(dead_code)]
#[path = "../../../platform/vm/src/machine/acpi.rs"]
mod acpi;
#[allow(dead_code)]
#[path = "../../../platform/vm/src/command_line.rs"]
mod command_line;

use command_line::CommandLine;

/// Stands for the one of `platform/vm/src/machine/mod.rs`, whose window no table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PciSegment {
    address: u64,
    first_bus: u8,
    last_bus: u8,
    window: Option<core::convert::Infallible>,
}

/// The words of a command line.
pub struct CommandLines;

impl Target for CommandLines {
    fn name(&self) -> &'static str {
        "command-line"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        [
            "ip=10.0.2.15/24,10.0.2.2 console=2 trace=cores,devices -- --port 8080 a%20b%25 %zz virtio_mmio.device=512@0xfeb00e00:12",
            "port = [8080, \"vsock:80\"] # two\ntries = 3\ndiscard = true\ncors-origin = \"https://a.example\"\n",
            "ip=dhcp quiet virtio_mmio.device=4K@0xfeb00c00:11:3 -- --",
        ]
        .map(|text| text.as_bytes().to_vec())
        .into()
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        mutate::text(bytes, corpus, rng);
    }

    fn bytes_max(&self) -> usize {
        64 << 10
    }

    fn run(&self, input: &[u8]) {
        let text = String::from_utf8_lossy(input);
        let line = CommandLine::parse(&text);
        let words = text.split_ascii_whitespace().count();
        assert!(line.args.len() + line.unknown.len() + line.devices.len() <= words);
        let _ = command_line::trace_groups(&text);
        let _ = upload_queue::Config::from_args(&line.args);
        let _ = upload_queue::Config::from_args_and_file(&[], input);
    }
}

/// Firmware tables: the address of the first, then memory, which repeats without end.
pub struct Acpi;

impl Target for Acpi {
    fn name(&self) -> &'static str {
        "acpi"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        // The tables' sizes and places: root at 0x100, FADT at 0x200, MADT at 0x300, MCFG at 0x400, AML at 0x480.
        let tables = |extended: bool, is_hardware_reduced: bool| {
            let mut memory = vec![0u8; 0x500];
            let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
            put(0x10 + 16, &0x100u32.to_le_bytes());
            if extended {
                put(0x10 + 15, &[2]);
                put(0x10 + 24, &0x100u64.to_le_bytes());
            }
            let pointer_bytes = if extended { 8 } else { 4 };
            put(0x104, &(36 + 3 * pointer_bytes as u32).to_le_bytes());
            for (index, table) in [0x200u32, 0x300, 0x400].into_iter().enumerate() {
                put(0x124 + pointer_bytes * index, &table.to_le_bytes());
            }
            put(0x200, b"FACP");
            put(0x228, &0x480u32.to_le_bytes());
            put(0x238, &0x600u32.to_le_bytes());
            put(0x270, &(u32::from(is_hardware_reduced) << 20).to_le_bytes());
            put(0x300, b"APIC");
            put(0x304, &(44u32 + 8 + 12 + 12 + 10).to_le_bytes());
            put(0x32c, &[0, 8, 0, 0, 1, 0, 0, 0]);
            put(0x334, &[1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0]);
            put(0x340, &[1, 12, 1, 0, 0, 0, 0xc1, 0xfe, 24, 0, 0, 0]);
            put(0x34c, &[2, 10, 0, 9, 9, 0, 0, 0, 13, 0]);
            put(0x400, b"MCFG");
            put(0x404, &60u32.to_le_bytes());
            put(0x42c, &0xe000_0000u64.to_le_bytes());
            put(0x434, &[0, 0, 0, 255, 0, 0, 0, 0]);
            put(0x480, b"DSDT");
            put(0x484, &0x60u32.to_le_bytes());
            put(0x490, b"ACPI0013\x89\x06\x00\x03\x01\x09\0\0\0[\x80EREG\0\x0c\0\0\xa0\xfe\x0a\x04");
            [&0x10u64.to_le_bytes()[..], &memory].concat()
        };
        vec![tables(false, false), tables(true, false), tables(false, true)]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        match rng.u32(..3) {
            0 => mutate::plain(bytes, corpus, rng),
            1 => mutate::fields(
                bytes,
                &[(0, 8), (31, 1), (32, 4), (40, 8), (0x10c, 4), (0x12c, 8), (0x134, 8), (0x278, 4)],
                rng,
            ),
            _ => mutate::words(bytes, 0, 4, rng),
        }
    }

    fn bytes_max(&self) -> usize {
        64 << 10
    }

    fn run(&self, input: &[u8]) {
        let Some((root, memory)) = input.split_first_chunk::<8>() else { return };
        let read = |address: u64| memory.get(address as usize % memory.len().max(1)).copied();
        let tables = acpi::Tables::read(u64::from_le_bytes(*root), read);
        assert!(tables.io_apics.len() <= 16 && tables.segments.len() <= 16 && tables.processors.len() <= 512);
        assert!(tables.segments.iter().all(|segment| segment.first_bus <= segment.last_bus));
    }
}
