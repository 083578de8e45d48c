//! Which processes the tracks of a profile belong to: a thread says little without its process.

use std::collections::{HashMap, HashSet};

use crate::guest::{GuestKind, Process};
use crate::model::Profile;
use crate::names::printable;

/// A process of this machine, and its threads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessTracks {
    /// Its programs that were sampled, in order of time, with arrows between them: more than one where it called `exec`. Printable.
    pub name: String,
    /// Its process ID.
    pub pid: u32,
    /// Indices into [`Profile::tracks`], in their order.
    pub tracks: Vec<usize>,
}

impl ProcessTracks {
    /// Its name and its process ID, for display.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{} {}", self.name, self.pid)
    }
}

/// The processes of a profile, in the order of their guests. A machine is none: its tracks are vCPUs. Nor are processes without tracks.
#[must_use]
pub fn processes(profile: &Profile) -> Vec<ProcessTracks> {
    let programs = Programs::of(profile);
    let mut sampled: HashMap<u32, Vec<usize>> = HashMap::new();
    let mut of_guest: HashMap<u32, Vec<usize>> = HashMap::new();
    let mut seen = HashSet::new();
    for (index, track) in profile.tracks.iter().enumerate() {
        of_guest.entry(track.guest).or_default().push(index);
    }
    for sample in &profile.samples {
        let Some(guest) = profile.tracks.get(sample.track as usize).map(|track| track.guest) else { continue };
        if let Some(program) = programs.at(guest, sample.time_ns)
            && seen.insert((guest, program))
        {
            sampled.entry(guest).or_default().push(program);
        }
    }
    let mut processes = Vec::new();
    for (guest, number) in profile.guests.iter().zip(0..) {
        let (GuestKind::Process { pid }, Some(tracks)) = (guest.kind, of_guest.remove(&number)) else { continue };
        let mut of_samples = sampled.remove(&number).unwrap_or_default();
        of_samples.sort_unstable();
        let names = of_samples.into_iter().filter_map(|program| programs.name(number, program));
        let mut names: Vec<String> = names.map(printable).collect();
        names.dedup();
        let name = if names.is_empty() { printable(&guest.name) } else { names.join(" \u{2192} ") };
        processes.push(ProcessTracks { name, pid, tracks });
    }
    processes
}

/// The programs of processes that ran more than one.
struct Programs<'a> {
    /// By the index of the guest.
    processes: HashMap<u32, &'a Process>,
}

impl<'a> Programs<'a> {
    /// Those of a profile.
    fn of(profile: &'a Profile) -> Programs<'a> {
        let numbers: HashMap<_, u32> = profile.guests.iter().map(|guest| guest.id).zip(0..).collect();
        let several = profile.processes.iter().filter(|process| process.programs.len() > 1);
        let processes = several.filter_map(|process| Some((*numbers.get(&process.guest)?, process))).collect();
        Programs { processes }
    }

    /// The program of a guest at a time since the start of the recording: its place in the list, if there is more than one.
    fn at(&self, guest: u32, time_ns: u64) -> Option<usize> {
        let programs = &self.processes.get(&guest)?.programs;
        let after = programs.partition_point(|since| since.time_ns <= time_ns);
        Some(after.saturating_sub(1))
    }

    fn name(&self, guest: u32, program: usize) -> Option<&'a str> {
        let programs = &self.processes.get(&guest)?.programs;
        programs.get(program).map(|since| since.name.as_str())
    }
}
