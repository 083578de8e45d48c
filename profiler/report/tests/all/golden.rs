//! The text and the page's data of one profile, compared with files that a person has read.
//!
//! After a change that is meant: `GLASS_GOLDEN=write cargo test -p glass-profiler-report --test golden`, and read
//! what `git diff` prints.

use crate::support::profiles::{HOSTILE, compare_golden, service, small};
use glass_profiler_core::model::StackEnd;

#[test]
fn the_text_is_as_it_was_read() {
    compare_golden("service.txt", &glass_profiler_report::text(&service(3_000, 1), 25));
}

#[test]
fn the_call_tree_is_as_it_was_read() {
    let text = glass_profiler_report::text_with_tree(&service(3_000, 1), 0, 2.0);
    compare_golden("calltree.txt", &text[text.find("Call tree").expect("there is a call tree")..]);
}

#[test]
fn the_data_is_as_it_was_read() {
    let mut profile = small();
    profile.frames[2].function = HOSTILE[0].into();
    profile.frames[1].line = None;
    profile.stacks[3].end = StackEnd::TooDeep;
    let json = glass_profiler_report::samples::page::json(&profile);
    // One line for each column, so that a difference can be seen.
    compare_golden("service.json", &(json.replace("],\"", "],\n\"").replace("},\"", "},\n\"") + "\n"));
}

#[test]
fn hostile_names_stay_inside_their_strings() {
    let profile = service(3_000, 1);
    let json = glass_profiler_report::samples::page::json(&profile);
    assert!(!json.contains(['<', '>', '&', '\u{2028}', '\u{2029}', '\u{1b}', '\u{202e}']));
    // They are still the same names for a reader of the JSON.
    let data: serde_json::Value = serde_json::from_str(&json).expect("the data is JSON");
    let strings = data["strings"].as_array().expect("a table of strings");
    for name in HOSTILE {
        let printable = glass_profiler_core::names::printable(name);
        assert!(strings.iter().any(|string| string == &printable), "{printable:?}");
    }

    let mut profile = profile;
    for name in HOSTILE {
        profile.origin.guest.push_str(name);
        profile.origin.symbols.push_str(name);
        profile.warnings.push((*name).to_string());
        profile.tracks[0].name.push_str(name);
        for frame in &mut profile.frames {
            frame.image.push_str(name);
            frame.file.get_or_insert_default().push_str(name);
        }
    }
    let html = glass_profiler_report::html(&profile);
    let calm = glass_profiler_report::html(&service(3_000, 1));
    let tags = |page: &str| ["<script", "</script", "<img", "<!--", "<b>"].map(|tag| page.matches(tag).count());
    assert_eq!(tags(&html), tags(&calm));
    assert_eq!(tags(&html), [2, 2, 0, 0, 0]);
    assert!(!html.contains(['\u{1b}', '\u{202e}', '\u{2028}']));
    assert!(!glass_profiler_report::text(&profile, 1_000).contains(['\u{1b}', '\u{202e}', '\u{2028}', '\u{7}']));
}

#[test]
fn a_page_names_no_other_address() {
    let html = glass_profiler_report::html(&service(3_000, 1));
    for reference in
        ["http://", "https://", "//cdn", "@import", "url(", "fetch(", "XMLHttpRequest", "WebSocket", "import("]
    {
        assert!(!html.contains(reference), "{reference}");
    }
    assert!(html.contains("default-src 'none'"));
}
