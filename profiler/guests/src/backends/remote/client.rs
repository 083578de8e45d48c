//! The reader's end: a VM in the hands of another process.

use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use glass_profiler_core::event::Event;
use glass_profiler_core::guest::GuestKind;

use super::messages::{LENGTH_BYTES, READ_BYTES_MAX, Report, Request, first_of};
use super::{Launcher, Subject, Task, system};
use crate::arch::CoreState;
use crate::backends::access::{KnownVm, View, VmAccess};
use crate::bytes::MESSAGE_BYTES_MAX;
use crate::error::GuestError;
use crate::files::disks::disks_of;
use crate::files::{OpenedFiles, Opener};
use crate::sys::{Packets, Received};
use crate::systems::image::VmImage;
use crate::systems::plan::CopyPlan;
use crate::{Counts, Flow, Source, VmSettings};

/// How long the holder may take to end after it has detached.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// The same to detach: each vCPU may take five seconds.
const DETACH_PATIENCE: Duration = Duration::from_secs(60);
/// The longest wait before the time is checked.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// A VM that another process holds.
pub struct RemoteVm {
    packets: Packets,
    holder: Option<Child>,
    vcpus: Vec<u32>,
    threads: Vec<u32>,
    memories: usize,
    /// Since when it is sampled, if it already is.
    started_ns: Option<u64>,
    counts: Counts,
    /// Sampling was requested.
    has_started: bool,
    /// The holder has detached, or is gone.
    is_over: bool,
    /// The last packet, and which part of it is still to be read.
    room: Vec<u8>,
    unread: Range<usize>,
}

fn gone() -> GuestError {
    GuestError::Unsupported(
        "the process of glass that holds the VM has ended unexpectedly; the VM runs on without it".to_owned(),
    )
}

impl RemoteVm {
    /// Starts a holder and waits until it is attached.
    pub(crate) fn start(launcher: &Launcher, task: &Task) -> Result<RemoteVm, GuestError> {
        let failed = |error| system("start the process that holds the VM", error);
        let (packets, its_end) = Packets::pair().map_err(failed)?;
        let mut command = Command::new(&launcher.program);
        command.args(&launcher.arguments).args(task.to_arguments());
        command.stdin(its_end.into_socket()).stdout(Stdio::null()).stderr(Stdio::null());
        let holder = command.spawn().map_err(failed)?;
        // Its copy of the other end closes here: we are to see when the holder ends.
        drop(command);
        RemoteVm::of(packets, Some(holder))
    }

    /// With a holder at the other end.
    pub(super) fn of(packets: Packets, holder: Option<Child>) -> Result<RemoteVm, GuestError> {
        let mut vm = RemoteVm {
            packets,
            holder,
            vcpus: Vec::new(),
            threads: Vec::new(),
            memories: 0,
            started_ns: None,
            counts: Counts::default(),
            has_started: false,
            is_over: false,
            room: vec![0; LENGTH_BYTES + MESSAGE_BYTES_MAX],
            unread: 0..0,
        };
        let report = vm.answer()?;
        vm.attached(report)?;
        Ok(vm)
    }

    fn attached(&mut self, report: Report) -> Result<(), GuestError> {
        let Report::Attached { vcpus, threads, memories, started_ns } = report else { return Err(gone()) };
        (self.vcpus, self.threads, self.memories, self.started_ns) = (vcpus, threads, memories, started_ns);
        Ok(())
    }

    /// A message, if there is one within this time, and before a signal.
    fn receive(&mut self, at_most: Duration) -> Result<Option<Report>, GuestError> {
        let start = Instant::now();
        loop {
            if !self.unread.is_empty() {
                let Some((message, bytes)) = first_of(&self.room[self.unread.clone()]) else { break };
                self.unread.start += bytes;
                match Report::parse(message) {
                    Some(report) => return Ok(Some(report)),
                    None => break,
                }
            }
            match self.packets.receive(&mut self.room) {
                Ok(Received::Message(bytes)) => {
                    self.unread = 0..bytes;
                    continue;
                }
                Ok(Received::Nothing) => {}
                Ok(Received::End) | Err(_) => break,
            }
            let left = at_most.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            if self.packets.wait(false, left) {
                // Ctrl-C, for example, which our caller looks for.
                return Ok(None);
            }
        }
        self.is_over = true;
        Err(gone())
    }

    /// The answer to a request.
    fn answer(&mut self) -> Result<Report, GuestError> {
        loop {
            match self.receive(WAIT_MAX)? {
                Some(Report::Failed { is_of_the_backend, sentence }) => {
                    return Err(GuestError::Held { is_of_the_backend, sentence });
                }
                Some(report) => return Ok(report),
                None => {}
            }
        }
    }

    fn send(&mut self, request: &Request) -> Result<(), GuestError> {
        let message = request.to_bytes();
        loop {
            match self.packets.send(&message) {
                Ok(true) => return Ok(()),
                // It reads a request at a time, and there is one at a time.
                Ok(false) => _ = self.packets.wait(true, WAIT_MAX),
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                    return Err(system("send a request to the process that holds the VM", error));
                }
                // What it has sent before can still be received.
                Err(_) => return Err(gone()),
            }
        }
    }

    fn request(&mut self, request: &Request) -> Result<Report, GuestError> {
        self.send(request)?;
        self.answer()
    }

    /// Waits for the end of the holder, which comes after its last message.
    fn reap(&mut self) {
        let Some(mut holder) = self.holder.take() else { return };
        let start = Instant::now();
        while matches!(holder.try_wait(), Ok(None)) && start.elapsed() < END_PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Has the holder detach, and passes on what it still sends.
    fn end(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        if self.is_over {
            return Ok(());
        }
        // If the guest has ended, so has the holder by now.
        let _ = self.send(&Request::Detach);
        let mut result = Ok(());
        let start = Instant::now();
        while !self.is_over && start.elapsed() < DETACH_PATIENCE {
            match self.receive(WAIT_MAX) {
                Ok(Some(Report::Detached)) => self.is_over = true,
                Ok(Some(Report::Event(event))) => sink(event),
                Ok(Some(Report::Counts(counts))) => self.counts = counts,
                Ok(Some(Report::Failed { is_of_the_backend, sentence })) => {
                    result = result.and(Err(GuestError::Held { is_of_the_backend, sentence }));
                }
                Ok(_) => {}
                Err(error) => result = result.and(Err(error)),
            }
        }
        self.reap();
        result
    }
}

impl Drop for RemoteVm {
    fn drop(&mut self) {
        // It detaches in any case: at the latest when it sees that we are gone.
        let _ = self.end(&mut |_| ());
        self.reap();
    }
}

impl VmAccess for RemoteVm {
    fn vcpus(&self) -> Vec<u32> {
        self.vcpus.clone()
    }

    fn threads(&self) -> Vec<u32> {
        self.threads.clone()
    }

    fn state(&mut self, vcpu: usize) -> Result<Option<CoreState>, GuestError> {
        match self.request(&Request::State { vcpu })? {
            Report::State(state) => Ok(state),
            _ => Err(gone()),
        }
    }

    fn memories(&self) -> usize {
        self.memories
    }

    fn read(&mut self, view: View, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        let mut done = 0;
        for piece in into.chunks_mut(READ_BYTES_MAX) {
            let address = address.wrapping_add(done as u64);
            let Report::Bytes(bytes) = self.request(&Request::Read { view, address, bytes: piece.len() })? else {
                return Err(gone());
            };
            let count = bytes.len().min(piece.len());
            piece[..count].copy_from_slice(&bytes[..count]);
            done += count;
            if count < piece.len() {
                break;
            }
        }
        Ok(done)
    }

    fn begin(&mut self) -> Result<Option<u64>, GuestError> {
        let report = self.request(&Request::Begin)?;
        self.attached(report)?;
        Ok(self.started_ns)
    }

    fn choose_memory(&mut self, memory: usize) -> Result<(), GuestError> {
        self.request(&Request::ChooseMemory { memory })?;
        self.memories = 0;
        Ok(())
    }

    /// Once sampling has started the answer is received with the samples.
    fn set_plan(&mut self, plan: CopyPlan) -> Result<(), GuestError> {
        match self.has_started {
            true => self.send(&Request::Plan(plan)),
            false => self.request(&Request::Plan(plan)).map(drop),
        }
    }

    fn wait(&mut self, time: Duration) -> Result<(), GuestError> {
        // The holder looks after the VM meanwhile.
        std::thread::sleep(time);
        Ok(())
    }

    fn give_up(&mut self) {
        let _ = self.end(&mut |_| ());
    }
}

impl Source for RemoteVm {
    fn started_ns(&self) -> Option<u64> {
        self.started_ns
    }

    /// Sampling starts now.
    fn announce(&mut self, _sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.has_started = true;
        self.send(&Request::Start)
    }

    fn collect(&mut self, wait: Duration, sink: &mut dyn FnMut(Event)) -> Result<Flow, GuestError> {
        let start = Instant::now();
        loop {
            match self.receive(wait.saturating_sub(start.elapsed()))? {
                Some(Report::Event(event)) => sink(event),
                Some(Report::Counts(counts)) => self.counts = counts,
                Some(Report::GuestEnded) => return Ok(Flow::Ended),
                Some(Report::Failed { is_of_the_backend, sentence }) => {
                    return Err(GuestError::Held { is_of_the_backend, sentence });
                }
                Some(Report::Detached) => {
                    self.is_over = true;
                    return Err(gone());
                }
                // Of another plan.
                Some(Report::Done) => {}
                Some(_) => return Err(gone()),
                None => return Ok(Flow::More),
            }
            // Many may wait after a stop of this process; its caller has other work too.
            if start.elapsed() > wait {
                return Ok(Flow::More);
            }
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn detach(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.end(sink)
    }
}

/// A VM in the hands of a new process, and what it runs by the symbol files of `settings`; and those files, open. `with_vmm`: its samples also have the
/// stack of the VMM.
///
/// # Errors
/// Those of the holder's attach; then those of the files, and of their comparison with the VM.
pub fn attach(
    launcher: &Launcher,
    subject: Subject,
    (kind, name): (GuestKind, &str),
    settings: VmSettings,
    (rate_hz, with_vmm): (u32, bool),
) -> Result<(KnownVm<RemoteVm>, OpenedFiles), GuestError> {
    let mut opened = OpenedFiles::open(settings.symbols.iter().map(|file| file.path.as_path()));
    if settings.processes.needs_opener() {
        opened = opened.and_by(Opener::start(&launcher.program, &launcher.arguments)?);
    }
    opened = opened.with_debug_folders(&settings.processes.debug_folders);
    let task = Task { subject, rate_hz, with_vmm, vcpus: settings.vcpus.clone() };
    // What the guest runs may be found there; before the rights over the VMM are given up.
    let memories = kind.pid().map_or_else(Vec::new, |pid| settings.memories(pid, &opened));
    if !memories.is_empty() {
        opened = opened.with_disks(disks_of(kind.pid(), &settings.processes.disks)?);
    }
    let vm = RemoteVm::start(launcher, &task)?;
    let warning = launcher.before_parsing.and_then(|before_parsing| before_parsing());
    let image = VmImage::load_of(kind, name, settings, &opened)?;
    let mut known = KnownVm::of(vm, image, &memories)?;
    known.warn(warning);
    Ok((known, opened))
}
