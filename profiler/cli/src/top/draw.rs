//! Draws the state of the screen. Pure: the same state gives the same frame.

mod focus;
mod keys;
mod subjects;
mod table;
pub(super) mod tasks;
mod tracks;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use glass_profiler_core::live::threads::By;

use super::app::App;
use super::plain;
use super::text::{columns, count, cut_end, percent};

/// Below this size nothing is drawn.
const COLUMNS_MIN: u16 = 30;
const ROWS_MIN: u16 = 8;

/// Colours out of the sixteen that every terminal adapts to its own background. A glyph or a word
/// repeats the meaning of each colour.
#[derive(Debug, Clone, Copy)]
pub(super) struct Theme {
    has_colours: bool,
}

impl Theme {
    pub(super) fn from_environment() -> Theme {
        // https://no-color.org: set and not empty.
        Theme { has_colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    #[cfg(test)]
    pub(super) fn plain() -> Theme {
        Theme { has_colours: false }
    }

    #[cfg(test)]
    pub(super) fn colourful() -> Theme {
        Theme { has_colours: true }
    }

    fn colour(&self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    fn strong(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// For what is there to be read once.
    fn quiet(&self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn bar(&self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    fn running(&self) -> Style {
        self.colour(Color::Green)
    }

    fn spinning(&self) -> Style {
        self.colour(Color::Magenta)
    }

    fn stolen(&self) -> Style {
        self.colour(Color::Red)
    }

    /// The style of a share, by its size.
    fn share(&self, share: f64) -> Style {
        match share {
            share if share >= 0.10 => self.colour(Color::Red).add_modifier(Modifier::BOLD),
            share if share >= 0.02 => self.colour(Color::Magenta),
            _ => Style::new(),
        }
    }

    fn image(&self) -> Style {
        self.colour(Color::Blue)
    }

    fn place(&self) -> Style {
        self.colour(Color::Cyan)
    }
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, app: &App, theme: &Theme) {
    let area = frame.area();
    if area.width < COLUMNS_MIN || area.height < ROWS_MIN {
        return frame.render_widget(Paragraph::new("the window is too small"), area);
    }
    if let Some(first) = app.controls.help {
        return keys::help(frame, area, &KEYS, Some(bars(theme)), first, theme);
    }
    let tracks = tracks::rows(app, area);
    let warnings = u16::from(!app.picture.warnings.is_empty() && area.height >= 16);
    let [head, track_area, warning_area, middle, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(tracks),
        Constraint::Length(warnings),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(head_lines(app, theme, head.width)), head);
    tracks::draw(frame, track_area, app, theme);
    if let Some(warning) = app.picture.warnings.last() {
        let text = cut_end(&format!(" ! {warning}"), warning_area.width.into());
        frame.render_widget(Paragraph::new(text).style(theme.colour(Color::Red)), warning_area);
    }
    match app.query.focus {
        Some(_) => focus::draw(frame, middle, app, theme),
        None if app.is_by_subject() => subjects::draw(frame, middle, app, theme),
        None => table::draw(frame, middle, app, theme),
    }
    keys::foot(frame, foot, &app.controls, hints(app), theme);
}

/// Two texts at the ends of a line; the right one goes first if there is no room.
fn ends(left: Vec<Span<'static>>, right: String, right_style: Style, width: u16) -> Line<'static> {
    let used: usize = left.iter().map(|span| columns(&span.content)).sum();
    let columns_max = usize::from(width).saturating_sub(used + 2);
    let right = if columns(&right) <= columns_max { right } else { cut_end(&right, columns_max) };
    let gap = usize::from(width).saturating_sub(used + columns(&right) + 1);
    let mut spans = left;
    spans.push(Span::raw(" ".repeat(gap)));
    spans.push(Span::styled(right, right_style));
    Line::from(spans)
}

fn head_lines(app: &App, theme: &Theme, width: u16) -> Vec<Line<'static>> {
    let picture = &app.picture;
    let progress = &picture.progress;
    let title = vec![Span::styled(format!(" {}", app.origin.guest), theme.strong())];
    // The backend's explanation in brackets is for the recording's reader.
    let backend = app.origin.backend.split(" (").next().unwrap_or_default();
    let right = format!("{backend}, {} Hz", app.origin.rate_hz);
    let lost = picture.status.counts.losses.samples() + picture.status.dropped + progress.samples_dropped;
    let lost_share = lost as f64 / picture.status.counts.expected().max(1) as f64;
    let lost_style = if lost_share > 0.01 { theme.colour(Color::Red) } else { Style::new() };
    let mut second = vec![Span::raw(format!(" {}/s, ", count(picture.samples_per_sec.round() as u64)))];
    second.push(Span::styled(format!("{} lost", count(lost)), lost_style));
    if progress.stacks_broken > 0 {
        let share = progress.stacks_broken as f64 / progress.samples_taken.max(1) as f64;
        let style = if share > 0.01 { theme.colour(Color::Red) } else { Style::new() };
        second.push(Span::styled(format!(", {} % broken", percent(share)), style));
    }
    let mut shown = Vec::new();
    if app.controls.paused {
        shown.push("PAUSED");
    }
    if app.query.idle {
        shown.push("with idle");
    }
    let mut first = title;
    if !shown.is_empty() {
        first.push(Span::styled(format!("  [{}]", shown.join(", ")), theme.strong()));
    }
    vec![ends(first, right, theme.quiet(), width), ends(second, plain::pause(picture), Style::new(), width)]
}

/// The page of keys.
const KEYS: [(&str, &str); 15] = [
    ("s t n  ← →", "sort by self, total or name"),
    ("↑ ↓ PgUp PgDn", "select a row; it stays selected when the order changes"),
    ("Enter", "who calls the function, whom it calls, its hottest stacks"),
    ("g", "processes, then threads, then functions; Enter: functions of one"),
    ("l", "lines instead of functions"),
    ("/", "show only what contains a text: in the name, image or line"),
    ("c C", "the next, the previous core or thread; then all again"),
    ("i", "count idle time too"),
    ("p", "pause the display, not the sampling"),
    ("r", "forget all samples so far"),
    ("Esc", "one step back: panel, filter, selection, then quit"),
    ("q Ctrl-C", "quit; the VM or process continues to run"),
    ("", ""),
    ("self", "time in the function itself; old samples fade (--half-life)"),
    ("total", "time in it and in all that it called; recursion counts once"),
];

fn bars(theme: &Theme) -> Line<'static> {
    Line::from(vec![
        Span::styled("█", theme.running()),
        Span::raw(" running  "),
        Span::styled("▒", theme.spinning()),
        Span::raw(" spinning  "),
        Span::styled("░", theme.stolen()),
        Span::raw(" stolen by the host  · idle"),
    ])
}

/// Hints among processes, and among threads.
const OF_PROCESSES: [(&str, &str); 6] =
    [("g", "threads"), ("Enter", "its functions"), ("/", "filter"), ("c", "core"), ("i", "idle"), ("p", "pause")];
const OF_THREADS: [(&str, &str); 6] =
    [("g", "functions"), ("Enter", "its functions"), ("/", "filter"), ("c", "core"), ("i", "idle"), ("p", "pause")];

/// The hints of the bottom line, the most useful first.
fn hints(app: &App) -> &'static [(&'static str, &'static str)] {
    match (app.query.focus.is_some(), app.lines) {
        _ if app.is_by_subject() => match app.query.by {
            By::Process => &OF_PROCESSES,
            _ => &OF_THREADS,
        },
        (true, _) => &[("Esc", "back"), ("c", "core"), ("i", "idle"), ("p", "pause")],
        (false, false) => &[
            ("s t n", "sort"),
            ("/", "filter"),
            ("Enter", "callers"),
            ("g", "processes"),
            ("l", "lines"),
            ("c", "core"),
            ("i", "idle"),
            ("p", "pause"),
        ],
        (false, true) => &[
            ("s t n", "sort"),
            ("/", "filter"),
            ("Enter", "callers"),
            ("g", "processes"),
            ("l", "functions"),
            ("c", "core"),
            ("i", "idle"),
            ("p", "pause"),
        ],
    }
}

#[cfg(test)]
mod tests;
