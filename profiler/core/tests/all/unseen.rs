//! A file that was named for what a guest runs, and into which no sample falls, is reported.

use std::ops::Range;
use std::sync::Arc;

use crate::common::{segment, vm};
use glass_profiler_core::event::{Event, RawSample};
use glass_profiler_core::files::NoFiles;
use glass_profiler_core::guest::{GuestId, Mode, SpaceId};
use glass_profiler_core::image::Image;
use glass_profiler_core::map::SymbolMap;
use glass_profiler_core::model::{Cost, Origin};
use glass_profiler_core::program::{NamesFrom, Parts, Program};
use glass_profiler_core::recorder::Recorder;
use glass_profiler_core::recording::{Clocks, read};

fn place(name: &str, range: Range<u64>, is_whole: bool) -> Event {
    place_of(name, range, is_whole, false)
}

fn place_of(name: &str, range: Range<u64>, is_whole: bool, is_kernel: bool) -> Event {
    let text = format!("{:016x} T {name}_function\n", range.start);
    let map = Arc::new(SymbolMap::parse(text.as_bytes(), &[]).unwrap());
    let image = Arc::new(Image::of_map(&map, range.clone(), None));
    let (name, names) = (name.to_owned(), vec![NamesFrom::Map(map)]);
    let program = Program::new(Parts { name, image, names, is_whole, is_kernel });
    Event::Place { space: SpaceId(0), range, bias: 0, program }
}

/// The warnings of a recording with so many samples, in turn at these addresses of a guest without processes.
fn warnings(addresses: &[u64], count: usize) -> Vec<String> {
    let places = [
        place("kernel.elf", 0x20_0000..0x20_1000, true),
        place("module.elf", 0x40_0000..0x40_1000, true),
        place("part_of_a_map", 0x60_0000..0x60_1000, false),
    ];
    let samples: Vec<_> = addresses.iter().map(|rip| (Mode::Kernel, *rip)).collect();
    warnings_of(places, &samples, count)
}

fn warnings_of(places: impl IntoIterator<Item = Event>, samples: &[(Mode, u64)], count: usize) -> Vec<String> {
    let mut recorder = Recorder::start(Vec::new(), Clocks::default(), &Origin::default()).unwrap();
    let mut event = |event| recorder.event(event, &mut NoFiles).unwrap();
    vm().into_iter().for_each(&mut event);
    event(Event::Track { track: 0, id: 0, guest: GuestId(0), name: "vcpu 0".to_owned() });
    places.into_iter().for_each(&mut event);
    for (mode, rip) in samples.iter().cycle().take(count) {
        event(Event::Sample(RawSample { segments: vec![segment(*mode, *rip)], ..Default::default() }));
    }
    let (_, bytes) = recorder.finish(&Cost::default(), 1, &mut NoFiles, || 0).unwrap();
    read(&bytes, &mut NoFiles).unwrap().warnings
}

/// A kernel that relocates itself gave 92 % broken stacks and no word why (2026-11-22).
#[test]
fn a_file_without_a_sample_is_named_with_what_to_do() {
    assert!(warnings(&[0x20_0010, 0x40_0010], 40).is_empty());
    let [warning] = &warnings(&[0x20_0010, 0x7e00_0000, 0x7e00_1000], 40)[..] else { panic!() };
    let expected = "no sample falls into module.elf, which was taken to run at 0x400000 to 0x401000: code without a name ran at 0x7e000000";
    assert!(warning.starts_with(expected) && warning.contains("--load-address"), "{warning}");
    let [warning] = &warnings(&[0x20_0010], 40)[..] else { panic!() };
    assert!(warning.contains("module.elf") && warning.ends_with("--symbols"), "{warning}");
    // A few samples show nothing.
    assert!(warnings(&[0x7e00_0000], 5).is_empty());
}

/// Of a guest that computed in a process a warning requested another kernel (2026-11-26).
#[test]
fn a_kernel_is_not_expected_while_its_processes_run() {
    const KERNEL: u64 = 0xffff_ffff_8100_0000;
    let of = |samples: &[(Mode, u64)], is_kernel| {
        warnings_of([place_of("System.map", KERNEL..KERNEL + 0x1000, true, is_kernel)], samples, 40)
    };
    let process = (Mode::User, 0x40_1000);
    assert!(of(&[process], true).is_empty());
    assert!(of(&[process, (Mode::Kernel, KERNEL + 8)], true).is_empty());
    // Code of a kernel elsewhere, and a program that is no kernel.
    let [warning] = &of(&[process, (Mode::Kernel, KERNEL + 0x20_0000)], true)[..] else { panic!() };
    assert!(warning.contains("System.map") && warning.contains("--load-address"), "{warning}");
    assert_eq!(of(&[process], false).len(), 1);
}
