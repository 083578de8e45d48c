//! States are tried until one loses something, and the least that is missing is found.

use crate::common::{Folder, Maker, SECTOR, sectors};
use anyhow::Result;
use glass_profiler_powercut::campaign::{self, Cut, Options, Outcome, Tester, Verdict};
use glass_profiler_powercut::commands::Commands;
use glass_profiler_powercut::image::Builder;
use glass_profiler_powercut::progress::{Kept, Nowhere, StateFile};
use glass_profiler_powercut::timeline::{self, Kind};
use glass_profiler_powercut::{page, text};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

const SECTORS: usize = 64;
static BASE: [u8; SECTORS * SECTOR] = [0; SECTORS * SECTOR];

/// A service that acknowledges an item when it has written two sectors with its number, by a flush or not.
fn service(flushes_every: usize) -> (Maker, Vec<u64>) {
    let mut maker = Maker::new(&BASE);
    let mut acknowledged = Vec::new();
    for item in 0..20_u8 {
        maker.written(u64::from(item), item + 1, 1);
        maker.written(32 + u64::from(item), item + 1, 1);
        if (usize::from(item) + 1).is_multiple_of(flushes_every) {
            maker.flushed();
        }
        acknowledged.push(maker.now() + 1);
        // What is acknowledged next, is later.
        maker.flush();
    }
    maker.end();
    (maker, acknowledged)
}

/// Checks that both sectors are there of each item that was acknowledged before the cut.
struct Check {
    acknowledged: Vec<u64>,
    tests: u64,
    /// Succeeds at every second test.
    is_unsteady: bool,
}

impl Tester for Check {
    fn test(&mut self, image: &Path, cut: &Cut) -> Result<Verdict> {
        self.tests += 1;
        let image = sectors(image);
        let is_there = |item: usize| [image[item], image[32 + item]] == [item as u8 + 1; 2];
        let before = self.acknowledged.iter().enumerate().filter(|(_, time)| **time <= cut.time_ns);
        let lost: Vec<String> = before
            .filter(|(item, _)| !is_there(*item))
            .map(|(item, time)| format!("lost {time} item {item}\n"))
            .collect();
        if lost.is_empty() || self.is_unsteady && self.tests.is_multiple_of(2) {
            return Ok(Verdict::Kept);
        }
        Ok(Verdict::Lost { why: "the check ended with 1".to_owned(), output: lost.concat() })
    }

    fn boot_output(&self) -> String {
        String::new()
    }
}

fn options(folder: &Folder, states: u64) -> Options {
    Options { states, seed: 1, time: None, continues: false, reductions: 40, folder: folder.0.clone() }
}

fn run(name: &str, flushes_every: usize, states: u64, is_unsteady: bool) -> (Outcome, Maker, u64) {
    let (maker, acknowledged) = service(flushes_every);
    let folder = Folder::new(name, &BASE);
    let log = maker.read();
    let mut builder = Builder::new(&log, &maker.bytes[..], &folder.base(), &folder.0).unwrap();
    let mut check = Check { acknowledged, tests: 0, is_unsteady };
    let options = options(&folder, states);
    let outcome = campaign::run(&log, &mut builder, &mut check, &options, &mut Nowhere, |_| ()).unwrap();
    drop(builder);
    (outcome, maker, check.tests)
}

#[test]
fn a_service_that_flushes_loses_nothing() {
    let (outcome, _, tests) = run("flushes", 1, 60, false);
    assert!(outcome.losses.is_empty(), "{:?}", outcome.losses);
    assert!(outcome.tested >= 40 && tests == outcome.tested, "{outcome:?}");
}

#[test]
fn a_service_that_flushes_rarely_is_found_and_one_write_is_enough() {
    let (outcome, maker, _) = run("rarely", 4, 60, false);
    let log = maker.read();
    let [loss] = &outcome.losses[..] else { panic!("{outcome:?}") };
    assert!(outcome.tested <= 5, "found by state {}", outcome.tested);
    assert!(loss.is_least);
    assert_eq!(loss.state.missing(&log).len(), 1, "{:?}", loss.state);
    let rows = timeline::rows(&log, loss);
    let of_kind = |kind| rows.iter().filter(|row| row.kind == kind).count();
    assert_eq!((of_kind(Kind::Missing), of_kind(Kind::Lost), of_kind(Kind::Cut)), (1, 1, 1));
    assert!(rows.is_sorted_by_key(|row| row.time_ns));
    let text = text::loss(&log, loss);
    assert!(text.contains("acknowledged, and lost") && text.contains("1 of "), "{text}");
    let shown = page::Shown { title: "log <1>", boot: None, check: "true && false", seed: 1 };
    let page = page::html(&log, &outcome, &shown);
    assert!(page.contains("log &lt;1&gt;") && page.contains("acknowledged, and lost"), "{page}");
}

#[test]
fn a_check_that_fails_once_is_no_loss() {
    let (outcome, _, _) = run("unsteady", 4, 20, true);
    assert!(outcome.losses.is_empty() && !outcome.unsteady.is_empty(), "{outcome:?}");
}

#[test]
fn a_later_run_continues() {
    let (maker, acknowledged) = service(1);
    let folder = Folder::new("continues", &BASE);
    let log = maker.read();
    let path = folder.0.join("states");
    let mut tests = Vec::new();
    for states in [10, 30] {
        let mut builder = Builder::new(&log, &maker.bytes[..], &folder.base(), &folder.0).unwrap();
        let mut check = Check { acknowledged: acknowledged.clone(), tests: 0, is_unsteady: false };
        let mut kept = StateFile::open(&path, "a log").unwrap();
        // The states are those of the same number of states.
        let mut options = options(&folder, 30);
        if states == 10 {
            options.time = None;
            options.states = 30;
            let mut left = Limited { kept, left: 10 };
            assert!(campaign::run(&log, &mut builder, &mut check, &options, &mut left, |_| ()).is_err());
            kept = left.kept;
        } else {
            let outcome = campaign::run(&log, &mut builder, &mut check, &options, &mut kept, |_| ()).unwrap();
            assert_eq!(outcome.tested, 30);
        }
        drop(kept);
        tests.push(check.tests);
    }
    assert_eq!(tests, [11, 20]);
    let refused = StateFile::open(&path, "another log").unwrap_err().to_string();
    assert!(refused.contains("is of another log"), "{refused}");
    // A line that was cut off is left out, and a wrong one is refused.
    let lines = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, lines.clone() + "31 00").unwrap();
    assert_eq!(StateFile::open(&path, "a log").unwrap().count(), 30);
    std::fs::write(&path, lines + "x y z\n").unwrap();
    assert!(StateFile::open(&path, "a log").is_err());
}

/// A file on a disk that is full after some states.
struct Limited {
    kept: StateFile,
    left: u64,
}

impl Kept for Limited {
    fn known(&self, number: u64) -> Option<u64> {
        self.kept.known(number)
    }

    fn add(&mut self, done: &glass_profiler_powercut::progress::Done) -> Result<()> {
        anyhow::ensure!(self.left > 0, "it is full");
        self.left -= 1;
        self.kept.add(done)
    }
}

#[test]
fn commands_have_a_limit_and_leave_nothing_behind() {
    let folder = Folder::new("commands", &BASE);
    Commands::prepare().unwrap();
    let stop = AtomicBool::new(false);
    let test = |boot: Option<&str>, check: &str, limit_ms: u64| {
        let mut commands = Commands {
            boot: boot.map(str::to_owned),
            check: check.to_owned(),
            limit: Duration::from_millis(limit_ms),
            folder: folder.0.clone(),
            stop: &stop,
        };
        let cut = Cut { number: 7, time_ns: 99 };
        commands.test(&folder.base(), &cut).map(|verdict| (verdict, commands.boot_output()))
    };
    let check = "until grep up \"$GLASS_FOLDER/boot.log\"; do sleep 0.01; done; \
                 test $GLASS_CUT_NS/$GLASS_STATE = 99/7 && test -s \"$GLASS_IMAGE\"";
    let kept = test(Some("echo up; sleep 60"), check, 20_000);
    assert_eq!(kept.unwrap(), (Verdict::Kept, "up\n".to_owned()));
    let Ok((Verdict::Lost { why, output }, _)) = test(None, "echo gone; exit 3", 20_000) else { panic!() };
    assert_eq!((why.as_str(), output.as_str()), ("the check ended with 3", "gone\n"));
    assert!(test(None, "no-such-program-at-all", 20_000).is_err());
    let start = Instant::now();
    // A process that leaves its group is ended, too.
    let mark = format!("99{:06}", std::process::id());
    let Ok((Verdict::Lost { why, .. }, _)) =
        test(Some(&format!("setsid sleep {mark} & sleep {mark}")), "sleep 61", 200)
    else {
        panic!()
    };
    assert!(why.contains("has not ended in 0.2 s") && start.elapsed() < Duration::from_secs(20), "{why}");
    let left = std::process::Command::new("pgrep").args(["-f", &format!("^sleep {mark}")]).output();
    assert!(left.is_ok_and(|left| left.stdout.is_empty()), "a process is left");
}
