//! Who waited for whom: a job of three ranks whose waits are known, in the text and in the page.

use crate::same_figures::printed::{printed, same, shown};
use crate::support::browser::Browser;
use crate::support::trace_view::open;
use glass_formats::trace::{Event, Kind, MPI_ANY, MpiRole, mpi_call};
use glass_profiler_core::trace::build;
use glass_profiler_core::trace::model::{Trace, Value};
use glass_profiler_core::trace::raw::{RawChunk, RawRing, RawTrace};
use glass_profiler_report::trace::{Settings, View, text};

/// The events of one rank; without a clock, a tick is a nanosecond.
struct Rank {
    number: u32,
    events: Vec<[u64; 4]>,
}

impl Rank {
    fn event(&mut self, us: u64, kind: Kind, detail: u16, a: u32, b: u64, c: u64) {
        self.events.push(Event { ticks: us * 1000, kind: kind as u16, detail, a, b, c }.to_words());
    }

    fn call(&mut self, name: &str, from_us: u64, to_us: u64, inside: impl FnOnce(&mut Rank)) {
        let number = self.number;
        self.event(from_us, Kind::MpiCall, mpi_call(name), number, 0, 0);
        inside(self);
        self.event(to_us, Kind::MpiReturn, mpi_call(name), number, 0, 0);
    }

    fn about(&mut self, us: u64, role: MpiRole, peer: u32, tag: u64, bytes: u64) {
        self.event(us, Kind::MpiAbout, role as u16, peer, tag, bytes);
    }

    fn barrier(&mut self, number: u64, from_us: u64, to_us: u64) {
        self.call("MPI_Barrier", from_us, to_us, |rank| {
            rank.about(from_us, MpiRole::Barrier, 0, number, 3 << 48);
        });
    }
}

/// Rank 0 receives from 100 to 510 us what rank 1 sends at 500 us, and sends 64 KiB from 600 to 950 us that rank 2 receives from 900 us on. Rank 2 is
/// the last in both barriers, which it enters 40 and 80 us after the first.
fn job() -> Trace {
    let mut ranks = [0, 1, 2].map(|number| Rank { number, events: Vec::new() });
    let [first, second, third] = &mut ranks;
    first.call("MPI_Recv", 100, 510, |rank| {
        rank.about(100, MpiRole::Receive, MPI_ANY, 7, 4096);
        rank.event(505, Kind::MpiReceived, 0, 1, 17, 8);
    });
    first.call("MPI_Send", 600, 950, |rank| {
        rank.about(600, MpiRole::Send, 3, 9, 65_536);
        rank.event(601, Kind::MpiSent, 1, 2, 5, 65_536);
    });
    first.barrier(0, 1_000, 1_045);
    first.barrier(1, 1_100, 1_185);
    second.call("MPI_Send", 499, 502, |rank| {
        rank.about(499, MpiRole::Send, 1, 7, 8);
        rank.event(500, Kind::MpiSent, 0, 0, 17, 8);
    });
    second.barrier(0, 1_010, 1_046);
    second.barrier(1, 1_150, 1_185);
    third.call("MPI_Recv", 900, 940, |rank| {
        rank.about(900, MpiRole::Receive, 1, 9, 65_536);
        rank.event(935, Kind::MpiReceived, 0, 0, 5, 65_536);
    });
    third.barrier(0, 1_040, 1_044);
    third.barrier(1, 1_180, 1_184);
    let rings = ranks.map(|Rank { number, events }| RawRing {
        name: format!("core {}", number + 1),
        chunks: vec![RawChunk { first: 0, events }],
    });
    build(&RawTrace { rings: rings.into(), ..RawTrace::default() })
}

#[test]
fn the_text_shows_who_waited_for_whom() {
    let trace = job();
    assert_eq!(trace.cores[1].name, "core 2, rank 1");
    let fields: Vec<(&str, &Value)> =
        trace.spans[0].fields.iter().map(|(name, value)| (trace.name(*name), value)).collect();
    let (any, bytes) = (Value::Text("any".into()), Value::Unsigned(4096));
    assert_eq!(fields[1..], [("from rank", &any), ("tag", &Value::Unsigned(7)), ("bytes", &bytes)]);
    let summary = text(&trace, View::Summary, &Settings::default()).unwrap();
    let row = |title, start: &[&str]| {
        let rows = printed(&summary, title).rows;
        let found = rows.into_iter().find(|row| row.iter().zip(start).all(|(cell, start)| cell == start));
        found.unwrap_or_else(|| panic!("no {start:?} in\n{summary}"))
    };
    for (rank, call, expected) in [
        ("rank 0", "MPI_Recv", ["1", "410 µs", "400 µs", "97.6 %", "400 µs", "100.0 % rank 1"]),
        ("rank 0", "MPI_Send", ["1", "350 µs", "300 µs", "85.7 %", "300 µs", "100.0 % rank 2"]),
        ("rank 0", "MPI_Barrier", ["2", "130 µs", "120 µs", "92.3 %", "80.0 µs", "100.0 % rank 2"]),
        ("rank 1", "MPI_Barrier", ["2", "71.0 µs", "60.0 µs", "84.5 %", "30.0 µs", "100.0 % rank 2"]),
        ("rank 2", "MPI_Recv", ["1", "40.0 µs", "0 ns", "0.0 %", "-", "-"]),
        ("rank 1", "MPI_Send", ["1", "3.00 µs", "0 ns", "0.0 %", "-", "-"]),
    ] {
        assert_eq!(row("MPI waits:", &[rank, call])[2..], expected, "{rank} {call}");
    }
    let barrier = row("MPI collectives:", &["MPI_Barrier"]);
    assert_eq!(barrier[1..], ["0 of 3 ranks", "2", "120 µs", "40.0 µs", "80.0 µs", "80.0 µs", "rank 2, 100.0 %"]);
}

/// Nothing of a collective operation is concluded from a part of its ranks.
#[test]
fn an_operation_of_which_a_rank_is_missing_is_left_out() {
    let mut trace = job();
    trace.mpi_parts.retain(|part| part.number == 0 || trace.mpi_calls[part.call as usize].rank != 1);
    let summary = text(&trace, View::Summary, &Settings::default()).unwrap();
    let rows = printed(&summary, "MPI collectives:").rows;
    assert_eq!((rows.len(), rows[0][2].as_str(), rows[0][3].as_str()), (1, "1", "40.0 µs"));
}

fn choose_table(browser: &mut Browser, option: &str) {
    browser.eval(&format!(
        "(() => {{ const e = document.querySelector('#trace-tables select'); \
         e.value = [...e.options].find((o) => o.textContent === {option:?}).value; e.dispatchEvent(new Event('change')); }})()"
    ));
}

#[test]
fn the_page_has_the_figures_of_the_text_and_an_arrow_for_each_message() {
    let trace = job();
    let Some(mut browser) = open(&trace) else { return };
    browser.wait_for("document.querySelector('#trace-box canvas').dataset.arrows === '2'");
    let summary = text(&trace, View::Summary, &Settings::default()).unwrap();
    browser.click("#trace-tables-tab");
    for (option, title) in [("MPI waits", "MPI waits:"), ("MPI collectives", "MPI collectives:")] {
        choose_table(&mut browser, option);
        same(&printed(&summary, title), &shown(&mut browser, "#trace-tables"));
    }
    browser.assert_quiet();
}

/// Not a check: pictures, where `GLASS_SCREENSHOTS` names a folder.
#[test]
fn pictures_of_a_job() {
    let Some(folder) = std::env::var_os("GLASS_SCREENSHOTS").map(std::path::PathBuf::from) else { return };
    let trace = job();
    let Some(mut browser) = open(&trace) else { return };
    browser.resize(1440, 900);
    browser.picture(&folder, "mpi.png");
    browser.click("#trace-tables-tab");
    for option in ["MPI collectives", "MPI waits"] {
        choose_table(&mut browser, option);
        browser.picture(&folder, &format!("{option}.png"));
    }
    browser.click("#theme");
    browser.picture(&folder, "mpi-dark.png");
}
