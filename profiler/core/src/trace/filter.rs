//! The functions that match a user's pattern.
//!
//! A pattern with a star matches a whole name, a star stands for any text: `upload_queue::*`, `*poll*`.
//! A pattern without one is the name of a crate, and matches all of it, or else whole segments of a path anywhere in a
//! name: `store` means a module or function of that name, `Store::push` a method.
//!
//! Names are compared as paths, without generic arguments: `<queue::Store as core::fmt::Debug>::fmt` is
//! `queue::Store::fmt` and `core::fmt::Debug::fmt`, and belongs to the crate of the former.

use std::collections::HashSet;

use super::raw::Function;

/// The included patterns, and the excluded ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    include: Vec<String>,
    exclude: Vec<String>,
}

impl Filter {
    /// Functions that match one of `include` (all, if there is none) and none of `exclude`.
    pub fn new<S: AsRef<str>>(include: &[S], exclude: &[S]) -> Filter {
        let own = |patterns: &[S]| patterns.iter().map(|pattern| pattern.as_ref().to_owned()).collect();
        Filter { include: own(include), exclude: own(exclude) }
    }

    /// Returns for each function whether it matches. Fails with a pattern that matches none.
    pub fn choose(&self, functions: &[Function]) -> Result<Vec<bool>, &str> {
        let names: Vec<Paths> = functions.iter().map(|function| Paths::of(&function.name)).collect();
        let crates: HashSet<&str> = names.iter().filter_map(Paths::crate_name).collect();
        let matching = |patterns: &[String], chosen: &mut [bool]| {
            for (index, pattern) in patterns.iter().enumerate() {
                let is_crate = crates.contains(pattern.as_str());
                let mut is_used = false;
                for (slot, name) in chosen.iter_mut().zip(&names) {
                    let matches = if is_crate { name.crate_name() == Some(pattern) } else { name.matches(pattern) };
                    *slot |= matches;
                    is_used |= matches;
                }
                if !is_used {
                    return Err(index);
                }
            }
            Ok(())
        };
        let mut included = vec![self.include.is_empty(); functions.len()];
        matching(&self.include, &mut included).map_err(|index| self.include[index].as_str())?;
        let mut excluded = vec![false; functions.len()];
        matching(&self.exclude, &mut excluded).map_err(|index| self.exclude[index].as_str())?;
        Ok(included.into_iter().zip(excluded).map(|(included, excluded)| included && !excluded).collect())
    }
}

/// The paths of a function for matching: with the type that it belongs to, then with the trait.
struct Paths {
    whole: String,
    paths: Vec<String>,
}

impl Paths {
    fn of(name: &str) -> Paths {
        let paths = match name.strip_prefix('<').and_then(split_at_end) {
            Some((inside, rest)) => match split_at_as(inside) {
                Some((kind, interface)) => {
                    vec![
                        path_of_type(kind) + &without_generics(rest),
                        path_of_type(interface) + &without_generics(rest),
                    ]
                }
                None => vec![path_of_type(inside) + &without_generics(rest)],
            },
            None => vec![without_generics(name)],
        };
        Paths { whole: name.to_owned(), paths }
    }

    fn crate_name(&self) -> Option<&str> {
        self.paths.first()?.split("::").next().filter(|name| !name.is_empty())
    }

    fn matches(&self, pattern: &str) -> bool {
        if pattern.contains('*') {
            let parts: Vec<&str> = pattern.split('*').collect();
            return self.paths.iter().chain([&self.whole]).any(|path| glob(path, &parts));
        }
        let wanted: Vec<&str> = pattern.split("::").collect();
        let has = |path: &String| {
            let segments: Vec<&str> = path.split("::").collect();
            segments.windows(wanted.len()).any(|window| window == wanted)
        };
        self.whole == pattern || self.paths.iter().any(has)
    }
}

/// Returns for each character how many angle brackets are open before it; `->` closes none.
fn depths(text: &str) -> impl Iterator<Item = (usize, char, usize)> {
    let mut depth = 0_usize;
    let mut last = ' ';
    text.char_indices().map(move |(index, character)| {
        let before = depth;
        match character {
            '<' => depth += 1,
            '>' if last != '-' => depth = depth.saturating_sub(1),
            _ => {}
        }
        last = character;
        (index, character, before)
    })
}

/// What is before and after the bracket that closes one opened before `text`.
fn split_at_end(text: &str) -> Option<(&str, &str)> {
    let mut last = ' ';
    for (index, character, depth) in depths(text) {
        if character == '>' && depth == 0 && last != '-' {
            return Some((&text[..index], &text[index + 1..]));
        }
        last = character;
    }
    None
}

fn split_at_as(text: &str) -> Option<(&str, &str)> {
    let (index, ..) = depths(text).find(|(index, _, depth)| *depth == 0 && text[*index..].starts_with(" as "))?;
    Some((&text[..index], &text[index + 4..]))
}

fn path_of_type(text: &str) -> String {
    let mut text = text;
    let words = ["&", "mut ", "*const ", "*mut ", "dyn ", "[", "("];
    while let Some(rest) = words.iter().find_map(|word| text.strip_prefix(word)) {
        text = rest;
    }
    // Of a type within a type, the outer one.
    let inner = text.trim_start_matches('<');
    let end = if inner.len() == text.len() { None } else { inner.find(" as ").or_else(|| inner.find('>')) };
    without_generics(end.map_or(inner, |end| &inner[..end]))
}

/// `a::b::<c>::d` as `a::b::d`.
fn without_generics(text: &str) -> String {
    let mut path = String::with_capacity(text.len());
    for (_, character, depth) in depths(text) {
        if character == '<' && depth == 0 && path.ends_with("::") {
            path.truncate(path.len() - 2);
        }
        if depth == 0 && character != '<' {
            path.push(character);
        }
    }
    path
}

/// Whether `text` is the parts with any text between them.
fn glob(text: &str, parts: &[&str]) -> bool {
    let [first, middle @ .., last] = parts else { return false };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    for part in middle {
        let Some(index) = rest.find(part) else { return false };
        rest = &rest[index + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 9] = [
        "upload_queue::service::serve::{closure#0}",
        "<upload_queue::store::Store>::push",
        "<upload_queue::store::Store as core::fmt::Debug>::fmt",
        "<glass_executor::executor::Executor>::spawn::<upload_queue::service::serve::{closure#0}>",
        "core::ptr::drop_in_place::<upload_queue::store::Store>",
        "<&mut glass_net::stack::Stack<dyn Fn(u8) -> u8> as core::future::future::Future>::poll",
        "restore::poll_all",
        "0x201000",
        "",
    ];

    fn chosen(include: &[&str], exclude: &[&str]) -> Vec<usize> {
        let functions: Vec<Function> =
            NAMES.iter().map(|name| Function { name: (*name).into(), ..Function::default() }).collect();
        let chosen = Filter::new(include, exclude).choose(&functions).unwrap();
        (0..NAMES.len()).filter(|index| chosen[*index]).collect()
    }

    #[test]
    fn a_crate_means_what_is_written_in_it() {
        assert_eq!(chosen(&["upload_queue"], &[]), [0, 1, 2]);
        assert_eq!(chosen(&["glass_net"], &[]), [5]);
        assert_eq!(chosen(&["core"], &[]), [4]);
    }

    #[test]
    fn segments_are_matched_whole() {
        assert_eq!(chosen(&["store"], &[]), [1, 2]);
        assert_eq!(chosen(&["Store::push"], &[]), [1]);
        assert_eq!(chosen(&["poll"], &[]), [5]);
        assert_eq!(chosen(&["Debug::fmt"], &[]), [2]);
        assert_eq!(chosen(&["0x201000"], &[]), [7]);
    }

    #[test]
    fn stars_stand_for_any_text() {
        assert_eq!(chosen(&["*poll*"], &[]), [5, 6]);
        assert_eq!(chosen(&["upload_queue::*"], &[]), [0, 1, 2]);
        assert_eq!(chosen(&["*::push"], &[]), [1]);
        assert_eq!(chosen(&["*<upload_queue*"], &[]), [1, 2, 3, 4]);
        assert_eq!(chosen(&["*"], &["*::*"]), [7, 8]);
    }

    #[test]
    fn what_is_excluded_is_not_there() {
        assert_eq!(chosen(&["upload_queue"], &["fmt", "serve"]), [1]);
        assert_eq!(chosen(&[], &["upload_queue", "core", "*poll*", "0x201000"]), [3, 8]);
    }

    #[test]
    fn patterns_of_no_use_are_named() {
        let functions = [Function { name: "a::b".into(), ..Function::default() }];
        assert_eq!(Filter::new(&["a", "c"], &[]).choose(&functions), Err("c"));
        assert_eq!(Filter::new(&[], &["a::c"]).choose(&functions), Err("a::c"));
        assert_eq!(Filter::new(&[""], &[]).choose(&functions), Err(""));
    }

    #[test]
    fn brackets_that_do_not_match_do_no_harm() {
        for name in ["<", "<<a as", "a>>b", "<a->b", "<&>", "<[(>::"] {
            let functions = [Function { name: name.into(), ..Function::default() }];
            assert!(Filter::new(&["*"], &[]).choose(&functions).is_ok());
        }
    }
}
