//! Builds small programs with the machine's C compiler.

pub mod go;
pub mod host_and_guest;
pub mod linux_guest;

use glass_tests::folder::Folder;
use glass_tests::programs::skip;
use std::path::{Path, PathBuf};

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::arch::x86_64::Registers;
use glass_profiler_core::event::{Event, Mapping, Placement, RawSample, Segment};
use glass_profiler_core::files::FileSource;
use glass_profiler_core::guest::{Guest, GuestId, GuestKind, Mode, SpaceId};
use glass_profiler_core::images::Images;
use glass_profiler_core::recording::TrackRecord;
use glass_profiler_core::symbols::Location;
use glass_profiler_core::unwind::{AddressSpace, CallChain, StackMemory, UnwindCache};
use std::process::Command;

/// Compiles a program of `tests/programs`; `None` and a word on it if there is no C compiler.
pub fn compile(folder: &Folder, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let output = folder.file("program");
    let result = Command::new("cc").args(flags).arg(&source).arg("-o").arg(&output).output();
    let Ok(result) = result else {
        skip("there is no C compiler (cc)");
        return None;
    };
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    Some(output)
}

/// Unwinds from registers, `stack` being the memory from the stack pointer upwards.
pub fn unwind(space: &AddressSpace, registers: Registers, stack: &[u8]) -> CallChain {
    unwind_with(space, &mut UnwindCache::default(), registers, stack)
}

/// The same with rules that were used before.
pub fn unwind_with(space: &AddressSpace, cache: &mut UnwindCache, registers: Registers, stack: &[u8]) -> CallChain {
    space.unwind(cache, &registers.into(), StackMemory(&[(registers.rsp, stack.to_vec())]))
}

/// The process 7, with one thread, whose mappings are in the address space 0.
pub fn process() -> [Event; 3] {
    let guest = GuestId(0);
    let kind = GuestKind::Process { pid: 7 };
    [
        Event::Guest(Guest { id: guest, kind, name: "program".to_owned(), architecture: Architecture::X86_64 }),
        Event::Space { space: SpaceId(0), guest, process: None, copy_of: None },
        Event::Track { track: 0, guest, id: 7, name: "thread".to_owned() },
    ]
}

/// The VM in the process 7, without tracks.
pub fn vm() -> [Event; 2] {
    let guest = GuestId(0);
    let kind = GuestKind::Vm { vmm: 7 };
    [
        Event::Guest(Guest { id: guest, kind, name: "queue".to_owned(), architecture: Architecture::X86_64 }),
        Event::Space { space: SpaceId(0), guest, process: None, copy_of: None },
    ]
}

/// Code of 64 bits at an address, without a stack.
pub fn segment(mode: Mode, rip: u64) -> Segment {
    let registers = Registers { rip, ..Registers::default() }.into();
    Segment { mode, registers, ..Segment::default() }
}

/// The first track, of the first guest.
pub fn track(name: &str) -> TrackRecord {
    TrackRecord { name: name.to_owned(), ..TrackRecord::default() }
}

/// What the names of the program `/app/program`, mapped at 0, are at an address.
pub fn located(files: &mut dyn FileSource, address: u64) -> Vec<Location> {
    located_in("/app/program", files, address).0
}

/// The same of the program at a path, and the warnings about them.
pub fn located_in(path: &str, files: &mut dyn FileSource, address: u64) -> (Vec<Location>, Vec<String>) {
    let mapping =
        Mapping { start: 0, end: 1 << 40, path: path.to_owned(), placement: Placement::Biased(0), file: None };
    let mut images = Images::default();
    let space = SpaceId(7);
    images.learn(&Event::Space { space, guest: GuestId(1), process: None, copy_of: None }, files);
    images.learn(&Event::Map { space, mapping }, files);
    let registers = Registers { rip: address, ..Default::default() }.into();
    let segments = vec![Segment { space, registers, ..Default::default() }];
    let sample = RawSample { segments, ..Default::default() };
    let call = images.unwind(&sample).calls[0];
    match images.names(call.image.unwrap(), files) {
        Ok(names) => (names.locate(call.address), names.warnings(&[call.address].into())),
        Err(warning) => (Vec::new(), vec![warning]),
    }
}
