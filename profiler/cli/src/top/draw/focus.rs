//! The surroundings of one function: callers, callees and heaviest stacks.

use std::sync::Arc;

use glass_profiler_core::live::names::Function;
use glass_profiler_core::live::view::Focus;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::Theme;
use crate::top::app::App;
use crate::top::text::{columns, cut_start, pad, percent, short, squeeze};

/// Columns of a share with its spaces.
const SHARE: usize = 7;
/// Between functions of a stack.
const CALLS: &str = " › ";

/// Draws the surroundings of the function that the query names.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, app: &App, theme: &Theme) {
    let width = usize::from(area.width);
    let wanted = app.query.focus.clone().unwrap_or_default();
    let focus = app.picture.view.focus.as_ref().filter(|focus| focus.function == wanted);
    let shares = focus.map_or("no samples of it now".to_owned(), |focus| {
        format!("self {} %, total {} %", percent(focus.self_share), percent(focus.total_share))
    });
    let columns_max = width.saturating_sub(columns(&shares) + 4);
    let title = format!(" {}  {shares}", pad(&squeeze(&wanted.name, columns_max), columns_max));
    let [title_area, lists, stacks] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(list_rows(area, focus)), Constraint::Min(1)])
            .areas(area);
    frame.render_widget(Paragraph::new(pad(&title, width)).style(theme.bar()), title_area);
    let Some(focus) = focus else { return };
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(lists);
    list(frame, left, "called by", &focus.callers, theme);
    list(frame, right, "calls", &focus.callees, theme);
    draw_stacks(frame, stacks, focus, theme);
}

/// The lists get what they need, half of the area at most.
fn list_rows(area: Rect, focus: Option<&Focus>) -> u16 {
    let longest = focus.map_or(0, |focus| focus.callers.len().max(focus.callees.len()).max(1));
    (longest as u16 + 1).min(area.height / 2)
}

fn list(frame: &mut Frame<'_>, area: Rect, title: &str, functions: &[(Arc<Function>, f64)], theme: &Theme) {
    let columns_max = usize::from(area.width).saturating_sub(SHARE + 2);
    let mut lines = vec![Line::styled(format!(" {title}"), theme.strong())];
    for (function, share) in functions {
        lines.push(Line::from(vec![
            Span::styled(format!("{:>SHARE$} ", percent(*share)), theme.share(*share)),
            Span::raw(squeeze(&function.name, columns_max)),
        ]));
    }
    if functions.is_empty() {
        lines.push(Line::styled(format!("{:>SHARE$} nothing", ""), theme.quiet()));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_stacks(frame: &mut Frame<'_>, area: Rect, focus: &Focus, theme: &Theme) {
    let columns_max = usize::from(area.width).saturating_sub(SHARE + 2);
    let mut lines = vec![Line::styled(" hottest stacks through it, outermost call first", theme.strong())];
    for (path, share) in &focus.stacks {
        let mut rows = chain(path, &focus.function, columns_max, theme).into_iter();
        let first = rows.next().unwrap_or_default();
        let share = Span::styled(format!("{:>SHARE$} ", percent(*share)), theme.share(*share));
        lines.push(Line::from_iter(std::iter::once(share).chain(first)));
        for row in rows {
            lines.push(Line::from_iter(std::iter::once(Span::raw(" ".repeat(SHARE + 1))).chain(row)));
        }
        if lines.len() > usize::from(area.height) {
            break;
        }
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// Maximum of rows of a stack; outer functions beyond it are left out.
const CHAIN_ROWS_MAX: usize = 3;

/// A stack in short names, broken into rows. Its inner end is what matters: if it does not fit, the
/// outer one is left out.
fn chain(path: &[Arc<Function>], focus: &Function, columns_max: usize, theme: &Theme) -> Vec<Vec<Span<'static>>> {
    let name_columns = columns_max.saturating_sub(columns(CALLS)).max(1);
    let name = |function: &Arc<Function>| cut_start(&short(&function.name), name_columns);
    // A row can end early by a name's width; half a row is spared for that.
    let enough = (CHAIN_ROWS_MAX * columns_max).saturating_sub(columns_max / 2);
    let mut used = 0;
    let fits = |function: &&Arc<Function>| {
        used += columns(&name(function)) + columns(CALLS);
        used <= enough
    };
    let kept = path.iter().rev().take_while(fits).count().max(1).min(path.len());
    let mut rows: Vec<Vec<Span<'static>>> = vec![Vec::new()];
    let mut column = 0;
    let mut push = |text: String, style: Style| {
        let width = columns(&text);
        if column + width > columns_max && column > 0 {
            rows.push(Vec::new());
            column = 0;
        }
        column += width;
        rows.last_mut().expect("there is one from the start").push(Span::styled(text, style));
    };
    if kept < path.len() {
        push(format!("…{CALLS}"), theme.quiet());
    }
    for (index, function) in path.iter().enumerate().skip(path.len() - kept) {
        let style = if **function == *focus { theme.strong() } else { Style::new() };
        let calls = if index + 1 < path.len() { CALLS } else { "" };
        push(name(function) + calls, style);
    }
    rows
}
