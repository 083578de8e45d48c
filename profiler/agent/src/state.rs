//! What the agent has found and counted, for its page and its metrics. The main thread and the threads that send write it, the server reads it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// Sentences that are kept, the newest.
const REMARKS_MAX: usize = 50;

/// Shared by the threads of the agent.
#[derive(Debug, Default)]
pub struct State(Mutex<Known>);

/// What is known.
#[derive(Debug, Default)]
pub struct Known {
    /// The VMs that run, by their process ID.
    pub vms: BTreeMap<u32, VmState>,
    /// What was counted since the start.
    pub counts: Counts,
    /// By the engine's kind and address.
    pub sinks: BTreeMap<String, SinkState>,
    /// Bytes and number of the recordings that are kept.
    pub kept: (u64, usize),
    /// What an operator should know, with its time, the newest last.
    pub remarks: Vec<(SystemTime, String)>,
}

/// A VM.
#[derive(Debug, Clone, Default)]
pub struct VmState {
    /// Its name.
    pub name: String,
    /// Its VMM: "QEMU".
    pub vmm: String,
    /// "kvm", "tcg", or empty.
    pub accel: String,
    /// Samples a second of each vCPU at the moment.
    pub rate_hz: u32,
    /// Why it is not being recorded.
    pub problem: Option<String>,
}

/// Sums since the start. Each sample is collected or lost.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// Recordings that are whole.
    pub segments: u64,
    /// Recorders that failed.
    pub failures: u64,
    /// Samples that were expected, and that were lost.
    pub samples_expected: u64,
    pub samples_lost: u64,
    /// CPU time of recorders, and for how long vCPUs were paused, in nanoseconds.
    pub recorder_cpu_ns: u64,
    pub pause_ns: u64,
    /// Time of recordings, and time of VMs that no recorder has covered, in nanoseconds.
    pub recorded_ns: u64,
    pub gap_ns: u64,
    /// Recordings that were removed for space.
    pub segments_removed: u64,
}

/// An engine.
#[derive(Debug, Clone, Default)]
pub struct SinkState {
    /// Profiles that it has, that it has refused, and that were removed before it had them.
    pub sent: u64,
    pub refused: u64,
    pub removed: u64,
    /// Profiles that wait.
    pub waiting: usize,
    /// Why the last attempt failed.
    pub problem: Option<String>,
}

impl State {
    /// All of it, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prints a sentence, and keeps it for the page.
    pub fn remark(&self, text: &str) {
        eprintln!("glass agent: {text}");
        let remarks = &mut self.lock().remarks;
        if remarks.len() == REMARKS_MAX {
            remarks.remove(0);
        }
        remarks.push((SystemTime::now(), text.to_owned()));
    }
}
