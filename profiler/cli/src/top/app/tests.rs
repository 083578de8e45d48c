//! Effects of keys on a fixed view.

use std::sync::Arc;

use glass_profiler_core::live::LiveTrack;
use glass_profiler_core::live::activity::{Activity, Kind};
use glass_profiler_core::live::view::{Focus, View};
use glass_profiler_core::model::{Distribution, State};
use glass_profiler_core::recorder::Progress;

use super::super::work::Status;
use crossterm::event::KeyModifiers;

use super::*;

fn function(name: &str, image: &str) -> Arc<Function> {
    Arc::new(Function { name: name.to_owned(), image: image.to_owned() })
}

fn row(name: &str, image: &str, place: Option<(&str, u32)>, own: f64, total: f64) -> Row {
    let place = place.map(|(file, line)| (Arc::from(file), line));
    Row { function: function(name, image), place, self_share: own, total_share: total }
}

fn track(track: u32, states: &[State]) -> LiveTrack {
    let mut activity = Activity::new(Kind::Core);
    for millisecond in 0..6_000u64 {
        // One state a half second, the last one for what is left.
        let state = states[((millisecond / 500) as usize).min(states.len() - 1)];
        activity.add(millisecond * 1_000_000, state);
    }
    LiveTrack { track, id: track.into(), name: format!("vcpu {track}"), owner: None, activity }
}

/// A view of a VM with two cores.
pub(in super::super) fn picture() -> Picture {
    let poll = "smoltcp::iface::interface::Interface::poll";
    let put = "<upload_queue::service::Service<platform::Vm> as core::future::future::Future>::poll";
    let functions = vec![
        row("memcpy", "upload-queue", Some(("src/asm/copy.S", 44)), 0.41, 0.412),
        row(put, "upload-queue", Some(("/root/apps/upload-queue/src/service.rs", 120)), 0.22, 0.93),
        row(poll, "upload-queue", Some(("smoltcp-0.14/src/iface/interface.rs", 671)), 0.15, 0.35),
        row("checksum::data", "upload-queue", None, 0.021, 0.021),
        row("glass_start", "upload-queue", Some(("src/boot.S", 9)), 0.0, 1.0),
        row("[no name]", "libc.so.6", None, 0.0002, 0.0002),
    ];
    let lines = vec![
        row("memcpy", "upload-queue", Some(("src/asm/copy.S", 44)), 0.41, 0.412),
        row(put, "upload-queue", Some(("src/service.rs", 120)), 0.2, 0.9),
        row(put, "upload-queue", Some(("src/service.rs", 121)), 0.02, 0.03),
    ];
    let focus = Focus {
        function: (*function(poll, "upload-queue")).clone(),
        self_share: 0.15,
        total_share: 0.35,
        callers: vec![(function(put, "upload-queue"), 0.35)],
        callees: vec![(function("memcpy", "upload-queue"), 0.18), (function("checksum::data", "upload-queue"), 0.02)],
        stacks: vec![
            (["glass_start", "run", put, poll, "memcpy"].iter().map(|name| function(name, "q")).collect(), 0.18),
            (["glass_start", "run", put, poll].iter().map(|name| function(name, "q")).collect(), 0.15),
        ],
    };
    let idle_then_busy = [State::Idle, State::Idle, State::Spinning, State::Running];
    let pause =
        Distribution { count: 9_000, median_ns: 62_300, p99_ns: 310_000, max_ns: 2_000_000, sum_ns: 600_000_000 };
    Picture {
        view: View { weight: 4000.0, functions, lines, focus: Some(focus), ..Default::default() },
        tracks: vec![track(0, &idle_then_busy), track(1, &[State::Running, State::Idle])],
        progress: Progress { samples_taken: 9_000, samples_dropped: 0, stacks_broken: 20, pause },
        status: Status {
            counts: glass_profiler_guests::Counts {
                delivered: 9_000,
                losses: glass_profiler_core::model::Losses { overdue: 3, ..Default::default() },
                ..Default::default()
            },
            dropped: 0,
        },
        samples_per_sec: 1993.7,
        covered_ns: 4_600_000_000,
        warnings: Vec::new(),
    }
}

pub(in super::super) fn app() -> App {
    let (guest, backend) = ("upload-queue (VM, TCG)".to_owned(), "QEMU's gdbstub".to_owned());
    let mut app = App::new(Origin { guest, backend, rate_hz: 997, ..Default::default() }, By::Function);
    assert!(app.show(Arc::new(picture())));
    app
}

/// A view of a Linux guest by process, or by thread.
pub(in super::super) fn picture_by(by: By) -> Picture {
    use glass_profiler_core::guest::{ProcessId, ThreadId};
    let row =
        |subject, (name, number): (&str, Option<u32>), process: &str, shares: (f64, f64), hottest: &str| SubjectRow {
            subject,
            name: name.to_owned(),
            number,
            process: process.to_owned(),
            share: shares.0,
            user_share: shares.1,
            threads: if name.starts_with("redis-server") && by == By::Process { 4 } else { 1 },
            hottest: Some(function(hottest, "linux")),
        };
    let process =
        |id, name, pid, shares, hottest| row(Subject::Process(ProcessId(id)), (name, Some(pid)), "", shares, hottest);
    let thread = |id, name, tid, process, shares, hottest| {
        row(Subject::Thread(ThreadId(id)), (name, Some(tid)), process, shares, hottest)
    };
    let idle = row(Subject::Idle, ("[idle task]", None), "", (0.02, 0.0), "handle_softirqs");
    let subjects = match by {
        By::Process => vec![
            process(3, "redis-server (1 in its namespace)", 155, (0.561, 0.4), "dictFind"),
            process(2, "python3.11", 4_194_303, (0.2, 0.199), "_PyEval_EvalFrameDefault"),
            process(1, "kworker/u4:1-events_unbound", 25, (0.1, 0.0), "native_queued_spin_lock_slowpath"),
            idle,
            row(Subject::Unknown, ("[process unknown]", None), "", (0.0002, 0.0), "start_kernel"),
        ],
        _ => vec![
            thread(3, "io_thd_1", 158, "redis-server 155", (0.4, 0.35), "dictFind"),
            thread(2, "python3.11", 4_194_303, "python3.11 4194303", (0.2, 0.199), "_PyEval_EvalFrameDefault"),
            idle,
        ],
    };
    let query = Query { by, ..Query::default() };
    Picture { view: View { query, subjects, ..picture().view }, ..picture() }
}

pub(in super::super) fn press(app: &mut App, keys: &str) -> Action {
    keys.chars().fold(Action::Draw, |_, key| app.key(KeyEvent::from(KeyCode::Char(key))))
}

fn press_code(app: &mut App, code: KeyCode) -> Action {
    app.key(KeyEvent::from(code))
}

fn names(app: &App) -> Vec<&str> {
    app.rows().iter().map(|row| row.function.name.split("::").next().unwrap()).collect()
}

#[test]
fn keys_sort() {
    let mut app = app();
    assert_eq!(names(&app)[..3], ["memcpy", "<upload_queue", "smoltcp"]);
    press(&mut app, "t");
    assert_eq!(names(&app)[..3], ["glass_start", "<upload_queue", "memcpy"]);
    press(&mut app, "n");
    assert_eq!(names(&app)[..3], ["<upload_queue", "[no name]", "checksum"]);
    press_code(&mut app, KeyCode::Right);
    assert_eq!(app.sort, Sort::Own);
    press_code(&mut app, KeyCode::Left);
    assert_eq!(app.sort, Sort::Name);
}

#[test]
fn the_filter_works_while_it_is_typed() {
    let mut app = app();
    press(&mut app, "/POL");
    assert_eq!(names(&app), ["<upload_queue", "smoltcp"]);
    // Keys that mean something elsewhere are text here.
    press(&mut app, "lq");
    assert!(names(&app).is_empty() && app.controls.typing);
    press_code(&mut app, KeyCode::Backspace);
    press_code(&mut app, KeyCode::Enter);
    assert_eq!((names(&app).len(), app.controls.typing), (2, false));
    press_code(&mut app, KeyCode::Esc);
    assert_eq!(names(&app).len(), 6);
    press(&mut app, "/copy.s:44");
    assert_eq!(names(&app), ["memcpy"]);
    press_code(&mut app, KeyCode::Esc);
    assert_eq!((names(&app).len(), app.controls.typing), (6, false));
    press(&mut app, "/");
    press(&mut app, &"x".repeat(1000));
    assert_eq!(app.controls.filter.len(), keys::CHARACTERS_MAX);
}

#[test]
fn the_selection_follows_its_row() {
    let mut app = app();
    assert_eq!(app.selected(&app.rows()), None);
    press_code(&mut app, KeyCode::Down);
    press_code(&mut app, KeyCode::Down);
    assert_eq!(app.selected(&app.rows()), Some(1));
    press(&mut app, "n");
    assert_eq!(app.selected(&app.rows()), Some(0));
    press_code(&mut app, KeyCode::End);
    assert_eq!(app.selected(&app.rows()), Some(5));
    press_code(&mut app, KeyCode::PageUp);
    assert_eq!(app.selected(&app.rows()), Some(0));
    press_code(&mut app, KeyCode::Up);
    assert_eq!(app.selected(&app.rows()), Some(0));
    // Rows of an empty table cannot be selected.
    app.picture = Arc::default();
    for code in [KeyCode::Down, KeyCode::Up, KeyCode::End, KeyCode::Enter] {
        assert_eq!(press_code(&mut app, code), Action::Draw);
    }
}

#[test]
fn enter_asks_for_the_surroundings_and_escape_goes_back() {
    let mut app = app();
    let Action::Query(query) = press_code(&mut app, KeyCode::Enter) else { panic!("no query") };
    assert_eq!(query.focus.unwrap().name, "memcpy");
    let Action::Query(query) = press_code(&mut app, KeyCode::Esc) else { panic!("no query") };
    assert_eq!(query.focus, None);
    assert_eq!(press_code(&mut app, KeyCode::Esc), Action::Draw, "the selection goes first");
    assert_eq!(press_code(&mut app, KeyCode::Esc), Action::Quit);
}

/// A panel of "[reading names]" stayed empty (2026-11-22).
#[test]
fn enter_waits_for_names() {
    let mut app = app();
    let mut picture = picture();
    picture.view.functions.insert(0, row(NOT_READ_YET, "libc.so.6", None, 0.5, 0.5));
    app.show(Arc::new(picture));
    let Action::Query(query) = press_code(&mut app, KeyCode::Enter) else { panic!("no query") };
    assert_eq!(query.focus.unwrap().name, "memcpy");
    press_code(&mut app, KeyCode::Esc);
    press_code(&mut app, KeyCode::Home);
    assert_eq!((app.selected(&app.rows()), press_code(&mut app, KeyCode::Enter)), (Some(0), Action::Draw));
}

#[test]
fn tracks_are_gone_through_in_both_directions() {
    let mut app = app();
    let mut next = |key: &str| match press(&mut app, key) {
        Action::Query(query) => query.track,
        other => panic!("{other:?}"),
    };
    assert_eq!([next("c"), next("c"), next("c"), next("C"), next("C")], [Some(0), Some(1), None, Some(1), Some(0)]);
}

#[test]
fn a_paused_display_shows_nothing_new_but_what_is_asked_for() {
    let mut app = app();
    press(&mut app, "p");
    assert!(!app.show(Arc::default()));
    let mut asked = Picture::default();
    asked.view.query.idle = true;
    assert!(app.show(Arc::new(asked)));
    press(&mut app, "p");
    assert!(app.show(Arc::default()));
}

#[test]
fn what_ends_and_what_does_not() {
    let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
    assert_eq!(app().key(control('c')), Action::Quit);
    assert_eq!(app().key(control('q')), Action::Draw);
    assert_eq!(press(&mut app(), "q"), Action::Quit);
    assert_eq!(press(&mut app(), "r"), Action::Reset);
    // From wherever it is, Ctrl-C ends.
    for state in ["/", "?", "p"] {
        let mut app = app();
        press(&mut app, state);
        assert_eq!(app.key(control('c')), Action::Quit, "{state}");
    }
    let mut app = app();
    press(&mut app, "?");
    assert_eq!((press(&mut app, "x"), app.controls.help), (Action::Draw, None));
}

#[test]
fn rows_are_processes_threads_and_the_functions_of_one() {
    let mut app = app();
    let by = |action: Action| match action {
        Action::Query(query) => (query.by, query.only.map(|only| only.label)),
        other => panic!("{other:?}"),
    };
    assert_eq!(by(press(&mut app, "g")), (By::Process, None));
    assert_eq!(by(press(&mut app, "g")), (By::Thread, None));
    assert_eq!(by(press(&mut app, "gg")), (By::Process, None));
    assert!(app.show(Arc::new(picture_by(By::Process))));
    press_code(&mut app, KeyCode::Down);
    press_code(&mut app, KeyCode::Down);
    assert_eq!(app.selected_subject(&app.subjects()), Some(1));
    assert_eq!(by(press_code(&mut app, KeyCode::Enter)), (By::Function, Some("python3.11 4194303".to_owned())));
    // Its functions are a table like any other.
    press_code(&mut app, KeyCode::Down);
    assert_eq!(press_code(&mut app, KeyCode::Esc), Action::Draw);
    assert_eq!(by(press_code(&mut app, KeyCode::Esc)), (By::Process, None));
    assert_eq!(app.selected_subject(&app.subjects()), Some(1), "what was opened stays selected");
    assert_eq!(press_code(&mut app, KeyCode::Esc), Action::Draw);
    assert_eq!(press_code(&mut app, KeyCode::Esc), Action::Quit);
    press(&mut app, "/155");
    assert_eq!(app.subjects().len(), 1);
}
