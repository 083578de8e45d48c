//! A recording with everything that can make exports disagree: inlined functions, recursion, names with punctuation, one
//! function at many addresses, broken stacks, states, several tracks, gaps in time.

#[path = "../../../../core/tests/all/common/host_and_guest.rs"]
pub mod host_and_guest;
#[path = "../../../../core/tests/all/common/linux_guest.rs"]
pub mod linux_guest;

use std::collections::BTreeMap;

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::files::NoFiles;
use glass_profiler_core::guest::{Guest, GuestId, GuestKind, Mode};
use glass_profiler_core::images::Part;
use glass_profiler_core::model::{Cost, Distribution, Losses, Origin, StackEnd, State};
use glass_profiler_core::recording::{Clocks, ImageId, Recording, SampleRecord, TrackRecord, Writer, open};
use glass_profiler_core::symbols::Location;
use glass_profiler_core::tree::Tree;
use glass_profiler_core::view::View;
use glass_profiler_export::{Format, Options, States};

pub const RATE_HZ: u32 = 1000;

/// Functions with a share of samples each: all different, so that there is one order.
pub const FUNCTIONS: [&str; 14] = [
    "queue::store::write_extent",
    "<[u8; 16] as core::cmp::Ord>::cmp",
    "std::vector<int, std::allocator<int> >::push_back(int&&)",
    "<&mut T as core::ops::function::FnOnce<(A,)>>::call_once::{{closure}}",
    "operator<<(std::ostream&, Item const&)",
    "名前::関数",
    "memcpy",
    "say \"hi\" & <b>leave</b>",
    "a\\b",
    "smoltcp::socket::tcp::Socket::process",
    "tail 12",
    "percent %s %d",
    "core::ptr::drop_in_place<[alloc::string::String]>",
    "last::but::not::least",
];

fn location(function: &str, line: u32) -> Location {
    Location {
        function: function.to_owned(),
        file: Some("src/dir/file.rs".to_owned()),
        line: Some(line),
        ..Location::default()
    }
}

/// Numbers that are the same in every run (xorshift, Marsaglia 2003).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// A recording of `samples` samples.
pub fn recording(samples: u64) -> Vec<u8> {
    let clocks = Clocks { monotonic_ns: 1_000, boottime_ns: 51_000, realtime_ns: 1_700_000_000_000_000_000 };
    let origin = Origin {
        guest: "queue (VM, <KVM> & \"quotes\")".to_owned(),
        backend: "gdbstub".to_owned(),
        symbols: "/images/queue".to_owned(),
        host: "here".to_owned(),
        start_unix_ns: clocks.realtime_ns,
        rate_hz: RATE_HZ,
        recorder: "glass 0.1.0".to_owned(),
        ..Default::default()
    };
    let mut writer = Writer::start(Vec::new(), clocks, &origin).unwrap();
    let (guest, kind) = (GuestId(0), GuestKind::Vm { vmm: 7 });
    writer.guest(&Guest { id: guest, kind, name: "queue".to_owned(), architecture: Architecture::X86_64 }).unwrap();
    for number in 0..3u32 {
        let name = format!("vcpu {number}");
        writer.track(&TrackRecord { number, guest, id: number.into(), name }).unwrap();
    }
    let part = Part { mode: Mode::Kernel, ..Part::default() };
    let parts = &[part];
    let library = ImageId { path: "/lib/libother.so.6".to_owned(), build_id: vec![] };
    let image = ImageId { path: "/images/queue".to_owned(), build_id: (1..=20).collect() };
    let other = writer.image(&library, 0x7f00_0000, 0x7f10_0000).unwrap();
    let image_iid = writer.image(&image, 0x10_0000, 0x20_0000).unwrap();
    let mut names = Vec::new();
    let root = writer.frame(Some(image_iid), 0x10_0000).unwrap();
    names.push((0x10_0000, vec![location("main", 1)]));
    // Each function at four addresses and two depths; odd ones are inlined into a function `around`.
    let mut stacks = Vec::new();
    for (index, function) in FUNCTIONS.iter().enumerate() {
        for place in 0..4u64 {
            let address = 0x10_1000 + index as u64 * 0x100 + place * 0x10;
            let line = 10 * index as u32 + place as u32 + 1;
            names.push((
                address,
                match index % 2 {
                    0 => vec![location(function, line)],
                    _ => vec![location(function, line), location("around", 500 + line)],
                },
            ));
            let frame = writer.frame(Some(image_iid), address).unwrap();
            let again = if place == 3 { vec![root, frame, frame] } else { vec![root, frame] };
            stacks.push((index, writer.callstack(&again).unwrap()));
        }
    }
    let unknown = writer.frame(Some(other), 0x5678).unwrap();
    let nowhere = writer.frame(None, 0xdead).unwrap();
    let broken = writer.callstack(&[unknown, nowhere]).unwrap();
    let empty = writer.callstack(&[]).unwrap();
    let mut dice = Dice(42);
    for index in 0..samples {
        // Function n has a weight of 14 - n and something.
        let roll = dice.below(119);
        let mut function = 0;
        let mut edge = 15;
        let mut width = 15;
        while roll >= edge && function < 13 {
            width -= 1;
            edge += width;
            function += 1;
        }
        let (_, callstack) = stacks[function * 4 + dice.below(4) as usize];
        let time_ns = 1_000 + index * 333_333 + if index > samples / 2 { 50_000_000 } else { 0 };
        let sample = SampleRecord {
            time_ns,
            track: (index % 3) as u32,
            callstack: Some(callstack),
            frozen_ns: 20_000 + index % 100,
            parts,
            ..Default::default()
        };
        writer
            .sample(&match dice.below(20) {
                0..4 => SampleRecord { state: State::Idle, ..sample },
                4 => SampleRecord { state: State::Spinning, ..sample },
                5 => SampleRecord { callstack: Some(broken), end: StackEnd::BadAddress, ..sample },
                6 if index % 7 == 0 => SampleRecord { callstack: Some(empty), end: StackEnd::NoUnwindInfo, ..sample },
                _ => sample,
            })
            .unwrap();
    }
    writer.warning("mind the gap").unwrap();
    writer.symbols(&image, 5_000, &names).unwrap();
    let cost = Cost {
        samples_wanted: samples + 3,
        samples_taken: samples,
        samples_lost: 3,
        losses: Losses { overdue: 2, ring_full: 1, ..Default::default() },
        samples_late: 2,
        stacks_broken: 1,
        pause: Distribution { count: samples, median_ns: 20_000, p99_ns: 80_000, max_ns: 90_000, sum_ns: 140_000 },
        profiler_cpu_ns: 12_000_000,
        sampling_cpu_ns: 9_000_000,
    };
    writer.cost(&cost, samples * 333_333 + 50_000_000, true).unwrap();
    writer.into_inner()
}

pub fn read(bytes: &[u8]) -> Recording {
    open(bytes, &mut NoFiles).unwrap()
}

pub fn export(format: Format, bytes: &[u8], states: States) -> Vec<u8> {
    export_view(format, bytes, states, View::Guest)
}

/// An export of host and guest.
pub fn export_view(format: Format, bytes: &[u8], states: States, view: View) -> Vec<u8> {
    let mut made = Vec::new();
    let options = Options { states, view, ..Options::default() };
    glass_profiler_export::write(format, &read(bytes), bytes, options, &mut made).unwrap();
    made
}

/// Function and own samples, most first.
pub type Top = Vec<(String, u64)>;

/// The first ten of our own table.
pub fn expected_top(bytes: &[u8]) -> Top {
    let recording = read(bytes);
    let tree = Tree::build(&recording.profile);
    let totals = tree.function_totals(&State::ACTIVE);
    let top: Top =
        totals.iter().take(10).map(|total| (tree.functions[total.function].name.clone(), total.self_samples)).collect();
    assert!(top.len() == 10 && top.windows(2).all(|pair| pair[0].1 > pair[1].1), "the order is not clear: {top:?}");
    // The terminal shows the same table.
    let text = glass_profiler_report::text(&recording.profile, 10);
    let counts: Vec<u64> = text
        .lines()
        .skip_while(|line| !line.starts_with("Hottest"))
        .skip(2)
        .map(|line| line.split_whitespace().next().unwrap().replace(',', "").parse().unwrap())
        .collect();
    assert_eq!(counts, top.iter().map(|entry| entry.1).collect::<Vec<_>>(), "{text}");
    top
}

/// The ten largest of a reader's counts, without our roots, which are not functions.
pub fn top(counts: BTreeMap<String, u64>) -> Top {
    let mut top: Top = counts.into_iter().filter(|(name, _)| !name.starts_with('[')).collect();
    top.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    top.truncate(10);
    top
}
