//! Requests groups of events from a guest, and restores the previous ones.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use glass_formats::trace::{FUNCTIONS_MAX, FUNCTIONS_OFFSET};

use super::memory::TraceMemory;
use super::pages::{Page, RECORDER_OFFSET, REQUEST_OFFSET};
use crate::error::GuestError;
use crate::sys::{ClockPair, read_pair};

/// Bytes of the map of functions.
const FUNCTIONS_BYTES: usize = FUNCTIONS_MAX / 8;

/// Maximum of stored requests until the guest has answered one of them.
const QUESTIONS_MAX: usize = 1024;

/// Requests that were written and not answered yet. A guest that sleeps answers the newest request when it
/// wakes, so further requests meanwhile determine that moment more precisely.
#[derive(Debug)]
struct Pending {
    /// Number and time, in order.
    questions: VecDeque<(u32, ClockPair)>,
    since: Instant,
}

/// The requested groups.
#[derive(Debug)]
pub(super) struct Switch {
    groups: u32,
    /// The groups to restore at the end.
    before: u32,
    /// The original map of functions, if we have changed it.
    functions_before: Option<Vec<u64>>,
    request: u32,
    pending: Option<Pending>,
    is_ours: bool,
}

/// An answer: guest ticks, and the host's clocks before the request and now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    pub(super) ticks: u64,
    pub(super) asked: ClockPair,
    pub(super) seen: ClockPair,
}

fn cannot_write(error: io::Error) -> GuestError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => GuestError::NotPermitted {
            action: "write into the service's control pages".to_owned(),
            remedy: "run glass as the user who started it, or as root".to_owned(),
        },
        _ => GuestError::System { action: "write into the service's control pages".to_owned(), error },
    }
}

fn is_alive(pid: u32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok()
}

fn write_functions(memory: &impl TraceMemory, words: &[u64]) -> io::Result<()> {
    for index in 0..FUNCTIONS_BYTES / 8 {
        memory.write_control(FUNCTIONS_OFFSET + index * 8, words.get(index).copied().unwrap_or(0))?;
    }
    Ok(())
}

fn read_functions(memory: &impl TraceMemory) -> Option<Vec<u64>> {
    let mut bytes = vec![0; FUNCTIONS_BYTES];
    memory
        .read_control(FUNCTIONS_OFFSET, &mut bytes)
        .then(|| bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect())
}

impl Switch {
    /// Registers as the guest's recorder, and requests groups, and `after` at the end. Returns a sentence if another
    /// recorder had left or has groups on: then the groups at the end are those before it.
    pub(super) fn take(
        memory: &impl TraceMemory,
        page: &Page,
        (groups, after): (u32, u32),
        functions: Option<&[u64]>,
    ) -> Result<(Switch, Option<String>), GuestError> {
        let own = std::process::id();
        let (before, warning) = match page.recorder {
            0 => (after, None),
            pid if pid == own || !is_alive(pid) => {
                let text = format!("a recorder that was killed (process {pid}) had left groups of events on");
                (page.groups_before, (pid != own && page.groups != page.groups_before).then_some(text))
            }
            pid => {
                let text = format!("process {pid} traces this service too: it gets our groups of events from now on");
                (page.groups_before, Some(text))
            }
        };
        let functions_before = match functions {
            None => None,
            Some(words) => {
                // Functions that a killed recorder has left on are not restored.
                let before = read_functions(memory).filter(|_| page.recorder == 0).unwrap_or_default();
                write_functions(memory, words).map_err(cannot_write)?;
                Some(before)
            }
        };
        memory.write_control(RECORDER_OFFSET, u64::from(own) | u64::from(before) << 32).map_err(cannot_write)?;
        let mut switch =
            Switch { groups, before, functions_before, request: page.request, pending: None, is_ours: true };
        switch.ask(memory).map_err(cannot_write)?;
        Ok((switch, warning))
    }

    /// Requests groups that are to stay, and no functions.
    pub(super) fn leave(memory: &impl TraceMemory, page: &Page, groups: u32) -> Result<(), GuestError> {
        let request = page.request.wrapping_add(1);
        write_functions(memory, &[])
            .and_then(|()| memory.write_control(RECORDER_OFFSET, 0))
            .and_then(|()| memory.write_control(REQUEST_OFFSET, u64::from(groups) | u64::from(request) << 32))
            .map_err(cannot_write)
    }

    /// Requests the groups, again if they are on already: the answer contains the guest's time.
    fn ask(&mut self, memory: &impl TraceMemory) -> io::Result<()> {
        self.request = self.request.wrapping_add(1);
        let asked = read_pair();
        memory.write_control(REQUEST_OFFSET, u64::from(self.groups) | u64::from(self.request) << 32)?;
        let pending = self.pending.get_or_insert_with(|| Pending { questions: VecDeque::new(), since: Instant::now() });
        if pending.questions.len() == QUESTIONS_MAX {
            pending.questions.pop_front();
        }
        pending.questions.push_back((self.request, asked));
        Ok(())
    }

    /// Requests again, with a new number, unless another recorder has registered.
    pub(super) fn ask_again(&mut self, memory: &impl TraceMemory) {
        if self.is_ours {
            // A guest that has ended does not answer, which is detected elsewhere.
            let _ = self.ask(memory);
        }
    }

    /// Polls for an answer. After an answer to an earlier request, the later ones will be answered too, but are not
    /// waited for.
    pub(super) fn answer(&mut self, page: &Page, seen: ClockPair) -> Option<Answer> {
        let questions = &self.pending.as_ref()?.questions;
        let (_, asked) = questions.iter().find(|(request, _)| *request == page.answered)?;
        let answer = Answer { ticks: page.answer_ticks, asked: *asked, seen };
        self.pending = None;
        Some(answer)
    }

    /// How long the guest has not answered.
    pub(super) fn waited(&self) -> Option<Duration> {
        self.pending.as_ref().map(|pending| pending.since.elapsed())
    }

    /// True once, when another recorder has registered.
    pub(super) fn was_taken_over(&mut self, page: &Page) -> bool {
        let is_taken = self.is_ours && (page.request != self.request || page.recorder != std::process::id());
        if is_taken {
            self.is_ours = false;
            self.pending = None;
        }
        is_taken
    }

    /// Requests the previous groups. Returns false if there is nothing to wait for.
    pub(super) fn give_back(&mut self, memory: &impl TraceMemory) -> bool {
        if !self.is_ours {
            return false;
        }
        if let Some(before) = self.functions_before.take() {
            let _ = write_functions(memory, &before);
        }
        self.groups = self.before;
        // Earlier answers do not show whether these groups are on.
        self.pending = None;
        let is_asked = self.ask(memory).is_ok();
        let _ = memory.write_control(RECORDER_OFFSET, 0);
        is_asked
    }
}
