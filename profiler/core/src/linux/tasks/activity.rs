//! Whether a task did something: a few words of it, which are read many times a second. All of a task, and the lists, are in many lines of caches.

use std::ops::Range;

use super::{Copied, Offsets, Task, TaskState, parts};
use crate::linux::space::{Space, number};
use crate::linux::structures::{Field, pointer};

/// What a processor's cache loads at once: words that are so near are one part.
const LINE_BYTES: u32 = 64;
/// The most bytes of the parts: of eight words, each with what is between it and the next.
const BYTES_MAX: usize = 8 * (8 + LINE_BYTES as usize);

/// What of a task changes whenever it does something, and what it is known by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Activity {
    /// Its thread ID, in the initial namespace.
    pub tid: u32,
    /// When it started: nanoseconds since the start of the guest, without times of suspension.
    pub start_ns: u64,
    /// What it does.
    pub state: TaskState,
    /// It runs on a CPU.
    pub is_on_cpu: bool,
    /// How often it left a CPU: by itself, and because it had to.
    pub switches: [u64; 2],
    /// Its stack pointer in the kernel, when it does not run.
    pub stack_pointer: u64,
}

impl Activity {
    /// Reads that of a task. `None` if there is no task at that address.
    pub fn read(space: &Space<'_>, address: u64, offsets: &Offsets) -> Option<Activity> {
        let start = pointer(address, 8)?;
        let (mut buffer, mut end) = ([0; BYTES_MAX], 0);
        for part in &offsets.parts_of_activity {
            let into = buffer.get_mut(end..end + part.len())?;
            space.read(start.checked_add(u64::from(part.start))?, into)?;
            end += part.len();
        }
        let copied = Copied { parts: &offsets.parts_of_activity, bytes: &buffer[..end] };
        Some(Activity {
            tid: u32::try_from(number(copied.at(offsets.pid)?, 0, 4)?).ok()?,
            start_ns: copied.word(offsets.start_time)?,
            state: TaskState::of(copied.field(offsets.state)?, copied.field(offsets.exit_state)?),
            is_on_cpu: copied.field(offsets.on_cpu)? != 0,
            switches: [copied.word(offsets.switches[0])?, copied.word(offsets.switches[1])?],
            stack_pointer: copied.word(offsets.stack_pointer)?,
        })
    }

    /// Whether a task may do something: it is on a CPU, waits for one, or cannot be interrupted. It takes less reading: of the kernel's threads most do
    /// nothing. `None` if there is no task at that address.
    pub fn is_busy(space: &Space<'_>, address: u64, offsets: &Offsets) -> Option<bool> {
        let start = pointer(address, 8)?;
        let get = |field: Field| {
            let mut bytes = [0; 8];
            let into = bytes.get_mut(..field.bytes as usize)?;
            space.read(start.checked_add(field.at.into())?, into).map(|()| u64::from_le_bytes(bytes))
        };
        let state = TaskState::of(get(offsets.state)?, 0);
        Some(matches!(state, TaskState::Runnable | TaskState::Blocked) || get(offsets.on_cpu)? != 0)
    }

    /// Whether the task did not run between two reads of it.
    #[must_use]
    pub fn stood_still(&self, later: &Activity) -> bool {
        // It may have been woken meanwhile, which is another state.
        !self.is_on_cpu && !later.is_on_cpu && Activity { state: later.state, ..*self } == *later
    }
}

impl Task {
    /// What it did when it was read.
    #[must_use]
    pub fn activity(&self) -> Activity {
        let Task { tid, start_ns, state, is_on_cpu, switches, stack_pointer, .. } = *self;
        Activity { tid, start_ns, state, is_on_cpu, switches, stack_pointer }
    }

    /// Whether the task did not run between two reads of it.
    #[must_use]
    pub fn stood_still(&self, later: &Task) -> bool {
        self.activity().stood_still(&later.activity())
    }
}

/// The parts of a task that are read of these members.
pub(super) fn parts_of(offsets: &Offsets) -> Vec<Range<u32>> {
    let [voluntary, involuntary] = offsets.switches;
    let fields = [offsets.state.at, offsets.exit_state.at, offsets.on_cpu.at];
    let words = [offsets.pid, offsets.start_time, voluntary, involuntary, offsets.stack_pointer];
    parts(&[&fields[..], &words].concat(), LINE_BYTES)
}
