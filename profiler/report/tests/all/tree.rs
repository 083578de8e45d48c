//! Call trees of hand-made profiles with exact numbers, and of random ones with what must hold for all.

use glass_profiler_core::model::{Frame, Profile, Sample, Stack, StackEnd, State, Track};
use glass_profiler_core::tree::{Broken, Inlined, Kind, Tree};
use proptest::prelude::*;

fn frame(function: &str, line: u32) -> Frame {
    let file = Some(format!("{function}.rs"));
    Frame { function: function.into(), file, line: Some(line), image: "app".into(), ..Frame::default() }
}

/// A profile of one track from frames, stacks, and counts of samples by stack and state.
fn profile(frames: &[Frame], stacks: &[(&[u32], StackEnd)], samples: &[(usize, u32, State)]) -> Profile {
    let stack = |(frames, end): &(&[u32], StackEnd)| Stack { frames: frames.to_vec(), end: *end };
    let mut profile = Profile {
        tracks: vec![Track { name: "vcpu 0".into(), id: 0, ..Track::default() }],
        frames: frames.to_vec(),
        stacks: stacks.iter().map(stack).collect(),
        ..Profile::default()
    };
    for (count, stack, state) in samples {
        let sample = Sample { stack: *stack, state: *state, ..Sample::default() };
        profile.samples.extend(std::iter::repeat_n(sample, *count));
    }
    profile
}

/// A tree as lines of indented name, self and total.
fn outline(tree: &Tree) -> Vec<String> {
    let line = |index: usize| {
        let node = &tree.nodes[index];
        let indent = ".".repeat(node.depth);
        format!("{indent}{} {} {}", tree.function(index).name, node.self_samples, node.total_samples)
    };
    (0..tree.nodes.len()).map(line).collect()
}

/// Function, self, total, hottest place.
fn totals(tree: &Tree, states: &[State]) -> Vec<(String, u64, u64, String)> {
    let place = |location: Option<usize>| location.map_or(String::new(), |index| tree.locations[index].to_string());
    tree.function_totals(states)
        .iter()
        .map(|total| {
            let name = tree.functions[total.function].name.clone();
            (name, total.self_samples, total.total_samples, place(total.location))
        })
        .collect()
}

/// The imports of an interpreter filled the screen with calls that each only make the next (2026-11-22).
#[test]
fn a_long_chain_of_calls_is_shown_by_its_ends() {
    let frames: Vec<Frame> = (0..60).map(|level| frame(&format!("import_{level}"), 1)).collect();
    let chain: Vec<u32> = (0..60).collect();
    let text = |stacks: &[(&[u32], StackEnd)], samples: &[(usize, u32, State)]| {
        let text = glass_profiler_report::text_with_tree(&profile(&frames, stacks, samples), 0, 2.0);
        let tree = text.split("Call tree").nth(1).unwrap();
        tree.lines().skip(2).count()
    };
    let whole = StackEnd::Complete;
    assert_eq!(text(&[(&chain, whole)], &[(10, 0, State::Running)]), 6 + 1 + 6 + 1);
    assert_eq!(text(&[(&chain[..20], whole)], &[(10, 0, State::Running)]), 20);
    // Two callees at the middle: each part is a chain.
    let fork: Vec<u32> = (0..30).chain([5]).chain(31..60).collect();
    let both = text(&[(&chain, whole), (&fork, whole)], &[(10, 0, State::Running), (10, 1, State::Running)]);
    assert_eq!(both, 3 * 13 + 3);
}

#[test]
fn lines_of_one_function_share_a_node_and_the_hottest_is_named() {
    let frames = [frame("main", 1), frame("main", 2), frame("work", 10), frame("work", 20), frame("help", 5)];
    let whole = StackEnd::Complete;
    let stacks: &[(&[u32], StackEnd)] = &[(&[0, 2], whole), (&[1, 3], whole), (&[1, 3, 4], whole), (&[0], whole)];
    let running = State::Running;
    let tree =
        Tree::build(&profile(&frames, stacks, &[(6, 0, running), (5, 1, running), (9, 2, running), (2, 3, running)]));
    assert_eq!(outline(&tree), ["all 0 22", ".main 2 22", "..work 11 20", "...help 9 9"]);
    assert_eq!(
        totals(&tree, &[running]),
        [
            // Line 10 has 6 of its own samples, line 20 has 5, though 20 is on the stack more often.
            ("work".into(), 11, 20, "work.rs:10".into()),
            ("help".into(), 9, 9, "help.rs:5".into()),
            ("main".into(), 2, 22, "main.rs:1".into()),
        ]
    );
    // In the node the line that is most often on the stack counts: 14 of 20.
    let work = tree.nodes[2].location.expect("work has a place");
    assert_eq!(tree.locations[work].to_string(), "work.rs:20");
}

#[test]
fn recursion_is_kept_in_the_tree_and_counted_once_in_total() {
    let frames = [frame("main", 1), frame("fib", 2), frame("add", 3)];
    let whole = StackEnd::Complete;
    let stacks: &[(&[u32], StackEnd)] = &[(&[0, 1, 1, 1], whole), (&[0, 1, 2, 1], whole), (&[0, 1, 1], whole)];
    let running = State::Running;
    let tree = Tree::build(&profile(&frames, stacks, &[(4, 0, running), (3, 1, running), (2, 2, running)]));
    assert_eq!(
        outline(&tree),
        ["all 0 9", ".main 0 9", "..fib 0 9", "...fib 2 6", "....fib 4 4", "...add 0 3", "....fib 3 3"]
    );
    let sums: Vec<(String, u64, u64)> = totals(&tree, &[running]).into_iter().map(|(n, s, t, _)| (n, s, t)).collect();
    assert_eq!(sums, [("fib".into(), 9, 9), ("main".into(), 0, 9), ("add".into(), 0, 3)]);
}

#[test]
fn broken_idle_and_spinning_have_roots_of_their_own() {
    // A recorded function by the name of one of our own entries is still only a function.
    let frames = [frame("main", 1), frame("[idle]", 2)];
    let stacks: &[(&[u32], StackEnd)] = &[
        (&[0, 1], StackEnd::Complete),
        (&[1], StackEnd::NoUnwindInfo),
        (&[], StackEnd::Complete),
        (&[0], StackEnd::CopyEnded),
        (&[], StackEnd::BadAddress),
        (&[0, 7], StackEnd::Complete),
    ];
    let tree = Tree::build(&profile(
        &frames,
        stacks,
        &[
            (5, 0, State::Running),
            (4, 1, State::Running),
            (3, 2, State::Running),
            (2, 3, State::Running),
            (1, 4, State::Running),
            (6, 5, State::Running),
            (7, 9_999, State::Running),
            (8, 2, State::Idle),
            (9, 0, State::Idle),
            (10, 1, State::Idle),
            (11, 3, State::Spinning),
        ],
    ));
    assert_eq!(
        outline(&tree),
        [
            "all 0 66",
            ".main 0 5",
            "..[idle] 5 5",
            ".[broken stack: the copied part was used up] 0 2",
            "..main 2 2",
            ".[broken stack: no unwind data: callers are missing] 0 4",
            "..[idle] 4 4",
            ".[broken stack: bad address] 1 1",
            ".[broken stack: no frames] 3 3",
            ".[broken stack: missing from the recording] 13 13",
            ".[spinning] 0 11",
            "..[broken stack: the copied part was used up] 0 11",
            "...main 11 11",
            ".[idle] 8 27",
            "..main 0 9",
            "...[idle] 9 9",
            "..[broken stack: no unwind data: callers are missing] 0 10",
            "...[idle] 10 10",
        ]
    );
    assert_eq!(tree.function(2).kind, Kind::Function);
    assert_eq!(tree.function(13).kind, Kind::In(State::Idle));
    assert_eq!(tree.function(9).kind, Kind::Broken(Broken::Missing));
    let sums = |states: &[State]| -> Vec<(String, u64, u64)> {
        totals(&tree, states).into_iter().map(|(name, own, total, _)| (name, own, total)).collect()
    };
    assert_eq!(sums(&[State::Running]), [("[idle]".into(), 9, 9), ("main".into(), 2, 7)]);
    assert_eq!(sums(&[State::Idle]), [("[idle]".into(), 19, 19), ("main".into(), 0, 9)]);
    assert_eq!(sums(&[State::Spinning]), [("main".into(), 11, 11)]);
}

#[test]
fn inlining_is_told_for_each_node() {
    let inlined = |mut frame: Frame| {
        frame.inlined = true;
        frame
    };
    let frames = [frame("main", 1), inlined(frame("get", 2)), frame("get", 3), inlined(frame("put", 4))];
    let whole = StackEnd::Complete;
    let stacks: &[(&[u32], StackEnd)] = &[(&[0, 1], whole), (&[0, 2], whole), (&[0, 3], whole)];
    let running = State::Running;
    let tree = Tree::build(&profile(&frames, stacks, &[(3, 0, running), (2, 1, running), (1, 2, running)]));
    assert_eq!(outline(&tree), ["all 0 6", ".main 0 6", "..get 5 5", "..put 1 1"]);
    let found: Vec<Inlined> = tree.nodes.iter().map(|node| node.inlined).collect();
    assert_eq!(found, [Inlined::Never, Inlined::Never, Inlined::Sometimes, Inlined::Always]);
}

#[test]
fn the_same_name_in_two_images_is_two_functions() {
    let mut other = frame("main", 1);
    other.image = "plugin.so".into();
    let frames = [frame("main", 1), other];
    let stacks: &[(&[u32], StackEnd)] = &[(&[0], StackEnd::Complete), (&[1], StackEnd::Complete)];
    let tree = Tree::build(&profile(&frames, stacks, &[(2, 0, State::Running), (1, 1, State::Running)]));
    assert_eq!(outline(&tree), ["all 0 3", ".main 2 2", ".main 1 1"]);
}

#[test]
fn tracks_are_told_apart_and_unknown_ones_kept() {
    let mut profile = profile(&[frame("main", 1)], &[(&[0], StackEnd::Complete)], &[(3, 0, State::Running)]);
    profile.samples[1].track = 77;
    profile.samples[2].state = State::Idle;
    let tree = Tree::build(&profile);
    let shares: Vec<_> = tree
        .tracks
        .iter()
        .map(|t| {
            (t.name.as_str(), t.id, t.states.of(State::Running), t.states.of(State::Spinning), t.states.of(State::Idle))
        })
        .collect();
    assert_eq!(shares, [("vcpu 0", Some(0), 1, 0, 1), ("(unknown track)", None, 1, 0, 0)]);
    let own: Vec<_> = tree.own.iter().map(|own| (own.track, own.node, own.samples)).collect();
    assert_eq!(own, [(0, 1, 1), (0, 3, 1), (1, 1, 1)]);
}

#[test]
fn small_nodes_are_merged_and_counted() {
    let names: Vec<Frame> = (0..6).map(|index| frame(&format!("f{index}"), 1)).collect();
    let whole = StackEnd::Complete;
    let stacks: &[(&[u32], StackEnd)] =
        &[(&[0, 1], whole), (&[0, 2], whole), (&[0, 3, 4], whole), (&[0, 3, 5], whole), (&[5], whole)];
    let running = State::Running;
    let samples =
        [(50, 0, running), (30, 1, running), (2, 2, running), (1, 3, running), (3, 4, running), (4, 4, State::Idle)];
    let profile = profile(&names, stacks, &samples);
    let whole_tree = Tree::build(&profile);
    assert_eq!(whole_tree.nodes.len(), 10);
    assert_eq!(whole_tree.clone().merge_small(10), whole_tree);

    let tree = whole_tree.merge_small(4);
    assert_eq!(
        outline(&tree),
        [
            "all 0 90",
            ".f0 0 83",
            "..f1 50 50",
            "..f2 30 30",
            "..[small nodes, merged] 3 3",
            ".[small nodes, merged] 3 3",
            ".[idle] 0 4",
            "..[small nodes, merged] 4 4",
        ]
    );
    assert_eq!((tree.merged.nodes, tree.merged.samples, tree.merged.below_samples), (5, 10, 5));
}

/// Profiles whose indices may point anywhere.
fn any_profile() -> impl Strategy<Value = Profile> {
    let end = prop_oneof![4 => Just(StackEnd::Complete), 5 => proptest::sample::select(&StackEnd::ALL[..])];
    let state = prop_oneof![6 => Just(State::Running), 3 => proptest::sample::select(&State::ALL[..])];
    let frame = ("[abc]{1,2}|\\PC{0,8}", proptest::option::of(0..5_u32), "[xy]?", any::<bool>()).prop_map(
        |(function, line, image, inlined)| Frame {
            file: line.map(|line| format!("{line}.rs")),
            function,
            line,
            image,
            inlined,
            ..Frame::default()
        },
    );
    let stack = (proptest::collection::vec(0..13_u32, 0..12), end).prop_map(|(frames, end)| Stack { frames, end });
    let sample = (0..5_u32, 0..22_u32, state).prop_map(|(track, stack, state)| Sample {
        time_ns: 0,
        track,
        stack,
        state,
        ..Sample::default()
    });
    (
        proptest::collection::vec(frame, 12),
        proptest::collection::vec(stack, 0..20),
        proptest::collection::vec(sample, 0..200),
    )
        .prop_map(|(frames, stacks, samples)| Profile {
            tracks: (0..4).map(|id| Track { name: format!("thread {id}"), id, ..Track::default() }).collect(),
            frames,
            stacks,
            samples,
            ..Profile::default()
        })
}

fn check_sums(tree: &Tree, samples: u64) -> Result<(), TestCaseError> {
    let own: u64 = tree.nodes.iter().map(|node| node.self_samples).sum();
    prop_assert_eq!(own, samples);
    prop_assert_eq!(tree.nodes[0].total_samples, samples);
    prop_assert_eq!(tree.own.iter().map(|own| own.samples).sum::<u64>(), samples);
    prop_assert_eq!(tree.tracks.iter().map(|track| track.states.all()).sum::<u64>(), samples);
    for (index, node) in tree.nodes.iter().enumerate() {
        let children = || tree.nodes.iter().enumerate().skip(1).filter(|(_, child)| child.parent == index);
        let below: u64 = children().map(|(_, child)| child.total_samples).sum();
        prop_assert_eq!(node.total_samples, node.self_samples + below);
        prop_assert!(node.end > index && node.end <= tree.nodes.len());
        for (child_index, child) in children() {
            prop_assert_eq!(child.depth, node.depth + 1);
            prop_assert!(child_index > index && child.end <= node.end);
        }
        let by_track: u64 = tree.own.iter().filter(|own| own.node == index).map(|own| own.samples).sum();
        prop_assert_eq!(by_track, node.self_samples);
    }
    Ok(())
}

proptest! {
    #[test]
    fn nothing_is_lost_and_nothing_counted_twice(profile in any_profile(), nodes_max in 1..40_usize) {
        let samples = profile.samples.len() as u64;
        let tree = Tree::build(&profile);
        check_sums(&tree, samples)?;
        let states = State::ALL;
        for total in tree.function_totals(&states) {
            prop_assert!(total.total_samples >= total.self_samples);
            prop_assert!(total.total_samples <= samples);
            // Counted the slow way: samples whose stack is sound and names the function.
            let function = &tree.functions[total.function];
            let names = |frame: &u32| {
                let frame = &profile.frames[*frame as usize];
                let image = if frame.image.is_empty() { String::new() } else { frame.image.clone() };
                (glass_profiler_core::names::printable(&frame.function), image) == (function.name.clone(), function.image.clone())
            };
            let seen = profile.samples.iter().filter(|sample| {
                let Some(stack) = profile.stacks.get(sample.stack as usize) else { return false };
                stack.frames.iter().all(|frame| (*frame as usize) < profile.frames.len()) && stack.frames.iter().any(names)
            });
            prop_assert_eq!(total.total_samples, seen.count() as u64);
        }
        let merged = tree.clone().merge_small(nodes_max);
        check_sums(&merged, samples)?;
        let own_entries = |tree: &Tree| (0..tree.nodes.len()).filter(|node| tree.function(*node).kind != Kind::Function).count();
        prop_assert!(merged.nodes.len() - own_entries(&merged) <= nodes_max);
        let gone = (tree.nodes.len() - own_entries(&tree)) - (merged.nodes.len() - own_entries(&merged));
        prop_assert_eq!(merged.merged.nodes, gone as u64);
    }

    #[test]
    fn no_line_of_text_is_too_wide(profile in any_profile(), top in 0..50_usize, count in any::<u64>(), guest in "\\PC{0,200}") {
        let mut profile = profile;
        profile.origin.guest = guest.clone();
        profile.origin.symbols = guest.clone();
        profile.cost.samples_wanted = count;
        profile.cost.samples_lost = count;
        profile.cost.pause.count = count;
        profile.cost.pause.sum_ns = count;
        profile.cost.profiler_cpu_ns = count;
        profile.origin.start_unix_ns = count;
        profile.warnings.push(guest);
        for line in glass_profiler_report::text(&profile, top).lines() {
            prop_assert!(unicode_width::UnicodeWidthStr::width(line) <= 100, "{line:?}");
        }
    }
}

#[test]
fn a_service_has_sums_that_agree() {
    let profile = crate::support::profiles::service(5_000, 2);
    let tree = Tree::build(&profile);
    assert_eq!(tree.nodes[0].total_samples, 5_000);
    let broken: u64 = (0..tree.nodes.len())
        .filter(|node| matches!(tree.function(*node).kind, Kind::Broken(_)))
        .map(|node| tree.nodes[node].total_samples)
        .sum();
    assert_eq!(broken, profile.cost.stacks_broken);
    assert!(broken > 0);
}

/// Four vCPUs that were each paused half of the time were "200.0 % of the time" (2026-11-22).
#[test]
fn pauses_are_a_share_of_all_vcpus_time() {
    let mut profile = profile(&[], &[], &[]);
    profile.tracks = vec![glass_profiler_core::model::Track::default(); 4];
    profile.origin.duration_ns = 1_000_000_000;
    profile.cost.pause =
        glass_profiler_core::model::Distribution { count: 8, sum_ns: 2_000_000_000, ..Default::default() };
    let text = glass_profiler_report::text(&profile, 10);
    assert!(text.contains("50.0 %") && !text.contains("200"), "{text}");
    assert!(text.contains("recorded at an unknown time"), "{text}");
}

/// Numbers of a damaged file.
#[test]
fn any_number_of_lost_samples_can_be_compared() {
    let mut wild = profile(&[], &[], &[]);
    wild.cost.samples_lost = u64::MAX;
    assert!(glass_profiler_report::difference_text(&[&wild], &[&wild], 10).contains("lost"));
}

/// The reported cost was that of the pauses alone, and of all vCPUs together (2026-11-22).
#[test]
fn what_the_guest_lost_is_told_in_all_and_of_the_vcpu_that_lost_most() {
    let mut profile = profile(&[], &[], &[]);
    let frozen = |sum_ns| glass_profiler_core::model::Frozen { count: 9, sum_ns };
    let track = |name: &str, sum_ns| Track { name: name.into(), frozen: frozen(sum_ns), ..Track::default() };
    profile.tracks = vec![track("vcpu 0", 10_000_000), track("vcpu 1", 50_000_000)];
    profile.origin.duration_ns = 1_000_000_000;
    profile.cost.pause =
        glass_profiler_core::model::Distribution { count: 18, sum_ns: 60_000_000, ..Default::default() };
    let text = glass_profiler_report::text(&profile, 10).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("3.0 % of the tracks' time"), "{text}");
    assert!(text.contains("the guest lost about 6.0 %, vcpu 1 most: 10.0 %"), "{text}");
}

/// Such stacks were "0.0 % broken", and a core that nothing had started "100 % running" (2026-11-22).
#[test]
fn what_cannot_be_unwound_or_was_never_started_is_named() {
    let stacks: &[(&[u32], StackEnd)] =
        &[(&[0], StackEnd::NoUnwindInfo), (&[0], StackEnd::NotLongMode), (&[], StackEnd::Complete)];
    let samples = [(3, 0, State::Running), (2, 1, State::Running)];
    let mut profile = profile(&[frame("work", 1)], stacks, &samples);
    (profile.cost.samples_taken, profile.cost.stacks_broken) = (5, 5);
    profile.tracks.push(Track { name: "vcpu 1".into(), id: 1, ..Track::default() });
    profile.samples.push(Sample { track: 1, stack: 2, state: State::NeverStarted, ..Sample::default() });
    let text = glass_profiler_report::text(&profile, 10);
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains("100.0 % broken") && flat.contains("of 3 there is no unwind data: callers are missing"),
        "{text}"
    );
    assert!(flat.contains("of 2 code was not in 64-bit mode, and is not unwound"), "{text}");
    assert!(text.lines().any(|line| line.contains("vcpu 1") && line.trim_end().ends_with("never started")), "{text}");
    let names: Vec<String> = outline(&Tree::build(&profile));
    assert!(names.iter().any(|line| line == ".[never started] 1 1"), "{names:?}");
    // The guest's owner has paused it for a while.
    profile.samples.push(Sample { stack: 0, state: State::Paused, ..Sample::default() });
    let text = glass_profiler_report::text(&profile, 10);
    assert!(text.lines().any(|line| line.contains("vcpu 0") && line.contains("16.7 % paused")), "{text}");
    assert!(text.contains("14.3 % never started, 14.3 % paused\n"), "{text}");
}
