//! A VM in QEMU, held for each sample through its gdbstub. Needs no privilege beyond the socket; RAM
//! is read from the memfd that backs it, or, slower, through the socket.
//!
//! Connecting stops the VM, and QEMU does not start it again when the connection ends. So a small
//! process of our own keeps the connection too and detaches if we die at whatever moment.

mod client;
mod description;

use std::fs;
use std::path::{Path, PathBuf};

use glass_formats as formats;
use glass_profile::event::{Event, Mapping, Placement, RawSample, Registers};
use glass_profile::image::Image;
use glass_profile::model::State;

use crate::error::GuestError;
use crate::find::Vm;
use crate::memory::{RamFile, Translator};
use crate::sys::{Watchdog, monotonic_ns};
use crate::{Guest, files};
use client::{Client, Stopped};
use description::{CoreRegisters, Layout};

/// The most vCPUs that are looked at.
const VCPUS_MAX: usize = 256;
/// Bytes of code that are compared with the guest if the image has no build id that is loaded.
const CODE_BYTES_COMPARED: usize = 64;

/// How a VM is sampled.
#[derive(Debug, Clone)]
pub struct VmSettings {
    /// How much of the stack is copied.
    pub stack_bytes: u32,
    /// The image that the guest runs, with symbols.
    pub symbols: PathBuf,
}

/// A VM that is attached to.
pub struct QemuVm {
    pid: u32,
    client: Client,
    watchdog: Watchdog,
    layout: Layout,
    memory: Option<RamFile>,
    threads: Vec<String>,
    image: Image,
    settings: VmSettings,
    /// Address of the guest's per-core state, if it is one of ours.
    cores: Option<u64>,
    detached: bool,
    warnings: Vec<String>,
}

/// Reads and parses the image of a guest.
fn load_image(path: &Path) -> Result<Image, GuestError> {
    let file = |error| GuestError::File { path: path.to_owned(), error };
    let metadata = fs::metadata(path).map_err(file)?;
    if !metadata.is_file() || metadata.len() > files::FILE_BYTES_MAX {
        return Err(file(std::io::Error::other("not a file of a usual size")));
    }
    let bytes = fs::read(path).map_err(file)?;
    let image = |error| GuestError::Image { path: path.to_owned(), error };
    // Names come later; but without any there is no point in recording.
    glass_profile::symbols::Symbols::parse(&bytes).map_err(image)?;
    Image::parse(&bytes, &[formats::CORES_SYMBOL]).map_err(image)
}

impl QemuVm {
    /// Attaches. The VM stands still for some milliseconds; when this returns it runs.
    pub fn attach(vm: &Vm, settings: VmSettings) -> Result<QemuVm, GuestError> {
        let address = vm.gdb.as_ref().ok_or(GuestError::NoGdbstub(vm.pid))?;
        let image = load_image(&settings.symbols)?;
        let mut warnings = Vec::new();
        let memory = match RamFile::open(vm.pid) {
            Ok(Some(memory)) => Some(memory),
            Ok(None) => {
                warnings.push("the VM's RAM is no memfd, so it is read through the gdbstub, which makes pauses some times longer: start QEMU with `-object memory-backend-memfd,share=on`".to_owned());
                None
            }
            Err(error) => {
                warnings.push(format!("the VM's RAM cannot be mapped ({error}), so it is read through the gdbstub, which makes pauses some times longer"));
                None
            }
        };
        let (mut client, watchdog) = Client::connect(address)?;
        // From here on the VM stands still, whatever happens to us.
        client.greet()?;
        let layout = Layout::read(&mut client)?;
        let threads = read_threads(&mut client)?;
        let cores = image.symbol(formats::CORES_SYMBOL);
        let mut attached = QemuVm {
            pid: vm.pid,
            client,
            watchdog,
            layout,
            memory,
            threads,
            image,
            settings,
            cores,
            detached: false,
            warnings,
        };
        attached.check_image()?;
        attached.client.resume()?;
        Ok(attached)
    }

    /// Compares the image with what the guest has in memory.
    fn check_image(&mut self) -> Result<(), GuestError> {
        let paging = self.read_registers(0)?.paging;
        let mut translator = Translator::new(paging);
        let wrong = |path: &Path, difference: &str| GuestError::WrongImage {
            path: path.to_owned(),
            difference: difference.to_owned(),
        };
        let path = self.settings.symbols.clone();
        if let (Some(address), Some(build_id)) = (self.image.build_id_address, self.image.build_id.clone()) {
            let mut found = vec![0; build_id.len()];
            let read = self.read_memory(&mut translator, address, &mut found)?;
            if read == found.len() {
                return if found == build_id { Ok(()) } else { Err(wrong(&path, "it has another build id")) };
            }
        }
        let code = self
            .image
            .code_segments()
            .next()
            .map(|(address, code)| (address, code[..code.len().min(CODE_BYTES_COMPARED)].to_vec()));
        if let Some((address, code)) = code {
            let mut found = vec![0; code.len()];
            let read = self.read_memory(&mut translator, address, &mut found)?;
            if read == found.len() && found == code {
                return Ok(());
            }
            if read == found.len() {
                return Err(wrong(&path, "the code in its memory differs"));
            }
        }
        self.warnings.push(format!("whether the guest runs {} could not be checked", path.display()));
        Ok(())
    }

    fn read_registers(&mut self, thread: usize) -> Result<CoreRegisters, GuestError> {
        if self.threads.len() > 1 {
            self.client.select(&self.threads[thread])?;
        }
        let bytes = self.client.registers()?;
        self.layout.registers(bytes).ok_or_else(|| GuestError::Protocol("sent too few registers".to_owned()))
    }

    /// Copies from a virtual address of the guest; returns how much there was.
    fn read_memory(&mut self, translator: &mut Translator, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        match &self.memory {
            Some(memory) => Ok(translator.read(memory, address, into)),
            None => self.client.read_memory(address, into),
        }
    }

    fn state(&mut self, translator: &mut Translator, core: usize) -> Result<State, GuestError> {
        let Some(cores) = self.cores.filter(|_| core < formats::CORES_MAX) else {
            let halted = self.client.is_halted(&self.threads[core])?;
            return Ok(if halted { State::Idle } else { State::Running });
        };
        let address = cores.wrapping_add(core as u64 * formats::CORE_STATE_BYTES);
        let mut words = [0; formats::ACTIVITY_OFFSET as usize + 4];
        if self.read_memory(translator, address, &mut words)? < words.len() {
            return Ok(State::Running);
        }
        let word = |at: usize| u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
        if word(0) != formats::CORE_MAGIC {
            return Ok(State::Running);
        }
        Ok(match formats::Activity::from_word(word(formats::ACTIVITY_OFFSET as usize)) {
            Some(formats::Activity::Idle | formats::Activity::Off) => State::Idle,
            Some(formats::Activity::Spinning) => State::Spinning,
            Some(formats::Activity::Running) | None => State::Running,
        })
    }

    /// Our images run in ring 3; ring 0 holds only services on a stack of their own, which return by
    /// `iret`. Finds the registers of the code in ring 3 that called one.
    fn caller_of_service(
        &mut self,
        translator: &mut Translator,
        service: Registers,
    ) -> Result<Option<Registers>, GuestError> {
        const FRAME_WORDS: usize = 5;
        // The first frame is the service's own if an interrupt has just ended its halt.
        const FRAMES_MAX: usize = 2;
        let mut stack_pointer = service.rsp;
        for _ in 0..FRAMES_MAX {
            let mut bytes = [0; FRAME_WORDS * 8];
            if self.read_memory(translator, stack_pointer, &mut bytes)? < bytes.len() {
                break;
            }
            let (words, _) = bytes.as_chunks::<8>();
            let [rip, code_segment, _flags, rsp, stack_segment] =
                [0, 1, 2, 3, 4].map(|at| u64::from_le_bytes(words[at]));
            let is_selector = |segment: u64, ring: u64| segment < 0x100 && segment & 3 == ring;
            if is_selector(code_segment, 3) && is_selector(stack_segment, 3) && self.image.code(rip).is_some() {
                return Ok(Some(Registers { rip, rsp, rbp: service.rbp }));
            }
            if !is_selector(code_segment, 0) {
                break;
            }
            stack_pointer = rsp;
        }
        Ok(None)
    }

    fn sample_core(&mut self, core: usize) -> Result<RawSample, GuestError> {
        let CoreRegisters { mut registers, paging, ring } = self.read_registers(core)?;
        let mut translator = Translator::new(paging);
        let mut inner = None;
        if ring == 0 && self.cores.is_some() {
            let in_service = registers.rip;
            if let Some(caller) = self.caller_of_service(&mut translator, registers)? {
                inner = Some(in_service);
                registers = caller;
            }
        }
        let mut stack = vec![0; self.settings.stack_bytes as usize];
        let copied = self.read_memory(&mut translator, registers.rsp, &mut stack)?;
        stack.truncate(copied);
        let state = self.state(&mut translator, core)?;
        Ok(RawSample { track: core as u32, process: self.pid, registers, stack, inner, state, ..Default::default() })
    }
}

fn read_threads(client: &mut Client) -> Result<Vec<String>, GuestError> {
    let mut threads = Vec::new();
    let mut answer = client.ask("qfThreadInfo")?;
    while let Some(list) = answer.strip_prefix('m') {
        threads.extend(list.split(',').filter(|id| !id.is_empty() && id.len() <= 64).map(str::to_owned));
        if threads.len() >= VCPUS_MAX {
            break;
        }
        answer = client.ask("qsThreadInfo")?;
    }
    if threads.is_empty() {
        return Err(GuestError::Protocol("names no vCPU".to_owned()));
    }
    threads.truncate(VCPUS_MAX);
    Ok(threads)
}

impl Guest for QemuVm {
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.warnings.drain(..).for_each(|text| sink(Event::Warning(text)));
        for core in 0..self.threads.len() {
            let name = format!("vcpu {core}");
            sink(Event::Track { track: core as u32, id: core as u64, process: self.pid, name });
        }
        let range = self.image.linked_range();
        let path = self.settings.symbols.display().to_string();
        let mapping = Mapping { start: range.start, end: range.end, path, placement: Placement::AsLinked };
        sink(Event::Map { process: self.pid, mapping });
        Ok(())
    }

    fn sample(&mut self) -> Result<Option<Vec<Event>>, GuestError> {
        let start_ns = monotonic_ns();
        if let Stopped::Ended = self.client.stop()? {
            self.watchdog.dismiss();
            self.detached = true;
            return Ok(None);
        }
        let mut samples = Vec::with_capacity(self.threads.len());
        for core in 0..self.threads.len() {
            samples.push(self.sample_core(core)?);
        }
        self.client.resume()?;
        // From before the request to stop until after the request to go on: the guest stands still for
        // a part of this time, never for more.
        let pause_ns = monotonic_ns() - start_ns;
        let events = samples.into_iter().map(|mut sample| {
            sample.time_ns = start_ns;
            sample.pause_ns = pause_ns;
            Event::Sample(sample)
        });
        Ok(Some(events.collect()))
    }

    fn tracks(&self) -> u64 {
        self.threads.len() as u64
    }

    fn detach(&mut self) -> Result<(), GuestError> {
        if !self.detached {
            self.client.detach()?;
            self.watchdog.dismiss();
            self.detached = true;
        }
        Ok(())
    }
}
