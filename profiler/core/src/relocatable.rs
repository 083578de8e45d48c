//! Relocatable ELF files: modules of a Linux kernel (`.ko`). Nothing in them has an address; the kernel lays their code
//! out in the order of its sections, from the module's address on (`layout_sections` in `kernel/module/main.c`).

use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex};

use crate::arch::x86_64::orc::{ADDRESS_BYTES, ENTRY_BYTES, OrcTable};
use crate::elf::Elf;

/// Where the code sections of a file lie, from the first byte of its code on.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Section, first address, size.
    sections: Vec<(SectionIndex, u64, u64)>,
}

impl Layout {
    /// The layout of a relocatable file; `None` of a file whose sections have addresses.
    pub(crate) fn of(file: &Elf<'_>) -> Option<Layout> {
        if file.kind() != object::ObjectKind::Relocatable {
            return None;
        }
        let mut layout = Layout::default();
        let mut end = 0u64;
        for section in file.sections() {
            // What is needed once, at the start, is in memory that is freed after it.
            let is_kept = !section.name().unwrap_or("").starts_with(".init");
            let object::SectionFlags::Elf { sh_flags, .. } = section.flags() else { continue };
            let is_code = sh_flags.contains(object::elf::SHF_ALLOC) && sh_flags.contains(object::elf::SHF_EXECINSTR);
            if is_kept && is_code {
                let start = end.checked_next_multiple_of(section.align().max(1))?;
                end = start.checked_add(section.size())?;
                layout.sections.push((section.index(), start, section.size()));
            }
        }
        Some(layout)
    }

    /// All of the code, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.sections.last().map_or(0, |(_, start, bytes)| start + bytes)
    }

    /// The address of a symbol of code; `None` of another.
    pub(crate) fn address<'a>(&self, symbol: &impl ObjectSymbol<'a>) -> Option<u64> {
        let (_, start, bytes) = self.section(symbol.section_index()?)?;
        (symbol.address() < bytes).then(|| start + symbol.address())
    }

    /// They are in the order of the file.
    fn section(&self, index: SectionIndex) -> Option<(SectionIndex, u64, u64)> {
        let found = self.sections.binary_search_by_key(&index.0, |(index, ..)| index.0);
        found.ok().map(|place| self.sections[place])
    }

    /// The first address of a section of code; `None` of another.
    fn start(&self, section: SectionIndex) -> Option<u64> {
        self.section(section).map(|(_, start, _)| start)
    }

    /// The code sections.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        self.sections.iter().map(|(_, start, bytes)| *start..start + bytes)
    }
}

/// The unwind tables of a module, with the references of the file resolved as the kernel does (`module_finalize` and
/// `unwind_module_init` in `arch/x86/kernel`); `None` if it has none that can be used.
pub(crate) fn orc(file: &Elf<'_>, layout: &Layout) -> Option<OrcTable> {
    let (entries, _) = file.section_by_name(".orc_unwind")?.data().ok()?.as_chunks::<ENTRY_BYTES>();
    // Each address is relative to its own place, which the reference takes into account: what it adds to is the address.
    let resolve = |(offset, relocation): (u64, object::Relocation)| {
        let RelocationTarget::Symbol(index) = relocation.target() else { return None };
        let symbol = file.symbol_by_index(index).ok()?;
        let start = layout.start(symbol.section_index()?)?;
        let address = start.wrapping_add(symbol.address()).wrapping_add_signed(relocation.addend());
        let entry = entries.get(usize::try_from(offset).ok()? / ADDRESS_BYTES)?;
        Some((address, *entry))
    };
    OrcTable::of_entries(file.section_by_name(".orc_unwind_ip")?.relocations().filter_map(resolve).collect()).ok()
}
