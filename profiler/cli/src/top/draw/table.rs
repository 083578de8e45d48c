//! The table of functions or lines.

use glass_profiler_core::live::view::Row;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::Theme;
use crate::top::app::{App, Sort};
use crate::top::text::{columns, count, cut_end, cut_start, pad, percent, place, squeeze};

/// Columns of a share.
const SHARE: usize = 8;

/// A window that has room for everything, and one that has room for places.
const COLUMNS_WIDE: u16 = 100;
const COLUMNS_PLACES: u16 = 60;
/// Between columns of text.
const GAP: usize = 2;
/// The least columns of names where there is room: so many that the title fits.
const NAME_MIN: usize = 32;

/// Widths of the three columns of text; those of 0 are left out, as are those that no shown row has a text for.
struct Widths {
    name: usize,
    image: usize,
    place: usize,
}

impl Widths {
    /// Images and places take what they need of the shown rows, within bounds; names get the rest, as far
    /// as the longest needs it.
    fn of(rows: &[&Row], shown: &[&Row], width: u16) -> Widths {
        let columns_max = usize::from(width).saturating_sub(2 * SHARE + GAP);
        let longest = |text: &dyn Fn(&Row) -> usize| shown.iter().map(|row| text(row)).max().unwrap_or(0);
        // In a narrow window a single image is left out, and in a very narrow one all images.
        let is_one = shown.windows(2).all(|pair| pair[0].function.image == pair[1].function.image);
        let image = match longest(&|row| columns(&row.function.image)) {
            0 => 0,
            _ if (is_one && width < COLUMNS_WIDE) || width < COLUMNS_PLACES => 0,
            image => image.max(5).min(columns_max / 5),
        };
        let place = match longest(&|row| columns(&place(&row.place))) {
            0 => 0,
            _ if width < COLUMNS_PLACES => 0,
            place => place.max(12).min(columns_max * 3 / 10),
        };
        let taken: usize = [image, place].iter().filter(|width| **width > 0).map(|width| width + GAP).sum();
        // Of all rows, so that columns stay where they are when one scrolls.
        let wanted = rows.iter().map(|row| columns(&row.function.name)).max().unwrap_or(0).max(NAME_MIN);
        Widths { name: columns_max.saturating_sub(taken).min(wanted), image, place }
    }
}

/// A text in its column, with the gap before the next; nothing if it has none.
fn column(text: &str, width: usize) -> String {
    if width == 0 { String::new() } else { pad(text, width + GAP) }
}

/// Draws the rows that fit, the selected one among them.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, app: &App, theme: &Theme) {
    let rows = app.rows();
    let selected = app.selected(&rows);
    let height = usize::from(area.height).saturating_sub(1);
    let first = selected.map_or(0, |selected| (selected + 1).saturating_sub(height));
    let shown = &rows[first..rows.len().min(first + height)];
    let widths = Widths::of(&rows, shown, area.width);
    let mut lines = vec![title(app, rows.len(), &widths, theme, area.width)];
    for (index, row) in shown.iter().enumerate() {
        lines.push(line(row, &widths, selected == Some(first + index), theme));
    }
    if rows.is_empty() {
        lines.push(Line::raw(""));
        lines.push(Line::styled(nothing(app), theme.quiet()));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn nothing(app: &App) -> String {
    if !app.controls.filter.is_empty() {
        format!("   nothing matches {:?}: Esc clears the filter", app.controls.filter)
    } else if let Some(only) = &app.query.only {
        format!("   {} does not run: Esc goes back", only.label)
    } else if app.picture.progress.samples_taken > 0 {
        "   nothing ran here: c goes to the next core or thread, i shows idle time too".to_owned()
    } else {
        "   no samples yet: nothing ran since we look".to_owned()
    }
}

fn title(app: &App, rows: usize, widths: &Widths, theme: &Theme, width: u16) -> Line<'static> {
    let mark = |sort: Sort, text: &str| if app.sort == sort { format!("▼{text}") } else { text.to_owned() };
    let what = if app.lines { "line" } else { "function" };
    let mut name = mark(Sort::Name, what);
    match app.controls.filter.is_empty() {
        true => name += &format!(" ({})", count(rows as u64)),
        false => name += &format!(" ({} with {:?})", count(rows as u64), app.controls.filter),
    }
    if let Some(only) = &app.query.only {
        name += &format!(" of {}", only.label);
    }
    if let Some(track) = app.query.track {
        let name_of = app.picture.tracks.iter().find(|known| known.track == track).map(|known| known.name.as_str());
        name += &format!(" on {}", name_of.unwrap_or("a track that is gone"));
    }
    let text = format!(
        "{:>SHARE$}{:>SHARE$}  {}{}{}",
        mark(Sort::Own, "self %"),
        mark(Sort::Total, "total %"),
        column(&cut_end(&name, widths.name), widths.name),
        column(&cut_end("image", widths.image), widths.image),
        column(&cut_end(if app.lines { "place" } else { "hottest line" }, widths.place), widths.place),
    );
    Line::styled(pad(&text, width.into()), theme.bar())
}

fn line(row: &Row, widths: &Widths, is_selected: bool, theme: &Theme) -> Line<'static> {
    let style = |style: Style| if is_selected { theme.bar().add_modifier(style.add_modifier) } else { style };
    let (own, total) = (percent(row.self_share), percent(row.total_share));
    Line::from(vec![
        Span::styled(format!("{own:>SHARE$}"), style(theme.share(row.self_share))),
        Span::styled(format!("{total:>SHARE$}  "), style(Style::new())),
        Span::styled(column(&squeeze(&row.function.name, widths.name), widths.name), style(Style::new())),
        Span::styled(column(&cut_end(&row.function.image, widths.image), widths.image), style(theme.image())),
        Span::styled(column(&cut_start(&place(&row.place), widths.place), widths.place), style(theme.place())),
    ])
}
