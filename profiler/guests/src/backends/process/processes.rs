//! The processes that are sampled together: guests, address spaces and tracks, from their begin to their end.

use std::collections::{HashMap, HashSet};
use std::fs;

use super::kernel::Kernel;
use crate::proc::{has_ended, living};
use glass_profiler_core::arch::Architecture;
use glass_profiler_core::event::Event;
use glass_profiler_core::guest::{self, Guest, GuestId, GuestKind, ProcessId, ProgramSince, SpaceId};

/// A process.
#[derive(Debug)]
struct Known {
    guest: GuestId,
    parent: Option<ProcessId>,
    name: String,
    space: SpaceId,
    /// Those of its threads that are known to run.
    threads: HashSet<u32>,
}

/// The processes that live.
#[derive(Debug, Default)]
pub(super) struct Processes {
    /// By process id.
    known: HashMap<u32, Known>,
    /// The track of each thread.
    tracks: HashMap<u32, u32>,
    guests: u32,
    spaces: u32,
    numbered: u32,
    /// The kernel's, which is one for all of them.
    kernel: Option<SpaceId>,
}

fn comm(path: &str) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(path).ok()?).trim_end().to_owned())
}

impl Processes {
    fn new_space(&mut self) -> SpaceId {
        self.spaces += 1;
        SpaceId(self.spaces - 1)
    }

    /// Announces a process, if it is new; `parent` is its parent, or what it was a copy of.
    fn announce(&mut self, pid: u32, parent: Option<u32>, is_copy: bool, sink: &mut dyn FnMut(Event)) -> SpaceId {
        if let Some(known) = self.known.get(&pid) {
            return known.space;
        }
        let original = parent.and_then(|parent| self.known.get(&parent));
        let copy_of = original.filter(|_| is_copy).map(|known| known.space);
        let parent = original.map(|known| process_id(known.guest));
        // A copy has the name of its original, whatever it is by now.
        let name = original.filter(|_| is_copy).map(|known| known.name.clone());
        let name = name.or_else(|| comm(&format!("/proc/{pid}/comm"))).unwrap_or_else(|| format!("process {pid}"));
        let (guest, space) = (GuestId(self.guests), self.new_space());
        self.guests += 1;
        self.known.insert(pid, Known { guest, parent, name: name.clone(), space, threads: HashSet::new() });
        sink(Event::Guest(guest_of(guest, pid, name.clone())));
        sink(Event::Process(program_of(guest, pid, parent, ProgramSince { time_ns: 0, name })));
        sink(Event::Space { space, guest, process: None, copy_of });
        space
    }

    /// Announces a process that was there before, with its parent if that is sampled, too.
    pub(super) fn found(&mut self, pid: u32, parent: Option<u32>, sink: &mut dyn FnMut(Event)) -> SpaceId {
        self.announce(pid, parent, false, sink)
    }

    /// The address space of a process.
    pub(super) fn space(&mut self, pid: u32, sink: &mut dyn FnMut(Event)) -> SpaceId {
        self.announce(pid, None, false, sink)
    }

    /// The address space of the kernel, if its functions are known.
    pub(super) fn kernel(&self) -> Option<SpaceId> {
        self.kernel
    }

    /// Announces the kernel that works for a process, and for all that it starts.
    pub(super) fn place_kernel(&mut self, pid: u32, kernel: Kernel, sink: &mut dyn FnMut(Event)) {
        self.space(pid, sink);
        let Some(guest) = self.known.get(&pid).map(|known| known.guest) else { return };
        let space = self.new_space();
        self.kernel = Some(space);
        sink(Event::Space { space, guest, process: None, copy_of: None });
        sink(Event::Place { space, range: kernel.range, bias: 0, program: kernel.program });
    }

    /// A process runs another program.
    pub(super) fn exec(&mut self, pid: u32, name: &str, time_ns: u64, sink: &mut dyn FnMut(Event)) {
        let old = self.space(pid, sink);
        let new = self.new_space();
        let Some(known) = self.known.get_mut(&pid) else { return };
        known.space = new;
        let (guest, parent) = (known.guest, known.parent);
        name.clone_into(&mut known.name);
        sink(Event::SpaceEnd(old));
        sink(Event::Guest(guest_of(guest, pid, name.to_owned())));
        sink(Event::Process(program_of(guest, pid, parent, ProgramSince { time_ns, name: name.to_owned() })));
        sink(Event::Space { space: new, guest, process: None, copy_of: None });
    }

    /// A thread has started, or a process as a copy of another.
    pub(super) fn fork(&mut self, pid: u32, parent: u32, tid: u32, sink: &mut dyn FnMut(Event)) {
        if pid != parent {
            // Its number may be one of a process whose end was lost.
            self.end(pid, sink);
            self.announce(pid, Some(parent), true, sink);
        }
        if let Some(known) = self.known.get_mut(&pid) {
            known.threads.insert(tid);
        }
    }

    /// A thread has ended, and with the last one its process: the last that is known, and in fact, since not every
    /// thread need be known.
    pub(super) fn exit(&mut self, pid: u32, tid: u32, sink: &mut dyn FnMut(Event)) {
        if let Some(track) = self.tracks.remove(&tid) {
            sink(Event::TrackEnd(track));
        }
        let is_last =
            self.known.get_mut(&pid).is_some_and(|known| known.threads.remove(&tid) && known.threads.is_empty());
        if is_last && has_ended(living(pid)) {
            self.end(pid, sink);
        }
    }

    fn end(&mut self, pid: u32, sink: &mut dyn FnMut(Event)) {
        let Some(known) = self.known.remove(&pid) else { return };
        for thread in known.threads {
            if let Some(track) = self.tracks.remove(&thread) {
                sink(Event::TrackEnd(track));
            }
        }
        sink(Event::SpaceEnd(known.space));
    }

    /// Announces a thread, or its new name.
    pub(super) fn name(&mut self, pid: u32, tid: u32, name: String, sink: &mut dyn FnMut(Event)) {
        self.space(pid, sink);
        let Some(known) = self.known.get_mut(&pid) else { return };
        known.threads.insert(tid);
        let track = *self.tracks.entry(tid).or_insert_with(|| {
            self.numbered += 1;
            self.numbered - 1
        });
        sink(Event::Track { track, guest: known.guest, id: u64::from(tid), name });
    }

    /// The track of a thread.
    pub(super) fn track(&mut self, pid: u32, tid: u32, sink: &mut dyn FnMut(Event)) -> u32 {
        if !self.tracks.contains_key(&tid) {
            // A thread that never changed its name has its parent's; its own file may say it still.
            let name = comm(&format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_else(|| format!("thread {tid}"));
            self.name(pid, tid, name, sink);
        }
        self.tracks.get(&tid).copied().unwrap_or_default()
    }
}

/// Each process is a guest, and has its number.
fn process_id(guest: GuestId) -> ProcessId {
    ProcessId(guest.0)
}

/// A process with one of its programs.
fn program_of(guest: GuestId, pid: u32, parent: Option<ProcessId>, program: ProgramSince) -> guest::Process {
    guest::Process { id: process_id(guest), guest, pid, parent, programs: vec![program], ..Default::default() }
}

fn guest_of(id: GuestId, pid: u32, name: String) -> Guest {
    Guest { id, kind: GuestKind::Process { pid }, name, architecture: Architecture::HOST }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing is kept of processes that have ended (`make -j8` starts thousands).
    #[test]
    fn what_has_ended_is_forgotten() {
        let mut processes = Processes::default();
        let (mut spaces, mut tracks) = (HashSet::new(), HashSet::new());
        let mut sink = |event: Event| match event {
            Event::Space { space, .. } => assert!(spaces.insert(space)),
            Event::SpaceEnd(space) => assert!(spaces.remove(&space)),
            Event::Track { track, .. } => {
                tracks.insert(track);
            }
            Event::TrackEnd(track) => assert!(tracks.remove(&track)),
            _ => {}
        };
        const MAKE: u32 = 2_999_999;
        processes.name(MAKE, MAKE, "make".to_owned(), &mut sink);
        for number in 0..10_000u32 {
            // Numbers come again.
            let pid = 2_000_000 + number % 100;
            processes.fork(pid, MAKE, pid, &mut sink);
            processes.exec(pid, "cc1", 5, &mut sink);
            processes.name(pid, pid, "cc1".to_owned(), &mut sink);
            processes.fork(pid, pid, pid + 1000, &mut sink);
            processes.track(pid, pid + 1000, &mut sink);
            // The first thread may end first, and an end may be lost.
            processes.exit(pid, pid, &mut sink);
            if number % 7 > 0 {
                processes.exit(pid, pid + 1000, &mut sink);
            }
        }
        assert!(processes.known.len() <= 101 && processes.tracks.len() <= 202, "{}", processes.known.len());
        assert_eq!((spaces.len(), tracks.len()), (processes.known.len(), processes.tracks.len()));
        processes.exit(MAKE, MAKE, &mut |_| ());
        assert!(!processes.known.contains_key(&MAKE));
        // A process without all threads known continues.
        let own = std::process::id();
        processes.fork(own, MAKE, own, &mut |_| ());
        processes.exit(own, own, &mut |_| ());
        assert!(processes.known.contains_key(&own));
    }
}
