//! Which processes the tracks of a profile belong to.

use std::collections::{HashMap, HashSet};

use crate::guest::{GuestKind, Process};
use crate::model::Profile;
use crate::names::printable;

/// A process of this machine, and its threads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessTracks {
    /// The last of its programs that was sampled. Printable.
    pub name: String,
    /// Those before it, in order of time: it called `exec`. Printable.
    pub before: Vec<String>,
    /// Its process ID.
    pub pid: u32,
    /// Indices into [`Profile::tracks`], in their order.
    pub tracks: Vec<usize>,
}

impl ProcessTracks {
    /// Its name, its process ID and what it was before, for display.
    #[must_use]
    pub fn label(&self) -> String {
        let before =
            if self.before.is_empty() { String::new() } else { format!(" (before: {})", self.before.join(", ")) };
        format!("{} {}{before}", self.name, self.pid)
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
        let name = names.pop().unwrap_or_else(|| printable(&guest.name));
        names.retain(|before| *before != name);
        processes.push(ProcessTracks { name, before: names, pid, tracks });
    }
    processes
}

/// Of each of so many tracks the process that it belongs to, as an index into `processes`; `None` of a vCPU.
#[must_use]
pub fn by_track(processes: &[ProcessTracks], tracks: usize) -> Vec<Option<usize>> {
    let mut process_of = vec![None; tracks];
    for (index, process) in processes.iter().enumerate() {
        process.tracks.iter().for_each(|track| process_of[*track] = Some(index));
    }
    process_of
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::{Guest, GuestId, ProcessId, ProgramSince};
    use crate::model::{Sample, Track};

    fn profile() -> Profile {
        let guest = |id, pid, name: &str| Guest {
            id: GuestId(id),
            kind: GuestKind::Process { pid },
            name: name.to_owned(),
            architecture: crate::arch::Architecture::X86_64,
        };
        let program = |time_ns, name: &str| ProgramSince { time_ns, name: name.to_owned() };
        let track = |guest, id, name: &str| Track { guest, id, name: name.to_owned(), ..Track::default() };
        let process =
            |id, pid, programs| Process { id: ProcessId(id), guest: GuestId(id), pid, programs, ..Process::default() };
        Profile {
            guests: vec![guest(7, 100, "make"), guest(8, 101, "cc1"), guest(9, 102, "as")],
            processes: vec![
                process(7, 100, vec![program(0, "make")]),
                process(8, 101, vec![program(0, "make"), program(50, "sh"), program(60, "cc1")]),
                process(9, 102, vec![program(0, "sh"), program(10, "as")]),
            ],
            tracks: vec![track(0, 100, "make"), track(1, 101, "cc1"), track(1, 105, "worker"), track(2, 102, "as")],
            samples: [(10, 0), (49, 1), (70, 1), (80, 2)]
                .map(|(time_ns, track)| Sample { time_ns, track, ..Sample::default() })
                .to_vec(),
            ..Profile::default()
        }
    }

    /// A process tree was 27 rows called bash (2026-11-25).
    #[test]
    fn threads_belong_to_processes_with_the_programs_that_were_sampled() {
        let found = processes(&profile());
        let labels: Vec<String> = found.iter().map(ProcessTracks::label).collect();
        // `sh` ran for a moment, and no sample is in it; `as` was not sampled at all.
        assert_eq!(labels, ["make 100", "cc1 101 (before: make)", "as 102"]);
        assert_eq!(
            found.iter().map(|process| process.tracks.clone()).collect::<Vec<_>>(),
            [vec![0], vec![1, 2], vec![3]]
        );
    }

    #[test]
    fn a_machine_is_no_process() {
        let mut profile = profile();
        profile.guests[1].kind = GuestKind::Vm { vmm: 101 };
        profile.tracks[0].guest = 77;
        assert_eq!(processes(&profile).iter().map(|process| process.pid).collect::<Vec<_>>(), [102]);
    }
}
