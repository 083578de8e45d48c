//! The sampled guest: a VM that computes all the time and prints its progress.

use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::programs;
use glass_tests::qemu::Qemu;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a VM may take to start.
const START_LIMIT: Duration = Duration::from_secs(30);
/// The guest ends by itself after this time, even if we are killed.
const SECONDS_MAX: &str = "3600";

/// A running VM.
pub struct Guest {
    /// The VM.
    pub qemu: Qemu,
    folder: Folder,
}

/// A line of the guest: work done since the line before.
struct Line {
    rounds: u64,
    until_us: u64,
}

impl Guest {
    /// Starts it under `accel` with a QMP and an HMP socket, and waits until it works.
    pub fn start(accel: &str) -> Result<Guest> {
        let folder = Folder::new("bench-sampling")?;
        let glass = programs::built("glass").context("glass is not built")?;
        let image = programs::image("busy").context("the image of busy is not built")?;
        let mut glass_run = Command::new(glass);
        glass_run.arg("run").arg(image).args(["--accel", accel, "--net", "none"]);
        let socket = |name: &str| format!("unix:{},server=on,wait=off", folder.file(name).display());
        let options = ["-qmp".into(), socket("qmp"), "-monitor".into(), socket("hmp")];
        let qemu = Qemu::start(&mut glass_run, &["--seconds", SECONDS_MAX], &options, &folder)?;
        let mut guest = Guest { qemu, folder };
        let deadline = Instant::now() + START_LIMIT;
        while guest.lines().len() < 3 {
            if guest.qemu.process.ended().is_some() || Instant::now() > deadline {
                bail!("the VM ({accel}) does not work:\n{}", guest.qemu.process.output());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(guest)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.qemu.process.pid()
    }

    /// The path of one of its sockets, "qmp", "hmp" or "gdb".
    pub fn socket(&self, name: &str) -> std::path::PathBuf {
        self.folder.file(name)
    }

    /// A path for a file of ours.
    pub fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.file(name)
    }

    fn lines(&self) -> Vec<Line> {
        self.qemu.process.output().lines().filter_map(parse).collect()
    }

    /// A moment in its output, for [`speed_since`](Guest::speed_since).
    pub fn mark(&self) -> usize {
        self.lines().len()
    }

    /// Rounds per second from the first to the last line that came after `mark`.
    pub fn speed_since(&self, mark: usize) -> Option<f64> {
        speed(self.lines().get(mark..)?)
    }
}

/// `231 rounds until 300064 us`.
fn parse(line: &str) -> Option<Line> {
    let (rounds, rest) = line.trim().split_once(" rounds until ")?;
    Some(Line { rounds: rounds.parse().ok()?, until_us: rest.strip_suffix(" us")?.parse().ok()? })
}

fn speed(lines: &[Line]) -> Option<f64> {
    let [first, rest @ ..] = lines else { return None };
    let rounds: u64 = rest.iter().map(|line| line.rounds).sum();
    let time_us = rest.last()?.until_us.checked_sub(first.until_us).filter(|time| *time > 0)?;
    Some(rounds as f64 / (time_us as f64 / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_is_the_work_of_the_lines_after_the_first() {
        let text = ["9 rounds until 100000 us", "20 rounds until 200000 us", "30 rounds until 300000 us", "x"];
        let lines: Vec<Line> = text.into_iter().filter_map(parse).collect();
        assert_eq!(speed(&lines), Some(250.0));
        assert_eq!(speed(&lines[..1]), None);
        assert_eq!(speed(&[]), None);
    }
}
