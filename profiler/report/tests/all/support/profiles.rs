//! Synthetic profiles that look like real ones: a service in a VM under load, with hostile names. And the comparison
//! of what is made of them with files that a person has read.

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::guest::{Guest, GuestId, GuestKind, Mode};
use glass_profiler_core::model::{
    Cost, Distribution, Frame, Origin, Profile, Sample, SegmentOf, Stack, StackEnd, State, Track,
};

/// Numbers that are the same in every run (xorshift, Marsaglia 2003).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.max(1))
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit.max(1)
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// Names that try to leave their place: markup, quotes, escapes, directions, great length.
pub const HOSTILE: &[&str] = &[
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "\"'`${document.title='owned'}`'\"",
    "queue::Item<'static, \"quoted\", {closure#0}>::operator<<",
    "line\u{2028}and\u{2029}paragraph",
    "\u{1b}[2J\u{1b}]0;owned\u{7}bell",
    "\u{202e}desrever ton ma I",
    "<!--<script>",
    "]]>&lt;&amp;{{data}}",
    "名前::関数::長い名前の関数",
];

/// 100 running samples: main calls left (60) and right (40), which call work (45 and 10). 20 are idle, 5
/// spin, on another track.
pub fn small() -> Profile {
    let frame = |name: &str| Frame {
        function: format!("app::{name}"),
        file: Some(format!("src/{name}.rs")),
        line: Some(7),
        image: "app".into(),
        inlined: name == "work",
        ..Frame::default()
    };
    let stack = |frames: &[u32]| Stack { frames: frames.to_vec(), end: StackEnd::Complete };
    let mut profile = Profile {
        tracks: vec![
            Track { name: "vcpu 0".into(), id: 0, ..Track::default() },
            Track { name: "vcpu 1".into(), id: 1, ..Track::default() },
        ],
        frames: ["main", "left", "right", "work"].map(frame).to_vec(),
        stacks: vec![stack(&[0, 1]), stack(&[0, 1, 3]), stack(&[0, 2]), stack(&[0, 2, 3])],
        ..Profile::default()
    };
    profile.origin.guest = "small".into();
    for (count, stack, state, track) in [
        (15, 0, State::Running, 0),
        (45, 1, State::Running, 0),
        (30, 2, State::Running, 0),
        (10, 3, State::Running, 0),
        (20, 0, State::Idle, 1),
        (5, 2, State::Spinning, 1),
    ] {
        profile
            .samples
            .extend(std::iter::repeat_n(Sample { time_ns: 0, track, stack, state, ..Sample::default() }, count));
    }
    profile
}

/// The profile as one of host and guest: the two innermost addresses of each stack are the host's kernel, merged by time, and every
/// sixteenth sample is the VMM's.
pub fn with_host(mut profile: Profile) -> Profile {
    let guest =
        |id, kind, name: &str| Guest { id: GuestId(id), kind, name: name.into(), architecture: Architecture::X86_64 };
    profile.guests = vec![guest(0, GuestKind::Vm { vmm: 7 }, "linux"), guest(1, GuestKind::Process { pid: 7 }, "qemu")];
    let vmm = profile.tracks.len() as u32;
    profile.tracks.push(Track { name: "qemu".into(), id: 7, guest: 1, ..Track::default() });
    for (index, sample) in (0..).zip(&mut profile.samples) {
        if index % 16 == 0 {
            sample.track = vmm;
        }
        let segment = |guest, addresses, apart_ns| SegmentOf {
            guest,
            mode: Mode::Kernel,
            addresses,
            apart_ns,
            ..SegmentOf::default()
        };
        let owner = u32::from(index % 16 == 0);
        profile.segments.push(vec![segment(1, 2, 1 + index % 500_000), segment(owner, u32::MAX, 0)]);
        sample.segments = Some(index as u32);
    }
    profile
}

/// Ten seconds of [`small`] at 100 Hz. vcpu 0 runs left and work until 4 s, is idle until 6 s, and runs right and
/// work to the end; vcpu 1 is there from 5 s on and runs left by itself.
pub fn timed() -> Profile {
    let mut profile = small();
    profile.origin.duration_ns = 10_000_000_000;
    profile.origin.rate_hz = 100;
    profile.samples.clear();
    for step in 0..1_000_u64 {
        let time_ns = step * 10_000_000;
        let (stack, state) = match step {
            0..400 => (1, State::Running),
            400..600 => (0, State::Idle),
            _ => (3, State::Running),
        };
        profile.samples.push(Sample { time_ns, track: 0, stack, state, ..Sample::default() });
        if step >= 500 {
            profile.samples.push(Sample { time_ns, track: 1, stack: 0, state: State::Running, ..Sample::default() });
        }
    }
    profile
}

const ROOTS: &[&str] = &["_start", "glass_platform_vm::boot::start", "glass_executor::Executor::run"];

/// Function, file and image of the paths that the load takes, from the caller to the leaf.
const PATHS: &[(usize, &[&str])] = &[
    (
        34,
        &[
            "upload_queue::serve::{{closure}}",
            "upload_queue::http::handle::{{closure}}",
            "upload_queue::store::put::{{closure}}",
            "upload_queue::store::write_extent::{{closure}}",
            "twox_hash::xxhash3_64::RawHasher::write",
            "<twox_hash::xxhash3_64::avx2::Impl as twox_hash::xxhash3::Vector>::accumulate",
        ],
    ),
    (
        16,
        &[
            "upload_queue::serve::{{closure}}",
            "upload_queue::http::handle::{{closure}}",
            "upload_queue::store::put::{{closure}}",
            "glass_virtio::blk::Block<T,M>::write::{{closure}}",
            "glass_virtio::queue::Queue::submit",
            "glass_virtio::mmio::Transport::notify",
        ],
    ),
    (
        28,
        &[
            "glass_net::stack::Stack::poll",
            "smoltcp::iface::interface::Interface::poll",
            "smoltcp::iface::interface::Interface::socket_ingress",
            "smoltcp::iface::interface::InterfaceInner::process_ethernet",
            "smoltcp::iface::interface::ipv4::<impl smoltcp::iface::interface::InterfaceInner>::process_ipv4",
            "smoltcp::socket::tcp::Socket::process",
            "<smoltcp::storage::ring_buffer::RingBuffer<u8> as core::iter::Extend<&u8>>::extend",
            "memcpy",
        ],
    ),
    (
        12,
        &[
            "glass_net::stack::Stack::poll",
            "smoltcp::iface::interface::Interface::poll",
            "smoltcp::iface::interface::Interface::socket_egress",
            "smoltcp::socket::tcp::Socket::dispatch",
            "smoltcp::wire::ip::checksum::data",
        ],
    ),
    (
        10,
        &[
            "glass_net::stack::Stack::poll",
            "<glass_virtio::net::Device as smoltcp::phy::Device>::receive",
            "glass_virtio::queue::Queue::pop_used",
            "core::sync::atomic::fence",
        ],
    ),
    (
        6,
        &[
            "upload_queue::serve::{{closure}}",
            "upload_queue::http::parse::{{closure}}",
            "httparse::Request::parse_with_config",
            "httparse::simd::swar::match_header_value_vectored",
        ],
    ),
    (
        6,
        &[
            "upload_queue::index::Index::find",
            "upload_queue::index::Node::descend",
            "upload_queue::index::Node::descend",
            "upload_queue::index::Node::descend",
            "<[u8] as core::cmp::Ord>::cmp",
            "memcmp",
        ],
    ),
    (4, &["alloc::collections::btree::map::BTreeMap<K,V,A>::insert", "talc::Talc<O>::malloc", "talc::bucket::scan"]),
];

/// A profile of `samples` samples on four vCPUs, with several hundred functions.
pub fn service(samples: usize, seed: u64) -> Profile {
    let mut dice = Dice::new(seed);
    let mut profile = Profile {
        origin: Origin {
            guest: "upload-queue (VM, KVM)".into(),
            backend: "gdbstub".into(),
            symbols: "target/x86_64-unknown-linux-gnu/image/upload-queue.symbols".into(),
            host: "workbench".into(),
            start_unix_ns: 1_767_225_599_000_000_000,
            duration_ns: 10_000_000_000,
            rate_hz: 997,
            recorder: "glass 0.1.0".into(),
        },
        cost: Cost {
            samples_wanted: samples as u64 + samples as u64 / 60,
            samples_taken: samples as u64,
            samples_lost: samples as u64 / 60,
            samples_late: samples as u64 / 900,
            stacks_broken: 0,
            pause: Distribution {
                count: samples as u64,
                median_ns: 14_230,
                p99_ns: 33_100,
                max_ns: 210_400,
                sum_ns: 148_000_000,
            },
            profiler_cpu_ns: 312_000_000,
            ..Default::default()
        },
        tracks: (0..4).map(|id| Track { name: format!("vcpu {id}"), id, ..Track::default() }).collect(),
        warnings: vec![
            "The symbol file was built 3 minutes after the guest's image: lines may be off by some. <b>Rebuild</b> the image to be sure."
                .into(),
        ],
        ..Profile::default()
    };
    let stacks = make_stacks(&mut profile, &mut dice);
    let idle = make_idle(&mut profile);
    for index in 0..samples {
        let track = dice.below(4);
        let (state, stack) = match dice.below(100) {
            0..8 => (State::Spinning, idle),
            // The last vCPU sleeps most of the time.
            8..=99 if dice.below(10) < 1 + 2 * track => (State::Idle, idle),
            _ => (State::Running, pick_weighted(&stacks, &mut dice)),
        };
        if state == State::Running && profile.stacks[stack as usize].end != StackEnd::Complete {
            profile.cost.stacks_broken += 1;
        }
        let time_ns = index as u64 * profile.origin.duration_ns / samples.max(1) as u64;
        profile.samples.push(Sample { time_ns, track: track as u32, stack, state, ..Sample::default() });
    }
    profile
}

/// [`service`] after a change: hashing takes a third of what it took, by another function, and the network
/// gets what is left.
pub fn faster(samples: usize, seed: u64) -> Profile {
    let mut profile = service(samples, seed);
    let mut dice = Dice::new(seed + 1);
    let hashing = profile.frames.iter().position(|frame| frame.function.contains("RawHasher::write"));
    let (Some(hashing), stacks) = (hashing, profile.stacks.len()) else { return profile };
    let hashes = |profile: &Profile, stack: u32| profile.stacks[stack as usize].frames.contains(&(hashing as u32));
    for index in 0..profile.samples.len() {
        let sample = profile.samples[index];
        if sample.state == State::Running && hashes(&profile, sample.stack) && dice.below(3) > 0 {
            profile.samples[index].stack = dice.below(stacks) as u32;
        }
    }
    for frame in &mut profile.frames {
        if frame.function.contains("xxhash3_64::avx2::Impl") {
            frame.function = "crc32fast::specialized::pclmulqdq::calculate".into();
        }
    }
    profile.origin.guest = "upload-queue (VM, TCG)".into();
    profile.warnings.clear();
    profile
}

/// A profile in which nearly every sample has a stack of its own: the hardest input of a report.
pub fn wide(samples: usize, seed: u64) -> Profile {
    let mut dice = Dice::new(seed);
    let mut profile = service(samples, seed);
    let frames = profile.frames.len();
    profile.stacks.clear();
    for sample in &mut profile.samples {
        let depth = 3 + dice.below(30);
        // The outer frames are often the same, as in life: each level has more choices than the one before.
        let frames = (0..depth).map(|level| dice.below(frames.min(1 + level * level)) as u32).collect();
        sample.stack = profile.stacks.len() as u32;
        profile.stacks.push(Stack { frames, end: StackEnd::Complete });
    }
    profile
}

/// A profile whose load comes and goes: two vCPUs start late, one phase hashes, one works the network, and
/// for a moment there are no samples. `depth` more frames lie on each stack, so that many stacks are distinct.
pub fn phases(samples: usize, depth: usize, seed: u64) -> Profile {
    let mut dice = Dice::new(seed);
    let mut profile = service(1_000, seed);
    let duration_ns = profile.origin.duration_ns;
    profile.origin.rate_hz = (samples as u64 * 1_000_000_000 / duration_ns / 4) as u32;
    let idle = profile.samples.iter().find(|sample| sample.state == State::Idle).map_or(0, |sample| sample.stack);
    let stacks = profile.stacks.len();
    // The first stacks of each path have the most samples; the paths are in the order of `PATHS`.
    let of_path = |path: usize, dice: &mut Dice| (path * 60 + dice.below(60) * dice.below(60) / 60) as u32;
    let deep = (depth > 0).then(|| deepen(&mut profile, stacks, depth, &mut dice));
    profile.samples.clear();
    for index in 0..samples {
        let time_ns = index as u64 * duration_ns / samples as u64;
        let part = index * 1_000 / samples;
        let track = dice.below(4) as u32;
        let busy = match (part, track) {
            (640..660, _) => continue,
            (0..120, 2..) => 2,
            (0..120, _) => 30,
            (120..400, 0) => 97,
            (120..400, _) => 45,
            (400..640, 3) => 10,
            (400..640, _) => 80,
            (_, 0 | 1) => 60 + (part * 7 % 100) / 3,
            _ => 35,
        };
        let path = match part {
            120..400 => [0, 0, 0, 1, 2][dice.below(5)],
            400..640 => [2, 2, 3, 4, 4, 5][dice.below(6)],
            _ => dice.below(8),
        };
        let (state, stack) = match dice.below(100) {
            chance if chance < busy => (State::Running, of_path(path, &mut dice)),
            chance if chance < busy + 8 => (State::Spinning, idle),
            _ => (State::Idle, idle),
        };
        let stack = match deep {
            Some(copies) if state == State::Running => {
                stacks as u32 + stack * copies + dice.below(copies as usize) as u32
            }
            _ => stack,
        };
        profile.samples.push(Sample { time_ns, track, stack, state, ..Sample::default() });
    }
    profile.cost.samples_taken = profile.samples.len() as u64;
    profile.cost.samples_wanted = samples as u64;
    profile.cost.samples_lost = (samples - profile.samples.len()) as u64;
    profile.cost.pause.count = profile.cost.samples_taken;
    profile.warnings.clear();
    profile
}

/// Adds deeper copies of each stack, all different; returns how many each has.
fn deepen(profile: &mut Profile, stacks: usize, depth: usize, dice: &mut Dice) -> u32 {
    const COPIES: u32 = 100;
    for stack in 0..stacks {
        for _ in 0..COPIES {
            let mut copy = profile.stacks[stack].clone();
            let frames = profile.frames.len();
            let mut last = stack;
            for _ in 0..1 + dice.below(depth) {
                // Most calls go where the last one went, so stacks share long ways, as in life.
                let turn = if dice.below(8) > 0 { 0 } else { dice.below(4) };
                last = (last * 31 + turn * 7 + 1) % frames;
                copy.frames.push(last as u32);
            }
            profile.stacks.push(copy);
        }
    }
    COPIES
}

/// Stacks with weights that fall off steeply, as they do in life.
fn make_stacks(profile: &mut Profile, dice: &mut Dice) -> Vec<u32> {
    let mut weighted = Vec::new();
    for (weight, path) in PATHS {
        for variant in 0..60 {
            let cut = 1 + dice.below(path.len());
            let mut names: Vec<String> = ROOTS.iter().map(|name| (*name).to_string()).collect();
            names.extend(path[..if variant < 20 { path.len() } else { cut }].iter().map(|name| (*name).to_string()));
            // Full paths are often leaves themselves; others end somewhere in small helpers.
            let helpers = if variant < 3 { 0 } else { dice.below(4) };
            for level in 0..helpers {
                names.push(helper_name(dice, level));
            }
            let frames = names.iter().enumerate().map(|(depth, name)| frame(profile, name, depth, dice)).collect();
            let end = match dice.below(150) {
                0 => StackEnd::CopyEnded,
                1 => StackEnd::NoUnwindInfo,
                _ => StackEnd::Complete,
            };
            profile.stacks.push(Stack { frames, end });
            let copies = weight * 60 / (variant + 2) + 1;
            weighted.extend(std::iter::repeat_n(profile.stacks.len() as u32 - 1, copies));
        }
    }
    for name in HOSTILE {
        let frames = vec![frame(profile, ROOTS[0], 0, dice), frame(profile, name, 1, dice)];
        profile.stacks.push(Stack { frames, end: StackEnd::Complete });
        weighted.extend(std::iter::repeat_n(profile.stacks.len() as u32 - 1, 15));
    }
    weighted
}

fn make_idle(profile: &mut Profile) -> u32 {
    let mut dice = Dice::new(7);
    let names =
        ["_start", "glass_platform_vm::boot::start", "glass_executor::Executor::run", "glass_platform_vm::idle::wait"];
    let frames = names.iter().enumerate().map(|(depth, name)| frame(profile, name, depth, &mut dice)).collect();
    profile.stacks.push(Stack { frames, end: StackEnd::Complete });
    profile.stacks.len() as u32 - 1
}

fn pick_weighted(stacks: &[u32], dice: &mut Dice) -> u32 {
    *dice.pick(stacks)
}

fn helper_name(dice: &mut Dice, level: usize) -> String {
    let crates =
        ["core::ptr", "core::slice", "alloc::vec", "smoltcp::wire", "upload_queue::store", "glass_executor::timer"];
    let types =
        ["Vec<alloc::sync::Arc<T>,A>", "Packet<&mut [u8]>", "Slot<'_>", "Option<core::num::NonZero<usize>>", "Timer"];
    let verbs = ["push", "get_unchecked", "fmt", "check_len", "drop_in_place", "advance", "as_mut", "split_at_mut"];
    let closure = if level % 2 == 1 { "::{{closure}}" } else { "" };
    format!("{}::{}::{}{closure}", dice.pick(&crates), dice.pick(&types), dice.pick(&verbs))
}

fn frame(profile: &mut Profile, function: &str, depth: usize, dice: &mut Dice) -> u32 {
    let assembly = matches!(function, "memcpy" | "memcmp" | "_start");
    let path = function.trim_start_matches('<').split(['<', ' ', '{', '(']).next().unwrap_or("").replace("::", "/");
    let frame = Frame {
        function: function.to_string(),
        file: (!assembly).then(|| format!("src/{path}.rs")),
        line: (!assembly).then(|| 20 + dice.below(6) as u32 * 17 + depth as u32),
        image: if assembly && function != "_start" { "libc.so.6" } else { "upload-queue" }.to_string(),
        inlined: depth > 5 && dice.below(3) == 0,
        ..Frame::default()
    };
    if let Some(index) = profile.frames.iter().position(|known| *known == frame) {
        return index as u32;
    }
    profile.frames.push(frame);
    profile.frames.len() as u32 - 1
}

/// Compares with `tests/golden/NAME`, or writes it where `GLASS_GOLDEN` is `write`.
pub fn compare_golden(name: &str, made: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var("GLASS_GOLDEN").is_ok_and(|value| value == "write") {
        std::fs::write(&path, made).expect("the golden file can be written");
        return;
    }
    let golden = std::fs::read_to_string(&path).expect("the golden file can be read");
    for (number, (made, golden)) in made.lines().zip(golden.lines()).enumerate() {
        assert_eq!(made, golden, "{name}, line {}", number + 1);
    }
    assert_eq!(made, golden, "{name}");
}
