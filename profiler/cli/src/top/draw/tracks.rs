//! A bar for each core or thread: its current state, and its history of the last seconds.

use glass_profiler_core::live::LiveTrack;
use glass_profiler_core::live::activity::Shares;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::Theme;
use crate::top::app::App;
use crate::top::text::{count, cut_end, pad};

/// Columns of the tracks' names, at least and at most: threads have their numbers, and those of their processes.
const NAME: (usize, usize) = (14, 34);
/// Tracks may take one in this many of the window's rows.
const WINDOW_PART: u16 = 4;
/// Columns of the bar and of the history, at least and at most.
const BAR: (usize, usize) = (10, 40);
const HISTORY: (usize, usize) = (8, 38);
/// Heights of the history's columns.
const HEIGHTS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Rows that the tracks take.
pub(super) fn rows(app: &App, area: Rect) -> u16 {
    let wanted = app.picture.tracks.len().min(usize::from(u16::MAX)) as u16;
    wanted.min((area.height / WINDOW_PART).max(1))
}

/// Cores in their order; threads by how much they run, since there can be many.
fn order(app: &App) -> Vec<(&LiveTrack, Shares)> {
    let mut tracks: Vec<_> = app.picture.tracks.iter().map(|track| (track, track.activity.now())).collect();
    let are_cores = tracks.iter().any(|(_, now)| now.spinning > 0.0) || app.picture.progress.pause.count > 0;
    if !are_cores {
        tracks.sort_by(|a, b| b.1.running.total_cmp(&a.1.running).then_with(|| a.0.track.cmp(&b.0.track)));
    }
    tracks
}

/// Draws as many as there is room for.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, app: &App, theme: &Theme) {
    let tracks = order(app);
    let shown = if tracks.len() > usize::from(area.height) { usize::from(area.height) - 1 } else { tracks.len() };
    let longest = tracks[..shown].iter().map(|(track, _)| track.name.chars().count()).max().unwrap_or(0);
    let name = longest.clamp(NAME.0, NAME.1.min((usize::from(area.width) / 3).max(NAME.0)));
    let width = usize::from(area.width);
    let mut lines: Vec<Line<'_>> =
        tracks[..shown].iter().map(|(track, now)| line(track, *now, app, theme, (width, name))).collect();
    if shown < tracks.len() {
        let rest = &tracks[shown..];
        let running: f64 = rest.iter().map(|(_, now)| now.running).sum();
        let text = format!(" and {} more, running {:.0} % together", count(rest.len() as u64), running * 100.0);
        lines.push(Line::styled(text, theme.quiet()));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn line(track: &LiveTrack, now: Shares, app: &App, theme: &Theme, (width, columns): (usize, usize)) -> Line<'static> {
    let is_chosen = app.query.track == Some(track.track);
    let mark = if is_chosen { '▶' } else { ' ' };
    let name = format!("{mark}{} ", pad(&cut_end(&track.name, columns), columns));
    let name_style = if is_chosen { theme.strong() } else { ratatui::style::Style::new() };
    let numbers = numbers(now);
    let columns_max = width.saturating_sub(columns + 2 + numbers.len() + 3);
    let bar = (columns_max * 3 / 5).clamp(BAR.0, BAR.1);
    let history = columns_max.saturating_sub(bar).clamp(HISTORY.0, HISTORY.1);
    let part = |share: f64| (share * bar as f64).round() as usize;
    let running = part(now.running).min(bar);
    let spinning = part(now.running + now.spinning).min(bar) - running;
    let stolen = part(now.running + now.spinning + now.stolen).min(bar) - running - spinning;
    let mut spans = vec![
        Span::styled(name, name_style),
        Span::styled("█".repeat(running), theme.running()),
        Span::styled("▒".repeat(spinning), theme.spinning()),
        Span::styled("░".repeat(stolen), theme.stolen()),
        Span::styled("·".repeat(bar - running - spinning - stolen), theme.quiet()),
        Span::raw(numbers),
    ];
    if width > columns + BAR.0 + HISTORY.0 + 40 {
        spans.push(Span::styled(sparkline(&track.activity.history(), history), theme.running()));
    }
    Line::from(spans)
}

fn numbers(now: Shares) -> String {
    let mut text = format!(" {:>3.0} % running", now.running * 100.0);
    if now.off > 0.0 {
        text += &format!(" {:>3.0} % off     ", now.off * 100.0);
    } else if now.stolen > now.spinning {
        text += &format!(" {:>3.0} % stolen  ", now.stolen * 100.0);
    } else if now.spinning > 0.0 {
        text += &format!(" {:>3.0} % spinning", now.spinning * 100.0);
    } else {
        text += &format!(" {:>3.0} % idle    ", now.idle * 100.0);
    }
    text + "  "
}

/// The newest at the right.
fn sparkline(history: &[Shares], columns: usize) -> String {
    let last = &history[history.len().saturating_sub(columns)..];
    let height = |shares: &Shares| {
        // A non-zero value is never shown as nothing.
        let busy = shares.running + shares.spinning;
        let height = (busy * 8.0).round() as usize;
        HEIGHTS[if busy > 0.0 { height.clamp(1, 8) } else { 0 }]
    };
    last.iter().map(height).collect()
}
