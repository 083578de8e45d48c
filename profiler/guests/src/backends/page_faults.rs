//! The page faults of a copy of a VM, which its VMM sends (`vmm/src/x86_64/faults.rs`): a sample for each.

use std::io::{ErrorKind, Read as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use glass_formats::page_fault::{PageFault, STACK_BYTES_MAX};
use glass_profiler_core::arch::x86_64;
use glass_profiler_core::event::{Event, RawSample, Segment};
use glass_profiler_core::guest::{GuestKind, Mode};
use glass_profiler_core::model::State;

use crate::error::GuestError;
use crate::systems::image::{VmImage, VmSettings};
use crate::systems::plan::{GUEST, SPACE};
use crate::{Counts, Flow, Source};

/// What is read at once.
const CHUNK_BYTES: usize = 64 << 10;
/// Tracks of the two kinds of faults.
const READS: u32 = 0;
const WRITES: u32 = 1;
/// The least time that a read waits.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// The page faults of one VM with one core.
pub struct PageFaults {
    stream: UnixStream,
    image: VmImage,
    /// Whether the VMM has sent how many pages were in use before.
    has_begun: bool,
    /// Received, and not a whole fault yet.
    bytes: Vec<u8>,
    /// The last fault: the next one may show that it was a write.
    last: Option<(PageFault, Vec<u8>)>,
    counts: Counts,
}

impl PageFaults {
    /// Those that VMM `pid` sends by `stream`, of a guest of this name that runs `image`.
    ///
    /// # Errors
    /// The image cannot be read.
    pub fn new(stream: UnixStream, pid: u32, name: &str, image: &Path) -> Result<PageFaults, GuestError> {
        let settings = VmSettings::new(STACK_BYTES_MAX as u32, image.to_owned());
        let image = VmImage::load(GuestKind::Vm { vmm: pid }, name, settings)?;
        let (bytes, counts) = (Vec::new(), Counts::default());
        Ok(PageFaults { stream, image, has_begun: false, bytes, last: None, counts })
    }

    /// Hands over the faults that have arrived whole. Fails if it is something else.
    fn deliver(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        let mut rest = &self.bytes[..];
        let mut faults = Vec::new();
        if !self.has_begun
            && let Some((before, after)) = rest.split_first_chunk()
        {
            (rest, self.has_begun) = (after, true);
            sink(Event::Warning(format!(
                "{} pages are not among the faults: KVM needs them before the guest runs (page tables, descriptor tables, stacks of interrupts)",
                u64::from_le_bytes(*before)
            )));
        }
        while self.has_begun
            && let Some((head, after)) = rest.split_first_chunk()
        {
            let fault = PageFault::from_bytes(head)
                .ok_or_else(|| GuestError::Unsupported("the VMM sends what is no page fault".to_owned()))?;
            let Some((stack, after)) = after.split_at_checked(fault.stack_bytes as usize) else { break };
            faults.push((fault, stack.to_vec()));
            rest = after;
        }
        self.bytes = rest.to_vec();
        for (fault, stack) in faults {
            match &mut self.last {
                // The same instruction: the first use of the page was a write.
                Some((last, _)) if is_same(last, &fault) => {
                    last.is_write = true;
                    last.paused_ns += fault.paused_ns;
                }
                _ => {
                    self.deliver_last(sink);
                    self.last = Some((fault, stack));
                }
            }
        }
        Ok(())
    }

    fn deliver_last(&mut self, sink: &mut dyn FnMut(Event)) {
        let Some((fault, stack)) = self.last.take() else { return };
        let registers = x86_64::Registers::of_all(fault.rip, fault.general);
        let stack = vec![(registers.rsp, stack)];
        let segment =
            Segment { space: SPACE, mode: Mode::Kernel, registers: registers.into(), stack, ..Segment::default() };
        self.counts.delivered += 1;
        sink(Event::Sample(RawSample {
            time_ns: fault.time_ns,
            state: State::Running,
            segments: vec![segment],
            frozen_ns: fault.paused_ns,
            track: if fault.is_write { WRITES } else { READS },
            ..RawSample::default()
        }));
    }
}

/// Whether a fault is the write for which the one before was a read.
fn is_same(last: &PageFault, fault: &PageFault) -> bool {
    let PageFault { address, rip, is_write, .. } = *last;
    !is_write && fault.is_write && (address, rip) == (fault.address, fault.rip)
}

impl Source for PageFaults {
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.image.announce(std::iter::empty(), sink);
        for (track, name) in [(READS, "first reads of pages"), (WRITES, "first writes to pages")] {
            sink(Event::Track { track, guest: GUEST, id: track.into(), name: name.to_owned() });
        }
        Ok(())
    }

    fn collect(&mut self, wait: Duration, sink: &mut dyn FnMut(Event)) -> Result<Flow, GuestError> {
        let failed = |error| GuestError::System { action: "receive page faults".to_owned(), error };
        let end = Instant::now() + wait;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            self.stream.set_read_timeout(Some(left.max(WAIT_MIN))).map_err(failed)?;
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    self.deliver_last(sink);
                    return Ok(Flow::Ended);
                }
                Ok(count) => {
                    self.bytes.extend(&chunk[..count]);
                    self.deliver(sink)?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    self.deliver_last(sink);
                    return Ok(Flow::More);
                }
                // The VMM was killed.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    self.deliver_last(sink);
                    return Ok(Flow::Ended);
                }
                Err(error) => return Err(failed(error)),
            }
            if left.is_zero() {
                return Ok(Flow::More);
            }
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn detach(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.deliver_last(sink);
        Ok(())
    }
}
