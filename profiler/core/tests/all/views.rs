//! Views of host and guest: what a recording of both shows in each, and what damaged ones do.

use crate::common::host_and_guest::{read, recording};
use glass_profiler_core::arch::Architecture;
use glass_profiler_core::guest::{Guest, GuestId, GuestKind, Mode};
use glass_profiler_core::model::{Frame, Profile, Sample, SegmentOf, Stack, StackEnd, State, Track};
use glass_profiler_core::tree::{Broken, Kind, Tree};
use glass_profiler_core::view::{Layer, View};
use proptest::prelude::*;

/// A tree as lines of indented name, layer, self and total.
fn outline(tree: &Tree) -> Vec<String> {
    let line = |index: usize| {
        let (node, function) = (&tree.nodes[index], tree.function(index));
        let layer = function.layer.map_or(String::new(), |layer| format!(" ({})", layer.word()));
        let indent = ".".repeat(node.depth);
        format!("{indent}{}{layer} {} {}", function.name, node.self_samples, node.total_samples)
    };
    (1..tree.nodes.len()).map(line).collect()
}

fn tree(view: View) -> Tree {
    Tree::build(&view.of(&read(&recording(true)).profile).profile)
}

/// Function, layer, own and all samples.
fn totals(tree: &Tree) -> Vec<(&str, Option<Layer>, u64, u64)> {
    let totals = tree.function_totals(&State::ACTIVE).into_iter().map(|total| {
        let function = &tree.functions[total.function];
        (function.name.as_str(), function.layer, total.self_samples, total.total_samples)
    });
    totals.collect()
}

#[test]
fn the_guest_alone_has_the_time_of_its_exits() {
    let tree = tree(View::Guest);
    assert_eq!(
        outline(&tree),
        [
            ".main (guest user) 0 115",
            "..serve (guest user) 0 100",
            "...parse (guest user) 40 100",
            "....entry (guest kernel) 0 60",
            ".....do_write (guest kernel) 0 60",
            "......kick (guest kernel) 60 60",
            "..memcpy (guest user) 15 15",
            ".[idle] 15 15",
            ".[stolen] 5 5",
        ]
    );
    // The host's tracks are there, and do not count.
    let left_out: Vec<(&str, u64, bool)> =
        tree.tracks.iter().map(|track| (track.name.as_str(), track.states.all(), track.is_left_out)).collect();
    assert_eq!(
        left_out,
        [("vcpu 0", 115, false), ("vcpu 1", 20, false), ("qemu", 125, true), ("worker", 12, true), ("glass", 18, true)]
    );
    assert_eq!((tree.counts().active(), tree.counts().of(State::InVmm)), (115, 40));
    assert_eq!(tree.nodes[0].total_samples, 135);
}

#[test]
fn merged_the_vmm_follows_the_function_that_caused_the_exit() {
    let tree = tree(View::Merged);
    assert_eq!(
        outline(&tree),
        [
            ".main (guest user) 0 115",
            "..serve (guest user) 0 100",
            "...parse (guest user) 40 100",
            "....entry (guest kernel) 0 60",
            ".....do_write (guest kernel) 0 60",
            "......kick (guest kernel) 0 60",
            ".......thread_start (VMM) 0 30",
            "........handle_exit (VMM) 0 30",
            ".........write_disk (VMM) 0 30",
            "..........vfs_write (host kernel) 30 30",
            ".......sys_ioctl (host kernel) 0 20",
            "........kvm_run (host kernel) 20 20",
            // Of the VMM's stack callers are missing, and the guest's is whole.
            ".......[broken stack: no unwind data: callers are missing] (VMM) 0 10",
            "........memcpy (VMM) 10 10",
            "..memcpy (guest user) 15 15",
            ".thread_start (VMM) 0 55",
            "..main_loop (VMM) 0 25",
            "...poll (host kernel) 25 25",
            "..serve_card (VMM) 0 18",
            "...vfs_write (host kernel) 18 18",
            "..memcpy (VMM) 12 12",
            ".[idle] 110 115",
            "..sys_ioctl (host kernel) 0 5",
            "...poll (host kernel) 5 5",
            ".[stolen] 5 5",
        ]
    );
    assert_eq!(tree.nodes[0].total_samples, SAMPLES);
    let memcpy: Vec<_> = totals(&tree).into_iter().filter(|total| total.0 == "memcpy").collect();
    assert_eq!(memcpy, [("memcpy", Some(Layer::Vmm), 22, 22), ("memcpy", Some(Layer::GuestUser), 15, 15)]);
    // Only what KVM did while the track was running was merged by time.
    let apart = (0..tree.nodes.len()).filter(|node| tree.nodes[*node].apart_ns > 0);
    let apart: Vec<(&str, u64)> =
        apart.map(|node| (tree.function(node).name.as_str(), tree.nodes[node].apart_ns)).collect();
    assert_eq!(apart, [("sys_ioctl", 400_000), ("kvm_run", 400_000)]);
    let apart = tree.host.unwrap().apart;
    assert_eq!((apart.count, apart.median_ns, apart.max_ns), (20, 200_000, 400_000));
}

#[test]
fn the_host_alone_has_one_box_for_the_guest() {
    let tree = tree(View::Host);
    assert_eq!(
        outline(&tree),
        [
            ".thread_start (VMM) 0 85",
            "..handle_exit (VMM) 0 30",
            "...write_disk (VMM) 0 30",
            "....vfs_write (host kernel) 30 30",
            "..main_loop (VMM) 0 25",
            "...poll (host kernel) 25 25",
            "..serve_card (VMM) 0 18",
            "...vfs_write (host kernel) 18 18",
            "..memcpy (VMM) 12 12",
            ".sys_ioctl (host kernel) 0 20",
            "..kvm_run (host kernel) 20 20",
            ".[broken stack: no unwind data: callers are missing] (VMM) 0 10",
            "..memcpy (VMM) 10 10",
            ".[idle] 110 115",
            "..sys_ioctl (host kernel) 0 5",
            "...poll (host kernel) 5 5",
            ".[stolen] 5 5",
            ".[guest] 55 55",
        ]
    );
    assert_eq!(tree.nodes[0].total_samples, SAMPLES);
}

/// What a state is, a page must be able to choose.
#[test]
fn by_line_the_time_in_the_vmm_is_apart() {
    let profile = read(&recording(true)).profile;
    let viewed = View::Merged.of(&profile);
    let (tree, leaves) = Tree::build_by_line(&viewed.profile);
    let states = tree.states();
    for sample in &viewed.profile.samples {
        assert_eq!(states[leaves.node(sample)], sample.state);
    }
    let total = |states: &[State]| tree.function_totals(states).iter().map(|total| total.self_samples).sum::<u64>();
    assert_eq!((total(&[State::InVmm]), total(&[State::Running]), total(&State::ACTIVE)), (40, 130, 170));
}

#[test]
fn a_recording_without_a_host_is_the_same_in_every_view() {
    let profile = read(&recording(false)).profile;
    assert!(View::ALL.iter().all(|view| view.of(&profile).profile.host.is_none()));
    let plain = Tree::build(&profile);
    // Without the host it is what the guest's view of both shows, but for layers and for the host's tracks.
    let both = tree(View::Guest);
    let bare = |lines: Vec<String>| {
        lines.into_iter().map(|line| line.replace(" (guest user)", "").replace(" (guest kernel)", ""))
    };
    assert!(bare(outline(&both)).eq(outline(&plain)), "{:?}", outline(&plain));
    // A view of a view is itself.
    let profile = read(&recording(true)).profile;
    let guest = View::Guest.of(&profile).profile;
    assert_eq!(View::Merged.of(&guest).profile.view(), Some(View::Guest));
}

/// A small file that divides one deep stack in many ways.
#[test]
fn the_frames_of_a_view_have_a_bound() {
    let guest = |id, kind| Guest { id: GuestId(id), kind, name: String::new(), architecture: Architecture::X86_64 };
    let segment = |guest, addresses| SegmentOf { guest, addresses, ..SegmentOf::default() };
    const FRAMES: usize = 1 << 15;
    const DIVISIONS: u32 = 1_100;
    let profile = Profile {
        guests: vec![guest(0, GuestKind::Vm { vmm: 7 }), guest(1, GuestKind::Process { pid: 7 })],
        tracks: vec![Track::default()],
        frames: vec![Frame::default()],
        stacks: vec![Stack { frames: vec![0; FRAMES], ..Stack::default() }],
        segments: (1..=DIVISIONS).map(|addresses| vec![segment(1, addresses), segment(0, 1)]).collect(),
        samples: (0..DIVISIONS).map(|list| Sample { segments: Some(list), ..Sample::default() }).collect(),
        ..Profile::default()
    };
    let viewed = View::Merged.of(&profile);
    let entries: usize = viewed.profile.stacks.iter().map(|stack| stack.frames.len()).sum();
    assert!(entries <= (32 << 20) + DIVISIONS as usize, "{entries}");
    assert_eq!(viewed.profile.samples.len(), DIVISIONS as usize);
    assert_eq!(
        viewed.profile.warnings,
        ["76 stacks are left out of the view: all together have more than 33554432 frames"]
    );
}

/// A segment counts addresses, at each of which there may be several functions.
#[test]
fn inlined_functions_are_in_the_segment_of_their_address() {
    let guest = |id, kind| Guest { id: GuestId(id), kind, name: String::new(), architecture: Architecture::X86_64 };
    let frame = |name: &str| Frame { function: name.to_owned(), inlined: name.starts_with('+'), ..Frame::default() };
    let segment = |guest, mode, addresses| SegmentOf { guest, mode, addresses, ..SegmentOf::default() };
    let profile = Profile {
        guests: vec![guest(0, GuestKind::Vm { vmm: 7 }), guest(1, GuestKind::Process { pid: 7 })],
        tracks: vec![Track::default()],
        frames: ["main", "entry", "+kick", "+notify", "exit", "+write"].map(frame).to_vec(),
        stacks: vec![Stack { frames: (0..6).collect(), ..Stack::default() }],
        segments: vec![vec![
            segment(1, Mode::User, 1),
            segment(0, Mode::Kernel, 1),
            // Those of a damaged file.
            segment(0, Mode::User, 0),
        ]],
        samples: vec![Sample { segments: Some(0), ..Sample::default() }],
        ..Profile::default()
    };
    assert_eq!(
        outline(&Tree::build(&View::Merged.of(&profile).profile)),
        [
            ".main (guest user) 0 1",
            "..entry (guest kernel) 0 1",
            "...+kick (guest kernel) 0 1",
            "....+notify (guest kernel) 0 1",
            ".....exit (VMM) 0 1",
            "......+write (VMM) 1 1"
        ]
    );
}

/// Where code ran and the guest's stack is missing, that is named, and does not hide the host's.
#[test]
fn what_is_missing_of_the_guest_is_named() {
    let guest = |id, kind| Guest { id: GuestId(id), kind, name: String::new(), architecture: Architecture::X86_64 };
    let frame = |name: &str| Frame { function: name.to_owned(), ..Frame::default() };
    let segment = |guest, addresses, end| SegmentOf { guest, mode: Mode::User, addresses, end, ..SegmentOf::default() };
    let profile = Profile {
        guests: vec![guest(0, GuestKind::Vm { vmm: 7 }), guest(1, GuestKind::Process { pid: 7 })],
        tracks: vec![Track::default(), Track { guest: 1, ..Track::default() }],
        frames: vec![frame("handle_exit")],
        stacks: vec![Stack { frames: vec![0], ..Stack::default() }, Stack::default()],
        segments: vec![
            vec![segment(1, 1, StackEnd::Complete)],
            vec![segment(1, 1, StackEnd::Complete), segment(0, 0, StackEnd::BadAddress)],
        ],
        samples: [(0, 0, Some(0)), (0, 0, Some(1)), (1, 1, None), (1, 9, None), (0, 9, None)]
            .map(|(track, stack, segments)| Sample { track, stack, segments, state: State::InVmm, ..Sample::default() })
            .to_vec(),
        ..Profile::default()
    };
    let lines = |view: View| outline(&Tree::build(&view.of(&profile).profile));
    assert_eq!(
        lines(View::Merged),
        [
            ".[broken stack: bad address] 0 1",
            "..handle_exit (VMM) 1 1",
            ".[broken stack: no frames] 0 1",
            "..handle_exit (VMM) 1 1",
            ".[broken stack: no frames] (VMM) 1 1",
            ".[broken stack: missing from the recording] 1 1",
            ".[broken stack: missing from the recording] (VMM) 1 1",
        ]
    );
    assert_eq!(
        lines(View::Guest),
        [
            ".[broken stack: bad address] 1 1",
            ".[broken stack: no frames] 1 1",
            ".[broken stack: missing from the recording] 1 1"
        ]
    );
    let host = lines(View::Host);
    assert!(
        host.contains(&".handle_exit (VMM) 2 2".to_owned()) && host.contains(&".[guest] 1 1".to_owned()),
        "{host:?}"
    );
}

/// Profiles whose indices and segments may be anything.
fn any_profile() -> impl Strategy<Value = Profile> {
    let end = || proptest::sample::select(&StackEnd::ALL[..]);
    let kind = prop_oneof![
        Just(GuestKind::Vm { vmm: 1 }),
        Just(GuestKind::Process { pid: 1 }),
        Just(GuestKind::Process { pid: 2 }),
        Just(GuestKind::File)
    ];
    let mode = || proptest::sample::select(&[Mode::User, Mode::Kernel, Mode::Hypervisor, Mode::Firmware][..]);
    let segment = (0..5_u32, mode(), prop_oneof![4 => 0..4_u32, 1 => Just(u32::MAX)], end(), 0..3_u64).prop_map(
        |(guest, mode, addresses, end, apart_ns)| SegmentOf {
            guest,
            mode,
            addresses,
            end,
            apart_ns,
            ..SegmentOf::default()
        },
    );
    let frame =
        ("[ab]", prop_oneof![Just("[kernel]"), Just("x")], any::<bool>()).prop_map(|(function, image, inlined)| {
            Frame { function, image: image.to_owned(), inlined, ..Frame::default() }
        });
    let stack = (proptest::collection::vec(0..8_u32, 0..8), end()).prop_map(|(frames, end)| Stack { frames, end });
    let sample =
        (0..5_u32, 0..9_u32, proptest::sample::select(&State::ALL[..]), mode(), proptest::option::of(0..6_u32));
    let sample = sample.prop_map(|(track, stack, state, mode, segments)| Sample {
        track,
        stack,
        state,
        mode,
        segments,
        ..Sample::default()
    });
    (
        proptest::collection::vec(kind, 0..4),
        proptest::collection::vec(frame, 7),
        proptest::collection::vec(stack, 0..8),
        proptest::collection::vec(proptest::collection::vec(segment, 1..5), 5),
        proptest::collection::vec(sample, 0..40),
    )
        .prop_map(|(kinds, frames, stacks, segments, samples)| Profile {
            guests: (0..)
                .zip(kinds)
                .map(|(id, kind)| Guest {
                    id: GuestId(id),
                    kind,
                    name: String::new(),
                    architecture: Architecture::X86_64,
                })
                .collect(),
            tracks: (0..4).map(|guest| Track { guest, ..Track::default() }).collect(),
            frames,
            stacks,
            segments,
            samples,
            ..Profile::default()
        })
}

/// Samples of all tracks.
const SAMPLES: u64 = 290;

proptest! {
    /// Whatever a file holds: each sample that counts is in the tree once, in its layer's side, and only functions that were on its stack are.
    #[test]
    fn nothing_is_lost_in_any_view(profile in any_profile()) {
        for view in View::ALL {
            let viewed = view.of(&profile);
            let tree = Tree::build(&viewed.profile);
            let left_out = viewed.profile.left_out();
            let is_counted = |sample: &&Sample| !left_out.get(sample.track as usize).copied().unwrap_or(false);
            prop_assert_eq!(tree.nodes[0].total_samples, profile.samples.iter().filter(is_counted).count() as u64);
            prop_assert_eq!(tree.counts().all(), tree.nodes[0].total_samples);
            if viewed.profile.host.is_none() {
                continue;
            }
            for (node, function) in (1..tree.nodes.len()).map(|node| (node, tree.function(node))) {
                let is_host = function.layer.is_some_and(Layer::is_host);
                prop_assert!(view != View::Guest || !is_host, "{:?}", outline(&tree));
                prop_assert!(view != View::Host || function.kind != Kind::Function || is_host, "{:?}", outline(&tree));
                prop_assert!(function.kind != Kind::Function || function.layer.is_some());
                prop_assert!(function.kind == Kind::Function || tree.nodes[node].apart_ns == 0);
            }
            for (sample, seen) in profile.samples.iter().zip(&viewed.profile.samples) {
                let recorded = |frame: &u32| viewed.recorded(*frame);
                let shown: Vec<u32> = viewed.profile.stacks[seen.stack as usize].frames.iter().filter_map(recorded).collect();
                let of = profile.stacks.get(sample.stack as usize).map_or(&[][..], |stack| &stack.frames);
                prop_assert!(view != View::Merged || shown == of || of.iter().any(|frame| *frame >= 7), "{shown:?} {of:?}");
                prop_assert!(shown.len() <= of.len());
            }
        }
    }
}

#[test]
fn marks_of_broken_stacks_have_a_side() {
    let tree = tree(View::Merged);
    let marks = tree.functions.iter().filter(|function| function.kind == Kind::Broken(Broken::NoUnwindInfo));
    assert_eq!(marks.map(|function| function.layer).collect::<Vec<_>>(), [None, Some(Layer::Vmm)]);
}
