//! Samples a real process with known shares through `perf_event_open`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use glass_guests::files::HostFiles;
use glass_guests::process::{Process, ProcessSettings};
use glass_guests::{Flow, GuestError, Source, read_clocks};
use glass_profile::model::{Cost, Origin, Profile};
use glass_profile::recorder::Recorder;
use glass_profile::recording;
use glass_tests::folder::Folder;
use glass_tests::programs::skip;

const SETTINGS: ProcessSettings = ProcessSettings { rate_hz: 2000, stack_bytes: 8192 };

struct Program {
    path: PathBuf,
    _folder: Folder,
}

impl Program {
    fn build(name: &str) -> Option<Program> {
        let folder = Folder::new(name).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/weights.c");
        let path = folder.file("weights");
        let result = Command::new("cc").args(["-O2", "-g", "-pthread"]).arg(source).arg("-o").arg(&path).output();
        let Ok(result) = result else {
            skip("there is no C compiler (cc)");
            return None;
        };
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        Some(Program { path, _folder: folder })
    }
}

/// Records until the process ends; `None` if this machine does not let us.
fn record(process: Result<Process, GuestError>) -> Option<Profile> {
    let mut process = match process {
        Ok(process) => process,
        Err(error @ GuestError::NotPermitted { .. }) => {
            skip(&error.to_string());
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let clocks = read_clocks();
    let origin = Origin { rate_hz: SETTINGS.rate_hz, ..Default::default() };
    let mut recorder = Recorder::start(Vec::new(), clocks, &origin, false, process.pid()).unwrap();
    let mut sink = |event| recorder.event(event, &mut HostFiles).unwrap();
    process.announce(&mut sink).unwrap();
    let start = Instant::now();
    while process.collect(Duration::from_millis(50), &mut sink).unwrap() == Flow::More {
        assert!(start.elapsed() < Duration::from_secs(60), "the program does not end");
    }
    process.detach(&mut sink).unwrap();
    let counts = process.counts();
    let cost = Cost { samples_wanted: counts.wanted, samples_lost: counts.lost, ..Default::default() };
    let end = read_clocks().monotonic_ns;
    let (cost, bytes) = recorder.finish(&cost, end, &mut HostFiles, || 0).unwrap();
    let profile = recording::read(&bytes, &mut recording::NoFiles).unwrap();
    assert_eq!(profile.cost, cost);
    assert_eq!(profile.samples.len() as u64, cost.samples_taken);
    assert!(profile.warnings.is_empty(), "{:?}", profile.warnings);
    Some(profile)
}

fn functions(profile: &Profile, stack: u32) -> Vec<&str> {
    let frames = &profile.stacks[stack as usize].frames;
    frames.iter().map(|frame| profile.frames[*frame as usize].function.as_str()).collect()
}

/// Checks that the samples whose innermost function is one of a, b and c have the program's shares.
fn check_shares(profile: &Profile, callers: &[&str]) {
    let mut counts = [0u32; 3];
    let mut other = 0;
    for sample in &profile.samples {
        let mut names = functions(profile, sample.stack);
        names.retain(|name| *name != "spin" && *name != "[kernel]");
        let Some(start) = names.iter().position(|name| *name == "work") else {
            other += 1;
            continue;
        };
        match names[start..] {
            ["work", "a"] => counts[0] += 1,
            ["work", "a", "b"] => counts[1] += 1,
            ["work", "a", "b", "c"] => counts[2] += 1,
            _ => other += 1,
        }
        assert!(callers.iter().all(|caller| names.contains(caller)), "{names:?}");
    }
    let total = f64::from(counts.iter().sum::<u32>());
    assert!(total > 500.0, "{counts:?}, {other} other");
    assert!(f64::from(other) < total * 0.05, "{counts:?}, {other} other");
    for (count, share) in counts.iter().zip([0.1, 0.3, 0.6]) {
        let expected = total * share;
        // Five standard deviations: one run in two million fails by chance.
        let tolerance = 5.0 * (total * share * (1.0 - share)).sqrt();
        assert!(
            (f64::from(*count) - expected).abs() < tolerance,
            "{counts:?}: {count} is not {expected} +- {tolerance}"
        );
    }
}

fn check_cost(profile: &Profile) {
    let cost = &profile.cost;
    assert!(cost.samples_lost * 10 < cost.samples_wanted, "{cost:?}");
    assert_eq!(cost.samples_wanted, cost.samples_taken + cost.samples_lost);
    assert!(cost.stacks_broken * 100 < cost.samples_taken, "{cost:?}");
    assert_eq!(cost.pause.count, 0);
}

#[test]
fn a_command_from_its_start() {
    let Some(program) = Program::build("command") else { return };
    let mut command = Command::new(&program.path);
    command.arg("1.0");
    let Some(profile) = record(Process::spawn(command, SETTINGS)) else { return };
    check_shares(&profile, &["_start", "main"]);
    check_cost(&profile);
    assert_eq!(profile.tracks.len(), 1);
    assert_eq!(profile.tracks[0].name, "weights");
}

#[test]
fn a_running_process_and_the_threads_it_starts_later() {
    let Some(program) = Program::build("threads") else { return };
    let mut child = Command::new(&program.path).args(["0.8", "2"]).stdin(Stdio::null()).spawn().unwrap();
    // Reaps it, so that its end can be seen.
    let process = Process::attach(child.id(), SETTINGS);
    let waiter = std::thread::spawn(move || child.wait());
    let profile = record(process);
    assert!(waiter.join().unwrap().unwrap().success());
    let Some(profile) = profile else { return };
    check_shares(&profile, &["work"]);
    check_cost(&profile);
    let names: Vec<&str> = profile.tracks.iter().map(|track| track.name.as_str()).collect();
    assert!(names.contains(&"second"), "{names:?}");
}

#[test]
fn what_cannot_be_sampled_says_why() {
    let gone = Process::attach(1 << 22 | 1, SETTINGS).err().unwrap();
    assert!(gone.to_string().contains("no process"), "{gone}");
    let missing = Process::spawn(Command::new("/no/such/program"), SETTINGS).err().unwrap();
    match missing {
        GuestError::Command { .. } => assert!(missing.to_string().contains("/no/such/program"), "{missing}"),
        GuestError::NotPermitted { .. } => skip(&missing.to_string()),
        other => panic!("{other}"),
    }
}
