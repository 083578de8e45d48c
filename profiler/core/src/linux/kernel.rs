//! A Linux kernel in the RAM of its VM: found without a register and without a file, while it runs.

use std::ops::Range;

use super::btf::Btf;
use super::kallsyms::{self, Addresses, Kallsyms};
use super::space::Space;
use crate::arch::x86_64::paging::Paging;
use crate::memory::Physical;

/// Where every kernel has its image: its first and its last address (`Documentation/arch/x86/x86_64/mm.rst`).
const IMAGE: Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_c000_0000;
/// What physical and virtual addresses of an image are multiples of (`CONFIG_PHYSICAL_ALIGN`).
const ALIGNMENT: u64 = 2 << 20;
/// How far in front of its table of tokens an image may start.
const IMAGE_BYTES_MAX: u64 = 256 << 20;
const BANNER: &[u8] = b"Linux version ";
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
}

/// The registers of a kernel with these page tables.
fn paging(root: u64, has_five_levels: bool) -> Paging {
    let levels = if has_five_levels { 1 << 12 } else { 0 };
    Paging { cr0: 1 << 31 | 1, cr3: root & !4095, cr4: 1 << 5 | levels, efer: Some(1 << 10) }
}

/// The text of a banner at a physical address.
fn banner_at(memory: &dyn Physical, at: u64) -> Option<String> {
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
    /// whose page tables lead to itself. `None` if there is none, or if it has no symbols of data (`CONFIG_KALLSYMS_ALL`).
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

    /// The kernel with these symbols, if it is there as they say.
    fn of(memory: &dyn Physical, mut symbols: Kallsyms) -> Option<Kernel> {
        let text = symbols.address("_text").or_else(|| symbols.address("_stext"))?;
        let banner_inside = symbols.address("linux_banner")?.wrapping_sub(text);
        let tables = symbols.address("init_top_pgt")?.wrapping_sub(text);
        if banner_inside > IMAGE_BYTES_MAX || tables > IMAGE_BYTES_MAX {
            return None;
        }
        let at = |physical: u64| Some((physical, banner_at(memory, physical.checked_add(banner_inside)?)?));
        // The banner's text also proves that each symbol has its own address, and not that of the next one.
        let (text_physical, banner) = match symbols.addresses() {
            Addresses::Physical => at(text)?,
            Addresses::Virtual => {
                let first = symbols.tokens_at() & !(ALIGNMENT - 1);
                let inside = text % ALIGNMENT;
                let candidates = (0..IMAGE_BYTES_MAX / ALIGNMENT).map_while(|step| first.checked_sub(step * ALIGNMENT));
                candidates.filter_map(|start| at(start + inside)).next()?
            }
        };
        let root = text_physical + tables;
        let leads_home = |paging: Paging, address| Space::new(memory, paging).physical(address) == Some(text_physical);
        let (paging, start) = [false, true].into_iter().find_map(|has_five_levels| {
            let paging = paging(root, has_five_levels);
            let start = match symbols.addresses() {
                Addresses::Virtual => leads_home(paging, text).then_some(text),
                Addresses::Physical => {
                    let places = (0..(IMAGE.end - IMAGE.start) / ALIGNMENT).map(|step| IMAGE.start + step * ALIGNMENT);
                    places.map(|place| place + text % ALIGNMENT).find(|place| leads_home(paging, *place))
                }
            };
            Some((paging, start?))
        })?;
        if symbols.addresses() == Addresses::Physical {
            symbols.shift(start.wrapping_sub(text_physical));
        }
        let (banner_at, ticks_at) = (text_physical + banner_inside, symbols.address("jiffies_64"));
        Some(Kernel { symbols, paging, text: start, text_physical, banner, banner_at, ticks_at })
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
        let (start, bytes) = (start?, end?.checked_sub(start?)?);
        let bytes =
            self.space(memory).bytes(start, usize::try_from(bytes).ok().filter(|_| bytes <= TYPES_BYTES_MAX)?)?;
        Btf::parse(&bytes, None)?;
        Some(bytes)
    }

    /// Whether the kernel is still where it was found: not so once the guest has started again.
    #[must_use]
    pub fn is_there(&self, memory: &dyn Physical) -> bool {
        banner_at(memory, self.banner_at).is_some_and(|banner| banner == self.banner)
            && self.space(memory).physical(self.text) == Some(self.text_physical)
    }
}
