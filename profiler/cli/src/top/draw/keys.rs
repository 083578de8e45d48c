//! The page of keys and the line at the bottom, of both screens.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::Theme;
use crate::top::keys::Controls;
use crate::top::text::{columns, pad, wrap};

/// Columns of a key on its page, with the indentation.
const KEY: usize = 16;

/// Draws the page of keys from line `first` on. Long lines are wrapped.
pub(super) fn help(
    frame: &mut Frame<'_>,
    area: Rect,
    keys: &[(&str, &str)],
    legend: Option<Line<'static>>,
    first: u16,
    theme: &Theme,
) {
    let columns_max = usize::from(area.width).saturating_sub(KEY).max(1);
    let mut lines = Vec::new();
    for (key, meaning) in keys {
        for (index, part) in wrap(meaning, columns_max).into_iter().enumerate() {
            let key = pad(&format!("  {}", if index == 0 { key } else { "" }), KEY);
            lines.push(Line::from(vec![Span::styled(key, theme.strong()), Span::raw(part)]));
        }
    }
    lines.extend(legend.map(|legend| {
        let mut line = Line::raw(" ".repeat(KEY));
        line.spans.extend(legend.spans);
        line
    }));
    let height = usize::from(area.height.saturating_sub(2));
    let last = lines.len().saturating_sub(height);
    let first = usize::from(first).min(last);
    let mut shown = vec![Line::styled(" Keys of glass top", theme.strong())];
    shown.extend(lines.into_iter().skip(first).take(height));
    frame.render_widget(Paragraph::new(shown), area);
    let text = if last > 0 { " ↑ ↓ more  any other key goes back" } else { " any key goes back" };
    let foot = Rect { y: area.bottom().saturating_sub(1), height: 1.min(area.height), ..area };
    frame.render_widget(Paragraph::new(text).style(theme.quiet()), foot);
}

/// Draws the bottom line: the filter while it is typed, otherwise as many hints as fit, always including
/// those for help and quit.
pub(super) fn foot(
    frame: &mut Frame<'_>,
    area: Rect,
    controls: &Controls,
    hints: &[(&'static str, &'static str)],
    theme: &Theme,
) {
    if controls.typing {
        let text = format!(" filter: {}_   Enter keep  Esc clear", controls.filter);
        return frame.render_widget(Paragraph::new(text).style(theme.strong()), area);
    }
    const ALWAYS: [(&str, &str); 2] = [("?", "help"), ("q", "quit")];
    let taken = |hint: &(&str, &str)| columns(hint.0) + columns(hint.1) + 2;
    let mut columns_max = usize::from(area.width).saturating_sub(ALWAYS.iter().map(taken).sum());
    let fitting = hints.iter().take_while(|hint| {
        let fits = taken(hint) <= columns_max;
        columns_max = columns_max.saturating_sub(taken(hint));
        fits
    });
    let mut spans = Vec::new();
    for (key, meaning) in fitting.chain(&ALWAYS) {
        spans.push(Span::styled(format!(" {key}"), theme.strong()));
        spans.push(Span::styled(format!(" {meaning}"), theme.quiet()));
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
}
