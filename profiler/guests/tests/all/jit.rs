//! Code that a process generates has the names that the process gives it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use glass_profiler_core::model::Profile;
use glass_tests::folder::Folder;
use glass_tests::programs::skip;

use crate::process::{compile_program, functions, record_child};

const SECONDS: &str = "1.5";

/// The program in a folder of its own; `None` if this machine cannot compile it.
fn build(name: &str) -> Option<(Folder, PathBuf)> {
    let folder = Folder::new(name).unwrap();
    let path = folder.file("jit");
    compile_program("jit.c", &path, &["-g", "-fno-omit-frame-pointer"]).then_some((folder, path))
}

fn start(program: &PathBuf, arguments: &[&str]) -> Child {
    Command::new(program).arg(SECONDS).args(arguments).stdin(Stdio::null()).spawn().unwrap()
}

/// How many samples have each of these as their innermost function in the process.
fn innermost(profile: &Profile) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    for sample in &profile.samples {
        let names = functions(profile, sample.stack);
        let name = names.into_iter().rev().find(|name| *name != "[kernel]").unwrap_or_default();
        *counts.entry(name.to_owned()).or_default() += 1.0;
    }
    counts
}

/// Checks that the two functions have their shares, and that the stacks continue to main.
fn check(profile: &Profile) {
    let counts = innermost(profile);
    let (often, rarely) =
        (counts.get("generated_often").unwrap_or(&0.0), counts.get("generated_rarely").unwrap_or(&0.0));
    let total = often + rarely;
    assert!(total > 500.0 && total > 0.9 * profile.samples.len() as f64, "{counts:?} {:?}", profile.warnings);
    // The program divides by its own clock, which leaves out nothing: five deviations and what starting takes.
    let tolerance = 5.0 * (total * 0.75 * 0.25).sqrt() + 0.02 * total;
    assert!((often - 0.75 * total).abs() < tolerance, "{counts:?}");
    let whole = profile.samples.iter().filter(|sample| {
        let names = functions(profile, sample.stack);
        names.contains(&"main") && names.contains(&"run")
    });
    assert!(whole.count() as f64 > 0.9 * total, "stacks do not reach main: {counts:?}");
}

/// Node's functions were addresses (2026-11-22).
#[test]
fn names_of_a_perf_map() {
    let Some((_folder, program)) = build("perf-map") else { return };
    let child = start(&program, &["map"]);
    let map = format!("/tmp/perf-{}.map", child.id());
    let profile = record_child(child, || ());
    // It may not be there if the program was not permitted to write it.
    let _ = std::fs::remove_file(map);
    let Some(profile) = profile else { return };
    check(&profile);
    let [warning] = &profile.warnings[..] else { panic!("{:?}", profile.warnings) };
    assert!(warning.contains("the last one is shown"), "{warning}");
    assert!(profile.frames.iter().any(|frame| frame.function == "generated_often" && frame.image.starts_with("[jit ")));
}

/// What follows another at the same address has its own name from that moment on.
#[test]
fn names_of_a_jitdump_change_with_time() {
    let Some((folder, program)) = build("jitdump") else { return };
    let child = start(&program, &["dump", &folder.file("").display().to_string()]);
    let Some(profile) = record_child(child, || ()) else { return };
    check(&profile);
    assert!(profile.warnings.is_empty(), "{:?}", profile.warnings);
    let name = |sample: &glass_profiler_core::model::Sample| {
        functions(&profile, sample.stack).into_iter().find(|name| name.starts_with("generated"))
    };
    let names: Vec<&str> = profile.samples.iter().filter_map(name).collect();
    let changes = names.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert_eq!((changes, names[0]), (1, "generated_often"), "by time");
}

/// In a container the process has another number, and another /tmp.
#[test]
fn a_perf_map_in_namespaces_of_its_own() {
    let Some((_folder, program)) = build("map-inside") else { return };
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "sh", "-c", script]).arg(&program);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    };
    if !unshare("mount -t tmpfs none /tmp").status().is_ok_and(|status| status.success()) {
        return skip("namespaces need the right to make them");
    }
    // The program may lie in the /tmp that is covered: it is opened before.
    let mut parent = unshare("exec 3<\"$0\"; mount -t tmpfs none /tmp; exec /proc/self/fd/3 1.5 map").spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    let start = Instant::now();
    let inside: u32 = loop {
        let child = std::fs::read_to_string(&children).unwrap_or_default();
        if let Ok(child) = child.trim().parse() {
            break child;
        }
        assert!(start.elapsed() < Duration::from_secs(120), "unshare starts nothing");
        std::thread::sleep(Duration::from_millis(5));
    };
    let profile = crate::process::record_running(inside);
    assert!(parent.wait().unwrap().success());
    let Some(profile) = profile else { return };
    check(&profile);
}

#[test]
fn generated_code_without_names_is_called_so() {
    let Some((_folder, program)) = build("nameless-jit") else { return };
    let Some(profile) = record_child(start(&program, &["none"]), || ()) else { return };
    let counts = innermost(&profile);
    assert!(
        counts.get("[generated code]").is_some_and(|count| *count > 0.9 * profile.samples.len() as f64),
        "{counts:?}"
    );
    let [warning] = &profile.warnings[..] else { panic!("{:?}", profile.warnings) };
    assert!(warning.contains("--perf-basic-prof"), "{warning}");
}

/// What a JavaScript program spends its time in, by either kind of file.
#[test]
fn javascript_has_its_names() {
    let folder = Folder::new("node").unwrap();
    let script = folder.file("hot.js");
    let source = "function hotInner(n) { let x = 1; for (let i = 0; i < n; i++) x = (x * 31 + i) | 0; return x }\n\
                  function outer() { return hotInner(2e6) }\n\
                  const end = Date.now() + 2500; let sum = 0;\n\
                  while (Date.now() < end) sum ^= outer();\n\
                  if (sum === 0.5) console.log(sum)\n";
    std::fs::write(&script, source).unwrap();
    for flag in ["--perf-basic-prof", "--perf-prof"] {
        let mut node = Command::new("node");
        // Both write files into the folder that they run in, or into /tmp.
        node.arg(flag).arg(&script).current_dir(folder.file("")).stdin(Stdio::null());
        let Ok(child) = node.spawn() else { return skip("there is no node") };
        let map = format!("/tmp/perf-{}.map", child.id());
        let profile = record_child(child, || ());
        // The second flag writes none.
        let _ = std::fs::remove_file(map);
        let Some(profile) = profile else { return };
        let counts = innermost(&profile);
        let hot: f64 = counts.iter().filter(|(name, _)| name.contains("hotInner")).map(|(_, count)| count).sum();
        assert!(hot > 0.8 * profile.samples.len() as f64, "{flag}: {counts:?} {:?}", profile.warnings);
        let has_callers = |sample: &&glass_profiler_core::model::Sample| {
            let names = functions(&profile, sample.stack);
            names.iter().any(|name| name.contains("hotInner")) && names.contains(&"Builtins_JSEntry")
        };
        let whole = profile.samples.iter().filter(has_callers).count() as f64;
        assert!(whole > 0.9 * hot, "{flag}: {whole} of {hot} stacks reach the code that called them");
    }
}
