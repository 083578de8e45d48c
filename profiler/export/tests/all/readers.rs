//! Every export is opened by its real reader, and the ten hottest functions are the same in all of them.
//!
//! The readers come from their registries, pinned by version and hash (`tests/readers`), into the target directory. If
//! one cannot be installed, its test is skipped with a message; with `GLASS_TESTS_REQUIRED` that is a failure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{RATE_HZ, Top, expected_top, export, recording, top};
use crate::programs::{
    by_python, go_pprof, has, in_chromium, in_speedscope, limited, node_modules, output, python_packages, skipped,
};
use glass_profiler_export::{Format, States};
use glass_tests::folder::Folder;
use serde_json::Value;

/// Few enough that readers print every count exactly.
const SAMPLES: u64 = 3_000;
const TRACKS: usize = 3;
pub fn counts(self_samples: &Value) -> BTreeMap<String, u64> {
    let object = self_samples.as_object().unwrap();
    object.iter().map(|(name, count)| (name.clone(), count.as_u64().unwrap())).collect()
}

#[test]
fn go_tool_pprof_agrees() {
    let folder = Folder::new("pprof").unwrap();
    if go_pprof(&folder).is_none() {
        return;
    }
    let bytes = recording(SAMPLES);
    let file = folder.write("profile.pb.gz", &export(Format::Pprof, &bytes, States::Running)).unwrap();
    let pprof = |arguments: &[&str], file: &Path| output(go_pprof(&folder).unwrap().args(arguments).arg(file));
    let table = pprof(&["-top", "-sample_index=samples", "-nodefraction=0", "-nodecount=100"], &file);
    let mut found = BTreeMap::new();
    for line in table.lines().skip_while(|line| !line.trim_start().starts_with("flat")).skip(1) {
        // Count, percent, sum of percents, cumulated count and percent, name.
        let count: u64 = line.split_whitespace().next().unwrap().parse().unwrap_or_else(|_| panic!("{table}"));
        let name = (0..5).fold(line, |rest, _| rest.trim_start().split_once(' ').unwrap().1).trim_start();
        let name = name.strip_suffix(" (inline)").or(name.strip_suffix(" (partial-inline)")).unwrap_or(name);
        *found.entry(name.to_owned()).or_default() += count;
    }
    assert_eq!(top(found), expected_top(&bytes), "{table}");

    let raw = pprof(&["-raw"], &file);
    for part in [
        "cpu/nanoseconds",
        "Period: 1000000",
        "/images/queue",
        "0102030405060708090a0b0c0d0e0f1011121314",
        "thread:[vcpu 1]",
    ] {
        assert!(raw.contains(part), "{part}\n{raw}");
    }
    assert!(pprof(&["-comments"], &file).contains("mind the gap"));
    let all = folder.write("all.pb.gz", &export(Format::Pprof, &bytes, States::All)).unwrap();
    let tags = pprof(&["-tags"], &all);
    assert!(tags.contains("idle") && tags.contains("spinning"), "{tags}");
}

#[test]
fn inferno_agrees() {
    let bytes = recording(SAMPLES);
    let folded = String::from_utf8(export(Format::Folded, &bytes, States::Running)).unwrap();
    let mut options = inferno::flamegraph::Options::default();
    options.min_width = 0.0;
    let mut picture = Vec::new();
    inferno::flamegraph::from_lines(&mut options, folded.lines(), &mut picture).unwrap();
    let picture = String::from_utf8(picture).unwrap();
    // A box: its name, its start and width in samples, and its depth.
    let attribute = |text: &str, name: &str| -> u64 {
        let value = text.split(&format!(" {name}=\"")).nth(1).unwrap().split('"').next().unwrap();
        value.parse().unwrap()
    };
    let mut boxes = Vec::new();
    for group in picture.split("<g><title>").skip(1) {
        let (title, rest) = group.split_once("</title>").unwrap();
        let name = title[..title.rfind(" (").unwrap()].to_owned();
        let name = name.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&");
        boxes.push((attribute(rest, "y"), attribute(rest, "fg:x"), attribute(rest, "fg:w"), name));
    }
    let height = attribute(picture.split("<g><title>").nth(1).unwrap(), "height") + 1;
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for (y, left, width, name) in &boxes {
        let callees = boxes.iter().filter(|other| other.0 + height == *y && other.1 >= *left && other.1 < left + width);
        *found.entry(name.clone()).or_default() += width - callees.map(|other| other.2).sum::<u64>();
    }
    found.remove("all");
    // The format has no semicolon in names.
    let expected: Top = expected_top(&bytes).into_iter().map(|(name, count)| (name.replace(';', ":"), count)).collect();
    assert_eq!(top(found), expected);
}

/// The reader's process that holds a profile and answers commands. The reader's own `load` starts one in the background and waits
/// half a second, so the test starts it directly, and ends it.
pub struct Daemon<'a> {
    process: std::process::Child,
    program: PathBuf,
    folder: &'a Path,
}

impl Daemon<'_> {
    pub fn start<'a>(program: &Path, folder: &'a Path, profile: &Path) -> Daemon<'a> {
        /// One that was busy when it started may never answer, and the next does at once.
        const PATIENCE: Duration = Duration::from_secs(120);
        let begun = Instant::now();
        loop {
            let mut node = Command::new("node");
            node.arg(program).arg("--daemon").arg(profile).args(["--session", "test"]);
            node.env("PROFILER_CLI_SESSION_DIR", folder).env("PROFILER_CLI_NO_SYMBOLICATE", "1");
            let process = node.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let daemon = Daemon { process, program: program.to_owned(), folder };
            let start = Instant::now();
            while start.elapsed() < PATIENCE {
                if daemon.command(&["profile", "info"]).output().unwrap().status.success() {
                    return daemon;
                }
            }
            assert!(begun.elapsed() < 4 * PATIENCE, "the reader does not answer");
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut node = limited("node");
        node.arg(&self.program).args(arguments).args(["--session", "test"]);
        node.env("PROFILER_CLI_SESSION_DIR", self.folder);
        node
    }

    pub fn run(&self, arguments: &[&str]) -> String {
        output(&mut self.command(arguments))
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn the_firefox_profiler_agrees() {
    let Some(modules) = node_modules() else { return };
    let folder = Folder::new("ff").unwrap();
    let bytes = recording(SAMPLES);
    let program = modules.join("@firefox-devtools/profiler-cli/dist/profiler-cli.js");
    for states in [States::Running, States::All] {
        let file = folder.write("profile.json", &export(Format::Firefox, &bytes, states)).unwrap();
        let daemon = Daemon::start(&program, folder.path(), &file);
        let mut found = BTreeMap::new();
        let mut names = Vec::new();
        for track in 0..TRACKS {
            let json = daemon.run(&["thread", "functions", "--json", "--thread", &format!("t-{track}")]);
            let thread: Value = serde_json::from_str(&json).unwrap();
            names.push(thread["friendlyThreadName"].as_str().unwrap().to_owned());
            for function in thread["functions"].as_array().unwrap() {
                let name = function["name"].as_str().unwrap().to_owned();
                *found.entry(name).or_default() += function["selfSamples"].as_u64().unwrap();
            }
        }
        assert_eq!(names, ["vcpu 0", "vcpu 1", "vcpu 2"]);
        if states == States::Running {
            assert_eq!(top(found), expected_top(&bytes));
        } else {
            // It recognizes idle samples by their category and leaves them out by itself; spinning ones count.
            let samples = daemon.run(&["thread", "samples", "--thread", "t-0", "--include-idle"]);
            for category in ["Running", "Spinning", "Idle"] {
                assert!(samples.contains(category), "{samples}");
            }
            let without = daemon.run(&["thread", "samples", "--thread", "t-0"]);
            assert!(!without.contains("[idle]"), "{without}");
        }
        let meta = daemon.run(&["profile", "meta"]);
        assert!(meta.contains("queue (VM, <KVM> & \"quotes\")"), "{meta}");
    }
}

/// The number of samples in a time of speedscope's output: `88.00ms (12%)`.
pub fn samples_of(text: &str) -> u64 {
    let number: String = text.trim().chars().take_while(|letter| letter.is_ascii_digit() || *letter == '.').collect();
    let unit = &text.trim()[number.len()..];
    let seconds = number.parse::<f64>().unwrap()
        * match unit {
            unit if unit.starts_with("ms") => 1e-3,
            unit if unit.starts_with("\u{b5}s") => 1e-6,
            unit if unit.starts_with("ns") => 1e-9,
            _ => 1.0,
        };
    (seconds * f64::from(RATE_HZ)).round() as u64
}

#[test]
fn speedscope_agrees() {
    let folder = Folder::new("speedscope").unwrap();
    let bytes = recording(SAMPLES);
    let profile = export(Format::Speedscope, &bytes, States::Running);
    let Some(json) = in_speedscope(&folder, "profile.speedscope.json", &profile, TRACKS) else { return };
    let profiles: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(profiles.as_array().unwrap().len(), TRACKS);
    let mut found = BTreeMap::new();
    for row in profiles.as_array().unwrap().iter().flat_map(|rows| rows.as_array().unwrap()) {
        // Total, self, name.
        let name = row[2].as_str().unwrap().trim().to_owned();
        *found.entry(name).or_default() += samples_of(row[1].as_str().unwrap());
    }
    assert_eq!(top(found), expected_top(&bytes));
}

#[test]
fn the_schema_of_perfetto_agrees() {
    let Some(packages) = python_packages() else { return };
    let folder = Folder::new("perfetto").unwrap();
    let bytes = recording(SAMPLES);
    let plain = folder.write("plain", &export(Format::Perfetto, &bytes, States::Running)).unwrap();
    let result = by_python("perfetto_top.py", Some(&packages), &plain);
    assert_eq!(result["unknown_fields"], 0);
    assert_eq!(top(counts(&result["self"])), expected_top(&bytes));
    // The recording itself is a Perfetto trace too, with fields of ours and with idle samples.
    let own = folder.write("own", &bytes).unwrap();
    let result = by_python("perfetto_top.py", Some(&packages), &own);
    assert!(result["unknown_fields"].as_u64().unwrap() > SAMPLES);
    assert_ne!(top(counts(&result["self"])), expected_top(&bytes));
}

#[test]
fn an_xml_parser_agrees_on_the_picture() {
    if !has("python3") {
        return skipped("there is no python3 (apt-get install python3)").unwrap_or(());
    }
    let folder = Folder::new("svg").unwrap();
    let bytes = recording(SAMPLES);
    let file = folder.write("flame.svg", &export(Format::Svg, &bytes, States::Running)).unwrap();
    let result = by_python("svg_top.py", None, &file);
    assert_eq!(top(counts(&result["self"])), expected_top(&bytes));
}

/// The hue of `fill="hsl(HUE,...`.
fn hue(element: &str) -> Option<&str> {
    element.split_once("fill=\"hsl(")?.1.split_once(',').map(|(hue, _)| hue)
}

/// The legend has the groups with most samples, C++ namespaces among them, and the boxes of a group have its colour.
#[test]
fn the_picture_names_what_its_colours_stand_for() {
    let picture = String::from_utf8(export(Format::Svg, &recording(SAMPLES), States::Running)).unwrap();
    let (head, boxes) = picture.split_once("<g").unwrap();
    let legend: Vec<(&str, &str)> = head
        .split("class=\"s\">")
        .filter_map(|item| Some((item.split_once("</text>")?.0, hue(item.split_once("<rect")?.1)?)))
        .collect();
    assert!(legend.len() >= 4, "{legend:?}");
    for (group, function) in [("queue", "queue::store::write_extent"), ("std", "std::vector&lt;int, std::allocator")] {
        let (_, colour) = legend.iter().find(|(name, _)| *name == group).unwrap_or_else(|| panic!("{legend:?}"));
        let of_group: Vec<&str> =
            boxes.split("<g").filter(|drawn| drawn.contains(&format!("<title>{function}"))).collect();
        assert!(!of_group.is_empty(), "{function}");
        assert!(of_group.iter().all(|drawn| hue(drawn) == Some(colour)), "{group} {colour}: {of_group:?}");
    }
}

/// A browser that opens the picture zooms into what is clicked, and searches.
#[test]
fn a_browser_zooms_and_searches_the_picture() {
    let folder = Folder::new("svg-zoom").unwrap();
    let bytes = recording(SAMPLES);
    let picture = String::from_utf8(export(Format::Svg, &bytes, States::Running)).unwrap();
    // Twice into the same box is out again; half of the matches are inside of others.
    let driver = r#"
        const groups = [...document.querySelectorAll("svg g")];
        const width = (group) => Number(group.querySelector("rect").getAttribute("width"));
        const shown = () => groups.filter((group) => group.style.display !== "none");
        const click = (group) => group.dispatchEvent(new MouseEvent("click", { bubbles: true }));
        const press = (key) => dispatchEvent(new KeyboardEvent("keydown", { key }));
        const result = { groups: groups.length, all: width(groups[0]) };
        const before = groups.map(width);
        const inner = groups.find((group) => width(group) < 0.5 * result.all && width(group) > 20);
        click(inner);
        result.zoomed = width(inner);
        result.shown = shown().length;
        const labelled = shown().map((group) => group.querySelector("text")?.textContent ?? "");
        result.label = inner.querySelector("text").textContent;
        result.hasLabels = labelled.every((text) => !text.includes("undefined"));
        press("Escape");
        result.same = groups.every((group, index) => Math.abs(width(group) - before[index]) < 0.01);
        window.prompt = () => ".";
        press("/");
        result.matched = document.querySelectorAll("rect.m").length;
        result.share = [...document.querySelectorAll("svg > text")].at(-1).textContent;
        window.prompt = () => "(";
        press("/");
        result.wrong = [...document.querySelectorAll("svg > text")].at(-1).textContent;
        const pre = document.createElement("pre");
        pre.id = "glass-result";
        pre.textContent = btoa(JSON.stringify(result));
        document.body.append(pre);"#;
    let page = format!("<!doctype html><meta charset=utf-8><body>{picture}<script>{driver}</script>");
    let page = folder.write("page.html", page.as_bytes()).unwrap();
    let Some(result) = in_chromium(&folder, &format!("file://{}", page.display())) else { return };
    let result: serde_json::Value = serde_json::from_slice(&result).unwrap();
    let number = |name: &str| result[name].as_f64().unwrap_or_else(|| panic!("{result}"));
    assert!((number("zoomed") - number("all")).abs() < 0.01, "{result}");
    assert!(number("shown") < number("groups") && number("shown") > 1.0, "{result}");
    assert!(!result["label"].as_str().unwrap().is_empty() && result["hasLabels"] == true, "{result}");
    assert_eq!(result["same"], true, "{result}");
    assert_eq!(number("matched"), number("groups") - 1.0, "{result}");
    let share = result["share"].as_str().unwrap();
    assert!(share == ".: 100.0 %" || share.starts_with(".: 99."), "{result}");
    assert!(result["wrong"].as_str().unwrap().contains("no regular expression"), "{result}");
}
