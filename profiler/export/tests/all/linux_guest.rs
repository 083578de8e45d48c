//! The processes and threads of a Linux guest in exports.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::GzDecoder;
use glass_profiler_core::threads::Wanted;
use glass_profiler_export::{Format, Labels, Options, States, write};
use glass_tests::folder::Folder;
use serde_json::{Value, json};

use crate::common::linux_guest::{read, recording};
use crate::programs::{by_python, go_pprof, output, python_packages};

fn export(format: Format, states: States, process: Option<&str>) -> Vec<u8> {
    let bytes = recording();
    let mut recording = read(&bytes);
    let wanted = Wanted { process: process.map(str::to_owned), thread: None };
    wanted.keep(&mut recording.profile).unwrap();
    let mut exported = Vec::new();
    write(format, &recording, &bytes, Options { states, ..Options::default() }, &mut exported).unwrap();
    exported
}

#[test]
fn folded_stacks_start_with_the_process() {
    let text = |process| String::from_utf8(export(Format::Folded, States::Running, process)).unwrap();
    let redis = "redis-server 155 (1 in its namespace);main;serve 50\n\
                 redis-server 155 (1 in its namespace);main;serve;do_syscall_64;tcp_sendmsg 20\n\
                 redis-server 155 (1 in its namespace);start_thread;serve 30\n";
    assert_eq!(text(Some("redis-server")), redis);
    let others = "cc1 11;do_syscall_64;do_exit 20\ncpu_idle;handle_softirqs 10\nmake 9;main 40\n";
    assert_eq!(text(None), format!("{others}{redis}start_kernel 10\n"));
}

/// Process ID, process, thread ID, thread, whether it is the main one, samples with a stack.
type Thread = (String, String, u64, String, bool, usize);

fn firefox(states: States, process: Option<&str>) -> Vec<Thread> {
    let json: Value = serde_json::from_slice(&export(Format::Firefox, states, process)).unwrap();
    let thread = |thread: &Value| {
        let text = |key: &str| thread[key].as_str().unwrap().to_owned();
        let stacks = thread["samples"]["stack"].as_array().unwrap().iter().filter(|stack| !stack.is_null()).count();
        let (tid, is_main) = (thread["tid"].as_u64().unwrap(), thread["isMainThread"].as_bool().unwrap());
        (text("pid"), text("processName"), tid, text("name"), is_main, stacks)
    };
    json["threads"].as_array().unwrap().iter().map(thread).collect()
}

#[test]
fn the_firefox_profiler_has_the_threads_of_the_guest_in_their_processes() {
    let thread = |pid: &str, process: &str, tid, name: &str, is_main, stacks| {
        (pid.to_owned(), process.to_owned(), tid, name.to_owned(), is_main, stacks)
    };
    let vm = "qemu-system-x86_64 (VM, TCG)";
    let expected = [
        thread("0", vm, 0, "vcpu 0", true, 10),
        thread("0", vm, 1, "vcpu 1", false, 30),
        thread("155", "redis-server", 155, "redis-server", true, 70),
        thread("155", "redis-server", 158, "io_thd_1", false, 30),
        thread("9", "make", 9, "make", true, 40),
        thread("11", "cc1", 11, "cc1", true, 20),
    ];
    assert_eq!(firefox(States::All, None), expected);
    let only: Vec<Thread> = firefox(States::Running, Some("9")).into_iter().filter(|thread| thread.5 > 0).collect();
    assert_eq!(only, expected[4..5]);
}

#[test]
fn speedscope_has_a_profile_for_each_thread() {
    let json: Value = serde_json::from_slice(&export(Format::Speedscope, States::Running, None)).unwrap();
    let names: Vec<&Value> = json["profiles"].as_array().unwrap().iter().map(|profile| &profile["name"]).collect();
    let redis = "redis-server 155 (1 in its namespace)";
    assert_eq!(names, ["vcpu 0", "vcpu 1", redis, &format!("{redis}, io_thd_1 158"), "make 9", "cc1 11"]);
}

#[test]
fn rows_can_be_vcpus_with_all_samples() {
    let (bytes, mut exported) = (recording(), Vec::new());
    let options = Options { states: States::All, by_vcpu: true, ..Options::default() };
    write(Format::Speedscope, &read(&bytes), &bytes, options, &mut exported).unwrap();
    let json: Value = serde_json::from_slice(&exported).unwrap();
    let profiles = json["profiles"].as_array().unwrap();
    let names: Vec<&Value> = profiles.iter().map(|profile| &profile["name"]).collect();
    assert_eq!(names, ["vcpu 0", "vcpu 1"]);
    // Each thread's samples are there, with those of no thread.
    let functions = String::from_utf8(exported).unwrap();
    assert!(["serve", "do_exit", "handle_softirqs"].iter().all(|name| functions.contains(name)));
    assert!(profiles.iter().all(|profile| !profile["samples"].as_array().unwrap().is_empty()));
}

#[test]
fn pprof_has_labels_for_process_thread_and_vcpu() {
    let folder = Folder::new("pprof-linux").unwrap();
    if go_pprof(&folder).is_none() {
        return;
    }
    let file = folder.write("profile.pb.gz", &export(Format::Pprof, States::Running, None)).unwrap();
    let pprof = |arguments: &[&str]| output(go_pprof(&folder).unwrap().args(arguments).arg(&file));
    let raw = pprof(&["-raw"]);
    for label in ["process:[redis-server]", "pid:[155]", "thread:[io_thd_1]", "tid:[158]", "vcpu:[vcpu 1]"] {
        assert!(raw.contains(label), "{label}: {raw}");
    }
    let top = pprof(&["-sample_index=samples", "-tagfocus=thread=io_thd_1", "-top"]);
    assert!(top.contains("Showing nodes accounting for 30, 16.67% of 180 total"), "{top}");
}

#[test]
fn pprof_for_engines_has_few_labels_and_no_name_that_is_not_wanted() {
    let (bytes, mut texts) = (recording(), Vec::new());
    for labels in [Labels::All, Labels::Process, Labels::None] {
        let mut exported = Vec::new();
        write(Format::Pprof, &read(&bytes), &bytes, Options { labels, ..Options::default() }, &mut exported).unwrap();
        let mut plain = Vec::new();
        GzDecoder::new(&exported[..]).read_to_end(&mut plain).unwrap();
        texts.push(String::from_utf8_lossy(&plain).into_owned());
    }
    let found = |text: &String| {
        ["io_thd_1", "vcpu 1", "guest_process", "redis-server", "serve"].map(|word| text.contains(word))
    };
    assert_eq!(
        texts.iter().map(found).collect::<Vec<_>>(),
        [[true, true, false, true, true], [false, false, true, true, true], [false, false, false, false, true]]
    );
}

#[test]
fn perfetto_has_the_threads_of_the_guest_and_only_those_that_are_wanted() {
    let Some(packages) = python_packages() else { return };
    let folder = Folder::new("perfetto-linux").unwrap();
    let threads = |bytes: &[u8]| -> BTreeMap<String, u64> {
        let file = folder.write("plain", bytes).unwrap();
        let result = by_python("perfetto_top.py", Some(&packages), &file);
        serde_json::from_value(result["threads"].clone()).unwrap()
    };
    // The VMM has the process ID of the guest's `make`, which gets another one.
    let make = "make 4194313, make 4194313";
    let expected = json!({
        "redis-server 155, redis-server 155": 70, "redis-server 155, io_thd_1 158": 30, make: 40, "cc1 11, cc1 11": 20,
        "qemu-system-x86_64 (VM, TCG) 9, vcpu 0 16777216": 10, "qemu-system-x86_64 (VM, TCG) 9, vcpu 1 16777217": 10,
    });
    let expected: BTreeMap<String, u64> = serde_json::from_value(expected).unwrap();
    assert_eq!(threads(&export(Format::Perfetto, States::Running, None)), expected);
    let only = BTreeMap::from([(make.to_owned(), 40)]);
    assert_eq!(threads(&export(Format::Perfetto, States::Running, Some("9"))), only);
    // The recording itself, in which idle samples are, too.
    assert_eq!(threads(&recording()).values().sum::<u64>(), 200);
}
