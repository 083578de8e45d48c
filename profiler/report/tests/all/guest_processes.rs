//! Reports of a guest with processes: the text, and the page, whose tables of processes and threads select samples.

use crate::support::browser::Browser;
use crate::support::linux_guest::{read, recording};
use crate::support::profiles::compare_golden;
use glass_profiler_core::model::Profile;
use glass_profiler_core::threads::Wanted;
use serde_json::json;

fn profile() -> Profile {
    read(&recording()).profile
}

fn only(process: &str) -> Profile {
    let mut profile = profile();
    Wanted { process: Some(process.to_owned()), thread: None }.keep(&mut profile).unwrap();
    profile
}

#[test]
fn the_text_has_tables_of_processes_and_threads() {
    compare_golden("linux-guest.txt", &glass_profiler_report::text(&profile(), 5));
    compare_golden("linux-guest-only.txt", &glass_profiler_report::text(&only("redis-server"), 5));
}

/// The cells of a table, row by row.
fn cells(browser: &mut Browser, table: &str) -> Vec<String> {
    let rows = browser.eval(&format!(
        "[...document.querySelectorAll('{table} tbody tr')].map((row) => \
         [...row.cells].map((cell) => cell.innerText.replace(/\\s+/g, ' ').trim()).join('|'))"
    ));
    serde_json::from_value(rows).expect("a list of texts")
}

fn picture(browser: &mut Browser, name: &str) {
    if let Some(folder) = std::env::var_os("GLASS_SCREENSHOTS") {
        browser.picture(std::path::Path::new(&folder), name);
    }
}

/// Own and all samples of a function.
fn function(browser: &mut Browser, name: &str) -> Option<(u64, u64)> {
    browser.click("#functions-tab");
    browser.rows("#functions").into_iter().find(|row| row.0 == name).map(|row| (row.1, row.2))
}

#[test]
fn a_row_of_a_process_or_a_thread_selects_its_samples() {
    let Some(mut browser) = Browser::open(&glass_profiler_report::html(&profile())) else { return };
    assert_eq!(browser.eval("document.querySelectorAll('#timeline .tracks li').length"), json!(2), "the vCPUs");
    assert_eq!(browser.text("#timeline .track-numbers > div:nth-of-type(1) .samples"), "95");
    assert_eq!(function(&mut browser, "serve"), Some((80, 100)));
    browser.click("#processes-tab");
    let expected = [
        "100 55.6 %|44.4 %|11.1 %|155|redis-server (1 in its namespace)|2",
        "40 22.2 %|22.2 %||9|make|1",
        "20 11.1 %||11.1 %|11|cc1|1",
        "10 5.6 %||5.6 %||[idle task]|",
        "10 5.6 %||||[process unknown]|",
    ];
    assert_eq!(cells(&mut browser, "#processes"), expected);
    assert_eq!(browser.text("#functions-count"), "3 processes");
    picture(&mut browser, "processes-light");
    browser.click("#processes tbody tr:nth-child(1) button");
    assert!(browser.text("#whole").starts_with("100 % = 100 running samples of redis-server (1 in its namespace) 155"));
    assert_eq!(browser.eval("document.querySelectorAll('#processes tr.selected').length"), json!(1));
    // The table has all of them nevertheless.
    assert_eq!(cells(&mut browser, "#processes"), expected);
    assert_eq!((function(&mut browser, "serve"), function(&mut browser, "do_exit")), (Some((80, 100)), None));
    browser.click("#threads-tab");
    let threads = cells(&mut browser, "#threads");
    assert_eq!(
        threads[..2],
        [
            "70 38.9 %|27.8 %|11.1 %|155|redis-server|redis-server (1 in its namespace) 155",
            "40 22.2 %|22.2 %||9|make|make 9"
        ]
    );
    browser.click("#threads tbody tr:nth-child(3) button");
    assert!(browser.text("#whole").starts_with("100 % = 30 running samples of io_thd_1 158 of redis-server"));
    assert_eq!(function(&mut browser, "start_thread"), Some((0, 30)));
    browser.prefer("dark");
    browser.click("#threads-tab");
    picture(&mut browser, "threads-dark");
    // The address has the choice some time after it was made, its parts in the order in which they were chosen.
    browser.wait_for("['#tracks=4.5&table=threads', '#table=threads&tracks=4.5'].includes(location.hash)");
    let hash = browser.eval("location.hash");
    browser.assert_quiet();
    let Some(mut browser) = Browser::open_at(&glass_profiler_report::html(&profile()), hash.as_str().unwrap()) else {
        return;
    };
    assert_eq!(browser.eval("document.querySelectorAll('#threads tr.selected').length"), json!(1));
    assert_eq!(function(&mut browser, "start_thread"), Some((0, 30)));
    // A second click counts all again; a vCPU is all of its threads.
    browser.click("#threads-tab");
    browser.click("#threads tbody tr:nth-child(3) button");
    assert_eq!(function(&mut browser, "serve"), Some((80, 100)));
    browser.click("#timeline .tracks li:nth-child(1) button");
    assert!(browser.text("#whole").starts_with("100 % = 95 running samples of vcpu 0"));
    assert_eq!(function(&mut browser, "serve"), Some((65, 85)));
    browser.assert_quiet();
}

#[test]
fn the_page_counts_what_was_left_out_and_others_have_no_such_tables() {
    let page = glass_profiler_report::html(&only("make"));
    assert!(page.contains("only process make (cc1 11, make 9): 60 of 200 samples; left out: 100 of other"), "{page}");
    let mut without = profile();
    without.processes.clear();
    without.threads.clear();
    let page = glass_profiler_report::html(&without);
    assert!(!page.contains("processes-tab") && !page.contains("\"guest\":{"));
}
