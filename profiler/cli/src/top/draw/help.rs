//! The page of keys.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::Theme;

const KEYS: [(&str, &str); 14] = [
    ("s t n  ← →", "sort by self, total or name"),
    ("↑ ↓ PgUp PgDn", "select a row; it stays selected when the order changes"),
    ("Enter", "who calls the function, whom it calls, its hottest stacks"),
    ("l", "lines instead of functions"),
    ("/", "show only what contains a text: in the name, image or line"),
    ("c C", "the next, the previous core or thread; then all again"),
    ("i", "count idle time too"),
    ("p", "pause the display; sampling goes on"),
    ("r", "forget all samples so far"),
    ("Esc", "one step back: panel, filter, selection, then quit"),
    ("q Ctrl-C", "quit: the guest goes on without us"),
    ("", ""),
    ("self", "time in the function itself"),
    ("total", "time in it and in all that it called; recursion counts once"),
];

/// Draws the page.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
    let mut lines = vec![Line::styled(" Keys of glass top", theme.strong()), Line::raw("")];
    for (key, meaning) in KEYS {
        lines.push(Line::from(vec![Span::styled(format!("  {key:<14}"), theme.strong()), Span::raw(meaning)]));
    }
    lines.push(Line::raw(""));
    lines.push(Line::from(vec![
        Span::raw("  Bars: "),
        Span::styled("█", theme.running()),
        Span::raw(" running  "),
        Span::styled("▒", theme.spinning()),
        Span::raw(" spinning (awake, looking for work)  · idle"),
    ]));
    lines.push(Line::raw("  Old samples fade: --half-life says how fast. Any key goes back."));
    frame.render_widget(Paragraph::new(lines), area);
}
