//! Every parser of untrusted input.

mod boot;
mod devices;
mod disk;
mod disks;
mod files;
mod guests;
mod halves;
mod jit;
mod kernel;
mod linux;
mod names;
mod network;
mod programs;
mod queue_disk;
mod queue_image;
mod recording;
mod served;
mod service;
#[cfg(target_arch = "x86_64")]
mod snapshots;
mod sockets;
mod store;
mod trace;
mod vmcoreinfo;
#[cfg(target_arch = "x86_64")]
mod windows;
mod write_log;
mod xen;

use fastrand::Rng;

use crate::mutate;

/// A parser, its corpus, and the properties that must hold.
pub trait Target: Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// Valid inputs, the same in every run.
    fn corpus(&self) -> Vec<Vec<u8>>;

    /// Changes an input.
    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        mutate::plain(bytes, corpus, rng);
    }

    /// Parses the input; panics if a property does not hold.
    fn run(&self, input: &[u8]);

    /// The duration of a case relative to other targets: the number of cases is divided by it.
    fn cost(&self) -> u64 {
        1
    }

    /// Longer inputs are cut.
    fn bytes_max(&self) -> usize {
        1 << 20
    }
}

/// All of them.
pub const ALL: &[&dyn Target] = &[
    &recording::RECORDINGS,
    &recording::REPORTS,
    &recording::EXPORTS,
    &programs::Programs,
    &programs::Stacks,
    &programs::Maps,
    &programs::Orc,
    &names::Names,
    &names::Compressed,
    &jit::Generated,
    &trace::Rings,
    &trace::Mirage,
    &guests::Gdbstub,
    &guests::Monitors,
    &guests::Dumps,
    &guests::Pages,
    &write_log::WriteLogs,
    &vmcoreinfo::Vmcoreinfo,
    &kernel::Kernel,
    &linux::Linux,
    &disks::GuestDisks,
    &service::Http,
    &halves::Halves,
    &queue_disk::QueueDisk,
    &queue_image::QueueImage,
    &service::Host,
    &boot::CommandLines,
    &boot::Acpi,
    &devices::Devices,
    &served::DISK,
    &served::CARD,
    #[cfg(target_arch = "x86_64")]
    &windows::Windows,
    #[cfg(target_arch = "x86_64")]
    &snapshots::Snapshots,
    &files::HostDirectory,
    &disk::FileSystem,
    &store::StoreDisk,
    &sockets::HostSockets,
    &network::Neighbours,
    &xen::BackEnds,
];

/// The one with this name.
pub fn find(name: &str) -> Option<&'static dyn Target> {
    ALL.iter().copied().find(|target| target.name() == name)
}
