//! The screen of tasks, and the same as text.

use std::fmt::Write as _;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::{COLUMNS_MIN, ROWS_MIN, Theme, ends, keys};
use crate::top::tasks::app::{App, Sort};
use crate::top::tasks::model::{Row, State};
use crate::top::text::{columns, count, cut_end, duration, pad, percent, wrap};

/// Columns of a state, of how long it lasts, of what is waited on at least.
const STATE: usize = 8;
const SINCE: usize = 6;
const WAIT_MIN: usize = 12;
/// Columns of a rate, a share and a time with what is before them.
const POLLS: usize = 9;
const SHARE: usize = 7;
const LONGEST: usize = 9;
/// The least and the most columns of a name.
const NAME: (usize, usize) = (14, 32);
/// Lines for what the selected task waits on.
const DETAIL_ROWS_MAX: usize = 3;

/// Columns of the table: of its two texts, and which numbers there is room for. That of waits is 0 if no task waits.
struct Widths {
    name: usize,
    wait: usize,
    polls: usize,
    share: usize,
    longest: usize,
}

impl Widths {
    /// Names get the width that they need within bounds, waits the rest. If there is not enough
    /// for both, numbers are left out, the least useful first.
    fn of(rows: &[&Row], width: usize) -> Widths {
        let longest = |text: &dyn Fn(&Row) -> usize| rows.iter().map(|row| text(row)).max().unwrap_or(0);
        let waits = longest(&|row| columns(&row.waits_for));
        let wait_min = if waits == 0 { 0 } else { WAIT_MIN };
        // Names get the room of waits if there are none.
        let name_max = if waits == 0 { width.max(NAME.1) } else { NAME.1 };
        let name = longest(&|row| columns(&row.name)).clamp(NAME.0, name_max);
        let columns_max = width.saturating_sub(1 + 1 + STATE + 1 + SINCE + 2);
        let mut numbers = [POLLS, SHARE, LONGEST];
        for left_out in [2, 0, 1] {
            if columns_max < numbers.iter().sum::<usize>() + name + wait_min {
                numbers[left_out] = 0;
            }
        }
        let columns_max = columns_max.saturating_sub(numbers.iter().sum());
        let name = name.min(columns_max);
        let wait = waits.max(wait_min).min(columns_max - name);
        Widths { name, wait, polls: numbers[0], share: numbers[1], longest: numbers[2] }
    }
}

/// A text at the right of its column; nothing if that is left out.
fn right(text: &str, columns_max: usize) -> String {
    if columns_max == 0 {
        String::new()
    } else {
        format!("{}{text}", " ".repeat(columns_max.saturating_sub(columns(text))))
    }
}

/// Draws everything.
pub(in crate::top) fn draw(frame: &mut Frame<'_>, app: &App, theme: &Theme) {
    let area = frame.area();
    if area.width < COLUMNS_MIN || area.height < ROWS_MIN {
        return frame.render_widget(Paragraph::new("the window is too small"), area);
    }
    if let Some(first) = app.controls.help {
        return keys::help(frame, area, &KEYS, None, first, theme);
    }
    let detail = detail(app, area);
    let warning = u16::from(app.picture.warning.is_some() && area.height >= 16);
    let [head, warning_area, middle, detail_area, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(warning),
        Constraint::Min(1),
        Constraint::Length(detail.len() as u16),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(head_lines(app, theme, head.width)), head);
    if let Some(text) = app.picture.warning.as_ref().filter(|_| warning > 0) {
        let text = cut_end(&format!(" ! {text}"), warning_area.width.into());
        frame.render_widget(Paragraph::new(text).style(theme.colour(Color::Red)), warning_area);
    }
    table(frame, middle, app, theme);
    frame.render_widget(Paragraph::new(detail).style(theme.strong()), detail_area);
    keys::foot(frame, foot, &app.controls, &HINTS, theme);
}

/// What the selected task waits on, if its row does not show it completely.
fn detail(app: &App, area: Rect) -> Vec<Line<'static>> {
    let rows = app.rows();
    let Some(row) = app.selected(&rows).map(|index| rows[index]) else { return Vec::new() };
    if columns(&row.waits_for) <= Widths::of(&rows, area.width.into()).wait {
        return Vec::new();
    }
    let lines = wrap(&format!("{} waits on {}", row.name, row.waits_for), usize::from(area.width).saturating_sub(2));
    lines.into_iter().take(DETAIL_ROWS_MAX).map(|line| Line::raw(format!(" {line}"))).collect()
}

fn head_lines(app: &App, theme: &Theme, width: u16) -> Vec<Line<'static>> {
    let picture = &app.picture;
    let mut first = vec![Span::styled(format!(" {}", picture.title), theme.strong())];
    if app.controls.paused {
        first.push(Span::styled("  [PAUSED]", theme.strong()));
    }
    let lost_style = if picture.lost > 0 { theme.colour(Color::Red) } else { Style::new() };
    let mut second = vec![
        Span::raw(format!(" {} events/s, ", count(picture.events_per_sec.round() as u64))),
        Span::styled(format!("{} lost", count(picture.lost)), lost_style),
    ];
    if !picture.has_answered {
        second.push(Span::styled(", not switched on yet: the service sleeps", theme.quiet()));
    }
    if picture.left_out > 0 {
        second.push(Span::styled(format!(", {} of more tasks", count(picture.left_out)), lost_style));
    }
    vec![ends(first, "tasks".to_owned(), theme.quiet(), width), ends(second, summary(app), Style::new(), width)]
}

/// The number of tasks in each state.
fn summary(app: &App) -> String {
    let in_state = |state: State| app.picture.rows.iter().filter(|row| row.state == state).count() as u64;
    let unknown = match in_state(State::Unknown) {
        0 => String::new(),
        unknown => format!(", {} unknown", count(unknown)),
    };
    format!(
        "{} tasks: {} running, {} runnable, {} waiting{unknown}; {} ended",
        count(app.picture.rows.len() as u64),
        in_state(State::Running),
        in_state(State::Runnable),
        in_state(State::Waiting),
        count(app.picture.ended)
    )
}

fn state(state: State) -> &'static str {
    match state {
        State::Running => "running",
        State::Runnable => "runnable",
        State::Waiting => "waiting",
        State::Unknown => "unknown",
    }
}

fn titles(app: &App, rows: usize, widths: &Widths) -> String {
    let mark = |sort: Sort, text: &str| if app.sort == sort { format!("▼{text}") } else { text.to_owned() };
    let name = match app.controls.filter.is_empty() {
        true => format!("{} ({})", mark(Sort::Name, "task"), count(rows as u64)),
        false => format!("{} ({} with {:?})", mark(Sort::Name, "task"), count(rows as u64), app.controls.filter),
    };
    format!(
        " {} {} {}  {}{}{}{}",
        pad(&cut_end(&name, widths.name), widths.name),
        pad(&mark(Sort::State, "state"), STATE),
        right(&mark(Sort::Since, "since"), SINCE),
        pad(&cut_end("waits on", widths.wait), widths.wait),
        right(&mark(Sort::Polls, "polls/s"), widths.polls),
        right(&mark(Sort::Run, "run %"), widths.share),
        right(&mark(Sort::Longest, "longest"), widths.longest),
    )
}

/// The columns of a row, joined one by one.
fn cells(row: &Row, widths: &Widths) -> [String; 4] {
    let polls = match row.polls_per_sec {
        rate if rate < 0.05 => "-".to_owned(),
        rate if rate < 99.95 => format!("{rate:.1}"),
        rate => count(rate.round() as u64),
    };
    let longest = if row.longest_ns == 0 { "-".to_owned() } else { duration(row.longest_ns) };
    let wait = pad(&cut_end(&row.waits_for, widths.wait), widths.wait);
    [
        format!(" {} ", pad(&cut_end(&row.name, widths.name), widths.name)),
        format!("{} ", pad(state(row.state), STATE)),
        format!("{}  {wait}", right(&duration(row.since_ns), SINCE)),
        right(&polls, widths.polls) + &right(&percent(row.run_share), widths.share) + &right(&longest, widths.longest),
    ]
}

fn table(frame: &mut Frame<'_>, area: Rect, app: &App, theme: &Theme) {
    let rows = app.rows();
    let selected = app.selected(&rows);
    let height = usize::from(area.height).saturating_sub(1);
    let first = selected.map_or(0, |selected| (selected + 1).saturating_sub(height));
    let shown = &rows[first..rows.len().min(first + height)];
    let widths = Widths::of(&rows, area.width.into());
    let mut lines = vec![Line::styled(pad(&titles(app, rows.len(), &widths), area.width.into()), theme.bar())];
    for (index, row) in shown.iter().enumerate() {
        let is_selected = selected == Some(first + index);
        let style = |style: Style| if is_selected { theme.bar() } else { style };
        let of_state = match row.state {
            State::Running => theme.running(),
            State::Runnable => theme.spinning(),
            State::Waiting => Style::new(),
            State::Unknown => theme.quiet(),
        };
        let [name, state, wait, numbers] = cells(row, &widths);
        lines.push(Line::from(vec![
            Span::styled(name, style(Style::new())),
            Span::styled(state, style(of_state)),
            Span::styled(wait, style(Style::new())),
            Span::styled(numbers, style(theme.share(row.run_share))),
        ]));
    }
    if rows.is_empty() {
        lines.push(Line::raw(""));
        lines.push(Line::styled(nothing(app), theme.quiet()));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn nothing(app: &App) -> String {
    match app.controls.filter.is_empty() {
        false => format!("   nothing matches {:?}: Esc clears the filter", app.controls.filter),
        true => "   no task has done anything yet".to_owned(),
    }
}

/// The hints of the bottom line.
const HINTS: [(&str, &str); 4] = [("n s w o u l", "sort"), ("/", "filter"), ("p", "pause"), ("r", "reset")];

/// The page of keys.
const KEYS: [(&str, &str); 12] = [
    ("n", "sort by name"),
    ("s", "by state: running, runnable, waiting"),
    ("w", "by time in its state, the longest first"),
    ("o", "by polls a second"),
    ("u", "by share of time that it runs"),
    ("l", "by its longest poll"),
    ("← →", "sort by the column beside"),
    ("↑ ↓ PgUp PgDn", "select a task, and show all that it waits on"),
    ("/", "show only tasks with a text in their name or wait"),
    ("p r", "pause the display; forget longest polls and ended tasks"),
    ("Esc", "one step back: filter, selection, then quit"),
    ("q Ctrl-C", "quit; the service continues to run"),
];

/// The table as text, for pipes and for the normal screen at the end.
pub(in crate::top) fn text(app: &App, rows_max: usize, columns_max: Option<u16>) -> String {
    let picture = &app.picture;
    let rows = app.rows();
    let shown = &rows[..rows.len().min(rows_max)];
    let mut widths = Widths::of(shown, columns_max.map_or(usize::MAX, usize::from));
    if columns_max.is_none() {
        // A pipe gets whole names.
        widths.name = shown.iter().map(|row| columns(&row.name)).max().unwrap_or(0).max(NAME.0);
    }
    let mut text = String::new();
    let _ = writeln!(text, "{}: {}", picture.title, summary(app));
    let rate = count(picture.events_per_sec.round() as u64);
    let _ = writeln!(text, "{rate} events/s, {} lost", count(picture.lost));
    if let Some(warning) = &picture.warning {
        let _ = writeln!(text, "! {warning}");
    }
    let _ = writeln!(text, "\n{}", titles(app, rows.len(), &widths).trim_end());
    for row in shown {
        let _ = writeln!(text, "{}", cells(row, &widths).concat().trim_end());
    }
    if rows.len() > shown.len() {
        let _ = writeln!(text, " and {} more", count((rows.len() - shown.len()) as u64));
    }
    if rows.is_empty() {
        let _ = writeln!(text, "{}", nothing(app));
    }
    text
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::top::draw::tests::golden;
    use crate::top::tasks::app::tests::{app, press};

    fn frame(app: &App, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, app, &Theme::plain())).unwrap();
        super::super::tests::text(terminal.backend().buffer())
    }

    #[test]
    fn the_table_in_a_small_and_a_wide_window() {
        let mut app = app();
        golden("tasks-80x24.txt", &frame(&app, 80, 24));
        golden("tasks-140x24.txt", &frame(&app, 140, 24));
        golden("tasks.txt", &text(&app, 3, None));
        press(&mut app, "?");
        golden("tasks-help-80x24.txt", &frame(&app, 80, 24));
    }

    #[test]
    fn tasks_that_do_not_wait_have_no_column_for_it() {
        let mut app = app();
        app.picture.rows.iter_mut().for_each(|row| row.waits_for.clear());
        let drawn = frame(&app, 80, 24);
        assert!(!drawn.contains("waits on") && drawn.contains("polls/s"), "{drawn}");
    }

    #[test]
    fn no_size_of_window_is_too_much() {
        let mut searching = app();
        press(&mut searching, "/xyz");
        for app in [app(), searching, App::default()] {
            for (width, height) in [(1, 1), (10, 3), (30, 8), (31, 9), (45, 12), (79, 23), (300, 100)] {
                frame(&app, width, height);
                text(&app, 3, Some(width));
            }
        }
    }

    #[test]
    fn losses_and_warnings_are_shown() {
        let mut app = app();
        app.picture.lost = 1_234;
        app.picture.has_answered = false;
        app.picture.warning = Some("another recorder has switched".to_owned());
        let drawn = frame(&app, 120, 24);
        for part in ["1,234 lost", "not switched on yet", "! another recorder"] {
            assert!(drawn.contains(part), "{part}: {drawn}");
        }
    }
}
