//! The bytes that a guest and the profiler share; `docs/formats/guest.md` specifies them.
//!
//! The guest side keeps these objects up to date with plain stores. The host side finds them by
//! symbol in the image's ELF file and reads them from guest memory while the guest runs, so nothing
//! here may assume that reader and writer synchronize.
#![no_std]
#![forbid(unsafe_code)]

mod generation;
pub mod page_fault;
pub mod trace;
pub mod write_log;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use generation::{GENERATION_WORD, Generation};

/// Name of the ELF note that marks an image as one of ours.
pub const NOTE_NAME: &str = "Glasshouse";
/// Type of that note. Its descriptor is [`CONTRACT_VERSION`] as a little-endian u32.
pub const NOTE_TYPE: u32 = 1;
/// Version of this crate as a whole.
pub const CONTRACT_VERSION: u32 = 1;

/// The symbol of the array of [`CoreState`], one entry a core.
pub const CORES_SYMBOL: &str = "GLASS_CORES";
/// Entries of that array.
pub const CORES_MAX: usize = 64;
/// First word of each entry that is in use.
pub const CORE_MAGIC: u32 = 0x434c_4753; // "SGLC"

/// What the image of a C program contains, so that `glass run` gives its VM a core more than there are ranks.
pub const C_PROGRAM_MARK: &[u8; 32] = b"Glasshouse image of a C program\0";
/// What follows the name of such an image in that of the file with the program's symbols.
pub const C_PROGRAM_SYMBOLS: &str = ".symbols";
/// Where ranks of C programs start: above all physical memory.
const C_PROGRAMS_START: u64 = 1 << 44;
/// The pages that a rank's memory is mapped by.
pub const C_PROGRAM_PAGE_BYTES: u64 = 2 << 20;

/// What is added to the addresses in the file of a C program in a VM, whose data is from page `writable` on: the data starts at a large page.
pub const fn c_program_start(writable: u64) -> u64 {
    C_PROGRAMS_START + (C_PROGRAM_PAGE_BYTES - writable % C_PROGRAM_PAGE_BYTES) % C_PROGRAM_PAGE_BYTES
}

/// How an image ended: the value that it writes to the `isa-debug-exit` port.
///
/// QEMU exits with `2 * value + 1`. The values start at 16 so that none looks like QEMU's own 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The service returned without an error.
    Success = 16,
    /// The service returned an error.
    Error = 17,
    /// A panic, also when memory ran out.
    Panic = 18,
    /// A CPU exception, also a stack overflow.
    Exception = 19,
}

impl Exit {
    /// How the image ended, from QEMU's exit status; `None` if QEMU ended by itself.
    pub fn from_qemu_status(status: i32) -> Option<Exit> {
        [Exit::Success, Exit::Error, Exit::Panic, Exit::Exception]
            .into_iter()
            .find(|exit| status == 2 * (*exit as i32) + 1)
    }

    /// What an image writes to its serial port at its end where the machine has no device for the exit code: a string for application programs
    /// (ECMA-48, section 8.3.2), which terminals do not show.
    pub fn announcement(self) -> [u8; ANNOUNCEMENT_BYTES] {
        let mut bytes = *b"\x1b_glass-exit=00\x1b\\";
        bytes[ANNOUNCEMENT_NUMBER] = b'0' + self as u8 / 10;
        bytes[ANNOUNCEMENT_NUMBER + 1] = b'0' + self as u8 % 10;
        bytes
    }

    /// The exit that `text` announces, and what is before and behind the announcement.
    pub fn announced(text: &[u8]) -> Option<(Exit, &[u8], &[u8])> {
        [Exit::Success, Exit::Error, Exit::Panic, Exit::Exception].into_iter().find_map(|exit| {
            let announcement = exit.announcement();
            let start = text.windows(ANNOUNCEMENT_BYTES).position(|window| window == announcement)?;
            Some((exit, &text[..start], &text[start + ANNOUNCEMENT_BYTES..]))
        })
    }
}

/// Bytes of an announcement, and where its number is.
const ANNOUNCEMENT_BYTES: usize = 17;
const ANNOUNCEMENT_NUMBER: usize = 13;

/// What a core is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Activity {
    /// Not started.
    Off = 0,
    /// Running kernel or service code.
    Running = 1,
    /// Without work, polling before it halts.
    Spinning = 2,
    /// Halted until an interrupt.
    Idle = 3,
}

impl Activity {
    /// The activity for a word read from guest memory; `None` if the word is invalid.
    pub fn from_word(word: u32) -> Option<Activity> {
        [Activity::Off, Activity::Running, Activity::Spinning, Activity::Idle].into_iter().find(|a| *a as u32 == word)
    }
}

/// State of one core, in guest memory. 64 bytes, little endian, aligned to 64.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct CoreState {
    /// [`CORE_MAGIC`].
    pub magic: AtomicU32,
    /// An [`Activity`].
    pub activity: AtomicU32,
    /// Tasks polled since boot.
    pub polls: AtomicU64,
    /// Times the core halted.
    pub halts: AtomicU64,
    /// TSC ticks spent halted.
    pub idle_ticks: AtomicU64,
    /// TSC frequency in Hz, 0 until it is known.
    pub tsc_hz: AtomicU64,
}

/// Offset of [`CoreState::activity`] from the start of an entry, in bytes.
pub const ACTIVITY_OFFSET: u64 = 4;
/// Size of an entry in bytes.
pub const CORE_STATE_BYTES: u64 = 64;

impl CoreState {
    /// An entry of a core that is off.
    pub const fn new() -> CoreState {
        CoreState {
            magic: AtomicU32::new(0),
            activity: AtomicU32::new(Activity::Off as u32),
            polls: AtomicU64::new(0),
            halts: AtomicU64::new(0),
            idle_ticks: AtomicU64::new(0),
            tsc_hz: AtomicU64::new(0),
        }
    }

    /// Publishes what the core is doing.
    pub fn set_activity(&self, activity: Activity) {
        self.activity.store(activity as u32, Ordering::Relaxed);
    }

    /// Adds to a counter that only this core writes: a load and a store, no locked instruction.
    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }
}

impl Default for CoreState {
    fn default() -> CoreState {
        CoreState::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_the_documented_one() {
        assert_eq!(size_of::<CoreState>() as u64, CORE_STATE_BYTES);
        assert_eq!(core::mem::offset_of!(CoreState, activity) as u64, ACTIVITY_OFFSET);
        assert_eq!(core::mem::offset_of!(CoreState, tsc_hz), 32);
        assert_eq!(Activity::from_word(3), Some(Activity::Idle));
        assert_eq!(Activity::from_word(4), None);
    }

    #[test]
    fn qemu_exits_with_what_an_image_wrote() {
        let exits = [(33, Exit::Success), (35, Exit::Error), (37, Exit::Panic), (39, Exit::Exception)];
        assert!(exits.iter().all(|(status, exit)| Exit::from_qemu_status(*status) == Some(*exit)));
        // Exit statuses of QEMU itself, and numbers that no image writes.
        assert!([0, 1, 2, 31, 32, 34, 41].iter().all(|status| Exit::from_qemu_status(*status).is_none()));
    }

    #[test]
    fn the_data_of_a_c_program_starts_at_a_large_page() {
        for writable in [0, 0x1000, 0x40_3000, 3 * C_PROGRAM_PAGE_BYTES] {
            let start = c_program_start(writable);
            assert_eq!((start + writable) % C_PROGRAM_PAGE_BYTES, 0, "{writable:#x}");
            assert!((C_PROGRAMS_START..C_PROGRAMS_START + C_PROGRAM_PAGE_BYTES).contains(&start), "{start:#x}");
            // No machine that the kernel supports has so much memory.
            assert!(start >= 16 * 1024_u64.pow(4), "{start:#x}");
        }
    }

    #[test]
    fn the_host_reads_what_a_core_has_published() {
        let core = CoreState::new();
        for activity in [Activity::Running, Activity::Spinning, Activity::Idle, Activity::Off] {
            core.set_activity(activity);
            assert_eq!(Activity::from_word(core.activity.load(Ordering::Relaxed)), Some(activity));
        }
        CoreState::add(&core.polls, 2);
        CoreState::add(&core.polls, 5);
        assert_eq!(core.polls.load(Ordering::Relaxed), 7);
        CoreState::add(&core.polls, u64::MAX);
        assert_eq!(core.polls.load(Ordering::Relaxed), 6, "a counter starts again, it does not panic");
    }
}
