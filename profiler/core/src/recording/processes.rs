//! Processes and threads of guests, and the spaces of segments, as they are read. All tables are bounded by the number of packets.

use std::collections::HashMap;

use super::{ENDS, MODES, WIDTHS, proto};
use crate::guest::{GuestId, Process, ProcessId, ProgramSince, Thread, ThreadId};
use crate::model::{Losses, SegmentOf};

/// The most processes, threads, and spaces.
const ENTRIES_MAX: usize = 1 << 20;
/// The most programs of one process.
const PROGRAMS_MAX: usize = 1024;
/// The most segments of a sample.
const SEGMENTS_MAX: usize = 64;

/// Tables of a recording, by the numbers of the file.
#[derive(Debug, Default)]
pub(super) struct Processes {
    processes: Vec<Process>,
    threads: Vec<Thread>,
    lists: Vec<Vec<SegmentOf>>,
    process_of: HashMap<u32, u32>,
    thread_of: HashMap<u32, u32>,
    /// Index of the guest, and of the process.
    spaces: HashMap<u32, (u32, Option<u32>)>,
    list_of: HashMap<Vec<SegmentOf>, u32>,
}

fn text(bytes: &Option<Vec<u8>>) -> String {
    String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned()
}

/// Losses by kind.
pub(super) fn losses(message: Option<&proto::Losses>) -> Losses {
    let Some(message) = message else { return Losses::default() };
    Losses {
        ring_full: message.ring_full.unwrap_or(0),
        throttled: message.throttled.unwrap_or(0),
        overdue: message.overdue.unwrap_or(0),
        not_stopped: message.not_stopped.unwrap_or(0),
        queue_full: message.queue_full.unwrap_or(0),
        maps: message.maps.unwrap_or(0),
        forks: message.forks.unwrap_or(0),
        unknown: message.unknown.unwrap_or(0),
    }
}

impl Processes {
    /// Adds a process, or more of its programs. False if its guest is unknown, or there are too many.
    pub(super) fn process(&mut self, message: &proto::GuestProcess, guest: Option<u32>, start: u64) -> bool {
        let number = message.id.unwrap_or(0);
        if guest.is_none() {
            return false;
        }
        let index = match self.process_of.get(&number) {
            Some(index) => *index as usize,
            None if self.processes.len() < ENTRIES_MAX => {
                self.process_of.insert(number, self.processes.len() as u32);
                self.processes.push(Process::default());
                self.processes.len() - 1
            }
            None => return false,
        };
        let mut programs = std::mem::take(&mut self.processes[index].programs);
        let since = |program: &proto::ProgramSince| ProgramSince {
            time_ns: program.timestamp.unwrap_or(0).saturating_sub(start),
            name: text(&program.name),
        };
        programs.extend(message.programs.iter().take(PROGRAMS_MAX.saturating_sub(programs.len())).map(since));
        programs.sort_by_key(|program| program.time_ns);
        self.processes[index] = Process {
            id: ProcessId(number),
            guest: GuestId(message.guest.unwrap_or(0)),
            pid: message.pid.unwrap_or(0),
            namespace_pid: message.namespace_pid,
            parent: message.parent.map(ProcessId),
            start_ns: message.start_ns,
            cgroup: text(&message.cgroup),
            programs,
        };
        true
    }

    /// Adds a thread, or its new name. False if its process is unknown, or there are too many.
    pub(super) fn thread(&mut self, message: &proto::GuestThread) -> bool {
        let (number, process) = (message.id.unwrap_or(0), message.process.unwrap_or(0));
        if !self.process_of.contains_key(&process) {
            return false;
        }
        let thread = Thread {
            id: ThreadId(number),
            process: ProcessId(process),
            tid: message.tid.unwrap_or(0),
            name: text(&message.name),
            start_ns: message.start_ns,
        };
        match self.thread_of.get(&number) {
            Some(index) => self.threads[*index as usize] = thread,
            None if self.threads.len() < ENTRIES_MAX => {
                self.thread_of.insert(number, self.threads.len() as u32);
                self.threads.push(thread);
            }
            None => return false,
        }
        true
    }

    /// Adds a space. False if its guest or its process is unknown, or there are too many.
    pub(super) fn space(&mut self, message: &proto::Space, guest: Option<u32>) -> bool {
        let process = message.process.map(|number| self.process_of.get(&number).copied());
        let (Some(guest), true) = (guest, self.spaces.len() < ENTRIES_MAX && process != Some(None)) else {
            return false;
        };
        self.spaces.insert(message.id.unwrap_or(0), (guest, process.flatten()));
        true
    }

    /// Index of a thread by its number.
    pub(super) fn thread_index(&self, number: u32) -> Option<u32> {
        self.thread_of.get(&number).copied()
    }

    /// Index of a list of segments; `None` without any, or if one of them has an unknown number or space.
    pub(super) fn segments(&mut self, messages: &[proto::Segment]) -> Option<u32> {
        if messages.is_empty() || messages.len() > SEGMENTS_MAX {
            return None;
        }
        let segment = |message: &proto::Segment| {
            let (guest, process) = *self.spaces.get(&message.space.unwrap_or(0))?;
            Some(SegmentOf {
                guest,
                process,
                mode: *MODES.get(message.mode.unwrap_or(0) as usize)?,
                width: *WIDTHS.get(message.width.unwrap_or(0) as usize)?,
                addresses: message.frames.unwrap_or(0),
                end: ENDS.get(message.end.unwrap_or(0) as usize)?.0,
                apart_ns: message.apart_ns.unwrap_or(0),
            })
        };
        let list: Vec<SegmentOf> = messages.iter().map(segment).collect::<Option<_>>()?;
        if let Some(index) = self.list_of.get(&list) {
            return Some(*index);
        }
        let index = self.lists.len() as u32;
        self.lists.push(list.clone());
        self.list_of.insert(list, index);
        Some(index)
    }

    /// Processes, threads and lists of segments.
    pub(super) fn into_tables(self) -> (Vec<Process>, Vec<Thread>, Vec<Vec<SegmentOf>>) {
        (self.processes, self.threads, self.lists)
    }
}
