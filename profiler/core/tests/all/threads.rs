//! Which samples are of which process and thread, and what is left when some are wanted.

use crate::common::linux_guest::{read, recording};
use glass_profiler_core::arch::Architecture;
use glass_profiler_core::guest::{Guest, GuestId, GuestKind};
use glass_profiler_core::model::{Profile, Sample, Track};
use glass_profiler_core::threads::{NoSamples, SampledThreads, Subject, Wanted};

fn profile() -> Profile {
    read(&recording()).profile
}

fn wanted(process: Option<&str>, thread: Option<&str>) -> Wanted {
    Wanted { process: process.map(str::to_owned), thread: thread.map(str::to_owned) }
}

/// How many samples are left.
fn kept(process: Option<&str>, thread: Option<&str>) -> usize {
    let mut profile = profile();
    wanted(process, thread).keep(&mut profile).unwrap();
    profile.samples.len()
}

#[test]
fn samples_are_of_threads_of_the_idle_task_or_of_nothing_that_is_known() {
    let profile = profile();
    let all = SampledThreads::of(&profile);
    let labels: Vec<String> = all.processes.iter().map(|process| process.label()).collect();
    assert_eq!(labels, ["redis-server 155 (1 in its namespace)", "make 9", "cc1 11"]);
    let count = |wanted| profile.samples.iter().filter(|sample| all.subject(sample) == wanted).count();
    assert_eq!((0..4).map(|thread| count(Subject::Thread(thread))).collect::<Vec<_>>(), [70, 30, 40, 20]);
    assert_eq!((count(Subject::Idle), count(Subject::Unknown)), (30, 10));
    assert_eq!(all.thread_label(1), "redis-server 155 (1 in its namespace), io_thd_1 158");
    assert_eq!(all.thread_label(2), "make 9");
}

#[test]
fn only_what_is_wanted_is_left_and_the_rest_is_counted() {
    assert_eq!(kept(Some("redis-server"), None), 100);
    assert_eq!(kept(Some("155"), Some("io_thd_1")), 30);
    assert_eq!((kept(None, Some("158")), kept(Some("9"), None)), (30, 40));
    // `cc1` was `make` before it called exec.
    assert_eq!((kept(Some("make"), None), kept(Some("cc1"), None)), (60, 20));
    let mut profile = profile();
    wanted(Some("redis-server"), None).keep(&mut profile).unwrap();
    let only = profile.only.unwrap();
    assert_eq!((only.kept, only.others, only.idle, only.unknown), (100, 60, 30, 10));
    assert_eq!(
        only.sentence(),
        "only process redis-server (redis-server 155 (1 in its namespace)): 100 of 200 samples; left out: \
         60 of other processes or threads, 30 of the idle task, 10 without a known process"
    );
    assert_eq!(profile.origin.guest, "qemu-system-x86_64 (VM, TCG), only process redis-server");
}

#[test]
fn what_is_not_there_is_an_error_that_lists_what_is() {
    let error = |process, thread| {
        let mut profile = profile();
        let error = wanted(process, thread).keep(&mut profile).unwrap_err();
        assert_eq!((profile.samples.len(), &profile.only), (200, &None), "the profile stays as it is");
        error.to_string()
    };
    let processes = "there are redis-server 155 (1 in its namespace), make 9, cc1 11";
    assert_eq!(error(Some("nginx"), None), format!("has no samples of process nginx: {processes}"));
    assert_eq!(error(Some("nginx"), Some("x")), format!("has no samples of process nginx, thread x: {processes}"));
    let threads = "there are redis-server 155, io_thd_1 158";
    assert_eq!(error(Some("155"), Some("x")), format!("has no samples of process 155, thread x: {threads}"));
    // The idle task is no process.
    assert_eq!(error(Some("0"), None), format!("has no samples of process 0: {processes}"));
    let none = wanted(Some("a"), None).keep(&mut Profile::default()).unwrap_err();
    assert!(matches!(none, NoSamples::NoProcesses) && none.to_string().contains("has no processes"));
    let mut unchanged = profile();
    wanted(None, None).keep(&mut unchanged).unwrap();
    assert_eq!((unchanged.samples.len(), unchanged.only), (200, None));
}

/// Linux keeps 15 bytes of a name.
#[test]
fn processes_of_this_machine_are_selected_in_the_same_way() {
    let guest = |id, pid, name: &str| Guest {
        id: GuestId(id),
        kind: GuestKind::Process { pid },
        name: name.to_owned(),
        architecture: Architecture::X86_64,
    };
    let track = |guest, id, name: &str| Track { guest, id, name: name.to_owned(), ..Track::default() };
    let tracks = vec![track(0, 100, "systemd-journal"), track(1, 101, "cc1"), track(1, 105, "worker")];
    let samples = [0, 1, 1, 2].map(|track| Sample { track, ..Sample::default() }).to_vec();
    let guests = vec![guest(0, 100, "systemd-journal"), guest(1, 101, "cc1")];
    let all = Profile { guests, tracks, samples, ..Profile::default() };
    let kept = |process, thread| {
        let mut profile = all.clone();
        let result = wanted(process, thread).keep(&mut profile);
        result.map(|()| profile.samples.iter().map(|sample| sample.track).collect::<Vec<_>>())
    };
    assert_eq!(kept(Some("systemd-journald"), None), Ok(vec![0]));
    assert_eq!(kept(Some("systemd-journaling"), Some("100")), Ok(vec![0]));
    assert_eq!((kept(Some("101"), None), kept(None, Some("worker"))), (Ok(vec![1, 1, 2]), Ok(vec![2])));
    assert!(kept(Some("cc"), None).is_err() && kept(Some("100"), Some("worker")).is_err());
}
