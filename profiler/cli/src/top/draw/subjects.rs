//! The table of processes or threads.

use glass_profiler_core::live::threads::{By, SubjectRow};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::Theme;
use crate::top::app::{App, Sort};
use crate::top::text::{columns, count, cut_end, pad, percent, short, squeeze};

/// Columns of a share, and of a process ID or thread ID.
const SHARE: usize = 9;
const NUMBER: usize = 9;
/// A window with room for the split of user and kernel, and one with room for the column after names.
const COLUMNS_SPLIT: u16 = 50;
const COLUMNS_WIDE: u16 = 72;
/// Columns of names, at least and at most, and of the column after them.
const NAME: (usize, usize) = (15, 40);
const SECOND: (usize, usize) = (7, 26);
/// The least columns of functions: in fewer they are not recognized.
const HOTTEST_MIN: usize = 18;
const GAP: usize = 2;

/// Which columns there are, and how wide those of text are; those of 0 are left out, as are those that no shown row has a text for.
struct Widths {
    has_split: bool,
    number: usize,
    name: usize,
    /// Threads of a process, or the process of a thread.
    second: usize,
    hottest: usize,
}

impl Widths {
    fn of(shown: &[&SubjectRow], by: By, width: u16) -> Widths {
        let has_split = width >= COLUMNS_SPLIT;
        let shares = if has_split { 3 * SHARE } else { SHARE };
        // Idle and unknown tasks have none.
        let number = if shown.iter().all(|row| row.number.is_none()) { 0 } else { NUMBER };
        let columns_max = usize::from(width).saturating_sub(shares + number + 2 * GAP);
        if width < COLUMNS_WIDE {
            return Widths { has_split, number, name: columns_max, second: 0, hottest: 0 };
        }
        let longest = |text: &dyn Fn(&SubjectRow) -> usize| shown.iter().map(|row| text(row)).max().unwrap_or(0);
        let second = match longest(&|row| columns(&second(row, by))) {
            0 => 0,
            second => second.clamp(SECOND.0, SECOND.1.min(columns_max / 2)) + GAP,
        };
        let name = longest(&|row| columns(&row.name)).clamp(NAME.0, NAME.1.min(columns_max / 2));
        let hottest = match shown.iter().all(|row| row.hottest.is_none()) {
            true => 0,
            false => columns_max.saturating_sub(name + GAP + second),
        };
        let name = if hottest >= HOTTEST_MIN { name } else { columns_max.saturating_sub(second) };
        let hottest = if hottest >= HOTTEST_MIN { hottest } else { 0 };
        Widths { has_split, number, name, second: second.saturating_sub(GAP), hottest }
    }
}

fn second(row: &SubjectRow, by: By) -> String {
    match (by, row.number) {
        (By::Thread, _) => row.process.clone(),
        // What is no process has none.
        (_, None) => String::new(),
        (_, Some(_)) => count(row.threads as u64),
    }
}

fn column(text: &str, width: usize) -> String {
    if width == 0 { String::new() } else { pad(&cut_end(text, width), width + GAP) }
}

/// A process ID or thread ID in its column.
fn number_in(number: &str, widths: &Widths) -> String {
    let width = widths.number;
    if width == 0 { String::new() } else { format!("{number:>width$}") }
}

/// Draws the rows that fit, the selected one among them.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, app: &App, theme: &Theme) {
    let rows = app.subjects();
    let by = app.query.by;
    let selected = app.selected_subject(&rows);
    let height = usize::from(area.height).saturating_sub(1);
    let first = selected.map_or(0, |selected| (selected + 1).saturating_sub(height));
    let shown = &rows[first..rows.len().min(first + height)];
    let widths = Widths::of(shown, by, area.width);
    let mut lines = vec![title(app, rows.len(), &widths, theme, area.width)];
    for (index, row) in shown.iter().enumerate() {
        lines.push(line(row, by, &widths, selected == Some(first + index), theme));
    }
    if rows.is_empty() {
        let text = match app.controls.filter.as_str() {
            "" => "   no samples yet".to_owned(),
            filter => format!("   nothing matches {filter:?}: Esc clears the filter"),
        };
        lines.extend([Line::raw(""), Line::styled(text, theme.quiet())]);
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn title(app: &App, rows: usize, widths: &Widths, theme: &Theme, width: u16) -> Line<'static> {
    let (number, what, second) = match app.query.by {
        By::Thread => ("tid", "thread", "process"),
        _ => ("pid", "process", "threads"),
    };
    let (by_name, filter) = (app.sort == Sort::Name, &app.controls.filter);
    let filter = if filter.is_empty() { String::new() } else { format!(" with {filter:?}") };
    let name = format!("{}{what} ({}{filter})", if by_name { "▼" } else { "" }, count(rows as u64));
    let split = if widths.has_split { format!("{:>SHARE$}{:>SHARE$}", "user %", "kernel %") } else { String::new() };
    let text = format!(
        "{:>SHARE$}{split}{}  {}{}{}",
        if by_name { "share %" } else { "▼share %" },
        number_in(number, widths),
        column(&name, widths.name),
        column(second, widths.second),
        column("hottest function", widths.hottest),
    );
    Line::styled(pad(&text, width.into()), theme.bar())
}

fn line(row: &SubjectRow, by: By, widths: &Widths, is_selected: bool, theme: &Theme) -> Line<'static> {
    let style = |style: Style| if is_selected { theme.bar().add_modifier(style.add_modifier) } else { style };
    let [user, kernel] = [row.user_share, (row.share - row.user_share).max(0.0)].map(percent);
    let split = if widths.has_split { format!("{user:>SHARE$}{kernel:>SHARE$}") } else { String::new() };
    let number = row.number.map_or(String::new(), |number| number.to_string());
    let hottest =
        row.hottest.as_ref().map_or(String::new(), |function| squeeze(&short(&function.name), widths.hottest));
    Line::from(vec![
        Span::styled(format!("{:>SHARE$}", percent(row.share)), style(theme.share(row.share))),
        Span::styled(format!("{split}{}  ", number_in(&number, widths)), style(Style::new())),
        Span::styled(column(&row.name, widths.name), style(Style::new())),
        Span::styled(column(&second(row, by), widths.second), style(theme.image())),
        Span::styled(column(&hottest, widths.hottest), style(theme.place())),
    ])
}
