//! Exports of host and guest: each view, with modes, as their real readers see them.

use std::collections::BTreeMap;

use crate::common::host_and_guest::{read, recording};
use crate::common::{export, export_view};
use crate::programs::{by_python, go_pprof, has, in_speedscope, node_modules, output, python_packages, skipped};
use crate::readers::{Daemon, counts, samples_of};
use glass_profiler_core::model::State;
use glass_profiler_core::tree::{Kind, Tree};
use glass_profiler_core::view::View;
use glass_profiler_export::{Format, States};
use glass_tests::folder::Folder;
use serde_json::Value;

/// Own samples of functions and of `[guest]` by name; `mark` makes a name of a function's and the word for its layer.
fn expected(view: View, mark: impl Fn(&str, &str) -> String) -> BTreeMap<String, u64> {
    let profile = read(&recording(true)).profile;
    let tree = Tree::build(&view.of(&profile).profile);
    let states = tree.states();
    let mut own = BTreeMap::new();
    for (index, node) in
        tree.nodes.iter().enumerate().filter(|(index, node)| node.self_samples > 0 && states[*index].is_active())
    {
        let function = tree.function(index);
        assert!(matches!(function.kind, Kind::Function | Kind::Guest), "{function:?}");
        let layer = function.layer.map_or("", |layer| layer.word());
        *own.entry(mark(&function.name, layer)).or_default() += node.self_samples;
    }
    own
}

fn plain(name: &str, _: &str) -> String {
    name.to_owned()
}

/// Samples by the layer of their innermost frame, in merged and host views.
fn by_layer(view: View) -> BTreeMap<String, u64> {
    let mut layers = expected(view, |_, layer| layer.to_owned());
    layers.remove("");
    layers
}

#[test]
fn folded_stacks_end_in_perfs_marks() {
    let bytes = recording(true);
    let text = |view| String::from_utf8(export_view(Format::Folded, &bytes, States::Running, view)).unwrap();
    assert_eq!(text(View::Guest), "main;memcpy 15\nmain;serve;parse 40\nmain;serve;parse;entry;do_write;kick 60\n");
    // As if the host had not been recorded.
    assert_eq!(
        text(View::Guest),
        String::from_utf8(export(Format::Folded, &recording(false), States::Running)).unwrap()
    );
    assert_eq!(
        text(View::Merged),
        "glass 71;thread_start;serve_card;vfs_write_[k] 18\n\
         main_[u];memcpy_[u] 15\n\
         main_[u];serve_[u];parse_[u] 40\n\
         main_[u];serve_[u];parse_[u];entry_[g];do_write_[g];kick_[g];[broken stack: no unwind data: callers are missing];memcpy 10\n\
         main_[u];serve_[u];parse_[u];entry_[g];do_write_[g];kick_[g];sys_ioctl_[k];kvm_run_[k] 20\n\
         main_[u];serve_[u];parse_[u];entry_[g];do_write_[g];kick_[g];thread_start;handle_exit;write_disk;vfs_write_[k] 30\n\
         qemu 70;thread_start;main_loop;poll_[k] 25\n\
         qemu 70;thread_start;memcpy 12\n"
    );
    assert_eq!(
        text(View::Host),
        "[broken stack: no unwind data: callers are missing];memcpy 10\n\
         [guest] 55\n\
         glass 71;thread_start;serve_card;vfs_write_[k] 18\n\
         qemu 70;thread_start;main_loop;poll_[k] 25\n\
         qemu 70;thread_start;memcpy 12\n\
         sys_ioctl_[k];kvm_run_[k] 20\n\
         thread_start;handle_exit;write_disk;vfs_write_[k] 30\n"
    );
    let all = String::from_utf8(export_view(Format::Folded, &bytes, States::All, View::Merged)).unwrap();
    assert!(all.contains("\n[idle];sys_ioctl_[k];poll_[k] 5\n") && all.contains("\n[stolen] 5\n"), "{all}");
    assert!(all.contains("\nqemu 70;[idle] 100\n"), "{all}");
}

/// inferno takes perf's mark of the kernel for what it is, and colours by it.
#[test]
fn inferno_takes_the_marks() {
    use inferno::flamegraph::color::{MultiPalette, Palette};
    let text = String::from_utf8(export_view(Format::Folded, &recording(true), States::Running, View::Merged)).unwrap();
    let mut options = inferno::flamegraph::Options::default();
    options.min_width = 0.0;
    options.colors = Palette::Multi(MultiPalette::Java);
    let mut picture = Vec::new();
    inferno::flamegraph::from_lines(&mut options, text.lines(), &mut picture).unwrap();
    let picture = String::from_utf8(picture).unwrap();
    for title in [
        "kvm_run (20 samples",
        "vfs_write (30 samples",
        "kick_[g] (60 samples",
        "main_[u] (115 samples",
        "qemu 70 (37 samples",
    ] {
        assert!(picture.contains(&format!("<title>{title}")), "{title}\n{picture}");
    }
    let fill = |title: &str| {
        let rest = picture.split(&format!("<title>{title}")).nth(1).unwrap();
        rest.split("fill=\"rgb(").nth(1).unwrap().split(')').next().unwrap().to_owned()
    };
    let red = |title: &str| fill(title).split(',').map(|part| part.parse::<u32>().unwrap()).collect::<Vec<_>>();
    // Orange for the kernel.
    let kernel = red("kvm_run");
    assert!(kernel[0] > 150 && kernel[2] < 50, "{kernel:?}");
}

#[test]
fn pprof_has_the_mode_as_a_label() {
    let folder = Folder::new("pprof-host").unwrap();
    if go_pprof(&folder).is_none() {
        return;
    }
    let pprof = |arguments: &[&str], view: View| {
        let file = folder
            .write("profile.pb.gz", &export_view(Format::Pprof, &recording(true), States::Running, view))
            .unwrap();
        let mut pprof = go_pprof(&folder).unwrap();
        output(pprof.args(["-sample_index=samples", "-nodefraction=0"]).args(arguments).arg(file))
    };
    for view in View::ALL {
        let tags = pprof(&["-tags"], view);
        let mode = tags.split(" mode: Total").nth(1).unwrap_or_else(|| panic!("{tags}"));
        let mode = mode.split("\n\n").next().unwrap();
        let rows = mode.lines().skip(1).filter_map(|line| line.split_once("): "));
        let found: BTreeMap<String, u64> = rows
            .map(|(number, word)| {
                let number = number.split_whitespace().next().unwrap();
                (word.trim().to_owned(), number.parse::<f64>().unwrap() as u64)
            })
            .collect();
        assert_eq!(found, by_layer(view), "{view:?}\n{tags}");
    }
    // What a reader does with it.
    let kernel = pprof(&["-top", "-tagfocus=mode=host kernel"], View::Merged);
    for row in ["kvm_run", "vfs_write", "poll", "kick"] {
        assert!(kernel.contains(row), "{row}\n{kernel}");
    }
    assert!(kernel.contains("accounting for 93,") && kernel.contains("File: redis"), "{kernel}");
    let states = pprof(&["-tags"], View::Guest);
    assert!(states.contains(" state: Total 40 of 115") && states.contains(": in the VMM"), "{states}");
}

#[test]
fn the_firefox_profiler_has_categories_of_modes() {
    let Some(modules) = node_modules() else { return };
    let program = modules.join("@firefox-devtools/profiler-cli/dist/profiler-cli.js");
    for view in [View::Guest, View::Merged] {
        let folder = Folder::new("ff-host").unwrap();
        let file = folder
            .write("profile.json", &export_view(Format::Firefox, &recording(true), States::Running, view))
            .unwrap();
        let daemon = Daemon::start(&program, folder.path(), &file);
        let mut found: BTreeMap<String, u64> = BTreeMap::new();
        for track in 0..5 {
            let json = daemon.run(&["thread", "functions", "--json", "--thread", &format!("t-{track}")]);
            let thread: Value = serde_json::from_str(&json).unwrap();
            for function in thread["functions"].as_array().unwrap() {
                let name = function["name"].as_str().unwrap();
                let own = function["selfSamples"].as_u64().unwrap();
                // It appends a function's library.
                *found.entry(name.split(" (").next().unwrap().to_owned()).or_default() += own;
            }
        }
        found.retain(|_, own| *own > 0);
        assert_eq!(found, expected(view, plain), "{view:?}");
        let samples = daemon.run(&["thread", "samples", "--thread", "t-0"]);
        let words: &[&str] = match view {
            View::Guest => &["Guest user", "Guest kernel", "In the VMM"],
            _ => &["Guest user", "Host kernel", "VMM"],
        };
        for word in words {
            assert!(samples.contains(word), "{word}\n{samples}");
        }
        assert!(view != View::Guest || !samples.contains("Host kernel"), "{samples}");
    }
}

/// The category of each sample's innermost frame.
#[test]
fn firefox_samples_have_the_category_of_their_innermost_frame() {
    let profile: Value =
        serde_json::from_slice(&export_view(Format::Firefox, &recording(true), States::Running, View::Merged)).unwrap();
    let categories = profile["meta"]["categories"].as_array().unwrap();
    let index = |value: &Value| value.as_u64().map(|index| index as usize);
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for thread in profile["threads"].as_array().unwrap() {
        for stack in thread["samples"]["stack"].as_array().unwrap() {
            let mut at = index(stack);
            while let Some(stack) = at {
                let frame = index(&thread["stackTable"]["frame"][stack]).unwrap();
                if let Some(category) = index(&thread["frameTable"]["category"][frame]) {
                    let name = categories[category]["name"].as_str().unwrap().to_lowercase();
                    *found.entry(name).or_default() += 1;
                    break;
                }
                at = index(&thread["stackTable"]["prefix"][stack]);
            }
        }
    }
    let expected: BTreeMap<String, u64> =
        by_layer(View::Merged).into_iter().map(|(word, count)| (word.to_lowercase(), count)).collect();
    assert_eq!(found, expected);
    // A recording without any of it has the categories that it had.
    let plain: Value =
        serde_json::from_slice(&export(Format::Firefox, &crate::common::recording(50), States::All)).unwrap();
    assert_eq!(plain["meta"]["categories"].as_array().unwrap().len(), 5);
}

#[test]
fn speedscope_has_the_mode_in_names() {
    let folder = Folder::new("speedscope-host").unwrap();
    let bytes = export_view(Format::Speedscope, &recording(true), States::Running, View::Merged);
    let Some(json) = in_speedscope(&folder, "profile.speedscope.json", &bytes, 5) else { return };
    let profiles: Value = serde_json::from_slice(&json).unwrap();
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for row in profiles.as_array().unwrap().iter().flat_map(|rows| rows.as_array().unwrap()) {
        // Total, self, name.
        *found.entry(row[2].as_str().unwrap().trim().to_owned()).or_default() += samples_of(row[1].as_str().unwrap());
    }
    found.retain(|_, own| *own > 0);
    assert_eq!(found, expected(View::Merged, |name, layer| format!("{name} [{layer}]")));
}

#[test]
fn perfetto_has_the_stacks_of_the_view_and_the_mode_of_the_innermost_frame() {
    let Some(packages) = python_packages() else { return };
    let folder = Folder::new("perfetto-host").unwrap();
    let bytes = recording(true);
    let modes = |pairs: &[(&str, u64)]| {
        pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect::<BTreeMap<_, _>>()
    };
    for (view, expected_modes) in [
        (View::Guest, modes(&[("MODE_GUEST_KERNEL", 60), ("MODE_GUEST_USER", 55)])),
        (View::Host, modes(&[("MODE_GUEST_USER", 55), ("MODE_KERNEL", 93), ("MODE_USER", 22)])),
        (View::Merged, modes(&[("MODE_GUEST_USER", 55), ("MODE_KERNEL", 93), ("MODE_USER", 22)])),
    ] {
        let file = folder.write("plain", &export_view(Format::Perfetto, &bytes, States::Running, view)).unwrap();
        let result = by_python("perfetto_top.py", Some(&packages), &file);
        assert_eq!(result["unknown_fields"], 0);
        assert_eq!(counts(&result["self"]), expected(view, plain), "{view:?}");
        assert_eq!(counts(&result["modes"]), expected_modes, "{view:?}");
    }
    let all = folder.write("all", &export_view(Format::Perfetto, &bytes, States::All, View::Host)).unwrap();
    let result = by_python("perfetto_top.py", Some(&packages), &all);
    assert_eq!((&result["self"]["poll"], &result["self"]["[guest]"]), (&Value::from(30), &Value::from(55)));
}

#[test]
fn an_image_has_the_colours_of_modes() {
    if !has("python3") {
        return skipped("there is no python3 (apt-get install python3)").unwrap_or(());
    }
    let folder = Folder::new("svg-host").unwrap();
    let bytes = recording(true);
    for view in View::ALL {
        let picture = export_view(Format::Svg, &bytes, States::Running, view);
        let file = folder.write("flame.svg", &picture).unwrap();
        let result = by_python("svg_top.py", None, &file);
        let mut found = counts(&result["self"]);
        found.retain(|_, own| *own > 0);
        assert_eq!(found, expected(view, plain), "{view:?}");
        let picture = String::from_utf8(picture).unwrap();
        assert_eq!(picture.contains(">host kernel</text>"), view.is_by_layer(), "the legend");
        assert!(picture.contains(&format!("view: {}", view.name())));
        let merged = "kvm_run\nsrc/kvm_run.c:7\n[kernel]\nhost kernel\nmerged by time: sampled up to 400 \u{b5}s apart\n20 samples";
        assert_eq!(picture.contains(merged), view.is_by_layer(), "{picture}");
        let fill = |title: &str| {
            let rest = picture.split(&format!("<title>{title}\n")).nth(1)?;
            Some(rest.split("fill=\"hsl(").nth(1)?.split(',').next()?.to_owned())
        };
        if view == View::Merged {
            let hues = ["main", "kick", "write_disk", "kvm_run"].map(|title| fill(title).unwrap());
            assert_eq!(hues, ["205", "235", "38", "8"]);
            assert_eq!(picture.matches("<title>qemu 70\n").count(), 1);
        }
    }
}

/// What the guest's kernel does is the guest's also where a state is one that only some recordings have.
#[test]
fn time_in_the_vmm_is_exported_without_a_host_too() {
    let bytes = recording(false);
    let profile = read(&bytes).profile;
    let in_vmm = profile.samples.iter().filter(|sample| sample.state == State::InVmm).count();
    assert_eq!((in_vmm, profile.counted().count()), (40, 115));
    let folded = String::from_utf8(export(Format::Folded, &bytes, States::Running)).unwrap();
    assert!(folded.contains("kick 60\n"), "{folded}");
}
