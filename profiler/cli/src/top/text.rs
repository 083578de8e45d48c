//! Numbers and names in few columns.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

pub(super) use glass_profiler_core::format::count;
use glass_profiler_core::names;

use crate::console;

/// A duration with the unit that fits.
pub(super) fn duration(ns: u64) -> String {
    match ns as f64 {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e4 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1e6 => format!("{:.0} µs", ns / 1e3),
        ns if ns < 1e7 => format!("{:.1} ms", ns / 1e6),
        ns if ns < 1e9 => format!("{:.0} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

/// A share as a percentage with one decimal digit: `-` for zero, `<0.1` for small values.
pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent <= 0.0 => "-".to_owned(),
        percent if percent < 0.05 => "<0.1".to_owned(),
        percent => format!("{percent:.1}"),
    }
}

/// The columns that a text takes.
pub(super) fn columns(text: &str) -> usize {
    text.width()
}

/// The first characters of `text` that fit.
fn fit<'a>(text: impl Iterator<Item = char> + 'a, columns_max: usize) -> impl Iterator<Item = char> + 'a {
    let mut used = 0;
    text.take_while(move |c| {
        used += c.width().unwrap_or(0);
        used <= columns_max
    })
}

/// The text in at most `columns_max` columns, with `…` for what is missing at its end.
pub(super) fn cut_end(text: &str, columns_max: usize) -> String {
    cut(text, columns_max, columns_max.saturating_sub(1))
}

/// The text in at most `columns_max` columns, with `…` for what is missing at its start.
pub(super) fn cut_start(text: &str, columns_max: usize) -> String {
    cut(text, columns_max, 0)
}

/// The text in at most `columns_max` columns, with `…` for what is missing in its middle. Names of functions
/// have their module at their start and their purpose at their end; the end is more useful.
pub(super) fn cut_middle(text: &str, columns_max: usize) -> String {
    cut(text, columns_max, columns_max.saturating_sub(1) / 3)
}

/// The name of a function in at most `columns_max` columns: without its trait, without what is in angle
/// brackets, or cut in its middle, as little as is needed.
pub(super) fn squeeze(name: &str, columns_max: usize) -> String {
    if columns(name) <= columns_max {
        return name.to_owned();
    }
    let of_type = names::without_trait(name);
    if columns(&of_type) <= columns_max {
        return of_type;
    }
    cut_middle(&names::without_generics(&of_type), columns_max)
}

fn cut(text: &str, columns_max: usize, before: usize) -> String {
    if columns(text) <= columns_max {
        return text.to_owned();
    }
    if columns_max == 0 {
        return String::new();
    }
    let start: String = fit(text.chars(), before).collect();
    let end: Vec<char> = fit(text.chars().rev(), columns_max - 1 - before).collect();
    start + "…" + &end.into_iter().rev().collect::<String>()
}

/// The text in lines of at most `columns_max` columns, broken between words; one that is longer is cut.
pub(super) fn wrap(text: &str, columns_max: usize) -> Vec<String> {
    let words: Vec<String> = text.split_whitespace().map(|word| cut_end(word, columns_max)).collect();
    console::wrap(&words.join(" "), columns_max)
}

/// Fills a text up to `columns_max` columns; one that is longer stays.
pub(super) fn pad(text: &str, columns_max: usize) -> String {
    format!("{text}{}", " ".repeat(columns_max.saturating_sub(columns(text))))
}

/// Source file and line: at most the last two parts of the path.
pub(super) fn place(place: &Option<(std::sync::Arc<str>, u32)>) -> String {
    let Some((file, line)) = place else { return String::new() };
    let parts: Vec<&str> = file.rsplitn(3, '/').collect();
    match parts[..] {
        [name, folder, _] => format!("{folder}/{name}:{line}"),
        _ => format!("{file}:{line}"),
    }
}

/// The last two parts of a path of names, without what is in angle brackets: enough to know a function
/// again in a call chain.
pub(super) fn short(name: &str) -> String {
    // The body of an async function is a closure in it; the function's name is more useful.
    names::short(&name.replace("::{{closure}}", ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!([0, 999, 1000, 1234567].map(count), ["0", "999", "1,000", "1,234,567"]);
        let durations = [0, 999, 1500, 62_400, 8_230_000, 45_000_000, 1_530_000_000];
        assert_eq!(durations.map(duration), ["0 ns", "999 ns", "1.5 µs", "62 µs", "8.2 ms", "45 ms", "1.5 s"]);
        assert_eq!([0.0, 0.0001, 0.0312, 1.0].map(percent), ["-", "<0.1", "3.1", "100.0"]);
    }

    #[test]
    fn texts_are_cut_where_it_is_said() {
        assert_eq!(cut_end("abcdef", 6), "abcdef");
        assert_eq!(cut_end("abcdef", 4), "abc…");
        assert_eq!(cut_start("abcdef", 4), "…def");
        assert_eq!(cut_middle("abcdefghij", 7), "ab…ghij");
        for columns_max in 0..12 {
            for text in ["abcdefghij", "日本語テキスト", ""] {
                for cut in [cut_end(text, columns_max), cut_start(text, columns_max), cut_middle(text, columns_max)] {
                    assert!(columns(&cut) <= columns_max, "{cut:?} in {columns_max}");
                }
            }
        }
    }

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("a verylongword b", 5), ["a", "very…", "b"]);
        assert_eq!(wrap("", 5), [""]);
        assert!(wrap("a b c", 0).iter().all(String::is_empty));
    }

    #[test]
    fn names_in_chains_are_short() {
        assert_eq!(short("smoltcp::iface::interface::Interface::poll"), "Interface::poll");
        assert_eq!(short("<alloc::vec::Vec<T> as core::ops::Drop>::drop"), "Vec::drop");
        assert_eq!(short("core::ptr::drop_in_place<foo::Bar>"), "ptr::drop_in_place");
        assert_eq!(short("memcpy"), "memcpy");
        assert_eq!(short("queue::serve::{{closure}}::{{closure}}"), "queue::serve");
        assert_eq!(short("<>"), "<>");
        let name = "<queue::Service<vm::Vm> as core::future::Future>::poll";
        assert_eq!(squeeze(name, 80), name);
        assert_eq!(squeeze(name, 40), "queue::Service<vm::Vm>::poll");
        assert_eq!(squeeze(name, 25), "queue::Service::poll");
        assert_eq!(squeeze(name, 10), "que…::poll");
        assert_eq!(names::without_trait("<fn() -> u8 as Call>::call"), "fn() -> u8::call");
        assert_eq!(names::without_trait("<unclosed"), "<unclosed");
        assert_eq!(place(&Some((std::sync::Arc::from("/home/me/src/store/log.rs"), 7))), "store/log.rs:7");
        assert_eq!(place(&Some((std::sync::Arc::from("a.c"), 7))), "a.c:7");
    }
}
