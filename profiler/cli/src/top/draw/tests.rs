//! Whole frames against golden files in `src/top/golden`. To write what is drawn now into them, run the
//! tests with GLASS_GOLDEN=write and look at the difference.

use std::path::Path;
use std::sync::Arc;

use glass_profiler_core::live::names::Function;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;

use super::*;
use crate::top::app::tests::{app, picture, picture_by, press};

fn frame(app: &App, theme: &Theme, columns: u16, rows: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(frame, app, theme)).unwrap();
    terminal.backend().buffer().clone()
}

pub(super) fn text(buffer: &Buffer) -> String {
    let area = buffer.area();
    let row = |y: u16| (0..area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..area.height).map(|y| row(y).trim_end().to_owned() + "\n").collect()
}

pub(super) fn golden(name: &str, drawn: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/golden").join(name);
    if std::env::var("GLASS_GOLDEN").is_ok_and(|value| value == "write") {
        std::fs::write(&path, drawn).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(drawn, expected, "{} differs; it is now:\n{drawn}", path.display());
}

#[test]
fn the_table_in_a_small_and_a_wide_window() {
    let mut app = app();
    golden("table-80x24.txt", &text(&frame(&app, &Theme::plain(), 80, 24)));
    golden("table-140x40.txt", &text(&frame(&app, &Theme::plain(), 140, 40)));
    press(&mut app, "lt/poll");
    golden("lines-80x24.txt", &text(&frame(&app, &Theme::plain(), 80, 24)));
}

#[test]
fn a_guest_without_lines_has_no_column_for_them() {
    let mut without_lines = picture();
    without_lines.view.functions.iter_mut().for_each(|row| row.place = None);
    let mut app = app();
    app.show(Arc::new(without_lines.clone()));
    golden("without-lines-80x24.txt", &text(&frame(&app, &Theme::plain(), 80, 24)));
    // One without names of images has no column for those either, however wide the window.
    for row in &mut without_lines.view.functions {
        row.function = Arc::new(Function { image: String::new(), ..(*row.function).clone() });
    }
    app.show(Arc::new(without_lines));
    golden("without-images-140x24.txt", &text(&frame(&app, &Theme::plain(), 140, 24)));
}

#[test]
fn processes_without_ids_and_functions_have_no_columns_for_them() {
    use glass_profiler_core::live::threads::By;
    let mut of_idle = picture_by(By::Process);
    of_idle.view.subjects.retain(|row| row.number.is_none());
    of_idle.view.subjects.iter_mut().for_each(|row| row.hottest = None);
    let mut app = app();
    press(&mut app, "g");
    app.show(Arc::new(of_idle));
    golden("processes-idle-140x24.txt", &text(&frame(&app, &Theme::plain(), 140, 24)));
}

#[test]
fn the_surroundings_of_a_function() {
    let mut app = app();
    app.query.focus = picture().view.focus.map(|focus| focus.function);
    golden("focus-80x24.txt", &text(&frame(&app, &Theme::plain(), 80, 24)));
    golden("focus-140x40.txt", &text(&frame(&app, &Theme::plain(), 140, 40)));
    // One that is not sampled any more is named.
    app.picture = Arc::default();
    assert!(text(&frame(&app, &Theme::plain(), 80, 24)).contains("no samples of it now"));
}

#[test]
fn the_keys() {
    let mut app = app();
    press(&mut app, "?");
    golden("help-80x24.txt", &text(&frame(&app, &Theme::plain(), 80, 24)));
}

#[test]
fn a_warning_and_a_pause_are_shown() {
    let mut warned = picture();
    warned.warnings.push("libfoo.so has no symbols: its functions have no names".to_owned());
    let mut app = app();
    app.show(Arc::new(warned));
    press(&mut app, "p");
    let drawn = text(&frame(&app, &Theme::plain(), 80, 24));
    assert!(drawn.contains("! libfoo.so has no symbols") && drawn.contains("[PAUSED]"), "{drawn}");
}

#[test]
fn colours_only_where_they_are_wanted() {
    let has_colour = |buffer: &Buffer| buffer.content().iter().any(|cell| cell.fg != Color::Reset);
    assert!(has_colour(&frame(&app(), &Theme::colourful(), 80, 24)));
    assert!(!has_colour(&frame(&app(), &Theme::plain(), 80, 24)));
    // The background is the terminal's own in both.
    assert!(frame(&app(), &Theme::colourful(), 80, 24).content().iter().all(|cell| cell.bg == Color::Reset));
}

#[test]
fn no_size_of_window_is_too_much() {
    let mut apps = vec![app(), app(), app(), App::default()];
    apps[1].query.focus = picture().view.focus.map(|focus| focus.function);
    press(&mut apps[2], "/xyz");
    for app in &apps {
        for (columns, rows) in [(1, 1), (10, 3), (30, 8), (31, 9), (45, 12), (79, 23), (300, 100)] {
            frame(app, &Theme::colourful(), columns, rows);
        }
    }
}

#[test]
fn many_threads_leave_room_for_the_table() {
    let mut many = picture();
    let track = many.tracks[0].clone();
    many.tracks =
        (0..500).map(|index| glass_profiler_core::live::LiveTrack { track: index, ..track.clone() }).collect();
    let mut app = app();
    app.show(Arc::new(many));
    let drawn = text(&frame(&app, &Theme::plain(), 80, 24));
    assert!(drawn.contains("and 495 more") && drawn.contains("memcpy"), "{drawn}");
}

#[test]
fn the_table_of_processes_and_of_threads_in_windows_of_each_width() {
    use glass_profiler_core::live::threads::By;
    let mut app = app();
    press(&mut app, "g");
    app.show(Arc::new(picture_by(By::Process)));
    golden("processes-80x24.txt", &text(&frame(&app, &Theme::plain(), 80, 24)));
    golden("processes-140x24.txt", &text(&frame(&app, &Theme::plain(), 140, 24)));
    golden("processes-60x16.txt", &text(&frame(&app, &Theme::plain(), 60, 16)));
    golden("processes-40x12.txt", &text(&frame(&app, &Theme::plain(), 40, 12)));
    press(&mut app, "g");
    app.show(Arc::new(picture_by(By::Thread)));
    golden("threads-80x24.txt", &text(&frame(&app, &Theme::plain(), 80, 24)));
    for (columns, rows) in [(1, 1), (30, 8), (31, 9), (49, 12), (71, 23), (72, 23), (300, 100)] {
        frame(&app, &Theme::colourful(), columns, rows);
    }
}
