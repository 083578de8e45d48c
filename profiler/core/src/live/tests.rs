//! Known events give known tables.

use super::names::{Function, NameCache};
use super::threads::{By, Subject, THREADS_MAX};
use super::view::{Only, Query, View};
use super::*;
use crate::guest::{ProcessId, ProgramSince};

const MILLISECOND: u64 = 1_000_000;

/// A profile whose stacks are given by letters, outermost first. Without images every address has the
/// name of nothing, so functions are distinguished by image: letter X is in the image /X.
struct Fixture {
    live: Live,
    names: NameCache,
    time_ns: u64,
}

impl Fixture {
    fn new(half_life_ns: Option<u64>) -> Fixture {
        let mut live = Live::new(Settings { half_life_ns, kind: Kind::Core });
        for track in 0..2 {
            let name = format!("vcpu {track}");
            live.update(Update::Track { track, id: u64::from(track), name, owner: None });
        }
        Fixture { live, names: NameCache::default(), time_ns: 1000 * MILLISECOND }
    }

    fn sample(&mut self, track: u32, state: State, stack: &str, count: u32) {
        self.sample_of((track, state, None, true), stack, count);
    }

    fn sample_of(&mut self, (track, state, thread, is_user): (u32, State, Option<u32>, bool), stack: &str, count: u32) {
        for _ in 0..count {
            self.time_ns += MILLISECOND;
            let call = |letter: char| CallAddress { image: Some(letter as u32), address: u64::from(letter as u32) };
            let calls = stack.chars().rev().map(call).collect();
            let time_ns = self.time_ns;
            let (thread, is_broken, frozen_ns) = (thread.map(ThreadId), false, 50_000);
            let sample = UnwoundSample { time_ns, track, state, thread, is_user, calls, is_broken, frozen_ns };
            self.live.update(Update::Sample(sample));
        }
    }

    fn view(&mut self, query: Query) -> View {
        let mut snapshot = self.live.snapshot(self.time_ns);
        snapshot.paths = (0..128u8).map(|letter| format!("/{}", char::from(letter))).collect();
        let load: &mut super::names::Loader<'_> = &mut |_| Some(Err("there are no files".to_owned()));
        View::build(&snapshot, query, &mut self.names, load)
    }
}

fn function(letter: &str) -> Function {
    Function { name: "[no name]".to_owned(), image: letter.to_owned() }
}

/// Self and total in percent of a function.
fn shares(view: &View, letter: &str) -> (f64, f64) {
    let row = view.functions.iter().find(|row| row.function.image == letter);
    let round = |share: f64| (share * 1000.0).round() / 10.0;
    row.map_or((0.0, 0.0), |row| (round(row.self_share), round(row.total_share)))
}

fn letters(functions: &[(Arc<Function>, f64)]) -> Vec<(String, f64)> {
    functions.iter().map(|(function, share)| (function.image.clone(), (share * 1000.0).round() / 10.0)).collect()
}

#[test]
fn self_and_total_are_those_of_the_samples() {
    let mut fixture = Fixture::new(None);
    fixture.sample(0, State::Running, "ma", 10);
    fixture.sample(0, State::Running, "mab", 30);
    fixture.sample(0, State::Running, "mabc", 60);
    fixture.sample(0, State::Idle, "mi", 300);
    let view = fixture.view(Query::default());
    assert_eq!(view.weight, 100.0);
    assert_eq!(shares(&view, "m"), (0.0, 100.0));
    assert_eq!(shares(&view, "a"), (10.0, 100.0));
    assert_eq!(shares(&view, "b"), (30.0, 90.0));
    assert_eq!(shares(&view, "c"), (60.0, 60.0));
    assert_eq!(shares(&view, "i"), (0.0, 0.0));
    let order: Vec<&str> = view.functions.iter().map(|row| row.function.image.as_str()).collect();
    assert_eq!(order, ["c", "b", "a", "m"]);
    let with_idle = fixture.view(Query { idle: true, ..Default::default() });
    assert_eq!((shares(&with_idle, "i"), shares(&with_idle, "c")), ((75.0, 75.0), (15.0, 15.0)));
    let progress = fixture.live.snapshot(fixture.time_ns).progress;
    assert_eq!((progress.samples_taken, progress.pause.count), (400, 400));
}

#[test]
fn recursion_counts_once() {
    let mut fixture = Fixture::new(None);
    fixture.sample(0, State::Running, "mfgfgf", 40);
    fixture.sample(0, State::Running, "mx", 60);
    let view = fixture.view(Query { focus: Some(function("f")), ..Default::default() });
    assert_eq!((shares(&view, "f"), shares(&view, "g")), ((40.0, 40.0), (0.0, 40.0)));
    assert_eq!(view.lines.iter().map(|line| line.total_share).fold(0.0, f64::max), 1.0);
    let focus = view.focus.unwrap();
    assert_eq!(letters(&focus.callers), [("m".to_owned(), 40.0)]);
    assert_eq!(letters(&focus.callees), []);
    assert_eq!(focus.self_share, 0.4);
}

#[test]
fn tracks_are_kept_apart() {
    let mut fixture = Fixture::new(None);
    fixture.sample(0, State::Running, "ma", 30);
    fixture.sample(1, State::Spinning, "mb", 10);
    assert_eq!(shares(&fixture.view(Query::default()), "a"), (75.0, 75.0));
    let only = fixture.view(Query { track: Some(1), ..Default::default() });
    assert_eq!((shares(&only, "a"), shares(&only, "b")), ((0.0, 0.0), (100.0, 100.0)));
}

#[test]
fn what_was_long_ago_fades() {
    let mut fixture = Fixture::new(Some(1000 * MILLISECOND));
    fixture.sample(0, State::Running, "a", 500);
    fixture.time_ns += 10_000 * MILLISECOND;
    fixture.sample(0, State::Running, "b", 500);
    let view = fixture.view(Query::default());
    let (a, b) = (shares(&view, "a").0, shares(&view, "b").0);
    assert!(a < 0.15 && b > 99.8, "{a} {b}");
    assert!(view.weight < 500.0 && view.weight > 400.0, "{}", view.weight);
}

#[test]
fn callers_and_callees_make_the_total() {
    let mut fixture = Fixture::new(None);
    for (stack, count) in [("mxf", 5), ("myf", 10), ("myfz", 25), ("f", 10), ("m", 50)] {
        fixture.sample(0, State::Running, stack, count);
    }
    let focus = fixture.view(Query { focus: Some(function("f")), ..Default::default() }).focus.unwrap();
    assert_eq!((focus.self_share, focus.total_share), (0.25, 0.5));
    assert_eq!(letters(&focus.callers), [("y".to_owned(), 35.0), ("x".to_owned(), 5.0)]);
    assert_eq!(letters(&focus.callees), [("z".to_owned(), 25.0)]);
    let stacks: Vec<(String, f64)> = focus
        .stacks
        .iter()
        .map(|(path, share)| (path.iter().map(|function| function.image.as_str()).collect(), *share))
        .collect();
    assert_eq!(stacks[0], ("myfz".to_owned(), 0.25));
    assert_eq!(stacks.len(), 4);
    assert_eq!(fixture.view(Query { focus: Some(function("q")), ..Default::default() }).focus, None);
}

#[test]
fn a_reset_forgets_samples_but_not_tracks() {
    let mut fixture = Fixture::new(None);
    fixture.sample(0, State::Running, "a", 5);
    fixture.live.reset();
    assert_eq!(fixture.view(Query::default()), View::default());
    fixture.sample(1, State::Running, "b", 1);
    assert_eq!(shares(&fixture.view(Query::default()), "b"), (100.0, 100.0));
}

#[test]
fn samples_of_unknown_tracks_and_too_many_tracks_are_counted() {
    let mut fixture = Fixture::new(None);
    fixture.sample(9, State::Running, "a", 3);
    assert_eq!(fixture.live.snapshot(fixture.time_ns).progress.samples_dropped, 3);
    for track in 0..TRACKS_MAX as u32 + 100 {
        fixture.live.update(Update::Track { track, id: 1, name: "t".to_owned(), owner: None });
        assert!(fixture.live.tracks.len() <= TRACKS_MAX);
    }
    fixture.sample(TRACKS_MAX as u32 + 99, State::Running, "a", 1);
    assert_eq!(fixture.live.snapshot(fixture.time_ns).progress.samples_taken, 1);
}

#[test]
fn warnings_are_told_once_and_bounded() {
    let mut fixture = Fixture::new(None);
    for index in 0..100 {
        fixture.live.warn(format!("warning {}", index / 2));
    }
    let warnings = fixture.live.snapshot(0).warnings;
    assert_eq!((warnings.len(), warnings.last().unwrap().as_str()), (WARNINGS_MAX, "warning 49"));
}

/// A process with one thread for each of these names; numbers count from `first`, and thread IDs from the process ID.
fn announce(live: &mut Live, (id, pid, name): (u32, u32, &str), first: u32, threads: &[&str]) {
    let programs = vec![ProgramSince { time_ns: 0, name: name.to_owned() }];
    live.update(Update::Process(Process { id: ProcessId(id), pid, programs, ..Process::default() }));
    for (index, name) in (0..).zip(threads) {
        let (id, process, tid) = (ThreadId(first + index), ProcessId(id), pid + index);
        live.update(Update::Thread(Thread { id, process, tid, name: (*name).to_owned(), start_ns: None }));
    }
}

#[test]
fn rows_are_processes_or_threads() {
    let mut fixture = Fixture::new(None);
    announce(&mut fixture.live, (0, 0, "swapper/0"), 0, &["swapper/0"]);
    announce(&mut fixture.live, (1, 140, "redis"), 1, &["redis", "worker"]);
    announce(&mut fixture.live, (2, 7, "sh"), 3, &["sh"]);
    fixture.sample_of((0, State::Running, Some(1), true), "ma", 10);
    fixture.sample_of((1, State::Running, Some(2), true), "mb", 30);
    fixture.sample_of((1, State::Running, Some(2), false), "mbk", 20);
    fixture.sample_of((0, State::Running, Some(3), false), "k", 20);
    fixture.sample_of((0, State::Running, Some(0), false), "i", 15);
    fixture.sample_of((0, State::Running, Some(99), false), "x", 5);
    fixture.sample_of((0, State::Idle, Some(0), false), "i", 100);
    let rows = |view: &View| -> Vec<(String, u32, u32, usize)> {
        let percent = |share: f64| (share * 100.0).round() as u32;
        let row = |row: &threads::SubjectRow| (row.label(), percent(row.share), percent(row.user_share), row.threads);
        view.subjects.iter().map(row).collect()
    };
    let owned = |rows: &[(&str, u32, u32, usize)]| -> Vec<(String, u32, u32, usize)> {
        rows.iter().map(|(name, share, user, threads)| ((*name).to_owned(), *share, *user, *threads)).collect()
    };
    let by = |by| Query { by, ..Query::default() };
    let expected =
        [("redis 140", 60, 40, 2), ("sh 7", 20, 0, 1), ("[idle task]", 15, 0, 1), ("[process unknown]", 5, 0, 1)];
    let processes = fixture.view(by(By::Process));
    assert_eq!(rows(&processes), owned(&expected));
    assert_eq!(processes.subjects[0].hottest.as_ref().unwrap().image, "b");
    let threads = fixture.view(by(By::Thread));
    assert_eq!(rows(&threads)[..2], owned(&[("worker 141", 50, 30, 1), ("sh 7", 20, 0, 1)]));
    assert_eq!((threads.subjects[0].process.as_str(), threads.subjects.len()), ("redis 140", 5));
    let only = |subject| Query { only: Some(Only { subject, label: String::new() }), ..Query::default() };
    let of_worker = fixture.view(only(Subject::Thread(ThreadId(2))));
    assert_eq!(
        (shares(&of_worker, "b"), shares(&of_worker, "k"), of_worker.weight),
        ((60.0, 100.0), (40.0, 40.0), 50.0)
    );
    assert_eq!(fixture.view(only(Subject::Process(ProcessId(1)))).weight, 60.0);
}

#[test]
fn a_process_that_ended_fades_and_its_name_stays_as_long() {
    let mut fixture = Fixture::new(Some(1000 * MILLISECOND));
    announce(&mut fixture.live, (0, 9, "make"), 0, &["make"]);
    fixture.sample_of((0, State::Running, Some(0), true), "a", 50);
    let names = |fixture: &mut Fixture| -> Vec<String> {
        let view = fixture.view(Query { by: By::Process, ..Query::default() });
        view.subjects.iter().map(threads::SubjectRow::label).collect()
    };
    announce(&mut fixture.live, (1, 10, "cc1"), 1, &["cc1"]);
    fixture.time_ns += 1000 * MILLISECOND;
    fixture.sample_of((0, State::Running, Some(1), true), "b", 50);
    assert_eq!(names(&mut fixture), ["cc1 10", "make 9"]);
    fixture.time_ns += 11_000 * MILLISECOND;
    fixture.sample_of((0, State::Running, Some(1), true), "b", 50);
    assert_eq!(names(&mut fixture), ["cc1 10"]);
}

#[test]
fn ever_new_threads_take_bounded_memory() {
    let mut fixture = Fixture::new(None);
    announce(&mut fixture.live, (0, 9, "make"), 0, &["make"]);
    fixture.sample_of((0, State::Running, Some(0), true), "a", 1);
    for id in 1..THREADS_MAX as u32 + 1_000 {
        announce(&mut fixture.live, (id, id, "sh"), id, &["sh"]);
    }
    let view = fixture.view(Query { by: By::Process, ..Query::default() });
    assert_eq!(view.subjects.iter().map(threads::SubjectRow::label).collect::<Vec<_>>(), ["make 9"]);
}
