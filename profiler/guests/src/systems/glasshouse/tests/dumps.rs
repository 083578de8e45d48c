//! Traces in files of each kind.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use glass_profiler_core::event::Event;
use glass_profiler_core::trace::raw::RawTrace;

use super::super::dump::open_dump;
use super::{AREA_ADDRESS, Fake, numbers};
use crate::{Flow, Source};

/// A file of a test, gone with it.
struct Scrap(PathBuf);

impl Scrap {
    fn new(name: &str, bytes: &[u8]) -> Scrap {
        let path = std::env::temp_dir().join(format!("glass-dump-test-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Scrap(path)
    }
}

impl Drop for Scrap {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn bytes(words: &[std::sync::atomic::AtomicU64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
}

/// A guest with some events, one of which it was just writing.
fn fake() -> Fake {
    let fake = Fake::new();
    fake.push(0, 0..1500);
    fake.push(1, 0..3);
    // The slot of event 1500, half of it.
    fake.area[(1500 % 1024) * 4].store(1500, Ordering::Relaxed);
    fake
}

fn read(scrap: &Scrap) -> Result<(RawTrace, Vec<String>), String> {
    let mut dump = open_dump(&scrap.0, None, || ()).map_err(|error| error.to_string())?;
    let (mut trace, mut warnings) = (RawTrace::default(), Vec::new());
    for _ in 0..2 {
        let flow = dump.collect(Duration::ZERO, &mut |event| match event {
            Event::Trace(piece) => assert!(trace.add(piece)),
            Event::Warning(text) => warnings.push(text),
            other => panic!("{other:?}"),
        });
        assert_eq!(flow.unwrap(), Flow::Ended);
    }
    Ok((trace, warnings))
}

fn check(name: &str, file: &[u8]) {
    let (trace, warnings) = read(&Scrap::new(name, file)).unwrap();
    assert_eq!(warnings, [""; 0], "{name}");
    assert_eq!(numbers(&trace, 0), (477..1500).collect::<Vec<_>>(), "{name}");
    assert_eq!(numbers(&trace, 1), [0, 1, 2], "{name}");
    assert_eq!((trace.clock.len(), trace.clock[0].ticks, trace.clock[0].error_ns), (1, 1499, u64::MAX), "{name}");
}

/// RAM in which the control pages are at 1 MiB.
fn ram() -> Vec<u8> {
    let fake = fake();
    let mut ram = vec![0; 4 << 20];
    // A page that only looks like control pages.
    ram[0x5000..0x5008].copy_from_slice(b"GLASSTRC");
    ram[0x5008] = 77;
    let control = bytes(&fake.control);
    ram[1 << 20..(1 << 20) + control.len()].copy_from_slice(&control);
    let area = bytes(&fake.area);
    ram[AREA_ADDRESS as usize..AREA_ADDRESS as usize + area.len()].copy_from_slice(&area);
    ram
}

/// An ELF core with these pieces: virtual address, physical address, bytes.
fn core(pieces: &[(u64, u64, &[u8])]) -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    file.extend(4u16.to_le_bytes());
    file.extend(62u16.to_le_bytes());
    file.extend(1u32.to_le_bytes());
    file.extend(0u64.to_le_bytes());
    file.extend(64u64.to_le_bytes());
    file.extend(0u64.to_le_bytes());
    file.extend(0u32.to_le_bytes());
    for half in [64, 56, pieces.len() as u16, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    let mut offset = 64 + 56 * pieces.len() as u64;
    for (virtual_address, physical, bytes) in pieces {
        file.extend(1u32.to_le_bytes());
        file.extend(6u32.to_le_bytes());
        let length = bytes.len() as u64;
        for word in [offset, *virtual_address, *physical, length, length, 4096] {
            file.extend(word.to_le_bytes());
        }
        offset += length;
    }
    pieces.iter().for_each(|(_, _, bytes)| file.extend(*bytes));
    file
}

#[test]
fn each_kind_of_file_gives_the_newest_events() {
    let ram = ram();
    check("ram", &ram);
    // QEMU leaves virtual addresses 0, and may split RAM anywhere between pages.
    let (low, high) = ram.split_at(0x10_1000);
    check("vm", &core(&[(0, 0, low), (0, low.len() as u64, high)]));
    // A process: control pages where its program is, the area elsewhere, no physical addresses.
    let fake = fake();
    let (control, area) = (bytes(&fake.control), bytes(&fake.area));
    check("process", &core(&[(0x5555_0000_0000, 0, &control), (AREA_ADDRESS, 0, &area)]));
    check("memory-file", &[control, area].concat());
}

#[test]
fn what_was_cut_gives_what_is_there() {
    let ram = ram();
    let cut = AREA_ADDRESS as usize + 700 * 32;
    let (trace, warnings) = read(&Scrap::new("cut", &ram[..cut])).unwrap();
    assert!(warnings.iter().any(|text| text.contains("cut off")), "{warnings:?}");
    // A piece that is copied at a time, and of which a part is missing, is dropped.
    assert_eq!(numbers(&trace, 0), (1024..1500).collect::<Vec<_>>());

    let newer = read(&Scrap::new("newer", &ram[..1 << 20])).unwrap_err();
    assert!(newer.contains("version 77") && newer.contains("newer glass"), "{newer}");
    let nothing = read(&Scrap::new("nothing", &ram[..0x5000])).unwrap_err();
    assert!(nothing.contains("holds no trace") && nothing.contains("dump-guest-memory"), "{nothing}");
    assert!(read(&Scrap::new("empty", b"")).is_err());
    let at_the_end = core(&[(u64::MAX - 100, u64::MAX - 10, &ram[..8192])]);
    assert!(read(&Scrap::new("at-the-end", &at_the_end)).unwrap_err().contains("holds no trace"));
    assert!(open_dump(&std::env::temp_dir(), None, || ()).is_err());
}
