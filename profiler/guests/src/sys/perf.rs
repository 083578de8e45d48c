//! `perf_event_open` and the ring buffer that it fills.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use super::{Map, arch, check};

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const PERF_COUNT_SW_BPF_OUTPUT: u64 = 10;

const SAMPLE_IP: u64 = 1 << 0;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_CALLCHAIN: u64 = 1 << 5;
const SAMPLE_ID: u64 = 1 << 6;
const SAMPLE_RAW: u64 = 1 << 10;
const SAMPLE_REGS_USER: u64 = 1 << 12;
const SAMPLE_STACK_USER: u64 = 1 << 13;

const FLAG_DISABLED: u64 = 1 << 0;
const FLAG_INHERIT: u64 = 1 << 1;
const FLAG_EXCLUDE_KERNEL: u64 = 1 << 5;
const FLAG_EXCLUDE_HV: u64 = 1 << 6;
const FLAG_MMAP: u64 = 1 << 8;
const FLAG_COMM: u64 = 1 << 9;
const FLAG_ENABLE_ON_EXEC: u64 = 1 << 12;
const FLAG_TASK: u64 = 1 << 13;
const FLAG_SAMPLE_ID_ALL: u64 = 1 << 18;
const FLAG_EXCLUDE_CALLCHAIN_KERNEL: u64 = 1 << 21;
const FLAG_EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;
const FLAG_MMAP2: u64 = 1 << 23;
const FLAG_COMM_EXEC: u64 = 1 << 24;
const FLAG_USE_CLOCKID: u64 = 1 << 25;

const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;
const IOC_SET_OUTPUT: libc::c_ulong = 0x2405;
const IOC_ID: libc::c_ulong = 0x8008_2407;
const IOC_SET_BPF: libc::c_ulong = 0x4004_2408;

/// Offsets in the first page of the ring buffer (`struct perf_event_mmap_page`).
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;
const PAGE: usize = 4096;

/// `struct perf_event_attr` up to version 6 of it (kernel 4.1).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clock_id: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

/// What is sampled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PerfSettings {
    /// Thread whose time is sampled, with every thread and process that it starts.
    pub(crate) tid: u32,
    /// Only while it runs on this CPU: the kernel gives no buffer to an inherited event of all CPUs.
    pub(crate) cpu: u32,
    pub(crate) period_ns: u64,
    pub(crate) stack_bytes: u32,
    /// Leave out time in the kernel; needs less permission.
    pub(crate) exclude_kernel: bool,
    /// Start when the thread calls exec.
    pub(crate) enable_on_exec: bool,
}

/// An open event, with or without a buffer of its own.
#[derive(Debug)]
pub(crate) struct PerfEvent {
    file: OwnedFd,
    ring: Option<Map>,
}

impl AsRawFd for PerfEvent {
    fn as_raw_fd(&self) -> i32 {
        self.file.as_raw_fd()
    }
}

impl PerfEvent {
    pub(crate) fn open(settings: &PerfSettings) -> io::Result<PerfEvent> {
        let mut flags = FLAG_DISABLED
            | FLAG_INHERIT
            | FLAG_EXCLUDE_HV
            | FLAG_MMAP
            | FLAG_COMM
            | FLAG_TASK
            | FLAG_SAMPLE_ID_ALL
            // Its stack is unwound by us, which is better than by frame pointers.
            | FLAG_EXCLUDE_CALLCHAIN_USER
            | FLAG_MMAP2
            | FLAG_COMM_EXEC
            | FLAG_USE_CLOCKID;
        if settings.exclude_kernel {
            flags |= FLAG_EXCLUDE_KERNEL | FLAG_EXCLUDE_CALLCHAIN_KERNEL;
        }
        if settings.enable_on_exec {
            flags |= FLAG_ENABLE_ON_EXEC;
        }
        let attributes = Attributes {
            kind: PERF_TYPE_SOFTWARE,
            size: size_of::<Attributes>() as u32,
            config: PERF_COUNT_SW_CPU_CLOCK,
            sample_period: settings.period_ns,
            sample_type: SAMPLE_IP
                | SAMPLE_TID
                | SAMPLE_TIME
                | SAMPLE_ID
                | SAMPLE_CALLCHAIN
                | SAMPLE_REGS_USER
                | SAMPLE_STACK_USER,
            flags,
            sample_regs_user: arch::PERF_REGISTERS,
            sample_stack_user: settings.stack_bytes,
            clock_id: libc::CLOCK_MONOTONIC,
            ..Default::default()
        };
        PerfEvent::open_with(&attributes, settings.tid as libc::pid_t, settings.cpu)
    }

    fn open_with(attributes: &Attributes, tid: libc::pid_t, cpu: u32) -> io::Result<PerfEvent> {
        const CLOEXEC: libc::c_ulong = 8;
        // SAFETY: `attributes` is valid for the size that it states; the kernel only reads it.
        let result = unsafe {
            libc::syscall(libc::SYS_perf_event_open, attributes, tid, cpu as libc::c_int, -1 as libc::c_int, CLOEXEC)
        };
        let descriptor = check(result)? as i32;
        // SAFETY: the kernel has just created this descriptor, and no other code has it.
        let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(PerfEvent { file, ring: None })
    }

    /// An event of a CPU into whose buffer BPF programs write. It takes the right to look at all processes.
    pub(crate) fn open_output(cpu: u32) -> io::Result<PerfEvent> {
        let attributes = Attributes {
            kind: PERF_TYPE_SOFTWARE,
            size: size_of::<Attributes>() as u32,
            config: PERF_COUNT_SW_BPF_OUTPUT,
            sample_period: 1,
            sample_type: SAMPLE_TID | SAMPLE_TIME | SAMPLE_RAW,
            flags: FLAG_DISABLED | FLAG_USE_CLOCKID,
            clock_id: libc::CLOCK_MONOTONIC,
            ..Default::default()
        };
        PerfEvent::open_with(&attributes, -1, cpu)
    }

    /// Makes a buffer of `bytes`, a power of two pages.
    pub(crate) fn make_ring(&mut self, bytes: usize) -> io::Result<()> {
        self.ring = Some(Map::new(self.file.as_fd(), bytes + PAGE, true)?);
        Ok(())
    }

    /// Sends the records of this event to another's buffer.
    pub(crate) fn share_ring(&self, with: &PerfEvent) -> io::Result<()> {
        self.control(IOC_SET_OUTPUT, with.file.as_raw_fd() as libc::c_ulong)
    }

    /// Its number, which is in its records and in those of events that inherit from it.
    pub(crate) fn id(&self) -> io::Result<u64> {
        let mut id = 0u64;
        // SAFETY: the request writes 8 bytes to the pointer.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), IOC_ID, &raw mut id) };
        check(libc::c_long::from(result)).map(|_| id)
    }

    /// Whether it has a buffer of its own.
    pub(crate) fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    pub(crate) fn enable(&self) -> io::Result<()> {
        self.control(IOC_ENABLE, 0)
    }

    /// Runs a BPF program at each sample.
    pub(crate) fn set_program(&self, program: &OwnedFd) -> io::Result<()> {
        self.control(IOC_SET_BPF, program.as_raw_fd() as libc::c_ulong)
    }

    pub(crate) fn disable(&self) -> io::Result<()> {
        self.control(IOC_DISABLE, 0)
    }

    fn control(&self, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<()> {
        // SAFETY: these requests take a number, not a pointer.
        check(libc::c_long::from(unsafe { libc::ioctl(self.file.as_raw_fd(), request, argument) })).map(|_| ())
    }

    /// The nanoseconds that were counted for the thread and all that it started.
    pub(crate) fn count(&self) -> io::Result<u64> {
        let mut value = 0u64;
        // SAFETY: `value` has the 8 bytes that are requested.
        let result = unsafe { libc::read(self.file.as_raw_fd(), (&raw mut value).cast(), 8) };
        check(result as libc::c_long).map(|_| value)
    }

    /// Takes all records that are in the buffer. The callback gets each with its header.
    pub(crate) fn drain(&self, mut record: impl FnMut(&[u8])) {
        let Some(ring) = &self.ring else { return };
        let capacity = (ring.bytes() - PAGE) as u64;
        let head = ring.load(DATA_HEAD);
        let mut tail = ring.word(DATA_TAIL).load(std::sync::atomic::Ordering::Relaxed);
        let mut bytes = Vec::new();
        while head.wrapping_sub(tail) >= 8 && head.wrapping_sub(tail) <= capacity {
            let mut header = [0; 8];
            copy_out(ring, tail, capacity, &mut header);
            let size = u64::from(u16::from_le_bytes([header[6], header[7]]));
            if size < 8 || size > head.wrapping_sub(tail) {
                break;
            }
            bytes.resize(size as usize, 0);
            copy_out(ring, tail, capacity, &mut bytes);
            record(&bytes);
            tail = tail.wrapping_add(size);
        }
        ring.store(DATA_TAIL, head);
    }
}

fn copy_out(ring: &Map, position: u64, capacity: u64, into: &mut [u8]) {
    let start = position % capacity;
    let first = into.len().min((capacity - start) as usize);
    let (before, after) = into.split_at_mut(first);
    ring.read(PAGE as u64 + start, before);
    ring.read(PAGE as u64, after);
}
