//! A Linux kernel in the RAM of its VM: found without a register and without a file, while it runs.

use std::ops::Range;

use super::arch::{self, Place};
use super::btf::Btf;
use super::inferred::Inferred;
use super::kallsyms::{self, Addresses, Kallsyms};
use super::space::{Space, number};
use super::tasks;
use crate::arch::{Architecture, Paging};
use crate::memory::Physical;

/// What physical and virtual addresses of an image are multiples of (`CONFIG_PHYSICAL_ALIGN`).
pub(super) const ALIGNMENT: u64 = 2 << 20;
/// How far in front of its table of tokens an image may start.
pub(super) const IMAGE_BYTES_MAX: u64 = 256 << 20;
pub(super) const BANNER: &[u8] = b"Linux version ";
/// The longest banner that is read.
const BANNER_BYTES_MAX: usize = 512;
/// The largest description of types; Debian's kernel 7.3 has 5.3 MB.
const TYPES_BYTES_MAX: u64 = 64 << 20;

/// A kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Its own symbols, at the addresses at which it runs; not those of its modules.
    pub symbols: Kallsyms,
    /// What selects its address space.
    pub paging: Paging,
    /// Its first address.
    pub text: u64,
    /// The same, physical.
    pub text_physical: u64,
    /// What it prints first: "Linux version 6.1.0 ...".
    pub banner: String,
    /// Where that is in physical memory.
    banner_at: u64,
    /// Where it counts its ticks.
    ticks_at: Option<u64>,
    /// What was inferred, where its symbols have functions alone.
    inferred: Inferred,
}

/// The text of a banner at a physical address.
pub(super) fn banner_at(memory: &dyn Physical, at: u64) -> Option<String> {
    let mut start = [0; BANNER.len()];
    if !memory.read(at, &mut start) || start != BANNER {
        return None;
    }
    let mut bytes = [0; BANNER_BYTES_MAX];
    if !memory.read(at, &mut bytes) {
        return Some(String::from_utf8_lossy(BANNER).into_owned());
    }
    let end = bytes.iter().position(|byte| matches!(byte, 0 | b'\n')).unwrap_or(bytes.len());
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

impl Kernel {
    /// The kernel that runs in these ranges of physical memory. Of several images, as after a start by another kernel, it is the first
    /// whose page tables lead to itself. `None` if there is none.
    pub fn find(memory: &dyn Physical, ranges: &[Range<u64>]) -> Option<Kernel> {
        Kernel::find_after(memory, ranges, |_| true)
    }

    /// The same of a guest that has started again: the first that is elsewhere than the one that was, or at its place and not the same any more,
    /// and whose time passes. What a kernel leaves in memory when the guest starts again looks like one, but it does not count.
    pub fn find_after(memory: &dyn Physical, ranges: &[Range<u64>], lives: impl Fn(&Kernel) -> bool) -> Option<Kernel> {
        kallsyms::search(memory, ranges, |symbols| Kernel::of(memory, symbols).filter(&lives))
    }

    /// How many of its ticks have passed since it started. They stop while all CPUs have nothing to do.
    #[must_use]
    pub fn ticks(&self, memory: &dyn Physical) -> Option<u64> {
        self.space(memory).word(self.ticks_at?)
    }

    /// The same as if its tables had functions alone (`CONFIG_KALLSYMS_ALL` is off): tests compare the two.
    #[doc(hidden)]
    pub fn find_by_functions(memory: &dyn Physical, ranges: &[Range<u64>]) -> Option<Kernel> {
        kallsyms::search(memory, ranges, |symbols| Kernel::of(memory, symbols.functions()))
    }

    /// The kernel with these symbols, if it is there as they say.
    fn of(memory: &dyn Physical, mut symbols: Kallsyms) -> Option<Kernel> {
        let Place { paging, text, text_physical, banner_at: at } = arch::find(memory, &symbols)?;
        if symbols.addresses() == Addresses::Physical {
            symbols.shift(text.wrapping_sub(text_physical));
        }
        let banner = banner_at(memory, at)?;
        let of_code = || arch::ticks_at(&Space::new(memory, paging), &symbols);
        let ticks_at = symbols.address("jiffies_64").or_else(of_code);
        let inferred = Inferred::default();
        Some(Kernel { symbols, paging, text, text_physical, banner, banner_at: at, ticks_at, inferred })
    }

    /// One without symbols, for tests of what reads it.
    #[cfg(test)]
    pub(super) fn example(paging: impl Into<Paging>, text: u64) -> Kernel {
        let paging = paging.into();
        let (symbols, banner, inferred) = (Kallsyms::default(), String::new(), Inferred::default());
        Kernel { symbols, paging, text, text_physical: 0, banner, banner_at: 0, ticks_at: None, inferred }
    }

    /// How far from its first address the kernel's image reaches, in steps of what it is aligned to.
    pub(super) fn image_bytes(&self, memory: &dyn Physical) -> u64 {
        let space = self.space(memory);
        let is_mapped = |at: &u64| space.physical(self.text.wrapping_add(*at)) == Some(self.text_physical + at);
        let last = (0..IMAGE_BYTES_MAX).step_by(ALIGNMENT as usize).filter(is_mapped).last();
        last.map_or(0, |last| last + ALIGNMENT)
    }

    /// The address of a symbol, or of data that was found without one.
    #[must_use]
    pub fn address(&self, name: &str) -> Option<u64> {
        self.symbols.address(name).or_else(|| self.inferred.address(name))
    }

    /// The number that data with a name holds.
    pub fn value(&self, memory: &dyn Physical, name: &str) -> Option<u64> {
        match self.symbols.address(name) {
            Some(at) => self.space(memory).word(at),
            None => self.inferred.value(name),
        }
    }

    /// Takes note of data that was found without symbols.
    pub fn learn(&mut self, inferred: &Inferred) {
        self.inferred = inferred.clone();
    }

    /// Forgets its symbols, but for that of the list of tasks: they take megabytes, and what else is needed of them is known once its map is made.
    pub fn forget_symbols(&mut self) {
        self.symbols = self.symbols.named(&[tasks::FIRST]);
    }

    /// Whether its symbols are those of functions alone (`CONFIG_KALLSYMS_ALL` is off).
    #[must_use]
    pub fn has_functions_alone(&self) -> bool {
        self.symbols.address("linux_banner").is_none()
    }

    /// Its code, if its functions keep the frame pointer (`CONFIG_UNWINDER_FRAME_POINTER`, and all kernels of AArch64): where it starts, and its
    /// bytes.
    pub fn code_with_frame_pointers(&self, memory: &dyn Physical) -> Option<(u64, Vec<u8>)> {
        const PROLOGUE_BYTES: usize = 16;
        /// The most bytes of code: Debian's kernels have less than 24 MiB.
        const CODE_BYTES_MAX: u64 = 64 << 20;
        /// Functions that call others.
        const FUNCTIONS: [&str; 6] = ["schedule", "vfs_read", "vfs_write", "do_exit", "kthreadd", "worker_thread"];
        let space = self.space(memory);
        let has_frame = |name: &&'static str| {
            let mut code = [0; PROLOGUE_BYTES];
            let is_read = self.symbols.address(name).and_then(|at| space.read(at, &mut code));
            // Behind what tracing and branch tracking put in front of it.
            is_read.is_some() && code.windows(arch::x86_64::FRAME.len()).any(|window| window == arch::x86_64::FRAME)
        };
        let is_x86_64 = self.architecture() == Architecture::X86_64;
        if is_x86_64 && FUNCTIONS.into_iter().filter(has_frame).count() <= FUNCTIONS.len() / 2 {
            return None;
        }
        let bytes = self.symbols.address("_etext")?.checked_sub(self.text).filter(|bytes| *bytes <= CODE_BYTES_MAX)?;
        Some((self.text, space.bytes(self.text, bytes as usize)?))
    }

    /// Its processor.
    #[must_use]
    pub fn architecture(&self) -> Architecture {
        self.paging.architecture()
    }

    /// Its release, as `uname -r` prints it.
    #[must_use]
    pub fn release(&self) -> &str {
        self.banner.strip_prefix("Linux version ").and_then(|rest| rest.split(' ').next()).unwrap_or_default()
    }

    /// Its address space, for one walk.
    pub fn space<'a>(&self, memory: &'a dyn Physical) -> Space<'a> {
        Space::new(memory, self.paging)
    }

    /// The bytes of its description of types, for [`Btf::parse`]. `None` if it has none (`CONFIG_DEBUG_INFO_BTF`).
    #[must_use]
    pub fn types(&self, memory: &dyn Physical) -> Option<Vec<u8>> {
        let [start, end] = ["__start_BTF", "__stop_BTF"].map(|name| self.symbols.address(name));
        let Some((start, end)) = start.zip(end) else {
            return if self.has_functions_alone() { self.types_in_image(memory) } else { None };
        };
        let bytes = end.checked_sub(start).filter(|bytes| *bytes <= TYPES_BYTES_MAX)?;
        let bytes = self.space(memory).bytes(start, bytes as usize)?;
        Btf::parse(&bytes, None)?;
        Some(bytes)
    }

    /// The same by how it begins.
    fn types_in_image(&self, memory: &dyn Physical) -> Option<Vec<u8>> {
        /// Magic number, version, flags, bytes of the header.
        const START: [u8; 8] = [0x9f, 0xeb, 1, 0, 24, 0, 0, 0];
        const HEADER_BYTES: usize = 24;
        const CHUNK_BYTES: u64 = 1 << 20;
        let finder = memchr::memmem::Finder::new(&START);
        let mut chunk = vec![0; CHUNK_BYTES as usize + START.len() - 1];
        (0..self.image_bytes(memory)).step_by(CHUNK_BYTES as usize).find_map(|start| {
            let start = self.text_physical + start;
            let places = if memory.read(start, &mut chunk) { finder.find_iter(&chunk).collect() } else { Vec::new() };
            places.into_iter().find_map(|at| {
                let at = start + at as u64;
                let mut header = [0; HEADER_BYTES];
                let is_read = memory.read(at, &mut header);
                // The texts come last: where they start behind the header, and how long they are.
                let [texts_at, texts] = [16, 20].map(|at| number(&header, at, 4).unwrap_or(0));
                let bytes = (HEADER_BYTES as u64 + texts_at + texts).min(TYPES_BYTES_MAX);
                let mut found = vec![0; bytes as usize];
                (is_read && memory.read(at, &mut found) && Btf::parse(&found, None).is_some()).then_some(found)
            })
        })
    }

    /// Whether the kernel is still where it was found: not so once the guest has started again.
    #[must_use]
    pub fn is_there(&self, memory: &dyn Physical) -> bool {
        banner_at(memory, self.banner_at).is_some_and(|banner| banner == self.banner)
            && self.space(memory).physical(self.text) == Some(self.text_physical)
    }
}
