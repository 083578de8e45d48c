//! The table as text: for pipes, scripts, and for the normal screen at the end.

use std::fmt::Write as _;

use glass_profiler_core::live::threads::{By, SubjectRow};
use glass_profiler_core::live::view::Row;
use glass_profiler_core::model::Origin;

use super::text::{count, cut_end, cut_start, duration, pad, percent, place, squeeze};
use super::work::Picture;

/// Tracks that get a line.
const TRACKS_MAX: usize = 8;
/// Columns of a share.
const SHARE: usize = 9;
/// The most columns of the name of a process or thread.
const NAME_MAX: usize = 40;

/// The table with its head; `columns` is the width that must not be exceeded, if there is one.
pub(super) fn table(picture: &Picture, origin: &Origin, rows_max: usize, columns: Option<u16>) -> String {
    let mut lines = head(picture, origin);
    lines.push(String::new());
    let rows = match picture.view.query.by {
        By::Function => functions(picture, rows_max, columns),
        by => subjects(picture, by, rows_max),
    };
    // The first are the names of the columns.
    if rows.len() == 1 {
        lines.push("  no samples: nothing ran while we looked".to_owned());
    }
    lines.extend(rows);
    let mut out = String::new();
    for line in lines {
        let line = line.trim_end();
        let line = columns.map_or_else(|| line.to_owned(), |columns| cut_end(line, columns.into()));
        let _ = writeln!(out, "{line}");
    }
    out
}

fn functions(picture: &Picture, rows_max: usize, columns: Option<u16>) -> Vec<String> {
    let rows = &picture.view.functions[..rows_max.min(picture.view.functions.len())];
    let longest = |text: &dyn Fn(&Row) -> String, title: &str| width_of(rows.iter().map(text), title);
    let mut name = longest(&|row| row.function.name.clone(), "function").max("function".len());
    let mut image = longest(&|row| row.function.image.clone(), "image");
    let mut line = longest(&|row| place(&row.place), "hottest line");
    if let Some(columns) = columns {
        // Two shares, and two spaces before each of the three texts.
        let columns_max = usize::from(columns).saturating_sub(2 * SHARE + 2 + 3 * 2);
        image = image.min(columns_max / 5);
        line = line.min(columns_max * 3 / 10);
        name = name.min(columns_max.saturating_sub(image + line));
    }
    let mut lines = vec![format!(
        "  {:>SHARE$}{:>SHARE$}  {}  {}{}",
        "self %",
        "total %",
        pad("function", name),
        column("image", image),
        column("hottest line", line),
    )];
    for row in rows {
        let (own, total) = (percent(row.self_share), percent(row.total_share));
        lines.push(format!(
            "  {own:>SHARE$}{total:>SHARE$}  {}  {}{}",
            pad(&squeeze(&row.function.name, name), name),
            column(&cut_end(&row.function.image, image), image),
            column(&cut_start(&place(&row.place), line), line),
        ));
    }
    lines
}

/// Columns of texts and their title; 0 if there is no text, and so no column.
fn width_of(texts: impl Iterator<Item = String>, title: &str) -> usize {
    match texts.map(|text| super::text::columns(&text)).max().unwrap_or(0) {
        0 => 0,
        width => width.max(title.len()),
    }
}

/// A text in its column, with the gap before the next; nothing if there is no column.
fn column(text: &str, width: usize) -> String {
    if width == 0 { String::new() } else { pad(text, width) + "  " }
}

/// Processes or threads.
fn subjects(picture: &Picture, by: By, rows_max: usize) -> Vec<String> {
    let rows = &picture.view.subjects[..rows_max.min(picture.view.subjects.len())];
    let (number, what) = if by == By::Thread { ("tid", "thread") } else { ("pid", "process") };
    let second = |row: &SubjectRow| match by {
        By::Thread => row.process.clone(),
        _ => row.number.map_or(String::new(), |_| count(row.threads as u64)),
    };
    let longest =
        |text: &dyn Fn(&SubjectRow) -> String, title: &str| width_of(rows.iter().map(text), title).min(NAME_MAX);
    let title = if by == By::Thread { "process" } else { "threads" };
    let (name, last) = (longest(&|row| row.name.clone(), what).max(what.len()), longest(&second, title));
    let number_in = |number: &str| match rows.iter().all(|row| row.number.is_none()) {
        true => String::new(),
        false => format!("{number:>SHARE$}"),
    };
    let has_hottest = rows.iter().any(|row| row.hottest.is_some());
    let mut lines = vec![format!(
        "  {:>SHARE$}{:>SHARE$}{:>SHARE$}{}  {}  {}{}",
        "share %",
        "user %",
        "kernel %",
        number_in(number),
        pad(what, name),
        column(title, last),
        if has_hottest { "hottest function" } else { "" },
    )];
    for row in rows {
        let shares = [row.share, row.user_share, (row.share - row.user_share).max(0.0)].map(percent);
        let shares: String = shares.iter().map(|share| format!("{share:>SHARE$}")).collect();
        let number = row.number.map_or(String::new(), |number| number.to_string());
        lines.push(format!(
            "  {shares}{}  {}  {}{}",
            number_in(&number),
            pad(&cut_end(&row.name, name), name),
            column(&cut_end(&second(row), last), last),
            row.hottest.as_ref().map_or("", |function| &function.name)
        ));
    }
    lines
}

fn head(picture: &Picture, origin: &Origin) -> Vec<String> {
    let progress = &picture.progress;
    let lost = picture.status.counts.losses.samples() + picture.status.dropped + progress.samples_dropped;
    let mut lines = vec![
        format!("{} by {}, {} Hz", origin.guest, origin.backend, origin.rate_hz),
        format!(
            "{} samples, {:.0}/s, {} lost, {} stacks broken, {}",
            count(progress.samples_taken),
            picture.samples_per_sec,
            count(lost),
            count(progress.stacks_broken),
            pause(picture)
        ),
    ];
    lines.extend(picture.warnings.iter().map(|warning| format!("! {warning}")));
    let mut tracks: Vec<_> = picture.tracks.iter().map(|track| (track, track.activity.lately())).collect();
    tracks.sort_by(|a, b| b.1.running.total_cmp(&a.1.running).then_with(|| a.0.track.cmp(&b.0.track)));
    let names = tracks.iter().take(TRACKS_MAX).map(|(track, _)| track.name.chars().count());
    let columns = names.max().unwrap_or(0).clamp(20, 34);
    // Threads of a process neither spin nor idle: they are sampled while they are on a CPU.
    let are_cores = progress.pause.count > 0 || tracks.iter().any(|(_, now)| now.spinning > 0.0);
    for (track, now) in tracks.iter().take(TRACKS_MAX) {
        let mut line =
            format!("{}  running {:>5} %", pad(&cut_end(&track.name, columns), columns), percent(now.running));
        if are_cores {
            let _ = write!(line, "  spinning {:>5} %  idle {:>5} %", percent(now.spinning), percent(now.idle));
        }
        if now.stolen > 0.0 {
            let _ = write!(line, "  stolen {:>5} %", percent(now.stolen));
        }
        if now.off > 0.0 {
            let _ = write!(line, "  paused or never started {:>5} %", percent(now.off));
        }
        lines.push(line);
    }
    if tracks.len() > TRACKS_MAX {
        lines.push(format!("and {} more", tracks.len() - TRACKS_MAX));
    }
    lines
}

/// The pause of the guest for a sample, and its share of the time.
pub(super) fn pause(picture: &Picture) -> String {
    let pause = &picture.progress.pause;
    if pause.count == 0 {
        return "nothing stopped for samples".to_owned();
    }
    let share = share_of_the_guests_time(picture) * 100.0;
    format!("pause {} (p99 {}), {share:.1} % of its time", duration(pause.median_ns), duration(pause.p99_ns))
}

/// The share of time in which the guest was paused.
fn share_of_the_guests_time(picture: &Picture) -> f64 {
    let time_ns = picture.covered_ns as f64 * picture.tracks.len().max(1) as f64;
    if time_ns > 0.0 { (picture.progress.pause.sum_ns as f64 / time_ns).min(1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::app::tests::{picture, picture_by};
    use super::*;

    fn origin() -> Origin {
        let (guest, backend) = ("queue (VM, TCG)".to_owned(), "QEMU's gdbstub".to_owned());
        Origin { guest, backend, rate_hz: 997, ..Default::default() }
    }

    #[test]
    fn a_pipe_gets_whole_names_in_columns() {
        let table = table(&picture(), &origin(), 20, None);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/top/golden/plain.txt");
        if std::env::var("GLASS_GOLDEN").is_ok_and(|value| value == "write") {
            std::fs::write(path, &table).unwrap();
        }
        let expected = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(table, expected, "GLASS_GOLDEN=write writes what it is now to {path}");
    }

    #[test]
    fn a_terminal_is_not_exceeded() {
        for columns in [20, 40, 80, 100] {
            let table = table(&picture(), &origin(), 20, Some(columns));
            assert!(table.lines().all(|line| crate::top::text::columns(line) <= usize::from(columns)), "{table}");
        }
    }

    #[test]
    fn processes_and_threads_in_columns() {
        let tables = [By::Process, By::Thread].map(|by| table(&picture_by(by), &origin(), 20, None));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/top/golden/plain-processes.txt");
        if std::env::var("GLASS_GOLDEN").is_ok_and(|value| value == "write") {
            std::fs::write(path, tables.concat()).unwrap();
        }
        let expected = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(tables.concat(), expected, "GLASS_GOLDEN=write writes what it is now to {path}");
    }

    #[test]
    fn a_column_without_a_text_is_left_out() {
        let mut plain = picture();
        plain.view.functions.iter_mut().for_each(|row| row.place = None);
        let drawn = table(&plain, &origin(), 20, None);
        assert!(!drawn.contains("hottest line") && drawn.contains("image"), "{drawn}");
        let mut of_idle = picture_by(By::Process);
        of_idle.view.subjects.retain(|row| row.number.is_none());
        let drawn = table(&of_idle, &origin(), 20, None);
        assert!(!drawn.contains("pid") && !drawn.contains("threads") && drawn.contains("handle_softirqs"), "{drawn}");
    }

    #[test]
    fn no_samples_is_said() {
        assert!(table(&Picture::default(), &origin(), 20, None).contains("no samples"));
    }
}
