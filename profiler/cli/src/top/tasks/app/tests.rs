//! Effects of keys on a fixed view.

use super::super::model::State;
use super::*;

fn row(name: &str, state: State, since_ns: u64, waits_for: &str, polls: f64, run: f64, longest_ns: u64) -> Row {
    let (name, waits_for) = (name.to_owned(), waits_for.to_owned());
    Row { name, state, since_ns, waits_for, polls_per_sec: polls, run_share: run, longest_ns }
}

/// A view of a queue with four tasks.
pub(crate) fn app() -> App {
    let mut app = App::default();
    let disk = "a device (disk 0), request 1742";
    let rows = vec![
        row("connection #12", State::Waiting, 1_830_000, disk, 2_310.4, 0.214, 182_000),
        row("connection #14", State::Running, 21_000, "", 1_990.0, 0.31, 911_000),
        row(
            "housekeeper #2",
            State::Waiting,
            830_000_000,
            "a timer (next round), until 12.0 s of the guest's clock",
            1.0,
            0.0,
            8_400,
        ),
        row("listener #1", State::Runnable, 3_000, "", 12.2, 0.0004, 31_000),
    ];
    assert!(app.show(Picture {
        title: "upload-queue (VM, KVM)".to_owned(),
        rows,
        ended: 1_204,
        events_per_sec: 48_211.0,
        has_answered: true,
        ..Picture::default()
    }));
    app
}

pub(crate) fn press(app: &mut App, keys: &str) -> Action {
    keys.chars().fold(Action::Draw, |_, key| app.key(KeyEvent::from(KeyCode::Char(key))))
}

fn numbers(app: &App) -> Vec<&str> {
    app.rows().iter().map(|row| row.name.split('#').nth(1).unwrap()).collect()
}

#[test]
fn keys_sort() {
    let mut app = app();
    assert_eq!(numbers(&app), ["14", "12", "1", "2"]);
    for (key, order) in [
        ("n", ["12", "14", "2", "1"]),
        ("s", ["14", "1", "12", "2"]),
        ("w", ["2", "12", "14", "1"]),
        ("o", ["12", "14", "1", "2"]),
        ("l", ["14", "12", "1", "2"]),
        ("u", ["14", "12", "1", "2"]),
    ] {
        press(&mut app, key);
        assert_eq!(numbers(&app), order, "{key}");
    }
    app.key(KeyEvent::from(KeyCode::Right));
    assert_eq!(app.sort, Sort::Longest);
    app.key(KeyEvent::from(KeyCode::Right));
    assert_eq!(app.sort, Sort::Name);
    app.key(KeyEvent::from(KeyCode::Left));
    assert_eq!(app.sort, Sort::Longest);
}

#[test]
fn the_filter_looks_at_names_and_at_what_is_waited_for() {
    let mut app = app();
    press(&mut app, "/DISK");
    assert_eq!(numbers(&app), ["12"]);
    app.key(KeyEvent::from(KeyCode::Esc));
    press(&mut app, "/listenq");
    assert!(numbers(&app).is_empty() && app.controls.typing, "keys are text here");
    app.key(KeyEvent::from(KeyCode::Backspace));
    app.key(KeyEvent::from(KeyCode::Enter));
    assert_eq!((numbers(&app), app.controls.typing), (vec!["1"], false));
    app.key(KeyEvent::from(KeyCode::Esc));
    assert_eq!(numbers(&app).len(), 4);
}

#[test]
fn the_selection_follows_its_task_and_a_pause_keeps_the_picture() {
    let mut app = app();
    app.key(KeyEvent::from(KeyCode::Down));
    assert_eq!(app.selected(&app.rows()), Some(0));
    press(&mut app, "n");
    assert_eq!(app.selected(&app.rows()), Some(1));
    press(&mut app, "p");
    assert!(!app.show(Picture::default()));
    press(&mut app, "p");
    assert!(app.show(Picture::default()));
    for code in [KeyCode::Down, KeyCode::Up, KeyCode::End] {
        assert_eq!(app.key(KeyEvent::from(code)), Action::Draw);
    }
    assert_eq!(press(&mut app, "r"), Action::Reset);
    assert_eq!(press(&mut app, "q"), Action::Quit);
}
